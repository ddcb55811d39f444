"""The WebSocket against clients that break the rules: each gets the right close code."""

import contextlib
import random
import struct
import time
from functools import partial

import numpy as np
import pytest

from shoal.state.snapshot import Field, Snapshot
from shoal.viewer.server import MAX_CLIENTS
from tests.viewer.fakes import FakeSession, reef
from tests.viewer.raw import Closed


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "https://127.0.0.1:PORT"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:PORT"}, 403),  # another origin than the host that was asked
        ({"Origin": "null"}, 403),
        ({"Origin": None}, 403),
        ({"Cookie": None}, 403),
        ({"Cookie": "shoal-PORT=wrong"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example:PORT", "Origin": "http://evil.example:PORT"}, 403),
        ({"Sec-WebSocket-Version": "8"}, 426),
        ({"Sec-WebSocket-Version": None}, 426),
        ({"Upgrade": None}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Connection": "keep-alive"}, 426),
        ({"Sec-WebSocket-Key": None}, 400),
        ({"Sec-WebSocket-Key": "c2hvcnQ="}, 400),
        ({"Sec-WebSocket-Key": "not base64 at all!!!!!!"}, 400),
        ({"Host": "localhost:PORT", "Origin": "http://localhost:PORT"}, 101),
    ],
)
def test_the_handshake_accepts_only_the_servers_own_page(serve, headers, status):
    running = serve()
    filled = {name: value and value.replace("PORT", str(running.port)) for name, value in headers.items()}
    with running.page(**filled) as page:
        assert page.status == status


def test_a_program_needs_the_token_and_no_origin(serve):
    running = serve()
    bearer = {"Cookie": None, "Authorization": f"Bearer {running.token}"}
    with running.page(Origin=None, **bearer) as page:
        assert page.status == 101
    with running.page(Origin="http://evil.example", **bearer) as page:
        assert page.status == 403


@pytest.mark.parametrize(
    "frame, code",
    [
        ({"payload": "{}", "masked": False}, 1002),
        ({"payload": "{}", "reserved": 0x40}, 1002),
        ({"payload": "{}", "opcode": 3}, 1002),
        ({"payload": "{}", "opcode": 11}, 1002),
        ({"payload": "{}", "opcode": 0}, 1002),
        ({"payload": "{}", "opcode": 2}, 1003),
        ({"payload": b"\xff\xfe"}, 1007),
        ({"payload": "a" * 4097}, 1009),
        ({"payload": "", "length": 1 << 40}, 1009),
        ({"payload": "", "length": (1 << 64) - 1}, 1009),
        ({"payload": "a" * 126, "opcode": 9}, 1002),
        ({"payload": "a", "opcode": 9, "final": False}, 1002),
        ({"payload": "", "opcode": 8}, 1000),
        ({"payload": b"\x03", "opcode": 8}, 1002),
        ({"payload": struct.pack(">H", 1005), "opcode": 8}, 1002),
        ({"payload": struct.pack(">H", 1001), "opcode": 8}, 1001),
        ({"payload": struct.pack(">H", 1000) + b"\xff", "opcode": 8}, 1007),
        ({"payload": "nonsense"}, 1008),
        ({"payload": "[" * 4000}, 1008),
        ({"payload": "9" * 4000}, 1008),
        ({"payload": "[]"}, 1008),
        ({"payload": "{}"}, 1008),
        ({"payload": '{"type": "step"}'}, 1008),
        ({"payload": '{"type": "watch"}'}, 1008),
        ({"payload": '{"type": "watch", "envs": 3}'}, 1008),
        ({"payload": '{"type": "watch", "envs": [true]}'}, 1008),
        ({"payload": '{"type": "watch", "envs": [0.0]}'}, 1008),
        ({"payload": '{"type": "watch", "envs": ["0"]}'}, 1008),
        ({"payload": '{"type": "watch", "envs": [0], "rate": "fast"}'}, 1008),
        ({"payload": '{"type": "watch", "envs": [0], "path": "/etc"}'}, 1008),
    ],
)
def test_a_frame_that_is_not_allowed_closes_with_its_code(serve, frame, code):
    running = serve()
    with running.page() as page, running.page() as other:
        page.send(**frame)
        assert page.closed() == code
        assert other.answers()


def test_a_length_that_is_not_in_the_shortest_form_closes(serve):
    with serve().page() as page:
        page.sock.sendall(struct.pack(">BBH4s", 0x81, 0x80 | 126, 3, b"\0\0\0\0") + b"abc")
        assert page.closed() == 1002


def test_a_text_in_fragments_is_joined_and_pings_in_between_are_answered(serve):
    session = FakeSession()
    with serve(session).page() as page:
        page.send('{"type": "watch", ', final=False)
        page.send("now", opcode=9)
        page.send('"envs": [7]', opcode=0, final=False)
        page.send("}", opcode=0)
        found = set()
        while found != {"pong", "frame"}:
            opcode, payload = page.frame()
            if opcode == 10:
                assert payload == b"now"
                found.add("pong")
            elif b'"frame"' in payload:
                found.add("frame")


def test_fragments_together_must_not_exceed_the_message_limit(serve):
    with serve().page() as page:
        page.send("a" * 4090, final=False)
        assert page.answers()  # a ping does not count
        page.send("a" * 7, opcode=0, final=False)
        assert page.closed() == 1009
    with serve().page() as page:
        page.send("a", final=False)
        page.send("{}")  # a new text within another
        assert page.closed() == 1002


def test_the_17th_page_is_rejected_until_another_closes(serve):
    running = serve()
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(running.page()) for _ in range(MAX_CLIENTS)]
        assert MAX_CLIENTS == 16 and all(page.status == 101 for page in pages)
        with running.page() as page:
            assert page.status == 503
        assert all(page.answers() for page in pages)
        pages[0].sock.close()
        deadline = time.monotonic() + 5
        while stack.enter_context(running.page()).status != 101:
            assert time.monotonic() < deadline


def test_pings_of_a_page_that_never_reads_take_no_memory(serve):
    session = FakeSession()
    running = serve(session)
    with running.page(receive_bytes=16 << 10) as page:
        page.sock.sendall((bytes([0x89, 0x80 | 125]) + bytes(4 + 125)) * 20_000)
        page.watch(31)
        peak, deadline = 0, time.monotonic() + 20
        while session.watched != [31]:  # then it has read all that came before
            (client,) = running.server._clients
            peak = max(peak, client._writer.transport.get_write_buffer_size())
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert peak < 1 << 16


def test_a_page_that_reads_slowly_misses_frames_and_gets_the_newest(serve):
    session = FakeSession(reef)
    running = serve(session)
    with running.page(receive_bytes=16 << 10) as page:
        page.watch(0)
        assert page.until("frame")["tick"] == 0
        peak = 0
        for _ in range(60):  # frames of over 36 KB: what the kernel keeps is 15 of them, what we keep is one
            session.step()
            time.sleep(0.02)
            (client,) = running.server._clients
            peak = max(peak, client._writer.transport.get_write_buffer_size())
        assert 0 < peak < 45_000
        ticks = [page.until("frame")["tick"]]
        while ticks[-1] != 60:
            ticks.append(page.until("frame")["tick"])
        assert ticks == sorted(set(ticks)) and len(ticks) < 40


def heavy(env_id, episode, tick, size=1 << 20):
    """A megabyte that is another one each time."""
    noise = Field("noise", np.random.default_rng(tick).integers(0, 255, size, np.uint8))
    return Snapshot(env_id, episode, tick, time.monotonic_ns(), {"noise": noise})


def test_a_page_that_reads_nothing_is_disconnected(serve):
    session = FakeSession(heavy, auto=True)
    running = serve(session, stall_s=0.5)
    with running.page() as page, running.page() as other:
        page.watch(0)
        other.watch(1)
        start = time.monotonic()
        while len(running.server._clients) == 2 and time.monotonic() < start + 15:
            other.until("frame")
        assert len(running.server._clients) == 1
        assert time.monotonic() - start >= 0.5
        with pytest.raises(Closed):
            while True:
                page.frame()


def test_a_page_that_reads_a_little_at_a_time_stays_connected(serve):
    session = FakeSession(partial(heavy, size=3 << 20))
    with serve(session, stall_s=0.4).page(receive_bytes=64 << 10) as page:
        page.watch(0)
        start = time.monotonic()
        while len(page.buffer) < 3 << 20:  # about two seconds
            time.sleep(0.03)
            chunk = page.sock.recv(64 << 10)
            assert chunk, "dropped"
            page.buffer += chunk
        assert time.monotonic() - start > 0.8
        assert page.until("frame")["changed"] == [[0, 0, 3 << 20]]


def test_random_frames_do_not_harm_the_server(serve):
    running = serve()
    rng = random.Random(1)
    for _ in range(60):
        with running.page() as page, contextlib.suppress(OSError):
            page.sock.sendall(rng.randbytes(rng.randrange(1, 300)))
            if rng.random() < 0.5:
                page.sock.close()
    assert running.get("/")[0] == 200
