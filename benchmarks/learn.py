"""Do PPO and DQN still learn CartPole? The steps each seed needs to a mean return over 100 episodes.

    python benchmarks/learn.py [--seeds 3] [--within 200000] [--dqn-within 150000]

PPO is the learner of `shoal demo` and must reach 475; DQN is examples/dqn_replay.py, with its actor
processes, and must reach 195 while it explores. Ends with 1 if a seed needs more steps than that. Steps
decide, not seconds: a busy machine changes nothing.
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
DQN = Path(__file__).parent.parent / "examples" / "dqn_replay.py"


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
        f"PPO, seed {seed}: {GOAL} {outcome}, {mean:.1f} after {learner.steps:,} steps, {elapsed_s:.1f} s",
        flush=True,
    )
    return mean >= GOAL


def learn_dqn(seed: int, within: int) -> bool:
    command = [sys.executable, DQN, "--seed", str(seed), "--goal", str(DQN_GOAL), "--steps", str(within)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    last = [line.strip() for line in done.stdout.splitlines()[-2:]]
    print(f"DQN, seed {seed}: {', '.join(last)}", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--within", type=int, default=200_000, help="steps of PPO (default: %(default)s)")
    parser.add_argument("--dqn-within", type=int, default=150_000, help="steps of DQN (default: %(default)s)")
    args = parser.parse_args()
    outcomes = [learn(seed, args.within) for seed in range(args.seeds)]
    outcomes += [learn_dqn(seed, args.dqn_within) for seed in range(args.seeds)]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
