"""Environments for the adapters' tests: everything a wrapper may get wrong shows in their numbers."""

import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Telling(gymnasium.Env):
    """Counts its steps; ends at 5 by itself or at 7 cut off, by turns, and tells of it in its infos."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = Dict({"count": Box(-1e6, 1e6, (2,), np.float32), "last": Discrete(3)})
    action_space = Discrete(3)

    def __init__(self, offset=0, render_mode=None):
        self.offset, self.render_mode = offset, render_mode
        self.episode = self.steps = self.calls = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        start = float(self.np_random.integers(1000))
        return self._seen(0), {"start": start, "options": options or {}}

    def step(self, action):
        self.steps += 1
        terminated = self.episode % 2 == 0 and self.steps == 5
        truncated = self.episode % 2 == 1 and self.steps == 7
        info = {"steps": self.steps, "deep": {"episode_number": self.episode}}
        if self.steps == 3:
            info["third"] = np.array([1.0, 2.0])
        return self._seen(action), 0.5 * self.steps + float(action), terminated, truncated, info

    def _seen(self, action):
        count = np.array([self.steps, 100 * self.episode + self.offset], np.float32)
        return {"count": count, "last": np.int64(action)}

    def add(self, amount):
        self.calls += amount
        return self.calls

    def find_modules(self, *names):
        return [name for name in names if name in sys.modules]

    def render(self):
        return np.full((4, 6, 3), self.steps, np.uint8)


class Fragile(gymnasium.Env):
    """Raises where it is told to: with on_fault="restart" it is made anew."""

    observation_space, action_space = Box(-10, 10, (1,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 1:
            raise RuntimeError("told to")
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}


class Target(gymnasium.Env):
    """Reward for saying what is seen: learned within a few thousand steps."""

    observation_space, action_space = Box(0, 1, (4,), np.float32), Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._next(), {}

    def _next(self):
        self.wanted = int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self.wanted]

    def step(self, action):
        self.steps += 1
        reward = float(action == self.wanted)
        return self._next(), reward, False, self.steps == 20, {}
