"""Memory for results on a device: arrays of the user's library, one set for each step."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from shoal.cuda.arrays import Arrays
from shoal.native.plugin import FieldInfo, PluginInfo
from shoal.vector.backend import Common

__all__ = ["DeviceBlock", "DeviceLender", "DeviceRows", "addresses_of", "join"]


def join(fields: list[FieldInfo], parts: list[Any]) -> Any:
    """Returns the arrays of a plug-in's fields as one value of its space."""
    if fields[0].name is None:
        return parts[0]
    return {str(field.name): part for field, part in zip(fields, parts, strict=True)}


def addresses_of(arrays: Arrays, rows: Any) -> NDArray[np.uint64]:
    """Returns the addresses of results, in the order of the kernels' argument."""
    episode = rows.episode or (None, None)
    finals = rows.finals or [None] * len(rows.observations)
    flags = rows.rewards, rows.terminated, rows.truncated, rows.finished
    parts = [*flags, *episode, *rows.observations, *finals]
    return np.array([0 if part is None else arrays.address(part) for part in parts], np.uint64)


class DeviceRows:
    """The results of one step. What the user gets are its first `count` rows."""

    def __init__(self, arrays: Arrays, info: PluginInfo, common: Common, count: int, padded: int) -> None:
        def rows(dtype: Any, shape: tuple[int, ...] = ()) -> Any:
            whole = arrays.empty((padded, *shape), dtype)
            return whole if padded == count else whole[:count]

        self.observations = [rows(field.dtype, field.shape) for field in info.observations]
        self.rewards = rows(np.float64)
        self.terminated, self.truncated = rows(np.bool_), rows(np.bool_)
        self.finals: list[Any] = []
        self.episode: list[Any] = []
        self.finished: Any = None
        if common.same_step:
            self.finals = [rows(field.dtype, field.shape) for field in info.observations]
        if common.same_step or common.episode_stats:
            self.finished = rows(np.bool_)
        if common.episode_stats:
            self.episode = [rows(np.float64), rows(np.int64)]
        self.values: list[Any] = []
        self.addresses = addresses_of(arrays, self)


class DeviceBlock:
    """The memory of a rollout: [T + 1, count] observations, [T, count] of everything else."""

    def __init__(self, arrays: Arrays, info: PluginInfo, length: int, count: int, padded: int) -> None:
        extra = padded - count  # a vectorised plug-in writes rows after the last environment

        def rows(steps: int, dtype: Any, shape: tuple[int, ...] = ()) -> Any:
            whole = arrays.zeros((steps * count + extra, *shape), dtype)
            return whole[: steps * count].reshape((steps, count, *shape))

        seen = [rows(length + 1, field.dtype, field.shape) for field in info.observations]
        acted = [rows(length, field.dtype, field.shape) for field in info.actions]
        self.number = 0
        self._observations, self._actions = join(info.observations, seen), join(info.actions, acted)
        self._flags = [rows(length, np.float64), rows(length, np.bool_), rows(length, np.bool_)]

    def as_rollout(self, length: int, count: int) -> tuple[Any, Any, list[Any]]:
        return self._observations, self._actions, self._flags


class DeviceLender:
    """Gives each step new arrays, whose memory the array library takes back with the last of them.

    buffers="live": the same arrays in every step.
    """

    is_plain = False
    copies = 0

    def __init__(self, arrays: Arrays, info: PluginInfo, common: Common, count: int, padded: int) -> None:
        self._arrays, self._info, self._common = arrays, info, common
        self._count, self._padded = count, padded
        self._live = self._make() if common.buffers == "live" else None
        self._current: DeviceRows | None = self._live

    @property
    def slots(self) -> DeviceLender:
        return self

    def _make(self) -> DeviceRows:
        return DeviceRows(self._arrays, self._info, self._common, self._count, self._padded)

    @property
    def count(self) -> int:
        """How many sets of results this object holds."""
        return int(self._current is not None)

    def take(self) -> int:
        if self._live is None:
            self._current = None  # first, so that its memory can be used again
            self._current = self._make()
        return 1

    def rows(self, slot: int) -> Any:
        return self._current

    def observation(self, slot: int) -> Any:
        assert self._current is not None
        return join(self._info.observations, self._export(self._current.observations))

    def results(self, slot: int, infos: dict[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Returns the results of a step; the infos of finished episodes are there in every step."""
        rows = self._current
        assert rows is not None
        finished = None if rows.finished is None else self._export([rows.finished])[0]
        if rows.finals:
            infos["final_obs"] = join(self._info.observations, self._export(rows.finals))
            infos["_final_obs"] = finished
        if rows.episode:
            infos["episode"] = dict(zip(("r", "l"), self._export(rows.episode), strict=True))
            infos["_episode"] = finished
        flags = self._export([rows.rewards, rows.terminated, rows.truncated])
        return self.observation(slot), *flags, infos

    def _export(self, parts: list[Any]) -> list[Any]:
        return [self._arrays.export(part) for part in parts]

    def close(self) -> None:
        """Drops the results; arrays that users hold keep their memory."""
        self._live = self._current = None

    def lend(self, slot: int, results: Any) -> Any:
        return results

    def block(self, length: int, actions: Space[Any]) -> DeviceBlock:
        return DeviceBlock(self._arrays, self._info, length, self._count, self._padded)

    def holds_live(self, array: Any) -> bool:
        if self._live is None:
            return False
        rows = self._live
        flags = [rows.rewards, rows.terminated, rows.truncated, rows.finished]
        live = [
            part for part in [*rows.observations, *rows.finals, *rows.episode, *flags] if part is not None
        ]
        begin = self._arrays.address(array)
        return any(
            self._arrays.address(part) <= begin < self._arrays.address(part) + part.nbytes for part in live
        )
