"""The fields that link the rows of a vector environment, and the native links over them: core/links.h."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal import _core
from shoal.errors import CorruptFileError
from shoal.replay.records import Records

__all__ = ["FIRST", "LINKED", "PREVIOUS", "links_of"]

FIRST, PREVIOUS = "first", "previous"
"""The fields of a row that say whether it begins an episode, and the id + 1 of the row before it."""

LINKED: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
    "reward": (np.dtype(np.float32), ()),
    "terminated": (np.dtype(np.bool_), ()),
    "truncated": (np.dtype(np.bool_), ()),
    FIRST: (np.dtype(np.bool_), ()),
    PREVIOUS: (np.dtype(np.uint64), ()),
}
"""The fields that every row of a vector environment has."""


def links_of(records: Records) -> _core.Links:
    """The links between the rows of one ring."""
    for name, (dtype, shape) in LINKED.items():
        column = records.columns.get(name)
        if column is None or (column.dtype, column.shape) != (dtype, shape):
            raise CorruptFileError(
                f"{records.segment!r} says that it holds steps of a vector environment; expected a field "
                f"{name!r} of {dtype.name}{list(shape)}, found {column}"
            )
    names = list(records.columns)
    columns = [names.index(name) for name in (FIRST, PREVIOUS, "reward", "terminated", "truncated")]
    return _core.Links(records.ring, records.segment["next"], columns, int(records.facts["num_envs"]))
