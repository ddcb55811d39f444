"""Round trips between two processes: the gate in C, the gate from Python, and bare futex loops."""

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
    """Compiles pingpong.c and starts a partner process for each way; with `core`, the gate in C too."""

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
                    self._made[name] = self._make_in_c(kind)
            self._made[BOUND] = self._make_in_python()
        except BaseException:
            self.close()  # remaining partners would keep the pipes of other processes open
            raise

    def bursts(self, mine: int, partners: int) -> dict[str, Burst]:
        """Returns bursts of all ways, with this process on core `mine` and the partner on core `partners`."""
        return {name: _pin(burst, pid, mine, partners) for name, (pid, burst) in self._made.items()}

    def _make_in_c(self, kind: int) -> tuple[int, Burst]:
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

    def _make_in_python(self) -> tuple[int, Burst]:
        gates, pid, close = _start_python_partner()
        self._closers.append(close)
        return pid, _make_burst(gates)

    def close(self) -> None:
        while self._closers:
            self._closers.pop()()


def _pin(burst: Burst, pid: int, mine: int, partners: int) -> Burst:
    """Pins both processes to their cores and warms up before the burst."""

    def pinned(count: int) -> float:
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {mine})
        os.sched_setaffinity(pid, {partners})
        try:
            burst(-(-count // 4))
            return burst(count)
        finally:
            os.sched_setaffinity(0, everywhere)

    return pinned


def _start_python_partner() -> tuple[Any, int, Callable[[], None]]:
    memory = mmap.mmap(-1, _core.GATE_BYTES + _core.WAKEUP_BYTES)  # both are whole cache lines
    gate_words = np.ndarray((1, _core.GATE_BYTES), np.uint8, memory)
    wakeup_words = np.ndarray(_core.WAKEUP_BYTES, np.uint8, memory, _core.GATE_BYTES)
    words = gate_words, wakeup_words
    wakeup_fd, write_fd = _core.wakeup_create()
    gates = _core.Gates(*words, 1, wakeup_fd, False)
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            gate = _core.Gate(*words, 0, write_fd, False)
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
        for fd in {pidfd, wakeup_fd, write_fd}:
            os.close(fd)

    return gates, pid, close


def _make_burst(gates: Any) -> Burst:
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
    """Starts a busy process on each core; the yielded function makes a burst run beside them."""
    pids: list[int] = []

    def send_signal(signal_number: int) -> None:
        for pid in pids:
            os.kill(pid, signal_number)

    def run_among(burst: Burst) -> Burst:
        def crowded(count: int) -> float:
            send_signal(signal.SIGCONT)
            try:
                return burst(count)
            finally:
                send_signal(signal.SIGSTOP)

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
        send_signal(signal.SIGSTOP)
        yield run_among
    finally:
        send_signal(signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
