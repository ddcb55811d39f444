"""caller_steps="auto": measures a step of one environment, and decides whether the caller steps a chunk."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["is_light", "measure_step_s"]

LIGHT_CHUNK_S = 200e-6
"""For a faster chunk, the exchange with a worker would be a noticeable part of the step."""
_STEPS, _BUDGET_S = 50, 0.003


def is_light(make: Callable[[], Any], num_envs: int, num_parts: int) -> bool:
    """Whether a chunk of these environments steps so fast that the caller should step one itself."""
    return math.ceil(num_envs / num_parts) * measure_step_s(make) < LIGHT_CHUNK_S


def measure_step_s(make: Callable[[], Any]) -> float:
    """Makes an environment, and returns the median time of its steps; infinity if it raises.

    It takes a few milliseconds, or longer if a single step does.
    """
    try:
        env = make()
    except Exception:  # a worker will raise the same and report it
        return math.inf
    times: list[float] = []
    try:
        env.reset()
        while len(times) < _STEPS and sum(times) < _BUDGET_S:
            action = env.action_space.sample()
            begin = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            times.append(time.perf_counter() - begin)
            if terminated or truncated:
                env.reset()
        return float(np.median(times))
    except Exception:
        return math.inf
    finally:
        with contextlib.suppress(Exception):
            env.close()
