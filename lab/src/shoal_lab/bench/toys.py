"""Environments with a known cost: they do nothing, return pictures or infos, or work for a given time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

__all__ = ["Busy", "Pixels", "Sized", "Still", "Telling", "Varied", "maker"]

Result = tuple[Any, float, bool, bool, dict[str, Any]]


class Still(gymnasium.Env[Any, Any]):
    """Does nothing, so a step costs only what the vector environment adds."""

    def __init__(self) -> None:
        self.observation_space = Box(-1, 1, (4,), np.float32)
        self.action_space = Discrete(2)
        self.observation: Any = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation, {}

    def step(self, action: Any) -> Result:
        return self.observation, 0.0, False, False, {}


class Pixels(Still):
    """Returns pictures of 84x84x4 bytes, made beforehand, another one each step."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (84, 84, 4), np.uint8)
        self.frames = list(np.random.default_rng(0).integers(0, 256, (8, 84, 84, 4), np.uint8))
        self.turn = 0
        self.observation = self.frames[0]

    def step(self, action: Any) -> Result:
        self.turn += 1
        return self.frames[self.turn & 7], 0.0, False, False, {}


class Sized(Still):
    """Returns observations of `size` bytes, another one each step."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (size,), np.uint8)
        self.frames = list(np.random.default_rng(0).integers(0, 256, (2, size), np.uint8))
        self.turn = 0
        self.observation = self.frames[0]

    def step(self, action: Any) -> Result:
        self.turn ^= 1
        return self.frames[self.turn], 0.0, False, False, {}


class Busy(Still):
    """Works for `us` microseconds of this thread's CPU time; waiting for a core does not count."""

    def __init__(self, us: float) -> None:
        super().__init__()
        self.work_ns = round(us * 1000)

    def step(self, action: Any) -> Result:
        end = time.thread_time_ns() + self.work_ns
        while time.thread_time_ns() < end:
            pass
        return self.observation, 0.0, False, False, {}


class Varied(Busy):
    """Works for a different time each step, from `low` to `high` microseconds, short ones more often."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__(low)
        self.times = np.geomspace(low * 1000, high * 1000, 256).astype(int).tolist()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.random = np.random.default_rng(seed)
        return self.observation, {}

    def step(self, action: Any) -> Result:
        self.work_ns = self.times[self.random.integers(256)]
        return super().step(action)


class Telling(Still):
    """Returns an info of numbers each step: two, four floats (as in MuJoCo), or a mix with an array."""

    INFOS: ClassVar[dict[str, dict[str, Any]]] = {
        "two": {"a": 1.0, "b": 2},
        "four": {"x": 1.0, "y": 2.0, "forward": 0.5, "control": -0.5},
        "mixed": {"x": 1.0, "y": 2.0, "count": 3, "position": np.arange(3.0)},
    }

    def __init__(self, kind: str = "two") -> None:
        super().__init__()
        self.info = self.INFOS[kind]

    def step(self, action: Any) -> Result:
        return self.observation, 0.0, False, False, self.info.copy()


def maker(name: str, *arguments: Any) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Returns a function that makes such an environment in any process."""
    kinds: tuple[Callable[..., Still], ...] = (Still, Pixels, Sized, Busy, Varied, Telling)
    return partial({kind.__name__: kind for kind in kinds}[name], *arguments)
