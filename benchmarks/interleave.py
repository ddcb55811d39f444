"""Side-by-side timing on a shared machine: the rivals take turns in short bursts, and each gets its median.

A machine that slows down for a second slows every rival alike, so a ratio stands where a time would not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds per call over all bursts."""

    median_s: float
    low_s: float
    high_s: float

    def __str__(self) -> str:
        return f"{self.median_s * 1e6:8.2f} us [{self.low_s * 1e6:.2f} .. {self.high_s * 1e6:.2f}]"


def interleave(
    rivals: dict[str, Callable[[], object]], bursts: int = 25, burst_s: float = 0.02
) -> dict[str, Timing]:
    """Times every rival in turns, `bursts` times each; a burst lasts about `burst_s`."""
    calls = {}
    for name, call in rivals.items():
        count, elapsed = 1, 0.0
        while elapsed < burst_s / 4:  # also warms caches
            count *= 2
            elapsed = _elapsed(call, count)
        calls[name] = max(1, int(count * burst_s / elapsed))
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(bursts):
        for name, call in rivals.items():
            times[name].append(_elapsed(call, calls[name]) / calls[name])
    return {name: Timing(statistics.median(values), *_quartiles(values)) for name, values in times.items()}


def _elapsed(call: Callable[[], object], count: int) -> float:
    turns = range(count)
    start = time.perf_counter()
    for _ in turns:
        call()
    return time.perf_counter() - start


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return low, high
