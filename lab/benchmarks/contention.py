"""Threads while other programs use the cores: the default number of threads against one, in turns.

python lab/benchmarks/contention.py [--busy N ...] [--rounds 15] [--smoke]

A busy process is a Python loop that never sleeps. A ratio of 1 means that the default is as fast as one
thread. The last column compares one thread with another vector environment on one thread: the noise. The goal
is a median that is not more than 0.05 below it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import shoal

CASES = [
    ("CartPole-v1", 1_024),
    ("CartPole-v1", 2_048),
    ("CartPole-v1", 8_192),
    ("CartPole-v1", 262_144),
    ("Squared-v0", 1_024),
    ("Squared-v0", 4_096),
    ("Snake-v0", 32),
    ("Reef-v0", 8),
    ("Reef-v0", 64),
]


def open_envs(stack: ExitStack, env: str, num_envs: int, num_threads: int | None) -> Callable[[float], float]:
    """Makes a vector environment; returns a function that steps it for some seconds and returns its rate."""
    envs: Any = stack.enter_context(shoal.make_vec(env, num_envs, num_threads=num_threads, session=None))
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, int(envs.single_action_space.n), envs.num_envs)

    def measure_rate(seconds: float) -> float:
        steps, start = 0, time.perf_counter()
        while (now := time.perf_counter()) - start < seconds:
            for _ in range(10):
                envs.step(actions)
            steps += 10
        return steps / (now - start)

    return measure_rate


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.3 if count else 0)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--busy",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of busy processes (default: none, one, half of the cores, as many, twice as many)",
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each rival (default: %(default)s)")
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: one short turn of each rival"
    )
    args = parser.parse_args()
    rounds, seconds = (1, 0.01) if args.smoke else (args.rounds, 0.25)
    cores = shoal._core.cpu_count()
    usual = [0, 1] if args.smoke else sorted({0, 1, cores // 2, cores, 2 * cores})
    counts = args.busy or usual
    print(f"default against one thread, {cores} cores: median (smallest, largest) of {rounds} rounds; noise")
    with ExitStack() as stack:
        rivals = [(env, n, *(open_envs(stack, env, n, t) for t in (None, 1, 1))) for env, n in CASES]
        for count in counts:
            with busy_processes(count):
                for env, num_envs, *measures in rivals:
                    rates = [[measure(seconds) for measure in measures] for _ in range(rounds)]
                    ratios = [default / single for default, single, _ in rates]
                    noise = statistics.median(again / single for _, single, again in rates)
                    found = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
                    name = f"{env}, {num_envs:,}"
                    print(f"{count:3} busy processes  {name:22}  {found}; {noise:.2f}", flush=True)


if __name__ == "__main__":
    main()
