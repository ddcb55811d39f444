"""Batches the infos of a step as Gymnasium does, from rows of shared memory and from messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from shoal import _core
from shoal.memory import Segment
from shoal.process.worker import INFO

__all__ = ["InfoRows", "batch_infos"]


class InfoRows:
    """The infos in the environments' rows of the board."""

    def __init__(self, board: Segment, parts: list[slice], num_envs: int) -> None:
        self._words = board["info_word"]
        self._num_envs = num_envs
        firsts = [part.start for part in parts]
        arrays = self._words, board["info_row"], board["info_table"]
        self._reader = _core.InfoReader(*arrays, firsts, num_envs, json.loads)
        self.any = self._reader.any
        """Returns whether there is any info."""
        self.batch = self._reader.batch
        """Returns the batched infos of these environments (None: all); None if the types of a key differ."""

    def each(self, env_ids: list[int] | None) -> list[tuple[int, dict[str, Any]]]:
        """Returns positions and infos of these environments (None: all), one by one."""
        envs = range(self._num_envs) if env_ids is None else env_ids
        read = ((position, self._reader.read(env)) for position, env in enumerate(envs))
        return [(position, info) for position, info in read if info is not None]

    def take(self, envs: list[int]) -> list[tuple[int, int, dict[str, Any]]]:
        """Removes the infos of an idle worker's environments from their rows; returns them as reports."""
        reports = [(envs[position], INFO, info) for position, info in self.each(envs)]
        self._words[envs] = 0
        return reports


def batch_infos(
    messages: list[tuple[int, dict[str, Any]]],
    rows: InfoRows | None,
    env_ids: list[int] | None,
    add_info: Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]],
) -> dict[str, Any]:
    """Returns one dict of all infos; `messages` are (position, info), older ones first."""
    if rows is not None:
        infos = None if messages else rows.batch(env_ids)
        if infos is not None:
            return infos
        messages = sorted([*messages, *rows.each(env_ids)], key=itemgetter(0))
    infos = {}
    for position, info in messages:
        try:
            infos = add_info(infos, info, position)
        except OverflowError:
            infos = _add_by_leaf(infos, info, position, add_info)
    return infos


def _add_by_leaf(infos: dict[str, Any], info: dict[str, Any], position: int, add_info: Any) -> dict[str, Any]:
    """Adds an info in which an integer does not fit the array of its key: that becomes one of objects."""
    for path, value in _leaves(info):
        leaf = _nest(path, value)
        try:
            infos = add_info(infos, leaf, position)
        except OverflowError:
            _make_objects(infos, path)
            infos = add_info(add_info(infos, _nest(path, None), position), leaf, position)
    return infos


def _leaves(info: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in info.items():
        if isinstance(value, dict) and value and key != "final_obs":
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _nest(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    return {path[0]: value if len(path) == 1 else _nest(path[1:], value)}


def _make_objects(infos: dict[str, Any], path: tuple[str, ...]) -> None:
    """Replaces the array of numbers of a key by one of objects, with None where there is no number."""
    *above, key = path
    for name in above:
        infos = infos.get(name, {})
    if key in infos:
        infos[key], mask = infos[key].astype(object), infos.get(f"_{key}")
        if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:  # else an info has a key of that name
            infos[key][~mask] = None
