"""An environment of one's own, in C: written, built, checked, stepped by the thousand, and watched.

python examples/my_env.py
python examples/my_env.py --pace 2 --shells 0.3 --png beach.png

examples/my_env.c is all there is to it: no build file, no registry. `shoal new NAME` writes such a file to
begin with, docs/native.md explains the contract and docs/state.md the part that lets others look in.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal

SOURCE = Path(__file__).with_name("my_env.c")
SEA, CRAB, UP = 1, 3, 1  # as in my_env.c


@dataclass
class Args:
    num_envs: int = 1024
    steps: int = 2000
    pace: int = 4  # these two are options of the environment, declared in C
    shells: float = 0.15
    png: str = ""  # where to draw it; by default in a new temporary directory
    seed: int = 0

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for one in fields(cls):
            flag, default = "--" + one.name.replace("_", "-"), one.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def check() -> None:
    """Holds the file against the contract, as `shoal check examples/my_env.c` does: run it after each change.

    It does so in another process, so that whatever the C code may do wrong stays there.
    """
    print(f"$ shoal check {SOURCE.name}", flush=True)
    subprocess.run([sys.executable, "-m", "shoal", "check", str(SOURCE)], check=True)


def random_moves(rng: np.random.Generator, beach: NDArray[np.uint8]) -> NDArray[np.int64]:
    return rng.integers(5, size=len(beach))


def timid_moves(rng: np.random.Generator, beach: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The same, but up the beach whenever the water is two rows away."""
    crab_row = (beach == CRAB).any(axis=2).argmax(axis=1)
    sea_row = beach.shape[1] - (beach == SEA).any(axis=2).sum(axis=1)
    return np.where(sea_row - crab_row <= 2, UP, random_moves(rng, beach))


def step(args: Args) -> None:
    """A vector environment like any other; the file is compiled on the way, if it has changed."""
    for policy in (random_moves, timid_moves):
        envs = shoal.make_vec(SOURCE, args.num_envs, pace=args.pace, shells=args.shells)
        rng = np.random.default_rng(args.seed)
        observations, _ = envs.reset(seed=args.seed)
        stepping_s = 0.0
        for _ in range(args.steps):
            actions = policy(rng, observations["beach"])
            begin = time.perf_counter()
            observations, *_ = envs.step(actions)
            stepping_s += time.perf_counter() - begin
        found: dict[str, Any] = envs.stats
        print(
            f"{policy.__name__:13} mean return {found['mean_return']:6.2f}, {found['episodes']:,} episodes, "
            f"{args.steps * args.num_envs / stepping_s / 1e6:.0f} M steps/s"
        )
        envs.close()


def watch(args: Args) -> None:
    """One environment's world: as arrays here, and as a snapshot, which any process of yours can take."""
    envs = shoal.make_vec(SOURCE, 4, pace=args.pace, shells=args.shells)
    rng = np.random.default_rng(args.seed)
    observations, _ = envs.reset(seed=args.seed)
    for _ in range(60):
        observations, *_ = envs.step(timid_moves(rng, observations["beach"]))

    world = envs.state_arrays(env_id=2)  # the names are those that state_fields gave in C
    picture = np.array(list(".~o"))[world["beach"]]
    picture[tuple(world["crab"][:, 1:3].T)] = "C"
    print("\n".join("".join(line) for line in picture))
    print(f"{world['level']} rows under water, {world['shells']} shells gathered")

    # The same from outside, while it runs: `shoal watch` shows it in a browser.
    with shoal.attach(envs.session) as session:
        session.watch([2])
        while (latest := session.latest(2)) is None:
            observations, *_ = envs.step(timid_moves(rng, observations["beach"]))
        path = args.png or str(Path(tempfile.mkdtemp(prefix="shoal-")) / "my_env.png")
        shoal.state.write_png(path, shoal.state.render(latest[1]))
        print(f"{latest[1]}\ndrawn to {path}")
    envs.close()


if __name__ == "__main__":
    args = Args.parse()
    check()
    step(args)
    watch(args)
