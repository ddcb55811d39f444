"""The fields that link the rows of a vector environment, and the native object for them (core/links.h)."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal import _core
from shoal.errors import CorruptFileError
from shoal.replay.records import Records

__all__ = ["FIRST", "LINKED", "PREVIOUS", "make_links"]

FIRST, PREVIOUS = "first", "previous"
"""Names of fields: whether a row is the first of an episode; the id + 1 of the row before it."""

LINKED: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
    "reward": (np.dtype(np.float32), ()),
    "terminated": (np.dtype(np.bool_), ()),
    "truncated": (np.dtype(np.bool_), ()),
    FIRST: (np.dtype(np.bool_), ()),
    PREVIOUS: (np.dtype(np.uint64), ()),
}
"""The fields that every row of a vector environment has."""


def make_links(records: Records) -> _core.Links:
    """Returns the links between the rows of a ring; raises CorruptFileError if it lacks their fields."""
    for name, (dtype, shape) in LINKED.items():
        column = records.columns.get(name)
        if column is None or (column.dtype, column.shape) != (dtype, shape):
            raise CorruptFileError(
                f"{records.segment!r} is damaged: as a buffer of a vector environment it needs a field "
                f"{name!r} of {dtype.name}{list(shape)}, found {column}; use a copy that is whole"
            )
    names = list(records.columns)
    columns = [names.index(name) for name in (FIRST, PREVIOUS, "reward", "terminated", "truncated")]
    return _core.Links(records.ring, records.segment["next"], columns, int(records.facts["num_envs"]))
