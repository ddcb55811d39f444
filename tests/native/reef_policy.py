"""Two ways to play Reef-v0: at random, and by a few rules of thumb that see only the observations."""

from __future__ import annotations

from typing import Any

import numpy as np

STAY, UP, RIGHT, DOWN, LEFT, GATHER, ATTACK = range(7)
TERRAIN, FOOD, KIND, LEVEL = range(4)
MAX_LEVEL = 20


def random(observations: dict[str, Any], rng: np.random.Generator) -> Any:
    return rng.integers(0, 7, len(observations["self"]))


def scripted(observations: dict[str, Any], rng: np.random.Generator) -> Any:
    """Goes to the nearest food in sight and eats it; bites who is weak enough, and leaves who is not."""
    view, own = observations["map"].astype(np.int64), observations["self"]
    rows, half = np.arange(len(view)), view.shape[1] // 2
    down, right = np.mgrid[-half : half + 1, -half : half + 1]
    distance = abs(down) + abs(right)
    edible = (view[..., FOOD] == 1) & ((view[..., KIND] == 0) | (distance == 0))
    costs = np.where(edible, distance, 1000).reshape(len(view), -1)
    goal = costs.argmin(1)
    cost, down, right = costs[rows, goal], down.ravel()[goal], right.ravel()[goal]
    towards = np.where(abs(down) > abs(right), np.where(down > 0, DOWN, UP), np.where(right > 0, RIGHT, LEFT))
    roams = (cost == 1000) | (rng.random(len(view)) < 0.15)  # round rocks, sooner or later
    actions = np.where(roams, rng.integers(UP, LEFT + 1, len(view)), towards)
    actions = np.where(cost == 0, GATHER, actions)
    beside = view[
        :, [half - 1, half, half + 1, half], [half, half + 1, half, half - 1]
    ]  # up, right, down, left
    foes = np.where(beside[..., KIND] > 1, beside[..., LEVEL], 0)
    level = foes.max(1)
    actions = np.where(level > 0, (foes.argmax(1) + 2) % 4 + UP, actions)  # away from the strongest
    return np.where((level > 0) & (level <= 3 + 2 * MAX_LEVEL * own[:, 2]), ATTACK, actions)
