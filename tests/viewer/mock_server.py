"""A stand-in for the viewer's server: the page's files and its socket, over worlds made up here.

python -m tests.viewer.mock_server [reef|frames|vector] [port]
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.viewer.worlds import WINDOW, Cart, Reef

PAGE = Path(__file__).parents[2] / "src" / "shoal" / "viewer" / "page"
CSP = (
    "default-src 'self'; img-src 'self' blob: data:; media-src blob:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


MODES = {"reef": Reef, "frames": Cart, "vector": lambda env: Cart(env, picture=False)}


def message(head: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<I", len(text)) + text + bytes(-(4 + len(text)) % 8) + data


def ws_frame(payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return struct.pack(">BB", 0x82, size) + payload
    if size < 65536:
        return struct.pack(">BBH", 0x82, 126, size) + payload
    return struct.pack(">BBQ", 0x82, 127, size) + payload


class MockServer:
    """Serves in a thread of its own. Tests set `hold` (nothing moves), `silent` (no frames), `run`, `name`
    and `started` (another one is another run), `slow` (seconds that each environment costs), `minutes` (of
    the history) and `recordings` (of a kind: number, return and steps), and reach into `worlds`; `watched` is
    what pages asked for."""

    def __init__(self, mode: str = "reef", num_envs: int = 64, port: int = 0, **world: Any) -> None:
        self.make = (lambda env: Reef(env, **world)) if world else MODES[mode]
        self.mode, self.num_envs, self.asked = mode, num_envs, port
        self.worlds: dict[int, Any] = {}
        self.name = f"{mode}-run"
        self.hold, self.silent, self.run, self.started = False, False, "stepping", time.time()
        self.slow, self.workers, self.minutes = 0.0, 4, 20.0
        self.watched: list[list[int]] = []
        self.recordings: dict[str, tuple[int, float, int]] = {}
        self.problem = ""
        self.gone: set[int] = set()  # numbers of recordings that are listed and no longer kept
        self.clients: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> MockServer:
        ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve(ready)), daemon=True)
        self.thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.stopped.set)
        self.thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def world(self, env: int) -> Any:
        if env not in self.worlds:
            self.worlds[env] = self.make(env)
        return self.worlds[env]

    def hang_up(self) -> None:
        """Breaks every open connection, as a server that ended would."""
        for writer in list(self.clients):
            self.loop.call_soon_threadsafe(writer.transport.abort)

    async def serve(self, ready: threading.Event) -> None:
        self.loop, self.stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self.client, "127.0.0.1", self.asked)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self.stopped.wait()
        server.close()
        for writer in list(self.clients):
            writer.transport.abort()
        await asyncio.sleep(0.05)

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1].partition("?")[0]
            if path == "/socket":
                key = next(
                    line for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key")
                )
                await self.socket(key.split(":")[1].strip(), reader, writer)
            else:
                self.file(path, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def file(self, path: str, writer: asyncio.StreamWriter) -> None:
        file = PAGE / (path.lstrip("/") or "index.html")
        found = file.is_file() and file.parent == PAGE
        body = file.read_bytes() if found else b"not found"
        kind = TYPES.get(file.suffix, "text/plain")
        writer.write(
            f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}\r\nContent-Type: {kind}; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nContent-Security-Policy: {CSP}\r\nCache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n".encode()
            + body
        )

    async def socket(self, key: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accept = base64.b64encode(
            hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        )
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        self.clients.add(writer)
        watch: dict[str, Any] = {"envs": [], "rate": 20}
        tasks = [asyncio.create_task(self.send(writer, watch)), asyncio.create_task(self.counters(writer))]
        try:
            while (asked := await self.receive(reader)) is not None:
                if asked["type"] == "recording":
                    writer.write(ws_frame(self.recording_message(asked["number"])))
                    continue
                if asked["type"] == "link":
                    link = {"type": "link", "url": f"{self.url}?token=once", "host": "box", "port": self.port}
                    writer.write(ws_frame(message(link)))
                    continue
                watch.update(asked)
                self.watched.append(asked["envs"])
        finally:
            self.clients.discard(writer)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def receive(self, reader: asyncio.StreamReader) -> dict[str, Any] | None:
        first, size = await reader.readexactly(2)
        size &= 127
        if size == 126:
            (size,) = struct.unpack(">H", await reader.readexactly(2))
        mask = await reader.readexactly(4)
        body = bytes(b ^ mask[i % 4] for i, b in enumerate(await reader.readexactly(size)))
        return json.loads(body) if first & 15 == 1 else None

    def hello(self) -> bytes:
        agents = self.world(0).agents
        facts = {
            "name": self.name,
            "env": {"reef": "Reef-v0"}.get(self.mode, "CartPole-v1"),
            "pid": 4242,
            "num_envs": self.num_envs * agents,
            "num_worlds": self.num_envs,
            "agents": agents,
            "workers": self.workers,
            "backend": "native",
            "started": self.started,
            "observation_space": f"Box(0, 127, ({WINDOW}, {WINDOW}, 3), int8)" if agents > 1 else "Box(4,)",
            "action_space": "Discrete(4)" if agents > 1 else "Discrete(2)",
            "version": "0.1.0",
        }
        return message({"type": "hello", "facts": facts, "sessions": [facts["name"], "other"]})

    async def send(self, writer: asyncio.StreamWriter, watch: dict[str, Any]) -> None:
        sent: dict[int, dict[str, Any]] = {}
        number, greeted = 0, 0.0
        while True:
            began = time.monotonic()
            if greeted != self.started:
                greeted = self.started
                sent.clear()
                writer.write(ws_frame(self.hello()))
            for env in [] if self.silent else list(watch["envs"]):
                if self.hold and env in sent:
                    continue
                world = self.world(env)
                if not self.hold and self.run == "stepping":
                    world.step()
                elif env in sent:
                    continue
                writer.write(ws_frame(self.frame(env, world, number, sent.setdefault(env, {}))))
                number += 1
            await writer.drain()
            pause = max(1 / watch["rate"], self.slow * len(watch["envs"]))
            await asyncio.sleep(max(0.002, pause - (time.monotonic() - began)))

    def frame(self, env: int, world: Any, number: int, sent: dict[str, Any]) -> bytes:
        """`sent` has the schema of the last frame, its number, and each field with its data."""
        fields, changed, data = world.fields(), [], bytearray()
        for index, one in enumerate(fields):
            raw, key = one.pop("data"), f"{one['part']}/{one['name']}"
            if sent.get(key) != (one, raw):
                sent[key] = one, raw
                changed.append([index, len(data), len(raw)])
                data += raw + bytes(-len(raw) % 8)
        head = {"type": "frame", "env": env, "episode": world.episode, "tick": world.tick, "number": number}
        if sent.get("fields") != fields:
            sent["fields"], sent["schema"] = fields, number + 1
            head["fields"] = fields
        head |= {"time": time.monotonic(), "error": "", "schema": sent["schema"], "changed": changed}
        return message(head, bytes(data))

    async def counters(self, writer: asyncio.StreamWriter) -> None:
        rng, tick = np.random.default_rng(1), 0
        while True:
            tick += 1
            rate = 1.24e6 * (1 + 0.05 * rng.normal()) if self.run == "stepping" else 0.0
            one = {"type": "counters", "time": time.time(), "steps": int(tick * 6.2e5), "episodes": tick * 31}
            growth = 1 - float(np.exp(-tick / 60))
            one |= {
                "steps_per_s": rate,
                "run": self.run,
                "ended": 31,
                "mean_return": 180 * growth + float(rng.normal(0, 4)),
            }
            one |= (
                {"mean_length": 420 * growth + 60 + float(rng.normal(0, 9))}
                if tick > 1
                else {"mean_length": None}
            )
            writer.write(ws_frame(message(one)))
            writer.write(ws_frame(self.history_message()))
            if self.recordings or self.problem:
                writer.write(ws_frame(self.list_recordings()))
            await writer.drain()
            await asyncio.sleep(0.5)

    def list_recordings(self) -> bytes:
        kept = {
            kind: {"number": at, "env": 40 + at, "episode": 4000 + at, "return": value, "length": steps}
            | {"snapshots": min(steps, 64), "at": time.time() - 60 * at}
            for kind, (at, value, steps) in self.recordings.items()
        }
        return message({"type": "recordings", "count": 14, "problem": self.problem, "kept": kept})

    def recording_message(self, number: int) -> bytes:
        """An episode of a world of its own, with a snapshot of each eighth step."""
        found = [one for one in self.recordings.values() if one[0] == number and number not in self.gone]
        if not found:
            return message({"type": "error", "message": f"recording {number} is no longer kept"})
        _, value, steps = found[0]
        world, sent, data, frames = self.make(40 + number), {}, bytearray(), []
        world.episode = 4000 + number
        for tick in range(steps + 1):
            if tick % 8 == 0 or tick == steps:
                world.tick = tick
                one = self.frame(40 + number, world, tick, sent)
                frames.append([len(data), len(one)])
                data += one + bytes(-len(one) % 8)
            world.step()
        head = {"type": "recording", "number": number, "env": 40 + number, "episode": 4000 + number}
        return message(head | {"return": value, "length": steps, "frames": frames}, bytes(data))

    def history_message(self) -> bytes:
        """A run that has learned for `minutes`; older bins are longer, and the loss begins in the middle."""
        end = np.concatenate(
            [
                np.linspace(0, self.minutes * 40, 60),
                np.linspace(self.minutes * 40, self.minutes * 60, 120)[1:],
            ]
        )
        begin, end = end[:-1], end[1:]
        n, rng = len(end), np.random.default_rng(2)
        growth = 1 - np.exp(-end / end[-1] * 4)
        curves = np.zeros((n, 5, 4), "<f4")
        for at, high in enumerate((500.0, 500.0, 1.4e6, 2.0, 0.7)):
            mean = (
                high * (growth if at < 2 else 1 - growth if at == 3 else 0.8) * (1 + rng.normal(0, 0.04, n))
            )
            curves[:, at] = np.stack(
                [mean, mean * 0.4, np.minimum(mean * 1.5, high * 1.2), np.full(n, 31)], 1
            )
        curves[: n // 2, 3] = 0
        names = ["return", "length", "steps_per_s", "loss", "entropy"]
        head = {
            "type": "history",
            "whole": True,
            "names": names,
            "bins": n,
            "last": {"loss": 0.1, "entropy": None},
        }
        head["returns"] = {
            "count": 64,
            "low": 9.0,
            "high": 500.0,
            "bins": [1, 0, 2, 3, 4, 6, 8, 9, 5, 7, 9, 10],
        }
        columns = [begin, end, end * 1e6, np.floor(end * 60)]
        return message(head, b"".join(one.astype("<f8").tobytes() for one in columns) + curves.tobytes())


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "reef", "8123"][: max(2, len(sys.argv) - 1)]
    with MockServer(arguments[0], port=int(arguments[1])) as server:
        print(server.url, flush=True)
        threading.Event().wait()
