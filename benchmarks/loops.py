"""The loops of loops.c and host.c, compiled for this very machine and ready to be timed."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from interleave import Burst
from numpy.typing import NDArray

FLAGS = ("-O3", "-march=native", "-ffp-contract=off")
SCALAR, VECTORISED, VECTORISED_FLOAT = "C loop, scalar", "C loop, vectorised", "C loop, vectorised, float"
_HERE = Path(__file__).resolve().parent
_NAMES = {SCALAR: "loop_scalar", VECTORISED: "loop_double", VECTORISED_FLOAT: "loop_float"}


class Loops:
    """Both files as a library."""

    def __init__(self) -> None:
        compiler = shlex.split(os.environ.get("CC", "cc"))
        directory = tempfile.mkdtemp(prefix="shoal-loops-")
        try:
            path = Path(directory) / "loops.so"
            sources = [str(_HERE / name) for name in ("loops.c", "host.c")]
            include = f"-I{_HERE.parent / 'include'}"
            command = [*compiler, *FLAGS, "-fPIC", "-shared", include, *sources, "-o", str(path)]
            libraries = ["-lm", "-ldl", "-lpthread"]
            subprocess.run([*command, *libraries], check=True, capture_output=True, text=True)
            self._library = ctypes.CDLL(str(path))
        finally:
            shutil.rmtree(directory)  # a loaded library needs its file no more
        self._kept: list[Any] = []
        self._made: list[tuple[Callable[..., None], int]] = []
        for name in ("loop_create", "host_create"):
            getattr(self._library, name).restype = ctypes.c_void_p

    def cartpole(self, actions: NDArray[np.int64]) -> dict[str, Burst]:
        """CartPole with these actions, [turn, environment], in each of the loops."""
        turns, num_envs = actions.shape
        rivals = {}
        for name, function in _NAMES.items():
            made = self._library.loop_create(_u64(num_envs), _address(actions), _u64(turns))
            self._made.append((self._library.loop_free, made))
            rivals[name] = self._burst(getattr(self._library, function), ctypes.c_void_p(made))
        return rivals

    def plugin(self, path: Path, actions: NDArray[Any]) -> Burst:
        """A plug-in stepped from C, under a host that does nothing but restart finished episodes."""
        turns, num_envs = actions.shape
        made = self._library.host_create(os.fsencode(path), _u64(num_envs), _address(actions), _u64(turns))
        if made is None:
            raise ValueError(f"{path.name} is not a plug-in with one observation, one action and one agent")
        self._made.append((self._library.host_free, made))
        return self._burst(self._library.host_run, ctypes.c_void_p(made))

    def copy(self, num_bytes: int, num_threads: int) -> Burst:
        """memcpy of so many bytes, each thread its own part."""
        source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
        self._kept += [source, target]
        where = _address(target), _address(source)
        return self._burst(self._library.copy_run, *where, _u64(num_bytes), _u64(num_threads))

    def release(self) -> None:
        """Frees what was made so far; its bursts must not be used again."""
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
