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

PAGE = Path(__file__).parents[2] / "src" / "shoal" / "viewer" / "page"
CSP = (
    "default-src 'self'; img-src 'self' blob: data:; media-src blob:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
TERRAIN = [
    (0, "abyss", "#12375c"),
    (1, "deep water", "#1a5480"),
    (2, "open water", "#2677a3"),
    (3, "shallows", "#4fa3bf"),
    (4, "sand", "#e3d3a0"),
    (5, "coral", "#e08a72"),
    (6, "kelp", "#3f8f6b"),
    (7, "rock", "#6e7683"),
]
KINDS = [(0, "fish", "#ffd166"), (1, "shark", "#ef476f"), (2, "crab", "#f78c4b"), (3, "turtle", "#9be564")]
COLUMNS = ["kind", "r", "c", "hp", "hp_max", "comb_lvl", "prof_lvl", "dir", "anim", "in_combat"]
STEPS = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)
WINDOW = 15


def field(name: str, data: Any, part: str = "world", role: str = "", **more: Any) -> dict[str, Any]:
    array = np.ascontiguousarray(data).reshape(np.shape(data))
    return {
        "name": name,
        "part": part,
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "role": role,
        "columns": more.get("columns", []),
        "categories": [list(one) for one in more.get("categories", [])],
        "stable": more.get("stable", False),
        "data": array.tobytes(),
    }


def noise(rng: np.random.Generator, size: int, cells: int) -> Any:
    """Smooth values in 0..1: a coarse random grid, widened with a soft curve between its points."""
    coarse = rng.random((cells + 2, cells + 2))
    at = np.arange(size) * cells / size
    low, part = at.astype(int), at % 1
    part = part * part * (3 - 2 * part)
    rows = coarse[low] * (1 - part)[:, None] + coarse[low + 1] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, low + 1] * part


class Reef:
    """A sea with a reef, and animals that wander in it; the first `agents` of them are agents."""

    def __init__(self, env: int, size: int = 512, count: int = 3000, agents: int = 16) -> None:
        rng = self.rng = np.random.default_rng(env)
        height = sum(noise(rng, size, 4 * 2**k) * 0.5**k for k in range(6)) / 1.95
        growth = sum(noise(rng, size, 12 * 2**k) * 0.5**k for k in range(5)) / 1.9
        self.terrain = np.digitize(height, [0.33, 0.43, 0.52, 0.585, 0.7]).astype(np.int8)
        self.terrain[self.terrain == 5] = 7
        self.terrain[(self.terrain == 3) & (growth > 0.56)] = 5
        self.terrain[(self.terrain == 2) & (growth < 0.40)] = 6
        self.size, self.agents, self.tick, self.episode = size, agents, 0, 0
        rows = self.rows = np.zeros((count, len(COLUMNS)), np.int32)
        rows[:, 0] = rng.choice(4, count, p=[0.72, 0.06, 0.14, 0.08])
        # Each kind has tiles it lives on: only crabs come ashore, and nothing enters rock.
        self.lives = np.isin(np.arange(8), [4, 7], invert=True)[None].repeat(4, 0)
        self.lives[2] = np.isin(np.arange(8), [3, 4, 5, 6])
        for kind in range(4):
            chosen = np.flatnonzero(rows[:, 0] == kind)
            home = np.argwhere(self.lives[kind][self.terrain])
            if len(home):
                rows[chosen, 1:3] = home[rng.integers(0, len(home), len(chosen))]
        rows[:, 4] = np.array([40, 120, 60, 90])[rows[:, 0]]
        rows[:, 3] = (rows[:, 4] * rng.uniform(0.3, 1, count)).astype(np.int32)
        rows[:, 5:7] = rng.integers(1, 30, (count, 2))
        rows[:, 7] = rng.integers(0, 4, count)
        self.reward = np.zeros(agents, np.float32)

    def step(self) -> None:
        self.tick += 1
        if self.tick > 2400:
            self.tick, self.episode = 0, self.episode + 1
        rows, count = self.rows, len(self.rows)
        turn = self.rng.random(count) < 0.15
        rows[turn, 7] = self.rng.integers(0, 4, int(turn.sum()))
        moves = (self.rng.random(count) < 0.5)[:, None] * STEPS[rows[:, 7]]
        to = (rows[:, 1:3] + moves) % self.size
        may = self.lives[rows[:, 0], self.terrain[to[:, 0], to[:, 1]]]
        rows[may, 1:3] = to[may]
        hurt = self.rng.random(count) < 0.02
        rows[:, 3] = np.clip(rows[:, 3] + np.where(hurt, -6, self.rng.random(count) < 0.05), 1, rows[:, 4])
        rows[:, 8], rows[:, 9] = self.tick % 4, hurt
        self.reward = self.rng.normal(0.1, 0.3, self.agents).astype(np.float32)

    def fields(self) -> list[dict[str, Any]]:
        half = WINDOW // 2
        wide = np.pad(self.terrain, half, mode="wrap")
        seen = np.zeros((self.agents, WINDOW, WINDOW, 3), np.int8)
        there = np.zeros((self.size, self.size), np.int8)
        there[self.rows[:, 1], self.rows[:, 2]] = self.rows[:, 0] + 1
        others = np.pad(there, half, mode="wrap")
        ring = np.hypot(*np.mgrid[-half : half + 1, -half : half + 1])
        for agent, (r, c) in enumerate(self.rows[: self.agents, 1:3]):
            seen[agent, ..., 0] = wide[r : r + WINDOW, c : c + WINDOW]
            seen[agent, ..., 1] = others[r : r + WINDOW, c : c + WINDOW]
            seen[agent, ..., 2] = (100 / (1 + ring)).astype(np.int8)
        counts = np.bincount(self.rows[:, 0], minlength=4).astype(np.int32)
        health = [self.rows[self.rows[:, 0] == kind, 3].mean() for kind in range(4)]
        light = np.float32(0.5 + 0.5 * np.sin(self.tick / 120))
        names = [kind[1] for kind in KINDS]
        return [
            field("terrain", self.terrain, role="grid", categories=TERRAIN, stable=True),
            field("animals", self.rows, role="entities", columns=COLUMNS, categories=KINDS),
            field("light", light, role="scalar"),
            field("health", np.array(health, np.float32), role="scalar", columns=names),
            field("population", counts, role="scalar", columns=names),
            field("world_seed", np.int64(2**40 + 7)),
            field("observation", seen, "step"),
            field("action", self.rows[: self.agents, 7].astype(np.int64), "step"),
            field("reward", self.reward, "step"),
            field("terminated", np.zeros(self.agents, np.bool_), "step"),
            field("truncated", np.zeros(self.agents, np.bool_), "step"),
        ]


class Cart:
    """A cart and a pole on it: an environment without a world, with a picture of itself or without."""

    agents = 1

    def __init__(self, env: int, picture: bool = True) -> None:
        self.env, self.picture, self.tick, self.episode = env, picture, 0, 0

    def step(self) -> None:
        self.tick += 1
        if self.tick == 200:
            self.tick, self.episode = 0, self.episode + 1

    def fields(self) -> list[dict[str, Any]]:
        t = self.tick / 20 + self.env
        state = np.array([1.4 * np.sin(t), np.cos(t), 0.3 * np.sin(2.3 * t), -0.7 * np.cos(t)], np.float32)
        fields = [
            field("observation", state, "step"),
            field("action", np.int64(self.tick % 2), "step"),
            field("reward", np.float64(1), "step"),
            field("terminated", np.bool_(False), "step"),
            field("truncated", np.bool_(False), "step"),
        ]
        if self.picture:
            fields.append(field("frame", self.drawn(300 + int(150 * state[0]), float(state[2])), "step"))
        return fields

    def drawn(self, x: int, angle: float) -> Any:
        pixels = np.full((400, 600, 3), 255, np.uint8)
        pixels[300:302] = 0
        pixels[285:316, max(0, x - 25) : x + 25] = (20, 20, 24)
        rows, cols = np.mgrid[0:400, 0:600]
        along = (cols - x) * np.sin(angle) - (rows - 285) * np.cos(angle)
        across = (cols - x) * np.cos(angle) + (rows - 285) * np.sin(angle)
        pixels[(np.abs(across) < 5) & (along > -5) & (along < 110)] = (202, 152, 101)
        return pixels


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
    """Serves in a thread of its own. Tests set `hold` (nothing moves), `run` and `name`, and reach into
    `worlds`; `watched` is what pages asked for."""

    def __init__(self, mode: str = "reef", num_envs: int = 64, port: int = 0, **world: Any) -> None:
        self.make = (lambda env: Reef(env, **world)) if world else MODES[mode]
        self.mode, self.num_envs, self.asked = mode, num_envs, port
        self.worlds: dict[int, Any] = {}
        self.name = f"{mode}-run"
        self.hold, self.run, self.started = False, "stepping", time.time()
        self.watched: list[list[int]] = []
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

    async def send(self, writer: asyncio.StreamWriter, watch: dict[str, Any]) -> None:
        agents = self.world(0).agents
        facts = {
            "name": self.name,
            "env": {"reef": "Reef-v0"}.get(self.mode, "CartPole-v1"),
            "pid": 4242,
            "num_envs": self.num_envs * agents,
            "num_worlds": self.num_envs,
            "agents": agents,
            "workers": 4,
            "backend": "native",
            "started": self.started,
            "observation_space": f"Box(0, 127, ({WINDOW}, {WINDOW}, 3), int8)" if agents > 1 else "Box(4,)",
            "action_space": "Discrete(4)" if agents > 1 else "Discrete(2)",
            "version": "0.1.0",
        }
        writer.write(
            ws_frame(message({"type": "hello", "facts": facts, "sessions": [facts["name"], "other"]}))
        )
        sent: dict[int, dict[tuple[str, str], bytes]] = {}
        number = 0
        while True:
            began = time.monotonic()
            for env in list(watch["envs"]):
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
            await asyncio.sleep(max(0.002, 1 / watch["rate"] - (time.monotonic() - began)))

    def frame(self, env: int, world: Any, number: int, sent: dict[tuple[str, str], bytes]) -> bytes:
        fields, data = [], bytearray()
        for one in world.fields():
            raw = one.pop("data")
            if sent.get((one["part"], one["name"])) == raw:
                fields.append({"name": one["name"], "part": one["part"], "same": True})
                continue
            sent[one["part"], one["name"]] = raw
            fields.append(one | {"offset": len(data), "bytes": len(raw)})
            data += raw + bytes(-len(raw) % 8)
        where = {"env": env, "episode": world.episode, "tick": world.tick, "number": number}
        return message(
            {"type": "frame", **where, "time": time.monotonic(), "error": "", "fields": fields}, bytes(data)
        )

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
                "mean_return": 180 * growth + float(rng.normal(0, 4)),
            }
            one |= (
                {"mean_length": 420 * growth + 60 + float(rng.normal(0, 9))}
                if tick > 1
                else {"mean_length": None}
            )
            writer.write(ws_frame(message(one)))
            await writer.drain()
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "reef", "8123"][: max(2, len(sys.argv) - 1)]
    with MockServer(arguments[0], port=int(arguments[1])) as server:
        print(server.url, flush=True)
        threading.Event().wait()
