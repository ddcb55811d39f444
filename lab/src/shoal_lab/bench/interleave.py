"""Side-by-side timing on a shared machine: rivals take turns in short bursts, and each gets its median.

A machine that slows down for a second slows all rivals equally, so ratios are more reliable than times. A
burst that was preempted by the kernel is repeated, and so is a round that other processes disturbed.
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
    "estimate_calls",
    "interleave",
    "interleave_bursts",
    "repeated",
    "undisturbed",
]

Burst = Callable[[int], float]
"""Does its work `count` times and returns the seconds it took."""


class Guard(Protocol):
    """Decides whether a round counts (`shoal_lab.bench.load.Watch`)."""

    def begin(self) -> None: ...

    def measure_loss(self) -> float:
        """Returns the number of cores that other processes used since `begin`."""

    def should_repeat(self, lost: float) -> bool:
        """Whether to repeat a round that lost so many cores."""


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
        """Returns how many times faster this is: the median of the ratios of bursts in the same round."""
        pairs = zip(self.turns_s, other.turns_s, strict=True)
        return statistics.median(theirs / ours for ours, theirs in pairs)

    def __str__(self) -> str:
        return f"{self.median_s * 1e6:8.2f} us [{self.low_s * 1e6:.2f} .. {self.high_s * 1e6:.2f}]"


def undisturbed(burst: Burst, tries: int = 4) -> Burst:
    """Warms up, and repeats a burst in which this process was preempted; the least disturbed one counts."""

    def retried(count: int) -> float:
        tried = []
        if count >= 10:
            burst(count // 10)
        for turn in range(tries):
            if turn > 0:
                time.sleep(0.002)  # the scheduler lets a process that slept run longer
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
    """Times all rivals in turns, `bursts` times each; a burst takes about `burst_s` seconds."""
    bursting = {name: undisturbed(repeated(call)) for name, call in rivals.items()}
    return interleave_bursts(bursting, bursts, burst_s)


def interleave_bursts(
    rivals: dict[str, Burst],
    bursts: int = 25,
    burst_s: float | None = 0.02,
    guard: Guard | None = None,
    after_round: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """Does the same for rivals that repeat their work themselves, without a Python call in between.

    Without `burst_s`, a burst is one call: for work that takes long or that differs the second time.
    """
    calls = {name: 1 if burst_s is None else estimate_calls(burst, burst_s) for name, burst in rivals.items()}
    times: dict[str, list[float]] = {name: [] for name in rivals}
    shuffle = random.Random(0).shuffle
    collects = gc.isenabled()
    gc.disable()
    try:
        order = list(rivals)
        for _ in range(bursts):
            shuffle(order)  # no rival always follows the one that leaves caches cold
            for name, time_s in _round({name: rivals[name] for name in order}, calls, guard).items():
                times[name].append(time_s)
            after_round()
    finally:
        if collects:
            gc.enable()
    return {name: Timing.of(values) for name, values in times.items()}


def estimate_calls(burst: Burst, burst_s: float) -> int:
    """Returns how many calls take about `burst_s` seconds."""
    burst(1)  # the first call may set things up; the minimum of two calls ignores a pause
    count, elapsed = 1, min(burst(1), burst(1))
    while elapsed < burst_s / 4:
        count *= 2
        elapsed = min(burst(count), burst(count))
    return max(1, round(count * burst_s / elapsed))


def _round(rivals: dict[str, Burst], calls: dict[str, int], guard: Guard | None) -> dict[str, float]:
    """Times all rivals once; returns seconds per call, from the least disturbed of several tries."""
    tried: list[tuple[float, dict[str, float]]] = []
    while True:
        if guard is not None:
            guard.begin()
        times = {name: burst(calls[name]) / calls[name] for name, burst in rivals.items()}
        lost = 0.0 if guard is None else guard.measure_loss()
        tried.append((lost, times))
        if guard is None or not guard.should_repeat(lost):
            return min(tried, key=lambda one: one[0])[1]


def repeated(call: Callable[[], object]) -> Burst:
    """Makes a burst of a call. A result is held until the next one is there, as in `batch = sample()`."""

    def burst(count: int) -> float:
        turns = range(count)
        held = None
        start = time.perf_counter()
        for _ in turns:
            held = call()
        end = time.perf_counter()
        del held
        return end - start

    return burst


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4)
    return low, high
