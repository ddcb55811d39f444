"""`shoal demo`: steps environments with random actions and shows a live table of what happens in them.

A bundled environment runs on the native engine, any other Gymnasium environment in worker processes; the loop
below is the same for both.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

from shoal import _core
from shoal.errors import ShoalError
from shoal.vector import ProcessVectorEnv, VectorEnv, make_vec

__all__ = ["run"]

_REFRESH_S = 0.5
_PLANS = 64


def run(env: str, num_envs: int, num_workers: int | None, seconds: float, seed: int) -> int:
    """Steps `num_envs` environments for `seconds` with random actions; prints a live table.

    With `num_workers` environments in C run in worker processes too.
    """
    with _made(env, num_envs, num_workers) as envs:
        if isinstance(envs, ProcessVectorEnv):
            where = f"{envs.num_workers} worker processes"
        else:
            where = f"native engine on {_core.cpu_count()} cores"
        print(f"{num_envs} x {env}, random actions, {where}")
        envs.reset(seed=seed)
        envs.action_space.seed(seed)
        plans = [envs.action_space.sample() for _ in range(_PLANS)]
        rate = _run(envs, plans, seconds)
    print(f"{rate:,.0f} environment steps/s, every result seen from Python, none copied.")
    print("Next: `shoal new my_env` writes a C environment of your own; README.md has a quickstart.")
    return 0


def _made(env: str, num_envs: int, num_workers: int | None) -> VectorEnv | ProcessVectorEnv:
    try:
        if num_workers is None:
            return make_vec(env, num_envs)
        return make_vec(env, num_envs, backend="process", num_workers=num_workers)
    except gymnasium.error.Error as error:
        raise ShoalError(f"Gymnasium cannot make {env!r}: {error}") from error


def _run(envs: VectorEnv | ProcessVectorEnv, plans: list[Any], seconds: float) -> float:
    first = last = time.monotonic()
    steps_last, turn = 0, 0
    with _table() as show:
        while last - first < seconds:
            until = last + min(_REFRESH_S, seconds)
            while time.monotonic() < until:
                for _ in range(10):
                    envs.step(plans[turn % _PLANS])
                    turn += 1
            now, stats = time.monotonic(), envs.stats
            rate = (stats["steps"] - steps_last) / (now - last)
            means = stats["mean_return"], stats["mean_length"]
            show(_cells(now - first, stats["steps"], rate, stats["episodes"], *means))
            last, steps_last = now, stats["steps"]
    return float(steps_last / (last - first))


_COLUMNS = ("time", "env steps", "steps/s", "episodes", "mean return", "mean length")


def _cells(
    elapsed_s: float,
    steps: int,
    rate: float,
    episodes: int,
    mean_return: float,
    mean_length: float,
) -> tuple[str, ...]:
    return (
        f"{elapsed_s:.1f} s",
        _short(steps),
        _short(rate),
        _short(episodes),
        f"{mean_return:.1f}",
        f"{mean_length:.1f}",
    )


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


@contextmanager
def _table() -> Iterator[Callable[[tuple[str, ...]], None]]:
    """A table that redraws itself in a terminal with rich, and plain lines anywhere else."""
    try:
        from rich.live import Live
        from rich.table import Table
    except ImportError:
        Live = None  # type: ignore[assignment, misc]
    if Live is None or not sys.stdout.isatty():
        widths = [max(11, len(column)) for column in _COLUMNS]

        def plain(row: tuple[str, ...]) -> None:
            print(" ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)), flush=True)

        plain(_COLUMNS)
        yield plain
        return
    shown: deque[tuple[str, ...]] = deque(maxlen=12)
    with Live(refresh_per_second=4) as live:

        def redraw(row: tuple[str, ...]) -> None:
            shown.append(row)
            table = Table()
            for column in _COLUMNS:
                table.add_column(column, justify="right", no_wrap=True)
            for line in shown:
                table.add_row(*line)
            live.update(table)

        yield redraw
