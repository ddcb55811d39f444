"""What being seen costs a run: the hook nobody calls, a session nobody watches, ten clients that watch.

    python benchmarks/state.py [--seconds S]

Every pair is stepped in turn, a slice each, so that what else the machine does falls on both. Watchers are
processes of their own; on a machine without a spare core they take the run's, which says nothing of the run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import shoal

WATCHER = """
import sys, time, shoal
session = shoal.attach(sys.argv[1])
session.watch([int(sys.argv[2])], rate_hz=20)
print("there", flush=True)
seen = 0
while session.alive:
    found = session.latest(int(sys.argv[2]), seen)
    if found is not None:
        seen = found[0]
    time.sleep(0.05)
"""


def slices(envs: shoal.VectorEnv, seconds: float) -> float:
    """Nanoseconds a step, over one slice."""
    actions = envs.action_space.sample() * 0
    begin = time.perf_counter_ns()
    end = begin + int(seconds * 1e9)
    steps = 0
    while time.perf_counter_ns() < end:
        for _ in range(50):
            envs.step(actions)
        steps += 50
    return (time.perf_counter_ns() - begin) / steps


def compare(what: str, one: Callable[[], float], other: Callable[[], float], rounds: int) -> None:
    """Prints the median ratio of `other` to `one`."""
    ratios, times = [], []
    for turn in range(rounds):
        first, second = (one, other) if turn % 2 else (other, one)
        a, b = first(), second()
        if first is other:
            a, b = b, a
        ratios.append(b / a)
        times.append(a)
    spread = np.percentile(ratios, [25, 75])
    print(
        f"{what:58} {statistics.median(ratios):6.3f}  (quartiles {spread[0]:.3f} {spread[1]:.3f}; "
        f"{statistics.median(times) / 1000:.2f} us a step)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one slice")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=10)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores; ratios of the time of a step, 1 is no cost")
    for name, num_envs, options in (
        ("CartPole-v1", 8, {}),
        ("CartPole-v1", 1024, {}),
        ("Reef-v0", 1, {}),
        ("Reef-v0", 1, {"height": 512, "width": 512, "num_agents": 1024, "num_enemies": 1976}),
    ):
        what = f"{num_envs} {name} {options.get('height', '')}"
        plain = shoal.make_vec(name, num_envs, session=None, num_threads=1, **options)
        seen = shoal.make_vec(name, num_envs, session="benchmark", num_threads=1, **options)
        for envs in (plain, seen):
            envs.reset(seed=0)
            slices(envs, 0.2)
        pair = partial(slices, plain, args.seconds), partial(slices, seen, args.seconds)
        compare(f"{what}: with a session", *pair, args.rounds)
        command = [sys.executable, "-c", WATCHER, "benchmark", "0"]
        watchers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(args.clients)]
        for watcher in watchers:
            assert watcher.stdout is not None
            watcher.stdout.readline()
        compare(f"{what}: and {args.clients} clients that watch", *pair, args.rounds)
        plain.close()
        seen.close()
        for watcher in watchers:
            watcher.wait()


if __name__ == "__main__":
    main()
