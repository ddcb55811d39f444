"""Checks that PPO and DQN learn CartPole: the steps each seed needs to reach a mean return over 100 episodes.

    python lab/benchmarks/learn.py [--seeds 3] [--within 200000] [--dqn-within 150000] [--smoke]

PPO is the learner of `shoal demo` and must reach 475; DQN is examples/dqn_replay.py, with its actor
processes, and must reach 195 while it explores. The exit status is 1 if a seed needs more steps than allowed.
It counts steps, not seconds, so a busy machine does not change the result.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import shoal
from shoal.learner import Learner

GOAL, DQN_GOAL = 475, 195
DQN = Path(__file__).parents[2] / "examples" / "dqn_replay.py"


def learn(seed: int, within: int, goal: float) -> bool:
    begin = time.perf_counter()
    with shoal.make_vec("CartPole-v1", 64, session=None) as envs:
        learner = Learner(envs, seed)
        mean = 0.0
        while mean < goal and learner.steps < within:
            learner.collect()
            learner.update()
            mean = statistics.mean(learner.returns) if learner.episodes >= 100 else 0.0
    outcome = "reached" if mean >= goal else "NOT REACHED"
    elapsed_s = time.perf_counter() - begin
    print(
        f"PPO, seed {seed}: {goal:g} {outcome}, {mean:.1f} after {learner.steps:,} steps, {elapsed_s:.1f} s",
        flush=True,
    )
    return mean >= goal


def learn_dqn(seed: int, within: int, goal: float) -> bool:
    command = [sys.executable, DQN, "--seed", str(seed), "--goal", str(goal), "--steps", str(within)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    last = [line.strip() for line in done.stdout.splitlines()[-2:]]
    print(f"DQN, seed {seed}: {', '.join(last)}", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--within", type=int, default=200_000, help="maximum steps of PPO (default: %(default)s)"
    )
    parser.add_argument(
        "--dqn-within", type=int, default=150_000, help="maximum steps of DQN (default: %(default)s)"
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="only check that it runs: one seed, and goals that random actions reach",
    )
    args = parser.parse_args()
    goal, dqn_goal = (5, 5) if args.smoke else (GOAL, DQN_GOAL)
    seeds = range(1 if args.smoke else args.seeds)
    outcomes = [learn(seed, args.within, goal) for seed in seeds]
    outcomes += [learn_dqn(seed, args.dqn_within, dqn_goal) for seed in seeds]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
