"""A little of everything, each on its own, in small containers: it works, or a line says what is missing."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import shoal
from shoal.errors import ShoalError
from shoal.memory import Layout, Segment
from shoal.replay import ReplayBuffer
from shoal.vector import ProcessVectorEnv

BYTES = int(os.environ.get("WORKLOAD_BYTES", 1 << 20))


class Plain(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(3, np.float32), 1.0, False, False, {}


def anonymous() -> None:
    with Segment(Layout({"a": (np.uint8, (BYTES,))})) as segment:
        segment["a"][:] = 1  # a store that found no memory behind it would be a signal


def named() -> None:
    with Segment.named(Layout({"a": (np.uint8, (BYTES,))})) as segment:
        segment["a"][:] = 1


def native() -> None:
    envs = shoal.make_vec("CartPole-v1", 64, session=None)
    envs.reset(seed=0)
    for _ in range(20):
        envs.step(np.zeros(64, np.int64))
    envs.close()


def workers(context: str | None = None) -> None:
    envs = ProcessVectorEnv([Plain] * 4, num_workers=2, context=context, session=None)
    envs.reset(seed=0)
    for _ in range(5):
        assert (envs.step(np.zeros(4, np.int64))[0] == 1).all()
    envs.close()


def forked() -> None:
    workers("fork")


def replay() -> None:
    with ReplayBuffer(max(1, BYTES // 128), {"x": (np.uint8, (100,))}, seed=0) as buffer:
        buffer.extend({"x": np.ones((8, 100), np.uint8)})
        assert (buffer.sample(4)["x"] == 1).all()


def file() -> None:
    with tempfile.TemporaryDirectory() as place:
        with ReplayBuffer(8, {"x": (np.uint8, (100,))}, path=Path(place) / "a.ring", seed=0) as buffer:
            buffer.extend({"x": np.ones((8, 100), np.uint8)})
        with ReplayBuffer.open(Path(place) / "a.ring") as buffer:
            assert len(buffer) == 8


def session() -> None:
    envs = shoal.make_vec("CartPole-v1", 4, session=f"workload-{os.getpid()}")
    envs.reset(seed=0)
    with shoal.attach(f"workload-{os.getpid()}") as watcher:
        assert watcher.facts["num_worlds"] == 4
    envs.close()


def built() -> None:
    from shoal.native.build import build

    assert build(Path(__file__).parents[2] / "examples/my_env.c").exists()


PARTS: tuple[Callable[[], None], ...] = (
    *(anonymous, named, native, workers, forked, replay, file, session, built),
)


def main() -> None:
    warnings.simplefilter("ignore")
    for part in PARTS:
        if len(sys.argv) > 1 and part.__name__ not in sys.argv[1:]:
            continue
        try:
            part()
            print(f"{part.__name__}: works", flush=True)
        except (ShoalError, OSError) as error:
            print(f"{part.__name__}: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)


if __name__ == "__main__":
    main()
