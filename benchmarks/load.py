"""How busy other people's processes keep the machine, from /proc, and waiting until they do not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from interleave import Burst

_TICKS = os.sysconf("SC_CLK_TCK")


class Others:
    """Cores used by processes that are not descendants of this one."""

    def __init__(self) -> None:
        self._tick: tuple[float, int, int] | None = None
        self.cores: float | None = None

    def begin(self) -> None:
        self._tick = _now()

    def end(self) -> None:
        before, after = self._tick, _now()
        if before is None or after is None or after[0] - before[0] < 0.05:
            return
        used = (after[1] - before[1]) - (after[2] - before[2])
        self.cores = max(0.0, used / _TICKS / (after[0] - before[0]))

    def __str__(self) -> str:
        return "others unknown" if self.cores is None else f"others {self.cores:.2f} cores"


@contextmanager
def watched() -> Iterator[Others]:
    """The load of others while the body runs; processes that both start and end in it count as others'."""
    others = Others()
    others.begin()
    try:
        yield others
    finally:
        others.end()


class Patience:
    """Waits, so many seconds in all, until nobody else runs; and repeats what somebody ran into."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    def __call__(self, burst: Burst, tries: int = 4) -> Burst:
        if self._left_s <= 0:
            return burst

        def patient(count: int) -> float:
            elapsed = 0.0
            for _ in range(tries):
                self._wait()
                elapsed = burst(count)
                time.sleep(0.002)
                if self._left_s <= 0 or _alone():
                    break
            return elapsed

        return patient

    def _wait(self) -> None:
        begin = time.monotonic()
        while self._left_s > time.monotonic() - begin:
            for _ in range(4):
                time.sleep(0.002)
                if not _alone():
                    break
            else:
                break
            time.sleep(0.02)
        self._left_s -= time.monotonic() - begin


def _alone() -> bool:
    """Whether this process is the only one that runs or could."""
    with open("/proc/loadavg") as file:
        return file.read().split()[3].startswith("1/")


def cpu_seconds(pids: list[int]) -> float:
    """Time these processes have used so far, their threads' and the kernel's for them."""
    return sum(_used(pid) for pid in pids) / _TICKS


def _now() -> tuple[float, int, int] | None:
    """The time, ticks of all processes, ticks of ours with the children they waited for."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _idle, _iowait, irq, soft, *_ = map(int, file.readline().split()[1:])
    except (OSError, ValueError):
        return None
    return time.monotonic(), user + nice + system + irq + soft, _own()


def _own() -> int:
    """Ticks of this process's descendants, by their parents; launchers in sessions of their own included."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = _fields(int(name))
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
            used[int(name)] = sum(map(int, fields[11:15]))
    total, me = 0, os.getpid()
    for pid, ticks in used.items():
        above = pid
        while above not in (0, 1, me):
            above = parents.get(above, 0)
        total += ticks if above == me else 0
    return total


def _used(pid: int) -> int:
    try:
        return sum(map(int, _fields(pid)[11:13]))
    except OSError:
        return 0


def _fields(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
