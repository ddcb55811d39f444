"""Side-by-side timing on a shared machine: rivals take turns in short bursts, and each gets its median.

A machine that slows down for a second slows every rival alike, so a ratio stands where a time would not. A
burst from which the kernel took the core away is done again, and so is a round that others ran into.
"""

from __future__ import annotations

import gc
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "Burst",
    "Guard",
    "Timing",
    "calls_for",
    "interleave",
    "interleave_bursts",
    "repeated",
    "undisturbed",
]

Burst = Callable[[int], float]
"""Does its work so many times; returns the seconds that took."""


class Guard(Protocol):
    """Who says whether a round counts (`shoal_lab.bench.load.Watch`)."""

    def begin(self) -> None: ...

    def lost(self) -> float:
        """Cores that were not ours since `begin`."""

    def again(self, lost: float) -> bool:
        """Whether to do a round again that lost so much."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call over all bursts."""

    median_s: float
    low_s: float
    high_s: float
    turns_s: tuple[float, ...] = ()  # one per burst, in order

    @classmethod
    def of(cls, turns_s: Sequence[float]) -> Timing:
        return cls(statistics.median(turns_s), *_quartiles(turns_s), tuple(turns_s))

    def speedup(self, other: Timing) -> float:
        """How many times faster than the other: the median over turns, each against its neighbour in time."""
        pairs = zip(self.turns_s, other.turns_s, strict=True)
        return statistics.median(theirs / ours for ours, theirs in pairs)

    def __str__(self) -> str:
        return f"{self.median_s * 1e6:8.2f} us [{self.low_s * 1e6:.2f} .. {self.high_s * 1e6:.2f}]"


def undisturbed(burst: Burst, tries: int = 4) -> Burst:
    """Warms up, and repeats a burst during which this process lost a core; the least disturbed one counts."""

    def retried(count: int) -> float:
        tried = []
        if count >= 10:
            burst(count // 10)
        for turn in range(tries):
            if turn > 0:
                time.sleep(0.002)  # who has slept is let run for longer
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
            elapsed = burst(count)
            lost = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
            tried.append((lost, elapsed))
            if lost == 0 or elapsed > 0.05:
                break
        return min(tried)[1]

    return retried


def interleave(
    rivals: dict[str, Callable[[], object]], bursts: int = 25, burst_s: float = 0.02
) -> dict[str, Timing]:
    """Times every rival in turns, `bursts` times each; a burst lasts about `burst_s`."""
    bursting = {name: undisturbed(repeated(call)) for name, call in rivals.items()}
    return interleave_bursts(bursting, bursts, burst_s)


def interleave_bursts(
    rivals: dict[str, Burst],
    bursts: int = 25,
    burst_s: float | None = 0.02,
    guard: Guard | None = None,
    after_round: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """The same for rivals that repeat their work themselves, with no call between one time and the next.

    Without `burst_s` a burst is one call: for what takes long, or is not the same the second time.
    """
    calls = {name: 1 if burst_s is None else calls_for(burst, burst_s) for name, burst in rivals.items()}
    times: dict[str, list[float]] = {name: [] for name in rivals}
    shuffle = random.Random(0).shuffle
    collects = gc.isenabled()
    gc.disable()
    try:
        order = list(rivals)
        for _ in range(bursts):
            shuffle(order)  # nobody always comes after the one that leaves caches cold
            for name, time_s in _round({name: rivals[name] for name in order}, calls, guard).items():
                times[name].append(time_s)
            after_round()
    finally:
        if collects:
            gc.enable()
    return {name: Timing.of(values) for name, values in times.items()}


def calls_for(burst: Burst, burst_s: float) -> int:
    """How many calls last about so long."""
    burst(1)  # the first call may set things up; below, a pause must not pass for slowness
    count, elapsed = 1, min(burst(1), burst(1))
    while elapsed < burst_s / 4:
        count *= 2
        elapsed = min(burst(count), burst(count))
    return max(1, round(count * burst_s / elapsed))


def _round(rivals: dict[str, Burst], calls: dict[str, int], guard: Guard | None) -> dict[str, float]:
    """Seconds per call of everybody; of several tries the one that lost least."""
    tried: list[tuple[float, dict[str, float]]] = []
    while True:
        if guard is not None:
            guard.begin()
        times = {name: burst(calls[name]) / calls[name] for name, burst in rivals.items()}
        lost = 0.0 if guard is None else guard.lost()
        tried.append((lost, times))
        if guard is None or not guard.again(lost):
            return min(tried, key=lambda one: one[0])[1]


def repeated(call: Callable[[], object]) -> Burst:
    """A call as a burst."""

    def burst(count: int) -> float:
        turns = range(count)
        start = time.perf_counter()
        for _ in turns:
            call()
        return time.perf_counter() - start

    return burst


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4)
    return low, high
