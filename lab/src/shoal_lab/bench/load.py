"""How busy other people's processes keep the machine, from /proc: rounds they ran into are done again.

A core is lost when processes that are not ours use it, or when the machine under this one takes it (steal).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shoal_lab.bench.interleave import Burst

__all__ = ["Others", "Patience", "Ticks", "Watch", "cores", "cpu_seconds", "pss_bytes", "watched"]

_TICKS = os.sysconf("SC_CLK_TCK")


_GRAIN = 2  # ticks of doubt: counters are read one after the other, and a tick is 10 ms


def cores() -> list[int]:
    """Those this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class Ticks:
    """Counters at one moment: all processes' work, ours of it, and what the host below took."""

    at_s: float
    everybody: int
    ours: int
    stolen: int


class Others:
    """Cores used by processes that are not descendants of this one, and cores stolen from this machine."""

    def __init__(self, now: Callable[[], Ticks | None] | None = None) -> None:
        self._now = now or _now
        self._before: Ticks | None = None
        self.cores: float | None = None
        self.stolen: float | None = None

    def begin(self) -> None:
        self._before = self._now()

    def end(self) -> None:
        before, after = self._before, self._now()
        if before is None or after is None or after.at_s - before.at_s < 0.02:
            return
        seconds = after.at_s - before.at_s
        used = (after.everybody - before.everybody) - (after.ours - before.ours)
        self.cores = max(0, used) / _TICKS / seconds
        self.stolen = max(0, after.stolen - before.stolen) / _TICKS / seconds
        self.seconds = seconds

    def __str__(self) -> str:
        if self.cores is None:
            return "others unknown"
        stolen = f", {self.stolen:.2f} stolen" if self.stolen and self.stolen >= 0.005 else ""
        return f"others {self.cores:.2f} cores{stolen}"


class Watch:
    """Says of each round what others took, and whether to do it again; counts both.

    Not more than `repeats` rounds in all are done again: a machine that is never quiet gives what it can, and
    the result says so.
    """

    ALLOWED = 0.15
    """Cores that others may use during a round that counts."""

    def __init__(self, repeats: int, now: Callable[[], Ticks | None] | None = None) -> None:
        self._others = Others(now)
        self._left = repeats
        self._lost: list[float] = []
        self.repeated = self.disturbed = 0

    def begin(self) -> None:
        self._others.begin()

    def lost(self) -> float:
        self._others.cores = self._others.stolen = None
        self._others.end()
        if self._others.cores is None or self._others.stolen is None:
            return 0.0
        doubt = _GRAIN / _TICKS / self._others.seconds
        return max(0.0, self._others.cores - doubt) + max(0.0, self._others.stolen - doubt)

    def again(self, lost: float) -> bool:
        self._lost.append(lost)
        if lost <= self.ALLOWED:
            return False
        if self._left == 0:
            self.disturbed += 1
            return False
        self._left -= 1
        self.repeated += 1
        return True

    @property
    def lost_cores(self) -> float:
        """What others took on the average, repeated rounds included."""
        return sum(self._lost) / len(self._lost) if self._lost else 0.0


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


def pss_bytes(pid: int) -> int:
    """Memory of a process and its descendants, what they share counted once; OSError without /proc."""
    total = 0
    for one in [pid, *_descendants(pid)]:
        try:
            with open(f"/proc/{one}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            if one == pid:
                raise
    return total * 1024


def _now() -> Ticks | None:
    try:
        with open("/proc/stat") as file:
            fields = list(map(int, file.readline().split()[1:]))
        user, nice, system, _idle, _iowait, irq, soft, steal = fields[:8]
        return Ticks(time.monotonic(), user + nice + system + irq + soft, _own(), steal)
    except (OSError, ValueError):
        return None


def _descendants(pid: int) -> list[int]:
    """By their parents; launchers in sessions of their own included."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(_fields(int(name))[1])
            except OSError:
                continue
    found, last = [], {pid}
    while last:
        last = {one for one, parent in parents.items() if parent in last}
        found += sorted(last)
    return found


def _own() -> int:
    """Ticks of this process and its descendants, with the children they waited for."""
    total = 0
    for pid in [os.getpid(), *_descendants(os.getpid())]:
        try:
            total += sum(map(int, _fields(pid)[11:15]))
        except OSError:
            continue
    return total


def _used(pid: int) -> int:
    try:
        return sum(map(int, _fields(pid)[11:13]))
    except OSError:
        return 0


def _fields(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
