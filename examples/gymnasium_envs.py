"""An ordinary Gymnasium script with one line changed, and a benchmark of that line.

python examples/gymnasium_envs.py
python examples/gymnasium_envs.py --env-id CliffWalking-v1 --num-envs 32 --seconds 20

`play` is the script: it steps Python environments in worker processes. `compare` then measures the old and
the new line in turns, so that other load on the machine slows both.
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
    steps: int = 500  # steps of the script
    seconds: float = 3.0  # duration of the comparison
    seed: int = 0

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for field in fields(cls):
            flag, default = "--" + field.name.replace("_", "-"), field.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def play(args: Args) -> None:
    """Runs the script; only the marked line differs from one that uses Gymnasium alone."""
    make_env = partial(gymnasium.make, args.env_id)
    # envs = AsyncVectorEnv([make_env] * args.num_envs)
    envs = ProcessVectorEnv([make_env] * args.num_envs)  # the changed line

    envs.action_space.seed(args.seed)
    observations, infos = envs.reset(seed=args.seed)
    episodes, total_reward = 0, 0.0
    for _ in range(args.steps):
        observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        episodes += int((terminated | truncated).sum())
        total_reward += float(rewards.sum())
    envs.close()
    mean_return = total_reward / max(1, episodes)
    print(f"{args.env_id}, random actions: {episodes} episodes, mean return {mean_return:.4f}")


def compare(args: Args) -> None:
    """Prints the median steps/s of both, measured in short intervals that alternate."""
    make_env = partial(gymnasium.make, args.env_id)
    # This process has threads by now, and forking a process with threads can deadlock: use the forkserver.
    both: dict[str, Any] = {
        "gymnasium.vector.AsyncVectorEnv": AsyncVectorEnv([make_env] * args.num_envs, context="forkserver"),
        "shoal.vector.ProcessVectorEnv": ProcessVectorEnv([make_env] * args.num_envs),
    }
    rates: dict[str, list[float]] = {name: [] for name in both}
    actions = [next(iter(both.values())).action_space.sample() for _ in range(16)]
    for envs in both.values():
        envs.reset(seed=args.seed)
    until = time.perf_counter() + args.seconds
    while time.perf_counter() < until or not rates["shoal.vector.ProcessVectorEnv"]:
        for name, envs in both.items():
            steps, start = 0, time.perf_counter()
            while time.perf_counter() < start + 0.1:
                for action in actions:
                    envs.step(action)
                steps += len(actions) * args.num_envs
            rates[name].append(steps / (time.perf_counter() - start))
    for envs in both.values():
        envs.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, median in medians.items():
        print(f"{name:34} {median:12,.0f} steps/s")
    gymnasium_rate, shoal_rate = medians.values()
    count = len(rates["shoal.vector.ProcessVectorEnv"])
    print(f"Shoal is {shoal_rate / gymnasium_rate:.1f} times as fast (medians of {count} measurements each)")


if __name__ == "__main__":
    args = Args.parse()
    play(args)
    compare(args)
