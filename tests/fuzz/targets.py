"""Everything that reads bytes from outside, as functions of bytes.

Each returns, or raises one of the exceptions that its callers are promised; anything else, a signal above
all, is a finding. What a target opens it also uses: damage that is accepted must do no harm later.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import shoal
from shoal.errors import (
    CorruptFileError,
    LayoutError,
    NoRoomError,
    PluginError,
    SessionError,
    ShoalError,
    VersionError,
    WorkerError,
)
from shoal.memory import Layout, Segment
from shoal.replay import ReplayBuffer
from shoal.state import names, notes
from shoal.state.attach import Session
from shoal.state.recording import Recording, read_recording, write_recording
from shoal.state.snapshot import Field, Snapshot
from shoal.state.windows import WriteWindow, decode
from shoal.viewer import websocket
from shoal.viewer.guard import Guard
from shoal.viewer.http import MAX_HEAD, Refusal, read_request
from shoal.viewer.protocol import BadMessage, BadRequest, read_watch
from shoal.viewer.websocket import Closing, Incoming
from tests.fuzz import arguments, tables

SMALL = Layout({"reward": (np.float64, (8,)), "frame": (np.uint8, (3, 50))})
FIELDS = {"number": (np.uint64, ()), "body": (np.uint8, (24,))}


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    allowed: tuple[type[BaseException], ...]
    repair: Callable[[bytes], bytes] = lambda data: data
    weight: float = 1.0
    """How many cases it gets, of those that are asked for: some are slow."""


@functools.cache
def directory() -> Path:
    """Memory, not a disk, unless FUZZ_DIRECTORY says otherwise."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    made = Path(tempfile.mkdtemp(prefix="fuzz-", dir=os.environ.get("FUZZ_DIRECTORY", memory)))
    made.chmod(0o700)
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == owner else None)
    return made


def _file(name: str, data: bytes) -> Path:
    path = directory() / f"{name}-{os.getpid()}"
    path.write_bytes(data)
    return path


# -- segments and replay files ------------------------------------------------------------------------


def repaired_segment(data: bytes) -> bytes:
    """Sizes and the digest agree again, so that what is behind them is read."""
    if len(data) < 128:
        return data
    fixed = bytearray(data)
    (schema_bytes,) = struct.unpack_from("<Q", fixed, 40)
    fixed[0:8] = b"SHOALSEG"
    struct.pack_into("<Q", fixed, 24, len(fixed))
    if schema_bytes > len(fixed):
        end = bytes(fixed[128:]).find(b"\0")
        schema_bytes = end if end > 0 else 0
        struct.pack_into("<Q", fixed, 40, schema_bytes)
    fixed[48:80] = hashlib.sha256(fixed[128 : 128 + schema_bytes]).digest()
    return bytes(fixed)


def _segment(data: bytes) -> None:
    fd = os.memfd_create("fuzz")
    os.write(fd, data)
    with Segment.from_fileno(fd, readonly=len(data) % 2 == 0) as segment:
        for name in segment:
            segment[name].tobytes()


@functools.cache
def _segment_seeds() -> list[bytes]:
    found = []
    for layout in (SMALL, Layout({"a": (np.bool_, ())}), Layout({})):
        path = directory() / "seed.seg"
        with Segment.file(layout, path) as segment:
            if "frame" in segment:
                segment["frame"][:] = 7
        found.append(path.read_bytes())
        path.unlink()
    return found


def _schema(data: bytes) -> None:
    Layout.from_schema(data)


def _ring_file(data: bytes) -> None:
    path = _file("ring", data)
    with ReplayBuffer.open(path, seed=0) as buffer:
        assert 0 <= len(buffer) <= buffer.capacity
        latest = buffer.latest(8)
        if len(latest.ids) and buffer.capacity < 10_000:
            buffer.sample(4)
            buffer.fetch(latest.ids)
        if buffer.capacity < 10_000 and list(buffer.fields) == list(FIELDS):
            before = buffer.total_pushed
            row = {name: np.zeros(shape, dtype) for name, (dtype, shape) in buffer.fields.items()}
            number = buffer.push(row)
            assert buffer.total_pushed == before + 1 and number in buffer.latest(1).ids


@functools.cache
def _ring_seeds() -> list[bytes]:
    found = []
    for level, rows in (("process", 11), ("sync", 3)):
        path = directory() / "seed.ring"
        with ReplayBuffer(8, FIELDS, path=path, durability=level, seed=0) as buffer:
            body = np.arange(24 * rows, dtype=np.uint8).reshape(rows, 24)
            buffer.extend({"number": np.arange(rows, dtype=np.uint64), "body": body})
        found.append(path.read_bytes())
        path.unlink()
    return found


# A directory as one input: names, a colon, contents, each with its length.
def _packed(folder: Path) -> bytes:
    parts = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        parts.append(f"{path.name}:{len(content):6}:".encode() + content)
    return b"".join(parts)


def _saved(data: bytes) -> None:
    folder = directory() / f"saved-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    at = 0
    for name in ("0.npy", "1.npy", "ids.npy", "manifest.json"):
        head = name.encode() + b":"
        begin = data.find(head, at)
        if begin < 0:
            continue
        begin += len(head) + 7
        following = [data.find(other, begin) for other in (b"1.npy:", b"ids.npy:", b"manifest.json:")]
        end = min((place for place in following if place >= 0), default=len(data))
        (folder / name).write_bytes(data[begin:end])
        at = begin
    with ReplayBuffer.load(folder, seed=0) as buffer:
        assert len(buffer.latest(8).ids) == len(buffer)
        if len(buffer):
            buffer.sample(4)


@functools.cache
def _saved_seeds() -> list[bytes]:
    found = []
    envs = shoal.make_vec("CartPole-v1", 2, session=None)
    for buffer in (ReplayBuffer(8, FIELDS, seed=0), ReplayBuffer.for_env(envs, 16, seed=0)):
        with buffer:
            if type(buffer) is ReplayBuffer:
                buffer.extend({"number": np.arange(5, dtype=np.uint64), "body": np.ones((5, 24), np.uint8)})
            folder = directory() / "seed"
            buffer.save(folder)
            found.append(_packed(folder))
            shutil.rmtree(folder)
    envs.close()
    return found


# -- checkpoints of environments ----------------------------------------------------------------------

ENVS = ("CartPole-v1", "Snake-v0", "Reef-v0", "Squared-v0", "Acrobot-v1", "Pixels-v0")


@functools.cache
def _restoring(name: str, pid: int) -> Any:
    envs = shoal.make_vec(name, 4, session=None, num_threads=1)
    envs.reset(seed=0)
    return envs


def _checkpoint(data: bytes) -> None:
    envs = _restoring(ENVS[data[0] % len(ENVS)] if data else ENVS[0], os.getpid())
    envs.restore_env(0, data[1:])
    actions = np.zeros(envs.action_space.shape, envs.action_space.dtype)
    for _ in range(3):
        envs.step(actions)
    envs.save_env(0)
    if envs.has_extension("shoal.render/1"):
        envs.render_env(0)


@functools.cache
def _checkpoint_seeds() -> list[bytes]:
    found = []
    for number, name in enumerate(ENVS):
        envs = _restoring(name, os.getpid())
        actions = np.zeros(envs.action_space.shape, envs.action_space.dtype)
        for _ in range(5):
            envs.step(actions)
        found.append(bytes([number]) + envs.save_env(1))
    return found


# -- sessions -----------------------------------------------------------------------------------------


def _window(data: bytes) -> None:
    snapshot, schema = decode([0, 1, 2, 3, 4], bytearray(data))
    with contextlib.suppress(SessionError):  # the same generation, but not the same content
        decode([0, 1, 2, 3, 4], bytearray(data[: len(data) // 2]), schema)
    for field in (*snapshot.world.values(), *snapshot.step.values()):
        field.data.tobytes()


@functools.cache
def _window_seeds() -> list[bytes]:
    world = {
        "x": Field("x", np.arange(6, dtype=np.float32).reshape(2, 3), columns=("a", "b", "c")),
        "g": Field("g", np.zeros((4, 4), np.uint8), role="grid"),
    }
    step = {"reward": Field("reward", np.float64(1.5).reshape(()))}
    found = []
    for snapshot in (Snapshot(0, 1, 2, 3, world, step), Snapshot(0, 1, 2, 3, {}, {}, "an error")):
        window = WriteWindow(snapshot)
        found.append(bytes(window._window.read(0)[2]))
        window.close()
    return found


def _recording(data: bytes) -> None:
    """A watcher reads a recording whose memory has these bytes."""
    with Segment.published(Layout({"recording": (np.uint8, (max(1, len(data)),))})) as segment:
        segment["recording"][: len(data)] = np.frombuffer(data, np.uint8)
        with segment.reader() as reader:
            read_recording(os.dup(reader.fileno()))


def _recording_seeds() -> list[bytes]:
    world = {"w": Field("w", np.arange(6, dtype=np.int32))}
    step = {"frame": Field("frame", np.zeros((2, 2, 3), np.uint8), "image")}
    snapshots = (
        Snapshot(0, 1, 0, 3, world),
        Snapshot(0, 1, 1, 4, world, step),
        Snapshot(0, 1, 2, 5, world, step),
    )
    with write_recording(Recording(0, 1, 2.0, 2, snapshots)) as segment:
        return [segment["recording"].tobytes()]


def _told(data: bytes) -> None:
    """A session whose other end says `data`: facts in a descriptor, then notes."""
    (facts_bytes,) = struct.unpack_from("<H", data.ljust(2, b"\0"))
    facts, more = data[2 : 2 + facts_bytes], data[2 + facts_bytes :]
    ours, theirs = socket.socketpair()
    try:
        theirs.settimeout(1)
        fd = os.memfd_create("facts")
        os.write(fd, facts)
        socket.send_fds(theirs, [notes._FORMAT.pack(notes.FACTS, 0, 0, *[0] * notes.MAX_WATCHED)], [fd])
        window = os.memfd_create("window")
        os.write(window, more[: 1 << 16])
        for begin in range(0, min(len(more), 1500), notes._FORMAT.size):  # what a socket takes unread
            part = more[begin : begin + notes._FORMAT.size]
            if begin % 2:
                theirs.sendall(part)
            else:
                socket.send_fds(theirs, [part], [window])
        theirs.shutdown(socket.SHUT_WR)
        os.close(fd), os.close(window)
        with patch.object(names, "connect", lambda path: ours), Session(Path("/nowhere/fuzz")) as session:
            _ = session.alive  # takes in what has come
            session.counters()
            session.watch([0])
    finally:
        theirs.close()
        ours.close()


def _told_seeds() -> list[bytes]:
    facts = b'{"name": "run", "num_worlds": 4, "env": "CartPole-v1", "pid": 1, "num_envs": 4}'
    values = [0] * notes.MAX_WATCHED
    said = b"".join(
        notes._FORMAT.pack(kind, 1, number, *values)
        for kind, number in (
            (notes.COUNTERS, 0),
            (notes.WATCH, 1),
            (notes.WINDOW, 0),
            (notes.WINDOW, 3),
            (notes.RECORDED, 1),
        )
    )
    return [struct.pack("<H", len(facts)) + facts + said]


@functools.cache
def _hosting(pid: int) -> Any:
    os.environ["SHOAL_SESSION_DIR"] = str(directory())
    envs = shoal.make_vec("CartPole-v1", 4, session=f"fuzz-{pid}")
    envs.reset(seed=0)
    return envs


def _host(data: bytes) -> None:
    """The host thread of a run is sent `data`, with a descriptor or two, and goes on."""
    envs = _hosting(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(2)
        channel.connect(envs._hosted.address)
        if len(data) % 3 == 0 and data:
            socket.send_fds(channel, [data], [0, 1][: 1 + len(data) % 2])
        else:
            channel.sendall(data)
        channel.shutdown(socket.SHUT_WR)
        try:
            while channel.recv(4096):
                pass
        except ConnectionResetError:
            pass
    envs.step(np.zeros(4, np.int64))


def _host_seeds() -> list[bytes]:
    values = [0, 1, 2, 3] + [0] * (notes.MAX_WATCHED - 4)
    return [notes._FORMAT.pack(kind, 4, 20_000, *values) * many for kind in range(1, 10) for many in (1, 3)]


# -- the viewer ---------------------------------------------------------------------------------------


def _finished(coroutine: Any) -> Any:
    """Runs what never has to wait, since all there is to read has come."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for more, after the end")


class _Loop:
    """As much of an event loop as a StreamReader asks for."""

    def get_debug(self) -> bool:
        return False


def _reader(data: bytes, limit: int = MAX_HEAD) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit, loop=_Loop())  # type: ignore[arg-type]
    reader.feed_data(data)
    reader.feed_eof()
    return reader


_guard = Guard("127.0.0.1", 8000)


def _http(data: bytes) -> None:
    request = _finished(read_request(_reader(data)))
    if request is None:
        return
    before = request.headers.get("authorization", ""), request.headers.get("cookie", ""), request.query
    assert _guard.check(request) is None or _guard.token in "".join(before)
    assert any(_guard.token in one for one in before), "answered without the token"
    assert request.headers["host"].lower() in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000")
    assert request.method == "GET"
    _guard.check_origin(request)
    websocket.accept(request)


def _http_seeds() -> list[bytes]:
    token = _guard.token.encode()
    upgrade = b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://127.0.0.1:8000\r\n"
    bearer = b"Authorization: Bearer " + token + b"\r\n"
    return [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n",
        b"GET /?token=" + token + b" HTTP/1.1\r\nHost: localhost:8000\r\n\r\n",
        b"GET /app.js?x=1 HTTP/1.1\r\nHost: [::1]:8000\r\nCookie: a=b; shoal-8000=" + token + b"\r\n\r\n",
        b"GET /socket HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n" + bearer + upgrade + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: [::1]:8000\r\nContent-Length: 3\r\nSec-Fetch-Site: cross-site\r\n\r\nabc",
    ]


async def _all(incoming: Incoming) -> None:
    while True:
        opcode, payload = await incoming.next()
        assert len(payload) <= websocket.MAX_INBOUND
        if opcode == websocket.TEXT:
            read_watch(payload.decode(), 4)


def _frames(data: bytes) -> None:
    _finished(_all(Incoming(_reader(data))))


def _frames_seeds() -> list[bytes]:
    def frame(first: int, payload: bytes) -> bytes:
        head = bytes([first, 0x80 | len(payload)]) if len(payload) < 126 else None
        head = head or bytes([first, 0x80 | 126]) + len(payload).to_bytes(2, "big")
        return head + b"\1\2\3\4" + bytes(byte ^ (1, 2, 3, 4)[i % 4] for i, byte in enumerate(payload))

    return [
        frame(0x81, _WATCH),
        frame(0x01, _WATCH[:9]) + frame(0x89, b"ping") + frame(0x80, _WATCH[9:]),
        frame(0x81, b"x" * 3000) + frame(0x88, struct.pack(">H", 1000) + b"bye"),
    ]


def _watch(data: bytes) -> None:
    wanted = read_watch(data.decode("utf-8", "surrogateescape"), 4)
    if wanted is None:  # a request for a link
        return
    envs, rate = wanted
    assert all(0 <= env < 4 for env in envs) and 0.1 <= rate <= 60


def _noise() -> list[bytes]:
    return [bytes(range(48))]


_WATCH = b'{"type": "watch", "envs": [0, 3], "rate": 20}'
_FRAMES = (Closing, asyncio.IncompleteReadError, BadMessage, BadRequest)
_FILE = (CorruptFileError, VersionError, LayoutError)
TARGETS = {
    "segment": Target(_segment, _segment_seeds, _FILE, repaired_segment),
    "schema": Target(_schema, lambda: [SMALL.schema, b'{"fields":[]}'], (LayoutError,), weight=2),
    "ring": Target(_ring_file, _ring_seeds, _FILE, repaired_segment, weight=0.5),
    "saved": Target(_saved, _saved_seeds, (*_FILE, NoRoomError, FileNotFoundError), weight=0.3),
    "checkpoint": Target(_checkpoint, _checkpoint_seeds, (PluginError, ValueError)),
    "window": Target(_window, _window_seeds, (SessionError,), weight=2),
    "recording": Target(_recording, _recording_seeds, (SessionError,)),
    "session": Target(_told, _told_seeds, (SessionError,), weight=0.5),
    "host": Target(_host, _host_seeds, (), weight=0.3),
    "http": Target(_http, _http_seeds, (Refusal,), weight=2),
    "frames": Target(_frames, _frames_seeds, _FRAMES, weight=2),
    "watch": Target(_watch, lambda: [_WATCH], (BadMessage, BadRequest), weight=2),
    "tables": Target(
        lambda data: tables.run(directory(), data),
        lambda: tables.seeds(directory()),
        (ShoalError, MemoryError),  # MemoryError: of the bounds that Gymnasium keeps whole
        weight=0.3,
    ),
    # Not bytes that are read: they choose the arguments.
    "arguments": Target(lambda data: arguments.run(directory(), data), _noise, arguments.ALLOWED),
    "processes": Target(
        lambda data: arguments.run_processes(directory(), data),
        _noise,
        (*arguments.ALLOWED, WorkerError),
        weight=0.1,
    ),
}
