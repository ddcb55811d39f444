"""A server in a thread, and a client that speaks HTTP and WebSocket byte by byte, sharing no code with it."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
import time

import numpy as np

from shoal.viewer.server import Server

ASSETS = {"/": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage"}


class Running:
    """A server that runs until `stop`; whatever it would have put on the console is in `noise`."""

    def __init__(self, session, assets=ASSETS, **options):
        self.session = session
        self.noise = []
        self._options = options
        self._assets = assets
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def _main(self):
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda loop, context: self.noise.append(context))
        self.server = Server(self.session, self._assets, **self._options)
        await self.server.start()
        self.port = int(self.server.guard.link.split(":")[2].split("/")[0])
        self.token = self.server.guard.token
        self._ready.set()
        await self._done.wait()
        await self.server.close()

    def stop(self):
        with contextlib.suppress(RuntimeError):  # it was stopped before
            self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server does not end"

    def connect(self, receive_bytes=None):
        sock = socket.socket()
        sock.settimeout(10)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def ask(self, data):
        """Sends bytes, and reads until the server closes: status, headers by names in lower case, body."""
        with self.connect() as sock:
            with contextlib.suppress(OSError):  # it may have had enough before all of it was sent
                sock.sendall(data)
            return parse(read_all(sock))

    def get(self, path="/", method="GET", host=None, token=True, **headers):
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port}'}"]
        if token:
            lines.append(f"Authorization: Bearer {self.token if token is True else token}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return self.ask("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def page(self, receive_bytes=None, **headers):
        return Page(self, receive_bytes, **headers)


def read_all(sock):
    found = b""
    while chunk := sock.recv(65536):
        found += chunk
    return found


def parse(data):
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, body


def decode(payload, schemas):
    """A message's JSON; a frame with all its fields, of which those that changed have their data.

    `schemas` is what this page was sent so far, by environment.
    """
    (length,) = struct.unpack_from("<I", payload)
    message = json.loads(payload[4 : 4 + length], parse_constant=lambda word: 1 / 0)
    start = -(-(4 + length) // 8) * 8
    assert not any(payload[4 + length : start])
    if message["type"] == "frame":
        message["has_schema"] = "fields" in message
        held = schemas.get(message["env"])
        if not message["has_schema"]:
            assert held is not None and held[0] == message["schema"], "a frame of a schema that was not sent"
            message["fields"] = [dict(one) for one in held[1]]
        schemas[message["env"]] = message["schema"], [dict(one) for one in message["fields"]]
        for index, offset, size in message["changed"]:
            field, at = message["fields"][index], start + offset
            assert at % 8 == 0 and at + size <= len(payload)
            array = np.frombuffer(payload, field["dtype"], size // np.dtype(field["dtype"]).itemsize, at)
            field["data"] = array.reshape(field["shape"])
    return message


class Closed(Exception):
    """The server closed: its code, or None where there was no close frame."""


class Page:
    """The other end of a socket."""

    def __init__(self, running, receive_bytes, path="/socket", **headers):
        self.sock = running.connect(receive_bytes)
        self.buffer = b""
        self.schemas = {}
        key = base64.b64encode(os.urandom(16)).decode()
        sent = {
            "Host": f"127.0.0.1:{running.port}",
            "Upgrade": "websocket",
            "Connection": "keep-alive, Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            "Origin": f"http://127.0.0.1:{running.port}",
            "Cookie": f"other=1; shoal-{running.port}={running.token}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [
            f"GET {path} HTTP/1.1",
            *(f"{name}: {sent[name]}" for name in sent if sent[name] is not None),
        ]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self.buffer:
            chunk = self.sock.recv(65536)
            assert chunk, f"closed before the handshake ended: {self.buffer!r}"
            self.buffer += chunk
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        if self.status == 101:
            digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
            assert base64.b64encode(digest) in head

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def send(self, payload, opcode=1, final=True, masked=True, reserved=0, length=None):
        payload = payload.encode() if isinstance(payload, str) else payload
        size = len(payload) if length is None else length
        first = (0x80 if final else 0) | reserved | opcode
        mark = 0x80 if masked else 0
        if size < 126:
            head = struct.pack(">BB", first, mark | size)
        elif size < 65536:
            head = struct.pack(">BBH", first, mark | 126, size)
        else:
            head = struct.pack(">BBQ", first, mark | 127, size)
        mask = os.urandom(4) if masked else b""
        body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if masked else payload
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(head + mask + body)

    def watch(self, *envs, rate=60):
        self.send(json.dumps({"type": "watch", "envs": list(envs), "rate": rate}))

    def answers(self):
        """Whether a ping comes back."""
        self.send("are you there?", opcode=9)
        while (frame := self.frame())[0] != 10:
            pass
        return frame[1] == b"are you there?"

    def _take(self, size):
        while len(self.buffer) < size:
            try:
                chunk = self.sock.recv(1 << 20)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise Closed(None)
            self.buffer += chunk
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def frame(self):
        """(opcode, payload) of the next frame; the server sends whole ones, unmasked."""
        first, second = self._take(2)
        assert first & 0xF0 == 0x80 and not second & 0x80
        length = second
        if length == 126:
            (length,) = struct.unpack(">H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self._take(8))
        payload = self._take(length)
        if first & 15 == 8:
            raise Closed(struct.unpack(">H", payload[:2])[0] if payload else None)
        return first & 15, payload

    def message(self):
        """The next message, decoded."""
        opcode, payload = self.frame()
        assert opcode == 2
        return decode(payload, self.schemas)

    def until(self, kind, accept=lambda message: True):
        """The next message of a type that is accepted; fails after 10 s."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            message = self.message()
            if message["type"] == kind and accept(message):
                return message
        raise AssertionError(f"no {kind} within 10 s")

    def closed(self):
        """Reads to the end; the code the server closed with."""
        try:
            while True:
                self.frame()
        except Closed as end:
            return end.args[0]
