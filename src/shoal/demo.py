"""`shoal demo`: steps environments with random actions and shows a live table of what happens in them.

A bundled environment runs on the native engine. Any other Gymnasium environment runs in worker processes:

    worker 0 --.   observations [num_envs, ...]                         .--> this process reads the
    worker 1 --+-> rewards, episodes, returns [num_envs]     one segment +    same bytes: no pipe,
    ...      --'   steps [num_workers, 8]: one line each                '    no pickle, no copy

1. A worker owns a contiguous chunk of environments and is the only writer of their rows and its line.
2. The reader takes each counter as it is: every number is one aligned 8-byte store, never half of one.
3. A worker that dies is seen by its exit code; the segment has no name, so nothing is left behind.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from shoal import _core
from shoal.errors import ShoalError
from shoal.memory import Layout, Segment
from shoal.native.plugin import bundled
from shoal.spaces import Declaration
from shoal.vector import make_vec

__all__ = ["run"]

_REFRESH_S = 0.5


def run(env: str, num_envs: int, num_workers: int, seconds: float, seed: int) -> int:
    """Steps `num_envs` environments for `seconds` with random actions; prints a live table."""
    if env.removeprefix("shoal/") in bundled() or env.endswith((".c", ".cc", ".cpp", ".so")):
        return _run_native(env, num_envs, seconds, seed)
    return _run_workers(env, num_envs, num_workers, seconds, seed)


def _run_native(env: str, num_envs: int, seconds: float, seed: int) -> int:
    with make_vec(env, num_envs) as envs:
        print(f"{num_envs} x {env}, random actions, native engine on {_core.cpu_count()} cores")
        envs.reset(seed=seed)
        envs.action_space.seed(seed)
        plans = [envs.action_space.sample() for _ in range(64)]
        first = last = time.monotonic()
        steps_last, turn = 0, 0
        with _table() as show:
            while last - first < seconds:
                while time.monotonic() - last < min(_REFRESH_S, seconds):
                    for _ in range(100):
                        envs.step(plans[turn % 64])
                        turn += 1
                now, stats = time.monotonic(), envs.stats
                rate = (stats["steps"] - steps_last) / (now - last)
                means = stats["mean_return"], stats["mean_length"]
                show(_cells(now - first, stats["steps"], rate, stats["episodes"], *means))
                last, steps_last = now, stats["steps"]
        rate = steps_last / (last - first)
        print(f"{rate:,.0f} environment steps/s, every result seen from Python, none copied.")
        print("Next: `shoal new my_env` writes a C environment of your own; README.md has a quickstart.")
    return 0


def _run_workers(env: str, num_envs: int, num_workers: int, seconds: float, seed: int) -> int:
    num_workers = min(num_workers, num_envs)
    space = _observation_space(env)
    segment = Segment(_layout(space, num_envs, num_workers))
    print(f"{num_envs} x {env}, random actions, {num_workers} worker processes; all data in {segment!r}")
    context = multiprocessing.get_context("spawn")
    bounds = np.linspace(0, num_envs, num_workers + 1).astype(int)
    workers: list[BaseProcess] = [
        context.Process(
            target=_worker, args=(segment, env, w, int(bounds[w]), int(bounds[w + 1]), seed), daemon=True
        )
        for w in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    try:
        return _watch(segment, workers, seconds)
    finally:
        segment["stop"][0] = 1
        for worker in workers:
            worker.join(timeout=5)
            if worker.exitcode is None:
                worker.kill()
                worker.join()
        segment.close()


def _observation_space(env: str) -> Space[Any]:
    try:
        made = gymnasium.make(env)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ShoalError(f"Gymnasium cannot make {env!r}: {error}") from error
    made.close()
    return made.observation_space


def _layout(space: Space[Any], num_envs: int, num_workers: int) -> Layout:
    declaration = Declaration()
    declaration.space(space, "observation", num_envs)
    return Layout(
        {
            **declaration.fields,
            "reward": (np.float64, (num_envs,)),
            "episodes": (np.int64, (num_envs,)),
            "episode_return": (np.float64, (num_envs,)),
            "episode_length": (np.int64, (num_envs,)),
            "steps": (np.int64, (num_workers, 8)),  # a cache line per worker
            "stop": (np.int64, (1,)),
        }
    )


def _worker(segment: Segment, env_id: str, worker: int, begin: int, end: int, seed: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    envs = [gymnasium.make(env_id) for _ in range(begin, end)]
    memory = Declaration().space(envs[0].observation_space, "observation", len(segment["reward"]))(segment)
    returns, lengths = np.zeros(len(envs)), np.zeros(len(envs), np.int64)
    steps, stop = segment["steps"][worker], segment["stop"]
    for row, env in enumerate(envs, begin):
        env.action_space.seed(seed + row)
        memory.write(row, env.reset(seed=seed + row)[0])
    while not stop[0]:
        for local, env in enumerate(envs):
            row = begin + local
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            segment["reward"][row] = reward
            returns[local] += float(reward)
            lengths[local] += 1
            if terminated or truncated:
                segment["episode_return"][row] += returns[local]
                segment["episode_length"][row] += lengths[local]
                segment["episodes"][row] += 1
                returns[local] = lengths[local] = 0
                observation, _ = env.reset()
            memory.write(row, observation)
        steps[0] += len(envs)


def _watch(segment: Segment, workers: list[BaseProcess], seconds: float) -> int:
    while not segment["steps"][:, 0].all():  # starting an interpreter takes a while
        _require_alive(workers)
        time.sleep(0.01)
    first = last = time.monotonic()
    steps = steps_first = steps_last = int(segment["steps"][:, 0].sum())
    with _table() as show:
        while last - first < seconds:
            time.sleep(min(_REFRESH_S, seconds))
            _require_alive(workers)
            now, steps = time.monotonic(), int(segment["steps"][:, 0].sum())
            episodes = int(segment["episodes"].sum())
            mean_return = segment["episode_return"].sum() / max(1, episodes)
            mean_length = segment["episode_length"].sum() / max(1, episodes)
            rate = (steps - steps_last) / (now - last)
            show(_cells(now - first, steps, rate, episodes, mean_return, mean_length))
            last, steps_last = now, steps
    rate = (steps - steps_first) / max(last - first, 1e-9)
    print(f"{rate:,.0f} environment steps/s, read by this process from the segment; no message was sent.")
    print("Next: `shoal doctor` checks this machine; README.md has a quickstart.")
    return 0


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


def _require_alive(workers: list[BaseProcess]) -> None:
    for number, worker in enumerate(workers):
        if worker.exitcode is not None:
            raise ShoalError(
                f"worker {number} (process {worker.pid}) ended with exit code {worker.exitcode}; "
                "its own error is printed above"
            )
