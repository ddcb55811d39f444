"""Arguments of the buffers' methods, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["checked_capacity", "checked_count", "checked_ids"]


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """An int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def checked_capacity(value: Any) -> int:
    """How many rows a ring may have."""
    capacity = checked_count("capacity", value)
    if capacity >= 2**40:
        raise ValueError(f"capacity must be less than 2**40 rows, got {capacity}")
    return capacity


def checked_ids(ids: Any) -> NDArray[np.uint64]:
    """Ids of rows as an array [n]."""
    given = np.asarray(ids)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"ids must be integers, as batch.ids has them, got {ids!r:.80}")
    if given.ndim != 1:
        raise ValueError(f"ids must have one dimension, got shape {given.shape}")
    if given.dtype.kind == "i" and (given < 0).any():
        raise ValueError(f"ids must be at least 0, as batch.ids has them, got {given.min()}")
    return np.ascontiguousarray(given, np.uint64)
