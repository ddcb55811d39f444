"""The rules of Snake-v0 in Python, drawing the same numbers; and boards arranged by hand.

The model keeps sets and lists of (line, column) and knows nothing of how the plug-in stores a board.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from .agent_host import AgentHost
from .plugin_harness import compiled

DOWN, UP, LEFT, RIGHT = range(4)
MOVES = [(1, 0), (-1, 0), (0, -1), (0, 1)]
EMPTY, FOOD, OWN, OTHER, WALL = range(5)
Cell = tuple[int, int]


def make(num_envs: int = 1, *flags: str, seed: int = 0, **options: int) -> AgentHost:
    return AgentHost(compiled("envs/snake/snake.c", *flags), num_envs, seed, **options)


class Model:
    """One board. `snakes[a]` is agent a's body, its tail first."""

    def __init__(
        self, seed: int, width: int = 24, height: int = 24, agents: int = 4, food: int = 8, vision: int = 5
    ) -> None:
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        self.width, self.height, self.agents = width, height, agents
        self.most_foods, self.vision = food, vision
        self.reset()

    def reset(self) -> None:
        self.foods: set[Cell] = set()
        self.snakes: list[list[Cell]] = [[] for _ in range(self.agents)]
        self.facing = [DOWN] * self.agents
        for agent in range(self.agents):
            self.spawn(agent)
        self.scatter()

    def taken(self, cell: Cell) -> bool:
        return cell in self.foods or any(cell in snake for snake in self.snakes)

    def empty_cell(self) -> Cell | None:
        count = self.width * self.height
        place = 0
        for _ in range(32):
            place = int(self.rng.integers(0, count))
            if not self.taken(divmod(place, self.width)):
                return divmod(place, self.width)
        for i in range(count):
            cell = divmod((place + i) % count, self.width)
            if not self.taken(cell):
                return cell
        return None

    def spawn(self, agent: int) -> None:
        cell = self.empty_cell()
        assert cell is not None, "a dead snake leaves room for itself"
        self.snakes[agent] = [cell]

    def scatter(self) -> None:
        while len(self.foods) < self.most_foods and (cell := self.empty_cell()) is not None:
            self.foods.add(cell)

    def step(self, actions: Any) -> tuple[list[float], list[int]]:
        goals: list[Cell] = []
        for agent, action in enumerate(int(action) for action in actions):
            snake = self.snakes[agent]
            if len(snake) == 1 or action != self.facing[agent] ^ 1:
                self.facing[agent] = action
            move = MOVES[self.facing[agent]]
            goals.append((snake[-1][0] + move[0], snake[-1][1] + move[1]))
        eats = [goal in self.foods for goal in goals]
        deadly = set()
        for snake, eating in zip(self.snakes, eats, strict=True):
            deadly |= set(snake if eating or len(snake) == 1 else snake[1:])
        heads = Counter(goals)
        dead = [
            goal in deadly
            or heads[goal] > 1
            or not (0 <= goal[0] < self.height and 0 <= goal[1] < self.width)
            for goal in goals
        ]
        self.foods -= set(goals)
        for agent, goal in enumerate(goals):
            body = [*self.snakes[agent], goal]
            self.snakes[agent] = [] if dead[agent] else body if eats[agent] else body[1:]
        for agent in range(self.agents):
            if dead[agent]:
                self.spawn(agent)
        self.scatter()
        rewards = [-1.0 if died else float(ate) for died, ate in zip(dead, eats, strict=True)]
        return rewards, [int(died) for died in dead]

    def windows(self) -> list[list[list[int]]]:
        owners = {cell: agent for agent, snake in enumerate(self.snakes) for cell in snake}
        reach = range(-self.vision, self.vision + 1)

        def seen(agent: int, line: int, column: int) -> int:
            if not (0 <= line < self.height and 0 <= column < self.width):
                return WALL
            if (line, column) in self.foods:
                return FOOD
            owner = owners.get((line, column))
            return EMPTY if owner is None else OWN if owner == agent else OTHER

        heads = [snake[-1] for snake in self.snakes]
        return [
            [[seen(agent, line + i, column + j) for j in reach] for i in reach]
            for agent, (line, column) in enumerate(heads)
        ]


BODY = np.dtype({"names": ["head", "tail"], "formats": ["i4", "i4"], "offsets": [0, 4], "itemsize": 16})


class Board:
    """The memory of one environment, to look at and to arrange; a snake is its cells, its tail first."""

    def __init__(self, host: AgentHost, env: int = 0) -> None:
        memory = host.instances[env]
        self.numbers = memory[:32].view(np.int32)
        width, height, agents, self.vision, self.stride, cells = (int(n) for n in self.numbers[:6])
        bodies = 32 + agents * BODY.itemsize
        self.bodies = memory[32:bodies].view(BODY)
        self.cells = memory[bodies : bodies + cells]
        self.course = memory[bodies + cells : bodies + 2 * cells]
        self.size = (height, width)

    def index(self, cell: Cell) -> int:
        return (cell[0] + self.vision) * self.stride + cell[1] + self.vision

    def arrange(self, snakes: list[list[Cell]], foods: list[Cell]) -> None:
        for line in range(self.size[0]):
            start = self.index((line, 0))
            self.cells[start : start + self.size[1]] = 0
        for food in foods:
            self.cells[self.index(food)] = 1
        self.numbers[6] = len(foods)
        for agent, snake in enumerate(snakes):
            for here, there in zip(snake, [*snake[1:], None], strict=True):
                self.cells[self.index(here)] = 3 + agent
                if there is not None:
                    move = (there[0] - here[0], there[1] - here[1])
                    self.course[self.index(here)] = MOVES.index(move)
                    self.course[self.index(there)] = MOVES.index(move)
            self.bodies["tail"][agent] = self.index(snake[0])
            self.bodies["head"][agent] = self.index(snake[-1])

    def lengths(self) -> list[int]:
        """Cells of each agent's body, counted along its course; each must be marked as its own."""
        found = []
        steps = [self.stride, -self.stride, -1, 1]
        for agent, body in enumerate(self.bodies):
            cell, length = int(body["tail"]), 1
            while cell != body["head"]:
                assert self.cells[cell] == 3 + agent
                cell += steps[self.course[cell]]
                length += 1
            assert self.cells[cell] == 3 + agent
            assert int((self.cells == 3 + agent).sum()) == length
            found.append(length)
        return found
