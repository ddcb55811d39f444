"""Which requests the server answers: each check against a client that tries to get past it."""

import contextlib
import random
import socket
import time

import pytest

from shoal.errors import ShoalError
from shoal.viewer.guard import Guard, is_loopback
from shoal.viewer.http import MAX_HEAD, Refusal, Request, read_assets
from shoal.viewer.server import MAX_CONNECTIONS, Server
from tests.viewer.fakes import FakeSession
from tests.viewer.raw import parse, read_all


def test_the_link_sets_a_cookie_that_scripts_cannot_read(serve):
    running = serve()
    path = running.server.guard.link.removeprefix(f"http://127.0.0.1:{running.port}")
    status, headers, body = running.get(path, token=False)
    assert (status, headers["location"], body) == (303, "/", b"")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    status, _, body = running.get("/", token=False, Cookie=f"a=b; {cookie}")
    assert (status, body) == (200, b"page")


def test_a_token_is_long_and_each_server_has_its_own():
    tokens = {Guard("127.0.0.1", 1).token for _ in range(50)}
    assert len(tokens) == 50
    assert all(len(token) >= 22 for token in tokens)  # 128 bits in base64


@pytest.mark.parametrize(
    "path", ["/", "/index.html", "/socket", "/nothing", "/?x=1", "/?token=", "/a?token=TOKEN"]
)
@pytest.mark.parametrize(
    "cookie", [None, "shoal-PORT=", "shoal-PORT=wrong", "shoal=TOKEN", "x=shoal-PORT=TOKEN"]
)
def test_without_the_token_every_path_gets_the_same_answer(serve, path, cookie):
    running = serve()
    fill = lambda text: text.replace("TOKEN", running.token).replace("PORT", str(running.port))  # noqa: E731
    headers = {} if cookie is None else {"Cookie": fill(cookie)}
    status, headers, body = running.get(fill(path), token=False, **headers)
    assert status == 403 and "set-cookie" not in headers
    assert b"page" not in body and running.token.encode() not in body


def test_a_bearer_token_must_be_right(serve):
    running = serve()
    assert running.get("/", token=running.token[:-1] + "~")[0] == 403
    assert running.get("/", token=running.token + "a")[0] == 403
    assert running.get("/", token=False, Authorization=f"Basic {running.token}")[0] == 403
    assert running.get("/")[0] == 200


def test_a_ticket_opens_the_page_once(serve):
    running = serve()
    path = running.server.guard.ticket_link().partition(f":{running.port}")[2]
    assert running.token not in path
    assert [running.get(path, token=False)[0] for _ in range(2)] == [303, 403]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:PORT",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1.evil.example:PORT",
        "localhost.:PORT",
    ]
    + [
        "127.0.0.1:PORT:PORT",
        "127.1:PORT",
        "0.0.0.0:PORT",
        "[::2]:PORT",
        "::1:PORT",
        "",
        ":PORT",
        "a@127.0.0.1:PORT",
    ],
)
def test_an_unknown_host_is_rejected_before_anything_else(serve, host):
    running = serve()
    host = host.replace("PORT", str(running.port))
    for path, method in (("/", "GET"), (f"/?token={running.token}", "GET"), ("/nothing", "POST")):
        asked = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {running.token}\r\n\r\n"
        status, headers, body = running.ask(asked.encode())
        assert status == 403 and "set-cookie" not in headers and b"use the same port" in body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_names_of_this_machine_are_accepted(serve, host):
    running = serve()
    assert running.get("/", host=f"{host}:{running.port}")[0] == 200


def test_a_missing_or_repeated_host_is_rejected(serve):
    running = serve()
    line = f"Host: 127.0.0.1:{running.port}\r\n"
    assert running.ask(b"GET / HTTP/1.1\r\n\r\n")[0] == 403
    assert running.ask(f"GET / HTTP/1.1\r\n{line}{line}\r\n".encode())[0] == 400
    assert running.ask(f"GET / HTTP/1.1\r\n{line}host: evil.example\r\n\r\n".encode())[0] == 400


@pytest.mark.parametrize(
    "method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get"]
)
def test_only_get_is_answered(serve, method):
    status, headers, _ = serve().get("/", method=method)
    assert status == 405 and headers["allow"] == "GET"


def test_a_request_from_another_site_is_rejected_even_with_the_cookie(serve):
    running = serve()
    for path in ("/", f"/?token={running.token}", "/socket"):
        status, headers, _ = running.get(path, Sec_Fetch_Site="cross-site")
        assert status == 403 and "set-cookie" not in headers
    assert running.get("/", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "//etc/passwd",
        "/etc/passwd",
        "/./index.html",
        "/index.html/",
    ]
    + ["/index.html%00", "/page/index.html", "/.hidden.js", "/notes.txt", "/sub", "/sub/", "/\\..\\x"],
)
def test_no_path_reaches_the_file_system(serve, path, tmp_path):
    (tmp_path / "page" / "sub").mkdir(parents=True)
    for name in ("server.py", "page/index.html", "page/.hidden.js", "page/notes.txt", "page/sub/view.js"):
        (tmp_path / name).write_text(name)
    running = serve(assets=read_assets(tmp_path / "page"))
    (tmp_path / "page" / "index.html").unlink()  # read at the start, so it is served all the same
    assert running.get("/index.html")[2] == running.get("/")[2] == b"page/index.html"
    assert running.get("/sub/view.js")[1]["content-type"] == "text/javascript; charset=utf-8"
    status, _, body = running.get(path)
    assert (status, body) == (404, b"no such file\n")


def test_every_answer_has_the_security_headers(serve, tmp_path):
    (tmp_path / "index.html").write_text("x")
    running = serve(assets=read_assets(tmp_path))
    answers = [
        running.get("/"),
        running.get("/none"),
        running.get("/", token=False),
        running.get("/", host="evil.example"),
        running.get(f"/?token={running.token}"),
        running.ask(b"nonsense\r\n\r\n"),
    ]
    assert [status for status, _, _ in answers] == [200, 404, 403, 403, 303, 400]
    for _, headers, body in answers:
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; img-src 'self' blob: data:;")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["connection"] == "close"
        assert not any(name.startswith("access-control") for name in headers)
        assert int(headers["content-length"]) == len(body)


BAD_HEADS = [
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/2\r\n\r\n",
    b"GET / HTTP/1.1 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.10\r\n\r\n",
    b"GET  / HTTP/1.1\r\n\r\n",
    b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"GET /\xc3\xa4 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET / HTTP/1.1\r\n folded: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: \x01\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nnothing\r\n\r\n",
    b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
]


@pytest.mark.parametrize("data", BAD_HEADS)
def test_a_malformed_head_gets_400(serve, data):
    assert serve().ask(data)[0] == 400


@pytest.mark.parametrize(
    "header", [{"Content_Length": "5"}, {"Content_Length": "0x0"}, {"Transfer_Encoding": "chunked"}]
)
def test_a_request_with_a_body_is_rejected(serve, header):
    assert serve().get("/", **header)[0] == 400
    assert serve().get("/", method="POST", **header)[0] == 405


def test_a_head_of_more_than_8_kib_gets_431_and_a_shorter_one_is_read(serve):
    running = serve()
    assert running.get("/", X="a" * (MAX_HEAD - 500))[0] == 200
    assert running.get("/", X="a" * MAX_HEAD)[0] == 431
    assert running.ask(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100_000)[0] == 431
    assert running.ask(b"A" * 300_000)[0] == 431


def test_a_slow_request_is_ended_at_the_deadline(serve):
    running = serve(handshake_s=0.3)
    with running.connect() as sock:
        start = time.monotonic()
        found = b""
        sock.settimeout(0.02)
        while time.monotonic() < start + 8:
            with contextlib.suppress(OSError):
                sock.sendall(b"x")
            try:
                chunk = sock.recv(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if not chunk:
                break
            found += chunk
        took = time.monotonic() - start
    assert parse(found)[0] == 408
    assert 0.2 < took < 4


def test_a_silent_connection_is_ended_and_a_closed_one_is_removed(serve):
    running = serve(handshake_s=0.2)
    with running.connect() as sock:
        assert parse(read_all(sock))[0] == 408
    with running.connect() as sock:
        sock.sendall(b"GET / HT")
        sock.shutdown(socket.SHUT_WR)
        assert parse(read_all(sock))[0] == 400
    with running.connect() as sock:
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    assert running.get("/")[0] == 200


def test_excess_connections_are_rejected_until_others_close(serve):
    running = serve(handshake_s=3)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(running.connect()) for _ in range(MAX_CONNECTIONS)]
        time.sleep(0.2)
        with running.connect() as sock:
            assert parse(read_all(sock))[0] == 503
        held[0].close()
        time.sleep(0.2)
        assert running.get("/")[0] == 200


def test_random_bytes_do_not_harm_the_server(serve):
    running = serve(handshake_s=0.2)
    rng = random.Random(0)
    pieces = [
        b"GET ",
        b"/socket",
        b" HTTP/1.1",
        b"\r\n",
        b"\r\n\r\n",
        b"Host: ",
        b"Upgrade: websocket",
        b"\x00",
        b"\xff",
    ]
    pieces.append(f"127.0.0.1:{running.port}".encode())
    for _ in range(200):
        data = b"".join(rng.choice([rng.choice(pieces), rng.randbytes(rng.randrange(40))]) for _ in range(12))
        with running.connect() as sock, contextlib.suppress(ConnectionError):
            sock.sendall(data)
            if rng.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                assert read_all(sock).startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    assert running.get("/")[0] == 200


def test_a_network_address_needs_the_token_and_is_an_accepted_host():
    guard = Guard("192.0.2.7", 9000)
    assert guard.link.startswith("http://192.0.2.7:9000/?token=")
    with pytest.raises(Refusal) as refused:
        guard.check(Request("GET", "/", "", {"host": "192.0.2.7:9000"}))
    assert refused.value.status == 403
    bearer = {"authorization": f"Bearer {guard.token}"}
    assert guard.check(Request("GET", "/", "", {"host": "192.0.2.7:9000", **bearer})) is None
    with pytest.raises(Refusal):
        guard.check(Request("GET", "/", "", {"host": "192.0.2.8:9000", **bearer}))


def test_an_unspecified_address_accepts_ip_hosts_but_no_names():
    guard = Guard("0.0.0.0", 9000)
    bearer = {"authorization": f"Bearer {guard.token}"}
    assert guard.check(Request("GET", "/", "", {"host": "192.0.2.8:9000", **bearer})) is None
    with pytest.raises(Refusal):
        guard.check(Request("GET", "/", "", {"host": "evil.example:9000", **bearer}))


def test_is_loopback_recognises_loopback_addresses():
    assert all(map(is_loopback, ["127.0.0.1", "localhost", "::1", "127.8.8.8"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.0.2.7", "example.org", ""]))


def test_the_server_listens_only_on_loopback_by_default(serve):
    running = serve()
    assert [sock.getsockname()[0] for sock in running.server._server.sockets] == ["127.0.0.1"]


def test_a_port_in_use_raises_a_clear_error(serve):
    import asyncio

    running = serve()
    with pytest.raises(ShoalError, match="the port is in use; choose another --port"):
        asyncio.run(Server(FakeSession(), {}, port=running.port).start())
    with pytest.raises(ShoalError, match="cannot listen on no.such.host.invalid port 0"):
        asyncio.run(Server(FakeSession(), {}, host="no.such.host.invalid").start())
