"""Measures the load of other processes from /proc; rounds that they disturbed are repeated.

A core is lost when processes of others use it, or when the hypervisor takes it (steal).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shoal_lab.bench.interleave import Burst

__all__ = ["Others", "Ticks", "WaitForQuiet", "Watch", "cores", "cpu_seconds", "pss_bytes", "watch_load"]

_TICKS = os.sysconf("SC_CLK_TCK")


_GRAIN = 2  # uncertainty in ticks: counters are read one after the other, and a tick is 10 ms


def cores() -> list[int]:
    """Returns the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class Ticks:
    """Counters at one moment: ticks of all processes, of this process tree, and stolen by the hypervisor."""

    at_s: float
    everybody: int
    ours: int
    stolen: int


class Others:
    """Measures the cores used by processes outside this process tree, and the cores stolen."""

    def __init__(self, now: Callable[[], Ticks | None] | None = None) -> None:
        self._read_counters = now or _read_counters
        self._before: Ticks | None = None
        self.cores: float | None = None
        self.stolen: float | None = None

    def begin(self) -> None:
        self._before = self._read_counters()

    def end(self) -> None:
        before, after = self._before, self._read_counters()
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
    """Measures the load of others in each round, and decides whether to repeat the round.

    At most `repeats` rounds are repeated. On a machine that is never quiet, disturbed rounds are kept, and
    the result reports them.
    """

    ALLOWED = 0.15
    """The maximum number of cores that others may use during a round that counts."""

    def __init__(self, repeats: int, now: Callable[[], Ticks | None] | None = None) -> None:
        self._others = Others(now)
        self._left = repeats
        self._lost: list[float] = []
        self.repeated = self.disturbed = 0

    def begin(self) -> None:
        self._others.begin()

    def measure_loss(self) -> float:
        self._others.cores = self._others.stolen = None
        self._others.end()
        if self._others.cores is None or self._others.stolen is None:
            return 0.0
        doubt = _GRAIN / _TICKS / self._others.seconds
        return max(0.0, self._others.cores - doubt) + max(0.0, self._others.stolen - doubt)

    def should_repeat(self, lost: float) -> bool:
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
        """The average number of cores that others used, repeated rounds included."""
        return sum(self._lost) / len(self._lost) if self._lost else 0.0


@contextmanager
def watch_load() -> Iterator[Others]:
    """Measures the load of others while the body runs; processes that start and end in it count as others."""
    others = Others()
    others.begin()
    try:
        yield others
    finally:
        others.end()


class WaitForQuiet:
    """Waits until no other process runs, for at most `seconds` in all, and repeats disturbed bursts."""

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
                if self._left_s <= 0 or _is_alone():
                    break
            return elapsed

        return patient

    def _wait(self) -> None:
        begin = time.monotonic()
        while self._left_s > time.monotonic() - begin:
            for _ in range(4):
                time.sleep(0.002)
                if not _is_alone():
                    break
            else:
                break
            time.sleep(0.02)
        self._left_s -= time.monotonic() - begin


def _is_alone() -> bool:
    """Whether this process is the only runnable one."""
    with open("/proc/loadavg") as file:
        return file.read().split()[3].startswith("1/")


def cpu_seconds(pids: list[int]) -> float:
    """Returns the CPU time of these processes so far: all threads, user and system."""
    return sum(_read_ticks(pid) for pid in pids) / _TICKS


def pss_bytes(pid: int) -> int:
    """Returns the memory of a process and its descendants, shared pages once; OSError without /proc."""
    total = 0
    for one in [pid, *_list_descendants(pid)]:
        try:
            with open(f"/proc/{one}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            if one == pid:
                raise
    return total * 1024


def _read_counters() -> Ticks | None:
    try:
        with open("/proc/stat") as file:
            fields = list(map(int, file.readline().split()[1:]))
        user, nice, system, _idle, _iowait, irq, soft, steal = fields[:8]
        return Ticks(time.monotonic(), user + nice + system + irq + soft, _read_own_ticks(), steal)
    except (OSError, ValueError):
        return None


def _list_descendants(pid: int) -> list[int]:
    """Returns all descendants by parent process, including launchers in their own session."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(_read_stat(int(name))[1])
            except OSError:
                continue
    found, last = [], {pid}
    while last:
        last = {one for one, parent in parents.items() if parent in last}
        found += sorted(last)
    return found


def _read_own_ticks() -> int:
    """Returns the ticks of this process and its descendants, including reaped children."""
    total = 0
    for pid in [os.getpid(), *_list_descendants(os.getpid())]:
        try:
            total += sum(map(int, _read_stat(pid)[11:15]))
        except OSError:
            continue
    return total


def _read_ticks(pid: int) -> int:
    try:
        return sum(map(int, _read_stat(pid)[11:13]))
    except OSError:
        return 0


def _read_stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
