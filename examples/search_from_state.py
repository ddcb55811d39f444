"""Planning by snapshot and restore: one state, forked into many copies that play on in parallel.

python examples/search_from_state.py
python examples/search_from_state.py --env-id Squared-v0 --copies 640 --horizon 16
python examples/search_from_state.py --episodes 5 --copies 64

Before each step the environment is saved, and the same bytes are restored into every copy. An equal share of
the copies tries each action and goes on at random; the action whose copies fared best is taken. The planner
knows nothing of the environment, learns nothing, and still beats chance by far: only because a thousand steps
of "what if" cost less than a millisecond. Any environment with Discrete actions that can be saved will do.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

import shoal


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    copies: int = 128
    horizon: int = 40  # steps that each copy looks ahead
    gamma: float = 0.99
    episodes: int = 3
    seed: int = 0

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for one in fields(cls):
            flag, default = "--" + one.name.replace("_", "-"), one.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


class Planner:
    """Chooses an action by trying all of them in copies of the environment."""

    def __init__(self, args: Args) -> None:
        self.args = args
        self.copies = shoal.make_vec(args.env_id, args.copies, session=None)
        space = self.copies.single_action_space
        if not isinstance(space, Discrete):
            raise SystemExit(f"this planner tries each of Discrete(n) actions, but {args.env_id} has {space}")
        self.num_actions = int(space.n)
        self.first = np.arange(args.copies) % self.num_actions  # which action each copy tries
        self.rng = np.random.default_rng(args.seed)
        self.steps = 0
        self.copies.reset(seed=args.seed)

    def choose(self, state: bytes) -> int:
        for copy in range(self.args.copies):
            self.copies.restore_env(copy, state)
        worth = np.zeros(self.args.copies)
        going = np.ones(self.args.copies, np.bool_)
        actions = self.rng.integers(self.num_actions, size=(self.args.horizon, self.args.copies))
        actions[0] = self.first
        for t in range(self.args.horizon):
            _, rewards, terminated, truncated, _ = self.copies.step(actions[t])
            worth += self.args.gamma**t * rewards * going  # what follows an end is another episode
            going &= ~(terminated | truncated)
            self.steps += self.args.copies
            if not going.any():
                break
        means = np.bincount(self.first, worth) / np.bincount(self.first)
        best = np.flatnonzero(means >= means.max() - 1e-9)
        return int(self.rng.choice(best))  # all the same? then no habit decides

    def close(self) -> None:
        self.copies.close()


def episode(envs: Any, seed: int, choose: Any) -> float:
    """The return of one episode in environment 0, whose actions `choose` finds."""
    envs.reset(seed=seed)
    returned, over = 0.0, False
    while not over:
        _, rewards, terminated, truncated, _ = envs.step(np.array([choose()]))
        returned += float(rewards[0])
        over = bool(terminated[0] or truncated[0])
    return returned


def main(args: Args) -> tuple[float, float]:
    """Mean returns of random actions and of planned ones, over the same episodes."""
    envs = shoal.make_vec(args.env_id, 1, session=None)
    planner = Planner(args)
    seeds = range(args.seed, args.seed + args.episodes)
    at_random = [episode(envs, seed, lambda: planner.rng.integers(planner.num_actions)) for seed in seeds]
    begin = time.perf_counter()
    planned = [episode(envs, seed, lambda: planner.choose(envs.save_env(0))) for seed in seeds]
    elapsed_s = time.perf_counter() - begin
    print(f"{args.env_id}, returns of {args.episodes} episodes from the same first states")
    print(f"random   {np.mean(at_random):8.2f}   {np.round(at_random, 2).tolist()}")
    print(f"planned  {np.mean(planned):8.2f}   {np.round(planned, 2).tolist()}")
    print(f"{planner.steps:,} imagined steps in {elapsed_s:.2f} s, {planner.steps / elapsed_s:,.0f} a second")
    planner.close()
    envs.close()
    return float(np.mean(at_random)), float(np.mean(planned))


if __name__ == "__main__":
    at_random, planned = main(Args.parse())
    raise SystemExit(
        0 if planned > at_random else "planning did not pay here: more copies, a longer horizon?"
    )
