"""Rows that lead to each other: the ids of what came before and after, and gathers by id.

A link back is a field of the row. A link forward lies beside the records, and is believed only if the row
there links back: its writer may have been overtaken by a whole lap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.replay.records import Records

__all__ = ["FIRST", "PREVIOUS", "Links"]

FIRST, PREVIOUS = "first", "previous"
"""The fields of a row that say whether it begins an episode, and the id + 1 of the row before it."""


class Links:
    """The links between the rows of one ring."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._next: NDArray[np.uint64] = records.segment["next"]

    def set(self, previous: NDArray[np.uint64], ids: NDArray[np.uint64]) -> None:
        """Links the rows before new ones to them; previous: as in the field."""
        linked = previous > 0
        self._next[(previous[linked] - 1) % self._records.capacity] = ids[linked] + 1

    def after(
        self, ids: NDArray[np.uint64], names: tuple[str, ...], *, across: bool = False
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_], dict[str, NDArray[Any]]]:
        """The rows after these, which of them are there, in the same episode unless `across`; some fields."""
        links = self._next[ids % self._records.capacity]
        after = np.where(links > 0, links - 1, 0).astype(np.uint64)
        values, found = self._read(after, (FIRST, PREVIOUS, *names))
        there = (links > 0) & found & (values[PREVIOUS] == ids + 1)
        return after, there if across else there & ~values[FIRST], values

    def stacks(self, ids: NDArray[np.uint64], stack: int) -> NDArray[np.uint64]:
        """Each row and those before it, [n, stack], oldest first, an episode's first repeated; [n] for 1.

        A row that is gone ends the search, and is found to be gone by who gathers.
        """
        if stack == 1:
            return ids
        whole = np.repeat(ids[:, None], stack, axis=1)
        places, at = np.arange(len(ids)), ids
        for back in range(1, stack):
            values, found = self._read(at, (FIRST, PREVIOUS))
            going = found & ~values[FIRST]
            places, at = places[going], values[PREVIOUS][going] - 1
            if not len(places):
                break
            whole[places, : stack - back] = at[:, None]  # it, and all before it until they are known
        return whole

    def gather(self, ids: NDArray[np.uint64], into: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Fills arrays [n, ...], or [n, k, ...] for ids [n, k], with fields of rows; which n were whole."""
        found = self.gather_each(ids, into)
        return found if found.ndim == 1 else np.logical_and.reduce(found, axis=1)

    def gather_each(self, ids: NDArray[np.uint64], into: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """The same; which ids were there."""
        found = np.zeros(ids.shape, np.bool_)
        if ids.size:
            columns = tuple(into.get(name) for name in self._records.columns)
            self._records.ring.fetch(np.ascontiguousarray(ids, np.uint64), columns, found.view(np.uint8))
        return found

    def _read(
        self, ids: NDArray[np.uint64], names: tuple[str, ...]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Some fields of rows in new arrays, and which rows were there."""
        columns = [self._records.columns[name] for name in names]
        values = {c.name: np.empty((len(ids), *c.shape), c.dtype) for c in columns}
        return values, self.gather_each(ids, values)
