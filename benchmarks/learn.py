"""Does PPO still learn CartPole? The steps each seed needs to a mean return of 475 over 100 episodes.

    python benchmarks/learn.py [--seeds 3] [--within 200000]

Ends with 1 if a seed needs more steps than that. Steps decide, not seconds: a busy machine changes nothing.
"""

import argparse
import statistics
import sys
import time

import shoal
from shoal.learner import Learner

GOAL = 475


def learn(seed: int, within: int) -> bool:
    begin = time.perf_counter()
    with shoal.make_vec("CartPole-v1", 64, session=None) as envs:
        learner = Learner(envs, seed)
        mean = 0.0
        while mean < GOAL and learner.steps < within:
            learner.collect()
            learner.update()
            mean = statistics.mean(learner.returns) if learner.episodes >= 100 else 0.0
    outcome = "reached" if mean >= GOAL else "NOT REACHED"
    elapsed_s = time.perf_counter() - begin
    print(
        f"seed {seed}: {GOAL} {outcome}, {mean:.1f} after {learner.steps:,} steps, {elapsed_s:.1f} s",
        flush=True,
    )
    return mean >= GOAL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--within", type=int, default=200_000, help="steps (default: %(default)s)")
    args = parser.parse_args()
    return 0 if all([learn(seed, args.within) for seed in range(args.seeds)]) else 1


if __name__ == "__main__":
    sys.exit(main())
