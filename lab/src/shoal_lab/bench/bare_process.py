"""The bare loop: Python workers over one mapping, a generation word each way, and nothing else.

    caller:  actions, go[w] = turn  ->  worker w: steps its part, stores each result  ->  done[w] = turn

It handles no faults, resets nothing, keeps no statistics and copies no results: it shows what Python itself
can do. Words are plain stores, which x86-64 keeps in order. A waiting process spins, then yields, then
sleeps.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal_lab.bench.load import cores

__all__ = ["BareProcesses", "die_with_parent"]

LOOKS, YIELD_NS, SLEEP_S = 200, 200_000, 50e-6
LINE = 8  # words between two flags, so that each flag has its own cache line


class BareProcesses:
    """Steps environments in `num_workers` forked processes, and a part of them itself if `caller_steps`."""

    def __init__(self, makers: Sequence[Callable[[], Any]], num_workers: int, caller_steps: bool) -> None:
        space = makers[0]().observation_space
        count = len(makers)
        row_bytes = int(np.prod(space.shape)) * space.dtype.itemsize
        self._memory = mmap.mmap(-1, 4096 + 128 * num_workers + count * (row_bytes + 32))
        self._offset = 0
        self._go = self._array((num_workers * LINE,), np.int64).data
        self._done = self._array((num_workers * LINE,), np.int64).data
        self._actions = self._array((count,), np.int64)
        self._results = (
            self._array((count, *space.shape), space.dtype),
            self._array((count,), np.float64),
            self._array((count,), np.bool_),
            self._array((count,), np.bool_),
        )
        self._turn = 0
        parts = num_workers + caller_steps
        edges = np.linspace(0, count, parts + 1).astype(int).tolist()
        self._looks = LOOKS if parts + (not caller_steps) <= len(cores()) else 0
        self._workers = range(0, num_workers * LINE, LINE)
        self.pids = []
        for worker in range(num_workers):
            begin, end = edges[worker : worker + 2]
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                try:
                    self._serve(worker * LINE, begin, [make() for make in makers[begin:end]])
                finally:
                    os._exit(0)
            self.pids.append(pid)
        self._begin = edges[num_workers]
        self._envs = [make() for make in makers[self._begin :]] if caller_steps else []

    def step(self, actions: Any) -> tuple[Any, ...]:
        self._actions[...] = actions
        self._turn = turn = self._turn + 1
        go, done = self._go, self._done
        for word in self._workers:
            go[word] = turn
        if self._envs:
            self._step(self._begin, self._envs)
        for word in self._workers:
            if done[word] != turn:
                self._wait(done, word, turn)
        return (*self._results, {})

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array: Any = np.ndarray(shape, dtype, self._memory, self._offset)
        self._offset += -(-array.nbytes // 64) * 64
        return array

    def _serve(self, word: int, begin: int, envs: list[Any]) -> None:
        turn = 1
        while True:
            self._wait(self._go, word, turn)
            self._step(begin, envs)
            self._done[word] = turn
            turn += 1

    def _step(self, begin: int, envs: list[Any]) -> None:
        observations, rewards, terminated, truncated = self._results
        actions = self._actions[begin : begin + len(envs)]
        for row, (env, action) in enumerate(zip(envs, actions, strict=True), begin):
            observations[row], rewards[row], terminated[row], truncated[row], _ = env.step(action)

    def _wait(self, words: memoryview, word: int, turn: int) -> None:
        for _ in range(self._looks):
            if words[word] == turn:
                return
        end = time.perf_counter_ns() + YIELD_NS
        while words[word] != turn:
            if time.perf_counter_ns() < end:
                os.sched_yield()
            else:
                time.sleep(SLEEP_S)


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies, even while this process is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
