"""A fleet as one vector environment, for small tests: each step is a call to every node, and a copy back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium.vector
import numpy as np
from gymnasium.vector.utils import batch_space

from shoal.cluster.messages import mapped
from shoal.cluster.station import original
from shoal.errors import WorkerDied
from shoal.vector import arguments

__all__ = ["FleetVectorEnv"]


class FleetVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The environments of all runners, in their order. Made by `Fleet.vector_env`; the fleet stays open.

    Rollouts begin where this has left the environments. A runner that is lost is WorkerDied; then reset.
    """

    def __init__(self, fleet: Any, ray: Any, actors: list[Any]) -> None:
        self._fleet, self._ray, self._actors = fleet, ray, actors
        self._rows: int = fleet.num_envs
        self.num_envs = self._rows * len(actors)
        self.metadata = {"autoreset_mode": fleet.autoreset_mode}
        self.single_observation_space = fleet.single_observation_space
        self.single_action_space = fleet.single_action_space
        self.observation_space = batch_space(fleet.single_observation_space, self.num_envs)
        self.action_space = batch_space(fleet.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, seeded as one vector environment of as many would be."""
        arguments.no_options(options)
        worlds = self._rows // self._fleet.agents_per_env
        seeds = arguments.seeds(seed, worlds * len(self._actors))
        parts = [seeds[at : at + worlds] for at in range(0, len(seeds), worlds)]
        results = self._each("reset", [None if seed is None else part for part in parts])
        return _joined([seen for seen, _ in results]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of all; infos stay where they are."""
        for array in _leaves(actions):
            if np.shape(array)[:1] != (self.num_envs,):
                raise ValueError(f"expected actions of {self.num_envs} environments, found {np.shape(array)}")
        parts = []
        for at in range(0, self.num_envs, self._rows):
            parts.append(mapped(partial(_rows, begin=at, end=at + self._rows), actions))
        results = self._each("step", parts)
        seen, *rest = (_joined([result[part] for result in results]) for part in range(4))
        return seen, rest[0], rest[1], rest[2], {}

    def _each(self, method: str, parts: Sequence[Any]) -> list[Any]:
        learner = self._fleet.learner
        calls = [
            getattr(actor, method).remote(learner, part)
            for actor, part in zip(self._actors, parts, strict=True)
        ]
        try:
            return list(self._ray.get(calls))
        except self._ray.exceptions.RayTaskError as error:
            raise original(error)  # noqa: B904 - its cause is the traceback of the runner
        except self._ray.exceptions.RayActorError as error:
            raise WorkerDied(f"a runner died in a {method}: {error}; call reset") from error


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(_joined(list(each)) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def _rows(array: Any, begin: int, end: int) -> Any:
    return np.asarray(array)[begin:end]


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    mapped(found.append, tree)
    return found
