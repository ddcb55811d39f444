"""A fleet as one vector environment, for small tests. Each step calls every node and copies the results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium.vector
import numpy as np
from gymnasium.vector.utils import batch_space

from shoal.cluster.messages import map_arrays
from shoal.cluster.station import unwrap_error
from shoal.errors import WorkerDied
from shoal.vector import arguments

__all__ = ["FleetVectorEnv"]


class FleetVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The environments of all runners, in order of the runners. `Fleet.vector_env` makes it.

    Closing it does not close the fleet. Later rollouts continue from the state in which it leaves the
    environments. If a runner is lost, a call raises WorkerDied; call `reset` then.
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
        """Starts new episodes, with the same seeds as one vector environment of this size."""
        arguments.no_options(options)
        worlds = self._rows // self._fleet.agents_per_env
        seeds = arguments.seeds(seed, worlds * len(self._actors))
        parts = [seeds[at : at + worlds] for at in range(0, len(seeds), worlds)]
        results = self._call_each("reset", [None if seed is None else part for part in parts])
        return _concatenate([seen for seen, _ in results]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments. The infos are not transferred."""
        for array in _list_leaves(actions):
            if np.shape(array)[:1] != (self.num_envs,):
                raise ValueError(
                    f"actions must have {self.num_envs} rows, one for each environment; "
                    f"found an array of shape {np.shape(array)}"
                )
        parts = []
        for at in range(0, self.num_envs, self._rows):
            parts.append(map_arrays(partial(_rows, begin=at, end=at + self._rows), actions))
        results = self._call_each("step", parts)
        seen, *rest = (_concatenate([result[part] for result in results]) for part in range(4))
        return seen, rest[0], rest[1], rest[2], {}

    def _call_each(self, method: str, parts: Sequence[Any]) -> list[Any]:
        learner = self._fleet.learner
        calls = [
            getattr(actor, method).remote(learner, part)
            for actor, part in zip(self._actors, parts, strict=True)
        ]
        try:
            return list(self._ray.get(calls))
        except self._ray.exceptions.RayTaskError as error:
            raise unwrap_error(error)  # noqa: B904 - its cause is the traceback of the runner
        except self._ray.exceptions.RayActorError as error:
            raise WorkerDied(f"a runner died during {method}: {error}; call reset to continue") from error


def _concatenate(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: _concatenate([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(_concatenate(list(each)) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def _rows(array: Any, begin: int, end: int) -> Any:
    return np.asarray(array)[begin:end]


def _list_leaves(tree: Any) -> list[Any]:
    leaves: list[Any] = []
    map_arrays(leaves.append, tree)
    return leaves
