"""Reads the state of environments in C: exported fields, and the rows of their last step."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.native.plugin import FieldInfo, PluginInfo
from shoal.state.exports import from_native
from shoal.state.snapshot import Field, Snapshot

__all__ = ["Looker"]


class Looker:
    """Reads environments through a stepper or a flow, which each call passes in."""

    def __init__(self, info: PluginInfo, instances: NDArray[np.uint8], first: int = 0) -> None:
        """`first` is the id, in the vector environment, of the stepper's first environment."""
        self._info, self._instances, self._first = info, instances, first

    def fields(self, source: Any, env_id: int) -> dict[str, Field]:
        return from_native(source.fields(env_id - self._first), self._instances)

    def snapshot(self, source: Any, env_id: int) -> Snapshot | None:
        """Returns a snapshot; None if the environment is being stepped."""
        seen = source.look(env_id - self._first)
        if not seen:
            return None
        (episode, tick), rows = seen
        step = {} if rows is None else self._step(*rows)
        world: dict[str, Field] = {}
        error = ""
        try:
            world = self.fields(source, env_id)
        except (ShoalError, ValueError) as wrong:  # the step's results can still be shown
            error = f"{type(wrong).__name__}: {wrong}"
        return Snapshot(env_id, episode, tick, time.monotonic_ns(), world, step, error)

    def _step(
        self,
        observations: list[bytes],
        reward: bytes,
        terminated: bytes,
        truncated: bytes,
        actions: list[bytes],
    ) -> dict[str, Field]:
        fields = [
            *self._named("observation", self._info.observations, observations),
            *self._named("action", self._info.actions, actions),
            self._field("reward", np.dtype(np.float64), (), reward),
            self._field("terminated", np.dtype(np.bool_), (), terminated),
            self._field("truncated", np.dtype(np.bool_), (), truncated),
        ]
        return {field.name: field for field in fields}

    def _named(self, prefix: str, infos: list[FieldInfo], rows: list[bytes]) -> list[Field]:
        names = [prefix if info.name is None else f"{prefix}/{info.name}" for info in infos]
        return [  # `rows` is empty if there was no action
            self._field(name, info.dtype, info.shape, data)
            for name, info, data in zip(names, infos, rows, strict=False)
        ]

    def _field(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: bytes) -> Field:
        agents = self._info.agents
        return Field(name, np.frombuffer(data, dtype).reshape(shape if agents == 1 else (agents, *shape)))
