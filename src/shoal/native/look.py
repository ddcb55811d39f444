"""Reads the state of environments in C: exported fields, the rows of their last step, and a picture."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.native.plugin import FieldInfo, PluginInfo
from shoal.state.exports import from_native
from shoal.state.recording import Glance
from shoal.state.snapshot import Category, Field, Snapshot

__all__ = ["Looker"]

_DRAWN = ("grid", "entities", "image")  # the roles of fields that a viewer draws by itself
_NAMED_COLOR = "#3fbfc6"  # of named actions, which are not drawn


class Looker:
    """Reads environments through a stepper or a flow, which each call passes in."""

    def __init__(self, info: PluginInfo, instances: NDArray[np.uint8], first: int = 0) -> None:
        """`first` is the id, in the vector environment, of the stepper's first environment."""
        self._info, self._instances, self._first = info, instances, first
        self._picture: bytearray | None = None

    def fields(self, source: Any, env_id: int) -> dict[str, Field]:
        return from_native(source.fields(env_id - self._first), self._instances)

    def snapshot(self, source: Any, env_id: int) -> Snapshot | None:
        """Returns a snapshot; None if the environment is being stepped. The next call reuses its picture."""
        seen = source.look(env_id - self._first)
        if not seen:
            return None
        (episode, tick), rows = seen
        step = {} if rows is None else self._step(*rows)
        world: dict[str, Field] = {}
        error = ""
        try:
            world = self.fields(source, env_id)
            if not any(field.role in _DRAWN for field in world.values()):
                step |= self._frame(source, env_id)
        except (ShoalError, ValueError) as wrong:  # the step's results can still be shown
            error = f"{type(wrong).__name__}: {wrong}"
        return Snapshot(env_id, episode, tick, time.monotonic_ns(), world, step, error)

    def glance(self, source: Any, env_id: int) -> Glance | None:
        """Returns the last step without the state; None if the environment is being stepped."""
        seen = source.glance(env_id - self._first)
        return Glance(*seen) if seen else None

    def _frame(self, source: Any, env_id: int) -> dict[str, Field]:
        """Returns the environment's own picture, if it can be drawn."""
        if not self._info.plugin.has_extension("shoal.render/1"):
            return {}
        height, width, self._picture = source.render(env_id - self._first, self._picture)
        pixels = np.frombuffer(self._picture, np.uint8).reshape(height, width, 3)
        return {"frame": Field("frame", pixels, "image")}

    @cached_property
    def _names(self) -> dict[str, list[tuple[str, list[str], list[str]]]]:
        """Text, names of elements and names of values of each field, from the plug-in's shoal.info/1."""
        return self._info.plugin.info() or {}

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
        described = self._names.get(f"{prefix}s", [])
        fields = []
        for number, (info, data) in enumerate(zip(infos, rows, strict=False)):  # no rows: no action yet
            name = prefix if info.name is None else f"{prefix}/{info.name}"
            elements, values = described[number][1:] if number < len(described) else ([], [])
            columns = tuple(elements) if info.shape and len(elements) == info.shape[-1] else ()
            named: tuple[Category, ...] = ()
            if prefix == "action" and isinstance(info.space, Discrete) and len(values) == info.space.n:
                first = int(info.space.start)
                named = tuple(Category(first + at, word, _NAMED_COLOR) for at, word in enumerate(values))
            fields.append(self._field(name, info.dtype, info.shape, data, columns, named))
        return fields

    def _field(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        data: bytes,
        columns: tuple[str, ...] = (),
        categories: tuple[Category, ...] = (),
    ) -> Field:
        agents = self._info.agents
        array = np.frombuffer(data, dtype).reshape(shape if agents == 1 else (agents, *shape))
        return Field(name, array, columns=columns, categories=categories)
