"""Environments that export something, and a run of one in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

STATEFUL = Path(__file__).parents[1] / "native/plugins/stateful.c"
CELLS = 512


class Pond(gymnasium.Env):
    """Exports a grid, a row for each fish, and its tick; `cells` shows a torn read."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, tag: int = 0, render_mode: str | None = None, wrong: str = "", slow_s: float = 0.0):
        self.observation_space = Dict({"near": Box(0, 9, (3,), np.float32), "hungry": Discrete(2)})
        self.action_space = Discrete(3)
        self.render_mode, self.tag, self.wrong, self.slow_s = render_mode, tag, wrong, slow_s
        self.tick = 0

    def _seen(self):
        return {"near": np.full(3, self.tick % 10, np.float32), "hungry": self.tick % 2}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.grid = self.np_random.integers(0, 3, (4, 5)).astype(np.int8)
        self.tick = 0
        return self._seen(), {}

    def step(self, action):
        self.tick += 1
        if self.slow_s:
            import time

            time.sleep(self.slow_s)
        return self._seen(), float(self.tick), self.tick == 50, False, {}

    def export_state(self):
        if self.wrong == "raises":
            raise ZeroDivisionError("the pond is dry")
        if self.wrong == "not a dict":
            return [1, 2]
        if self.wrong == "ragged":
            return {"grid": [[1], [2, 3]]}
        if self.wrong == "objects":
            return {"grid": np.array([{}, []], object)}
        return {
            "grid": self.grid,
            "fish": np.array([[self.tick % 4, 1]], np.int32),
            "cells": self.tick * 1000003 + np.arange(CELLS),
            "tick": self.tick,
        }

    def state_schema(self):
        if self.wrong in ("objects", "ragged"):
            return {}
        if self.wrong == "schema":
            return {"whale": {"role": "entities"}}
        if self.wrong == "role":
            return {"grid": {"role": "painting"}}
        if self.wrong == "drawn":
            return {"cells": {"role": "grid"}}
        if self.wrong == "columns":
            return {"fish": {"columns": ["r"]}}
        if self.wrong == "category":
            return {"grid": {"categories": [(0, "water", "blue")]}}
        return {
            "grid": {"role": "grid", "categories": [(0, "water", "#2060a0"), (1, "reed", "#208040")]},
            "fish": {"role": "entities", "columns": ["r", "c"]},
            "tick": {"role": "scalar"},
        }

    def render(self):
        return np.full((6, 8, 3), self.tick % 256, np.uint8)


class Silent(gymnasium.Env):
    """Exports nothing."""

    metadata = {"render_modes": []}
    observation_space = Box(-1, 1, (2,), np.float64)
    action_space = Box(-1, 1, (2,), np.float32)
    tick = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        self.tick += 1
        return np.array([0.5, -0.5]), 1.5, False, False, {}


def is_whole(arrays) -> bool:
    """Whether `cells` are of one tick, and of the tick that is beside them."""
    tick = int(arrays["tick"])
    return np.array_equal(arrays["cells"], tick * 1000003 + np.arange(CELLS))


def start_run(code: str, *arguments: str) -> subprocess.Popen:
    """A process that runs `code`, with `say` to tell us something."""
    prelude = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import shoal
from tests.state.worlds import STATEFUL, Pond, Silent
def say(*words):
    print(*words, flush=True)
def step_for_ever(envs):
    actions = np.zeros(envs.num_envs, np.int64)
    envs.reset(seed=0)
    say(envs.session)
    while True:
        envs.step(actions)
"""
    root = str(Path(__file__).parents[2])
    program = textwrap.dedent(prelude) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", program, root, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
