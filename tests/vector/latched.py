"""Environments whose step blocks while a file exists, in C (latched.c) and in Python; calls in threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import shoal

SOURCE = Path(__file__).parent / "latched.c"
BACKENDS = ("native", "native, 2 threads", "C in workers", "Python in workers", "caller_steps", "emulated")


class LatchedEnv(gymnasium.Env[Any, Any]):
    """The same in Python; action 97 raises."""

    def __init__(self, file: str, length: int, sleep_us: int) -> None:
        self._file, self._length, self._sleep_us = file, length, sleep_us
        self.observation_space = gymnasium.spaces.Box(-1e9, 1e9, (3,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(100)
        self._seen = np.zeros(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._seen[:] = 0, -1, self.np_random.integers(0, 1000000)
        return self._seen, {}

    def step(self, action: Any) -> Any:
        if self._sleep_us:
            time.sleep(self._sleep_us * 1e-6)
        while self._file and os.path.exists(self._file):
            time.sleep(0.001)
        if action == 97:
            raise RuntimeError("action 97")
        self._seen[:2] = self._seen[0] + 1, np.nan if action == 98 else action
        reward = np.nan if action == 99 else self._seen[0]
        return self._seen, reward, bool(self._seen[0] >= self._length), False, {}

    def spoil(self) -> None:
        """Changes the very array it returned."""
        self._seen[:] = -7


def make(backend: str, num_envs: int = 4, file: str | Path = "", length: int = 10**6, **kwargs: Any) -> Any:
    """`num_envs` of them; results of all backends are the same."""
    sleep_us = kwargs.pop("sleep_us", 0)
    if "workers" in backend or backend == "caller_steps":
        kwargs.setdefault("num_workers", 2)
    if backend.startswith("native") or backend in ("C in workers", "emulated"):
        if backend == "C in workers":
            kwargs["backend"] = "process"
        elif backend == "emulated":
            kwargs["device"] = "emulated"
        else:
            kwargs["num_threads"] = 2 if "2" in backend else 1
        return shoal.make_vec(SOURCE, num_envs, file=str(file), length=length, sleep_us=sleep_us, **kwargs)
    functions = [lambda: LatchedEnv(str(file), length, sleep_us)] * num_envs
    if backend == "caller_steps":
        kwargs["caller_steps"] = True
    return shoal.vector.ProcessVectorEnv(functions, **kwargs)


class Caller(threading.Thread):
    """Runs a call in a thread of its own; `result()` gives or raises what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call, self._error, self._value = call, None, None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(60)
        assert not self.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._value


class Gatekept:
    """Actions whose conversion waits until `go`: the call that takes them is inside meanwhile."""

    def __init__(self, actions: Any, meanwhile: Callable[[], Any] | None = None) -> None:
        self._actions, self._meanwhile = np.asarray(actions), meanwhile
        self.inside, self.go = threading.Event(), threading.Event()
        if meanwhile is not None:
            self.go.set()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.inside.set()
        assert self.go.wait(60)
        if self._meanwhile is not None:
            self._meanwhile()
        return np.array(self._actions, dtype=dtype)


def occasional(infos: dict[str, Any]) -> dict[str, Any]:
    """Infos in a form that is the same for the CPU and a device.

    A device has the infos of finished episodes in every step, and final observations as one array; the CPU
    has them if there are any, and one object per environment.
    """
    empty = {key for key in infos if f"_{key}" in infos and not infos[f"_{key}"].any()}
    found = {key: item for key, item in infos.items() if key.removeprefix("_") not in {*empty, "final_info"}}
    if "final_obs" in found:
        rows = np.flatnonzero(found["_final_obs"])
        found["final_obs"] = [_row(found["final_obs"], int(row)) for row in rows]
    return found


def _row(value: Any, row: int) -> Any:
    if isinstance(value, dict):
        return {key: part[row] for key, part in value.items()}
    return value[row]
