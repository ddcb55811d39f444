"""Your own environment in C: builds and checks it, steps a thousand copies, and watches one.

python examples/my_env.py
python examples/my_env.py --pace 2 --shells 0.3 --png beach.png

The environment is the one file examples/my_env.c: it needs no build file and no registration. `shoal new
NAME` writes a file like it as a start. docs/native.md explains the interface, and docs/state.md explains how
to export state to watchers.
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
    pace: int = 4  # steps between two rows of the tide: an option that my_env.c declares
    shells: float = 0.15  # chance of a shell in each cell: an option that my_env.c declares
    png: str = ""  # file for a picture; by default in a new temporary directory
    seed: int = 0

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for field in fields(cls):
            flag, default = "--" + field.name.replace("_", "-"), field.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def check() -> None:
    """Runs `shoal check` on the file, which tests it against the interface; do this after each change.

    The check runs in another process, so a crash of the C code cannot end this one.
    """
    print(f"$ shoal check {SOURCE.name}", flush=True)
    subprocess.run([sys.executable, "-m", "shoal", "check", str(SOURCE)], check=True)


def move_randomly(rng: np.random.Generator, beach: NDArray[np.uint8]) -> NDArray[np.int64]:
    return rng.integers(5, size=len(beach))


def avoid_water(rng: np.random.Generator, beach: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Moves up the beach if the water is at most two rows away, and randomly otherwise."""
    crab_row = (beach == CRAB).any(axis=2).argmax(axis=1)
    sea_row = beach.shape[1] - (beach == SEA).any(axis=2).sum(axis=1)
    return np.where(sea_row - crab_row <= 2, UP, move_randomly(rng, beach))


def step(args: Args) -> None:
    """Steps a vector environment with two policies; `make_vec` compiles the file if it has changed."""
    for policy in (move_randomly, avoid_water):
        envs = shoal.make_vec(SOURCE, args.num_envs, pace=args.pace, shells=args.shells)
        rng = np.random.default_rng(args.seed)
        observations, _ = envs.reset(seed=args.seed)
        stepping_s = 0.0
        for _ in range(args.steps):
            actions = policy(rng, observations["beach"])
            start = time.perf_counter()
            observations, *_ = envs.step(actions)
            stepping_s += time.perf_counter() - start
        stats: dict[str, Any] = envs.stats
        print(
            f"{policy.__name__:13} mean return {stats['mean_return']:6.2f}, {stats['episodes']:,} episodes, "
            f"{args.steps * args.num_envs / stepping_s / 1e6:.0f} M steps/s"
        )
        envs.close()


def watch(args: Args) -> None:
    """Shows one environment's state as arrays, and as a snapshot that any process of yours can take."""
    envs = shoal.make_vec(SOURCE, 4, pace=args.pace, shells=args.shells)
    rng = np.random.default_rng(args.seed)
    observations, _ = envs.reset(seed=args.seed)
    for _ in range(60):
        observations, *_ = envs.step(avoid_water(rng, observations["beach"]))

    world = envs.state_arrays(env_id=2)  # state_fields in my_env.c chose these names
    picture = np.array(list(".~o"))[world["beach"]]
    picture[tuple(world["crab"][:, 1:3].T)] = "C"
    print("\n".join("".join(line) for line in picture))
    print(f"{world['level']} rows under water, {world['shells']} shells gathered")

    # Another process can attach in the same way while the run goes on; `shoal watch` shows it in a browser.
    with shoal.attach(envs.session) as session:
        session.watch([2])
        while (latest := session.latest(2)) is None:
            observations, *_ = envs.step(avoid_water(rng, observations["beach"]))
        path = args.png or str(Path(tempfile.mkdtemp(prefix="shoal-")) / "my_env.png")
        shoal.state.write_png(path, shoal.state.render(latest[1]))
        print(f"{latest[1]}\ndrawn to {path}")
    envs.close()


if __name__ == "__main__":
    args = Args.parse()
    check()
    step(args)
    watch(args)
