"""Slots, the memory that results are lent from, and the infos of a step in which episodes ended."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec
from shoal.native.plugin import FieldInfo, PluginInfo
from shoal.native.told import Told
from shoal.vector.rollout import Rollout

__all__ = ["Infos", "Lent", "SlotMaker", "copied", "native_rollout"]


_VIEWS_KEPT = 4096  # rows of a rollout; a view takes 100 bytes


class Lent:
    """The memory that one vector environment lends its results from, for who must know all of it."""

    def __init__(self) -> None:
        self._mappings: weakref.WeakSet[_core.Mapping] = weakref.WeakSet()
        self._told: Callable[[_core.Mapping], None] | None = None

    def add(self, segment: Segment) -> None:
        mapping = segment.mapping
        self._mappings.add(mapping)
        if self._told is not None:
            self._told(mapping)

    def tell(self, told: Callable[[_core.Mapping], None]) -> None:
        """Calls `told` with every mapping there is, and with each later one before it is first lent."""
        self._told = told
        for mapping in list(self._mappings):
            told(mapping)


class SlotMaker:
    """Makes slots: arrays of one step's results in a segment of their own."""

    def __init__(
        self,
        lent: Lent,
        observations: list[FieldInfo],
        rows: int,
        padded: int,
        finals: bool,
        ids: int = 0,
    ) -> None:
        self._lent, self._rows, self._ids = lent, rows, ids
        fields: dict[str, FieldSpec] = {
            f"observation/{i}": (field.dtype, (padded, *field.shape)) for i, field in enumerate(observations)
        }
        if ids:
            fields["env_id"] = (np.int64, (ids,))
        fields["reward"] = (np.float64, (padded,))
        fields["terminated"] = (np.bool_, (padded,))
        fields["truncated"] = (np.bool_, (padded,))
        if finals:
            for i, field in enumerate(observations):
                fields[f"final/{i}"] = (field.dtype, (padded, *field.shape))
        self._layout = Layout(fields)
        self._first: Segment | None = None

    def __call__(self) -> tuple[NDArray[Any], ...]:
        segment = Segment(self._layout)
        self._lent.add(segment)
        arrays = tuple(segment.rows(name, self._ids if name == "env_id" else self._rows) for name in segment)
        if self._first is None and not self._ids:
            self._first = segment
        else:
            segment.close()  # the arrays keep the memory; no descriptor is needed
        return arrays

    def close(self) -> None:
        if self._first is not None:
            self._first.close()

    def is_first(self, array: NDArray[Any]) -> bool:
        return self._first is not None and self._first.shares_memory(array)


class Infos:
    """Builds the info dict of a step in which episodes ended."""

    def __init__(
        self,
        observations: list[FieldInfo],
        last_return: NDArray[np.float64],
        last_length: NDArray[np.uint32],
        episode_stats: bool,
        rows: int,
    ) -> None:
        self._observations = observations
        self._returns, self._lengths = last_return[:rows], last_length[:rows]
        self._episode_stats = episode_stats
        self.told: Told | None = None
        """The log that some environments keep."""

    def __call__(
        self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], finals: list[NDArray[Any]]
    ) -> dict[str, Any]:
        done = terminated | truncated
        info: dict[str, Any] = {}
        if self._episode_stats:
            info["episode"] = {
                "r": np.where(done, self._returns, 0.0),
                "l": np.where(done, self._lengths, 0).astype(np.int64),
            }
            info["_episode"] = done.copy()
        if self.told is not None:
            info["log"], info["_log"] = self.told(done), done.copy()
        if finals:
            whole = np.full(len(done), None, dtype=object)
            for row in np.flatnonzero(done):
                if self._observations[0].name is None:
                    whole[row] = finals[0][row].copy()
                else:
                    names = [field.name for field in self._observations]
                    whole[row] = {name: part[row].copy() for name, part in zip(names, finals, strict=True)}
            info["final_obs"], info["_final_obs"] = whole, done.copy()
            info["final_info"], info["_final_info"] = {}, done.copy()
        return info


def copied(value: Any) -> Any:
    """The same arrays, nested as they are, in memory of their own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        items = [copied(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value


def native_rollout(
    stepper: _core.Stepper,
    guard: _core.Guard,
    lent: Lent,
    info: PluginInfo,
    num_envs: int,
    padded: int,
    length: int,
) -> Rollout:
    """A rollout that the engine fills."""
    # The last row of a block may be written up to a whole number of lanes: keep room behind it.
    spare = -(-(padded - num_envs) // max(1, num_envs)) + 1 if padded > num_envs else 0
    fields: dict[str, FieldSpec] = {
        f"observation/{i}": (field.dtype, (length + 1 + spare, num_envs, *field.shape))
        for i, field in enumerate(info.observations)
    }
    for i, field in enumerate(info.actions):
        fields[f"action/{i}"] = (field.dtype, (length, num_envs, *field.shape))
    for name, dtype in (("reward", np.float64), ("terminated", np.bool_), ("truncated", np.bool_)):
        fields[name] = (dtype, (length + spare, num_envs))
    segment = Segment(Layout(fields))
    lent.add(segment)
    observations = [segment.rows(f"observation/{i}", length + 1) for i in range(len(info.observations))]
    actions = [segment.rows(f"action/{i}", length) for i in range(len(info.actions))]
    reward, *flags = (segment.rows(name, length) for name in ("reward", "terminated", "truncated"))
    segment.close()  # the arrays keep the memory

    # Views that were made once need not be made again: results, and actions as they were stepped.
    rows: dict[int, tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any], ...]]] = {}

    def step(t: int, given: Any) -> dict[str, Any]:
        if given is None:
            raise TypeError("rollout.step takes the actions, found None; nothing was stepped")
        row = rows.get(t)
        if row is None:
            seen = (block[t + 1] for block in observations)
            row = (*seen, reward[t], flags[0][t], flags[1][t]), tuple(block[t : t + 1] for block in actions)
            if length <= _VIEWS_KEPT:
                rows[t] = row
        stepper.step_into(given, *row)
        return {}

    return Rollout(
        _joined(info.observations, observations),
        _joined(info.actions, actions),
        reward,
        *flags,
        step=step,
        moves=stepper.moves,
        guard=guard,
    )


def _joined(fields: list[FieldInfo], arrays: list[NDArray[Any]]) -> Any:
    if fields[0].name is None:
        return arrays[0]
    return {field.name: array for field, array in zip(fields, arrays, strict=True)}
