"""Round trips between two processes: the gate in C, the gate from Python, and what it is measured against."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shoal import _core
from shoal_lab.bench.bare_process import die_with_parent
from shoal_lab.bench.compile import SOURCES, compiled
from shoal_lab.bench.interleave import Burst

__all__ = ["BARE", "BOUND", "GATE", "GATE_YIELDS", "SLEEP", "PingPong", "crowd"]

GATE, GATE_YIELDS, BARE, SLEEP = "gate", "gate, told to yield", "bare spin, then sleep", "sleeping alone"
BOUND = "gate, both sides in Python"
_KINDS = {GATE: 0, GATE_YIELDS: 1, BARE: 2, SLEEP: 3}


class PingPong:
    """pingpong.c and a partner process for each way; with `core`, the gate's own source too, in C."""

    def __init__(self, core: Path | None = None) -> None:
        gate = () if core is None else (core / "gate.c", core / "platform.c")
        flags = ["-std=c11"] if core is None else ["-std=c11", "-DSHOAL_GATE", f"-I{core}"]
        self._library = compiled(SOURCES / "pingpong.c", *gate, flags=flags)
        self._library.pingpong_create.restype = ctypes.c_void_p
        self._library.pingpong_child.restype = ctypes.c_int64
        self._closers: list[Callable[[], Any]] = []
        self._made: dict[str, tuple[int, Burst]] = {}
        try:
            for name, kind in _KINDS.items():
                if core is not None or name in (BARE, SLEEP):
                    self._made[name] = self._in_c(kind)
            self._made[BOUND] = self._bound()
        except BaseException:
            self.close()  # partners that stay would hold the pipes of other processes open
            raise

    def bursts(self, mine: int, partners: int) -> dict[str, Burst]:
        """All ways, this process on the one core and the partner on the other, or both on the same."""
        return {name: _placed(burst, pid, mine, partners) for name, (pid, burst) in self._made.items()}

    def _in_c(self, kind: int) -> tuple[int, Burst]:
        made = self._library.pingpong_create(kind)
        if made is None:
            raise OSError("cannot start the partner of a ping-pong")
        made = ctypes.c_void_p(made)
        self._closers.append(lambda: self._library.pingpong_free(made))

        def burst(count: int) -> float:
            start = time.perf_counter()
            self._library.pingpong_run(made, ctypes.c_uint64(count))
            return time.perf_counter() - start

        return self._library.pingpong_child(made), burst

    def _bound(self) -> tuple[int, Burst]:
        gates, pid, close = _bound_gates()
        self._closers.append(close)
        return pid, _rounds(gates)

    def close(self) -> None:
        while self._closers:
            self._closers.pop()()


def _placed(burst: Burst, pid: int, mine: int, partners: int) -> Burst:
    """Wakes the partner first; where they run must not be luck."""

    def placed(count: int) -> float:
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {mine})
        os.sched_setaffinity(pid, {partners})
        try:
            burst(-(-count // 4))
            return burst(count)
        finally:
            os.sched_setaffinity(0, everywhere)

    return placed


def _bound_gates() -> tuple[Any, int, Callable[[], None]]:
    memory = mmap.mmap(-1, _core.GATE_BYTES + _core.WAKEUP_BYTES)  # both are whole cache lines
    gate_words = np.ndarray((1, _core.GATE_BYTES), np.uint8, memory)
    bell_words = np.ndarray(_core.WAKEUP_BYTES, np.uint8, memory, _core.GATE_BYTES)
    words = gate_words, bell_words
    wakeup_fd, ring_fd = _core.wakeup_create()
    gates = _core.Gates(*words, 1, wakeup_fd, False)
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            gate = _core.Gate(*words, 0, ring_fd, False)
            while True:
                gate.wait()
                gate.finish(0, 0)
        finally:
            os._exit(0)
    pidfd = os.pidfd_open(pid)
    gates.watch(0, pidfd, False)

    def close() -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in {pidfd, wakeup_fd, ring_fd}:
            os.close(fd)

    return gates, pid, close


def _rounds(gates: Any) -> Burst:
    def burst(count: int) -> float:
        post, wait, step = gates.post_all, gates.wait, _core.GATE_STEP
        turns = range(count)
        start = time.perf_counter()
        for _ in turns:
            post(step, 0, 0)
            wait(1 << 40)
        return time.perf_counter() - start

    return burst


@contextmanager
def crowd(cores: Sequence[int]) -> Iterator[Callable[[Burst], Burst]]:
    """A process that never rests on each core, for the bursts that are given a place among them."""
    pids: list[int] = []

    def tell(signal_number: int) -> None:
        for pid in pids:
            os.kill(pid, signal_number)

    def among(burst: Burst) -> Burst:
        def crowded(count: int) -> float:
            tell(signal.SIGCONT)
            try:
                return burst(count)
            finally:
                tell(signal.SIGSTOP)

        return crowded

    try:
        for core in cores:
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                os.sched_setaffinity(0, {core})
                while True:
                    pass
            pids.append(pid)
        tell(signal.SIGSTOP)
        yield among
    finally:
        tell(signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
