"""Pictures of the bundled environments, each of a short run: SVG from observations, PNG from pixels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal
from shoal.state import Category, Field, Snapshot, render, to_png

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
PANEL, HEIGHT = 205, 200  # of one of the four moments
FLOOR = 160

Observation = NDArray[Any]


def draw(name: str) -> bytes:
    """The picture of an environment as the content of its file."""
    if name in MOMENTS:
        return _draw_moments(name).encode()
    if name == "Pixels-v0":
        return to_png(_draw_frames(name))
    return to_png(_draw_world(name))


def _draw_world(name: str) -> NDArray[np.uint8]:
    """The exported state after 40 steps of random actions."""
    with shoal.make_vec(name, 1, session=None) as envs:
        envs.action_space.seed(0)
        envs.reset(seed=0)
        for _ in range(1 if name == "Squared-v0" else 40):
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


def _draw_frames(name: str) -> NDArray[np.uint8]:
    """The frames of one observation side by side, each pixel twice as large."""
    with shoal.make_vec(name, 1, session=None) as envs:
        observation, _ = envs.reset(seed=0)
        frames = [observation[0, :, :, i] for i in range(observation.shape[-1])]
    gap = np.full((frames[0].shape[0], 4), 255, np.uint8)
    row = np.concatenate([part for frame in frames for part in (frame, gap)][:-1], axis=1)
    return np.repeat(np.repeat(row, 2, 0), 2, 1)[:, :, None].repeat(3, 2)


def _draw_moments(name: str) -> str:
    """Four moments of one episode, drawn from its observations."""
    policy, steps, paint = MOMENTS[name]
    seen = []
    with shoal.make_vec(name, 1, session=None) as envs:
        observation, _ = envs.reset(seed=0)
        for step in range(max(steps) + 1):
            if step in steps:
                seen.append(observation[0].copy())
            action = np.asarray(policy(observation[0]), envs.single_action_space.dtype)
            observation, _, terminated, *_ = envs.step(action.reshape(envs.action_space.shape))
            assert not terminated[0] or step >= max(steps), f"{name}: the episode ended in step {step}"
    style = re.search(r"<style>.*?</style>", (PICTURES / "gate.svg").read_text(), re.DOTALL)
    assert style is not None
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {4 * PANEL} {HEIGHT}">']
    lines += [f"<title>{name}: four moments of one episode</title>", style[0]]
    for panel, (step, one) in enumerate(zip(steps, seen, strict=True)):
        lines += [f'<g transform="translate({panel * PANEL} 0)">', *paint(one)]
        lines += [_text(PANEL / 2, HEIGHT - 8, f"step {step}"), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, width: float = 1.5) -> str:
    return (
        f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" class="{kind}" '
        f'style="stroke-width: {width}; stroke-linecap: round"/>'
    )


def _circle(x: float, y: float, radius: float, kind: str) -> str:
    return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{radius}" class="{kind}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" class="small">{text}</text>'


def _cartpole(seen: Observation) -> list[str]:
    x, theta = PANEL / 2 + float(seen[0]) * 35, float(seen[2])
    pole = (x + 100 * math.sin(theta), FLOOR - 22 - 100 * math.cos(theta))
    return [
        _line(12, FLOOR, PANEL - 12, FLOOR, "line"),
        f'<rect x="{x - 24:.0f}" y="{FLOOR - 26}" width="48" height="22" rx="3" class="held"/>',
        _circle(x - 14, FLOOR - 3, 4, "tip"),
        _circle(x + 14, FLOOR - 3, 4, "tip"),
        _line(x, FLOOR - 22, *pole, "flow", 7),
    ]


def _mountain_car(seen: Observation) -> list[str]:
    def place(position: float) -> tuple[float, float]:
        return 14 + (position + 1.2) / 1.8 * (PANEL - 28), FLOOR - 55 - 50 * math.sin(3 * position)

    points = " ".join("{:.0f},{:.0f}".format(*place(-1.2 + 0.05 * i)) for i in range(37))
    x, y = place(float(seen[0]))
    goal_x, goal_y = place(0.5)
    return [
        f'<polyline points="{points}" class="line"/>',
        _line(goal_x, goal_y, goal_x, goal_y - 34, "line"),
        f'<path d="M{goal_x:.0f} {goal_y - 34:.0f}l-16 7l16 7z" class="new"/>',
        _circle(x, y - 9, 8, "held"),
    ]


def _pendulum(seen: Observation) -> list[str]:
    x, y = PANEL / 2, 90
    tip = (x - 66 * float(seen[1]), y - 66 * float(seen[0]))  # a positive angle turns to the left
    return [_circle(x, y, 72, "dashed"), _line(x, y, *tip, "flow", 8), _circle(x, y, 5, "tip")]


def _acrobot(seen: Observation) -> list[str]:
    x, y, length = PANEL / 2, 92, 42
    first = math.atan2(float(seen[1]), float(seen[0]))
    both = first + math.atan2(float(seen[3]), float(seen[2]))
    middle = (x + length * math.sin(first), y + length * math.cos(first))
    tip = (middle[0] + length * math.sin(both), middle[1] + length * math.cos(both))
    return [
        _line(16, y - length, PANEL - 16, y - length, "dashed"),
        _line(x, y, *middle, "flow", 7),
        _line(*middle, *tip, "flow", 7),
        _circle(x, y, 5, "tip"),
        _circle(*middle, 5, "tip"),
    ]


Moments = tuple[Callable[[Observation], float], list[int], Callable[[Observation], list[str]]]
MOMENTS: dict[str, Moments] = {
    "CartPole-v1": (lambda seen: 1, [0, 3, 5, 7], _cartpole),
    "MountainCar-v0": (lambda seen: 2 * (seen[1] > 0), [0, 30, 60, 100], _mountain_car),
    "MountainCarContinuous-v0": (
        lambda seen: 2.0 * (seen[1] > 0) - 1,
        [0, 30, 55, 79],
        _mountain_car,
    ),
    "Pendulum-v1": (lambda seen: 2.0 if seen[2] > 0 else -2.0, [0, 20, 40, 60], _pendulum),
    "Acrobot-v1": (lambda seen: 2 * (seen[5] > 0), [0, 20, 40, 60], _acrobot),
}
