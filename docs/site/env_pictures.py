"""Pictures of the bundled environments, each of a short run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal
from shoal.state import Category, Field, Snapshot, render, to_png

GAP = 4  # pixels between two moments

Observation = NDArray[Any]


def draw(name: str) -> bytes:
    """The picture of an environment as the content of its file."""
    if name in MOMENTS:
        return to_png(_draw_moments(name))
    if name == "Pixels-v0":
        return to_png(_draw_frames(name))
    if name == "Squared-v0":
        return to_png(_draw_itself(name))
    return to_png(_draw_world(name))


def _draw_world(name: str) -> NDArray[np.uint8]:
    """The exported state after 40 steps of random actions."""
    with shoal.make_vec(name, 1, session=None) as envs:
        envs.action_space.seed(0)
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(envs.action_space.sample())
        arrays, facts = envs.state_arrays(0), envs.state_schema(0)
        fields = {
            key: Field(
                key,
                arrays[key].copy(),
                role=facts[key]["role"],
                columns=tuple(facts[key].get("columns", ())),
                categories=tuple(
                    one if isinstance(one, Category) else Category(*one)
                    for one in facts[key].get("categories", ())
                ),
            )
            for key in arrays
        }
    return render(Snapshot(0, 0, 0, 0, fields), width=640, caption=False)


def _draw_itself(name: str) -> NDArray[np.uint8]:
    """The environment's own picture after a step."""
    with shoal.make_vec(name, 1, session=None, render_mode="rgb_array") as envs:
        envs.reset(seed=0)
        envs.step(np.ones(1, np.int64))
        return envs.render_env(0)


def _draw_frames(name: str) -> NDArray[np.uint8]:
    """The frames of one observation side by side, each pixel twice as large."""
    with shoal.make_vec(name, 1, session=None) as envs:
        observation, _ = envs.reset(seed=0)
        frames = [observation[0, :, :, i] for i in range(observation.shape[-1])]
    gap = np.full((frames[0].shape[0], 4), 255, np.uint8)
    row = np.concatenate([part for frame in frames for part in (frame, gap)][:-1], axis=1)
    return np.repeat(np.repeat(row, 2, 0), 2, 1)[:, :, None].repeat(3, 2)


def _draw_moments(name: str) -> NDArray[np.uint8]:
    """Four moments of one episode side by side, each the environment's own picture at half its size."""
    policy, steps = MOMENTS[name]
    moments = []
    with shoal.make_vec(name, 1, session=None, render_mode="rgb_array") as envs:
        observation, _ = envs.reset(seed=0)
        for step in range(max(steps) + 1):
            if step in steps:
                moments.append(_halve(envs.render_env(0)))
            action = np.asarray(policy(observation[0]), envs.single_action_space.dtype)
            observation, _, terminated, *_ = envs.step(action.reshape(envs.action_space.shape))
            assert not terminated[0] or step >= max(steps), f"{name}: the episode ended in step {step}"
    gap = np.full((len(moments[0]), GAP, 3), 160, np.uint8)
    return np.concatenate([part for one in moments for part in (one, gap)][:-1], axis=1)


def _halve(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each pixel is the mean of four, rounded."""
    high, wide = picture.shape[:2]
    blocks = picture.reshape(high // 2, 2, wide // 2, 2, 3).astype(np.uint16)
    return ((blocks.sum((1, 3)) + 2) // 4).astype(np.uint8)


Moments = tuple[Callable[[Observation], float], list[int]]
MOMENTS: dict[str, Moments] = {
    "CartPole-v1": (lambda seen: 1, [0, 3, 5, 7]),
    "MountainCar-v0": (lambda seen: 2 * (seen[1] > 0), [0, 30, 60, 100]),
    "MountainCarContinuous-v0": (lambda seen: 2.0 * (seen[1] > 0) - 1, [0, 30, 55, 79]),
    "Pendulum-v1": (lambda seen: 2.0 if seen[2] > 0 else -2.0, [0, 20, 40, 60]),
    "Acrobot-v1": (lambda seen: 2 * (seen[5] > 0), [0, 20, 40, 60]),
}
