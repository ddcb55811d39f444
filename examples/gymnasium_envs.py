"""An ordinary Gymnasium script with one line changed, and what that line is worth.

python examples/gymnasium_envs.py
python examples/gymnasium_envs.py --env-id CliffWalking-v1 --num-envs 32 --seconds 20

`play` is the script: it steps Python environments in worker processes. The race after it steps both kinds in
turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv

from shoal.vector import ProcessVectorEnv


@dataclass
class Args:
    env_id: str = "FrozenLake-v1"
    num_envs: int = 8
    steps: int = 500  # of the script
    seconds: float = 3.0  # of the race
    seed: int = 0

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for one in fields(cls):
            flag, default = "--" + one.name.replace("_", "-"), one.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def play(args: Args) -> None:
    """The script. Everything but the marked line is as it was."""
    make_one = partial(gymnasium.make, args.env_id)
    # envs = AsyncVectorEnv([make_one] * args.num_envs)
    envs = ProcessVectorEnv([make_one] * args.num_envs)  # the one line

    envs.action_space.seed(args.seed)
    observations, infos = envs.reset(seed=args.seed)
    episodes, rewarded = 0, 0.0
    for _ in range(args.steps):
        observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        episodes += int((terminated | truncated).sum())
        rewarded += float(rewards.sum())
    envs.close()
    print(
        f"{args.env_id}, random actions: {episodes} episodes, {rewarded / max(1, episodes):.4f} reward each"
    )


def race(args: Args) -> None:
    """Steps/s of both: short stretches in turns, medians."""
    make_one = partial(gymnasium.make, args.env_id)
    # This process has threads by now, and forking one that has is asking for trouble: hence the forkserver.
    both: dict[str, Any] = {
        "gymnasium.vector.AsyncVectorEnv": AsyncVectorEnv([make_one] * args.num_envs, context="forkserver"),
        "shoal.vector.ProcessVectorEnv": ProcessVectorEnv([make_one] * args.num_envs),
    }
    rates: dict[str, list[float]] = {name: [] for name in both}
    actions = [next(iter(both.values())).action_space.sample() for _ in range(16)]
    for envs in both.values():
        envs.reset(seed=args.seed)
    until = time.perf_counter() + args.seconds
    while time.perf_counter() < until or not rates["shoal.vector.ProcessVectorEnv"]:
        for name, envs in both.items():
            steps, begin = 0, time.perf_counter()
            while time.perf_counter() < begin + 0.1:
                for action in actions:
                    envs.step(action)
                steps += len(actions) * args.num_envs
            rates[name].append(steps / (time.perf_counter() - begin))
    for envs in both.values():
        envs.close()
    medians = {name: statistics.median(seen) for name, seen in rates.items()}
    for name, median in medians.items():
        print(f"{name:34} {median:12,.0f} steps/s")
    theirs, ours = medians.values()
    print(f"{ours / theirs:.1f} times, medians of {len(rates['shoal.vector.ProcessVectorEnv'])} turns each")


if __name__ == "__main__":
    args = Args.parse()
    play(args)
    race(args)
