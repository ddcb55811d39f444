"""The loops of loops.c and host.c, compiled for this machine and ready to be timed."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.native.build import include_directory
from shoal_lab.bench.compile import SOURCES, compiled
from shoal_lab.bench.interleave import Burst

__all__ = ["SCALAR", "VECTORISED", "VECTORISED_FLOAT", "Loops"]

SCALAR, VECTORISED, VECTORISED_FLOAT = "C loop, scalar", "C loop, vectorised", "C loop, vectorised, float"
_NAMES = {SCALAR: "loop_scalar", VECTORISED: "loop_double", VECTORISED_FLOAT: "loop_float"}


class Loops:
    """Both files, compiled as a library."""

    def __init__(self) -> None:
        sources = SOURCES / "loops.c", SOURCES / "host.c"
        self._library = compiled(*sources, flags=[f"-I{include_directory()}"])
        self._kept: list[Any] = []
        self._made: list[tuple[Callable[..., None], int]] = []
        for name in ("loop_create", "host_create"):
            getattr(self._library, name).restype = ctypes.c_void_p

    def cartpole(self, actions: NDArray[np.int64]) -> dict[str, Burst]:
        """Makes a burst of CartPole with these actions, [turn, environment], for each of the loops."""
        turns, num_envs = actions.shape
        rivals = {}
        for name, function in _NAMES.items():
            made = self._library.loop_create(_u64(num_envs), _address(actions), _u64(turns))
            self._made.append((self._library.loop_free, made))
            rivals[name] = self._burst(getattr(self._library, function), ctypes.c_void_p(made))
        return rivals

    def plugin(self, path: Path, actions: NDArray[Any]) -> Burst:
        """Makes a burst of a plug-in stepped from C, by a host that only restarts finished episodes."""
        if actions.dtype.hasobject or actions.ndim < 2:
            raise ValueError(
                f"{path.name} has actions of more than one field, which the C loop does not support"
            )
        turns, num_envs = actions.shape[:2]
        made = self._library.host_create(os.fsencode(path), _u64(num_envs), _address(actions), _u64(turns))
        if made is None:
            raise ValueError(f"{path.name} does not have one observation, one action and one agent")
        self._made.append((self._library.host_free, made))
        return self._burst(self._library.host_run, ctypes.c_void_p(made))

    def copy(self, num_bytes: int, num_threads: int) -> Burst:
        """Makes a burst of memcpy of `num_bytes`; each thread copies a part."""
        source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
        self._kept += [source, target]
        where = _address(target), _address(source)
        return self._burst(self._library.copy_run, *where, _u64(num_bytes), _u64(num_threads))

    def start(self, actions: NDArray[np.int64]) -> Burst:
        """Makes a burst that allocates memory, makes one step and frees it."""
        turns, num_envs = actions.shape
        library = self._library

        def burst(count: int) -> float:
            start = time.perf_counter()
            for _ in range(count):
                made = ctypes.c_void_p(library.loop_create(_u64(num_envs), _address(actions), _u64(turns)))
                library.loop_double(made, _u64(1))
                library.loop_free(made)
            return time.perf_counter() - start

        return burst

    def release(self) -> None:
        """Frees everything made so far; its bursts must not be used again."""
        for free, made in self._made:
            free(ctypes.c_void_p(made))
        self._made.clear()
        self._kept.clear()

    def _burst(self, function: Callable[..., None], *arguments: Any) -> Burst:
        def burst(count: int) -> float:
            start = time.perf_counter()
            function(*arguments, _u64(count))
            return time.perf_counter() - start

        return burst


_u64 = ctypes.c_uint64


def _address(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
