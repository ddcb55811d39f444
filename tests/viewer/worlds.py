"""Made-up worlds for the viewer's tests: a reef with animals, and a cart with a pole."""

from __future__ import annotations

from typing import Any

import numpy as np

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
        groups = [self.rows[self.rows[:, 0] == kind, 3] for kind in range(4)]
        health = [group.mean() if group.size else 0.0 for group in groups]  # a kind may have no fish
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
