"""Checks the arguments of the buffers' methods and converts them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SpaceError
from shoal.replay.records import Column

__all__ = ["convert_ids", "convert_rows", "require_capacity", "require_count", "require_fraction"]


def require_count(name: str, value: Any, least: int = 1) -> int:
    """Returns `value` as an int; raises if it is not an int of at least `least`."""
    if type(value) is int and value >= least:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def require_capacity(value: Any) -> int:
    """Returns the capacity of a ring as an int; raises if it is out of range."""
    capacity = require_count("capacity", value)
    if capacity >= 2**40:
        raise ValueError(f"capacity must be less than 2**40 rows, got {capacity}")
    return capacity


def convert_ids(ids: Any) -> NDArray[np.uint64]:
    """Returns ids of rows as an array uint64[n]; raises if they are not integers."""
    given = np.asarray(ids)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"ids must be integers, like those in batch.ids, got {ids!r:.80}")
    if given.ndim != 1:
        raise ValueError(f"ids must have one dimension, got shape {given.shape}")
    if given.dtype.kind == "i" and (given < 0).any():
        raise ValueError(f"ids must be at least 0, like those in batch.ids, got {given.min()}")
    return np.ascontiguousarray(given, np.uint64)


def require_fraction(name: str, value: Any, most: float = 1.0) -> float:
    """Returns `value` as a float; raises if it is not a number from 0 to `most`."""
    if type(value) is float and 0 <= value <= most:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}") from None
    if not 0 <= number <= most:
        raise ValueError(f"{name} must be from 0 to {most:g}, got {value}")
    return number


def convert_rows(name: str, value: Any, column: Column) -> NDArray[Any]:
    """Returns rows [n, ...] in the dtype of the field; raises SpaceError for a value that does not fit."""
    try:
        given = np.asarray(value)
        with np.errstate(all="ignore"):  # _fits checks below whether values were lost
            array = given.astype(column.dtype, casting="unsafe", copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpaceError(
            f"field {name!r}: expected {column}, found {value!r:.80}: {error}; nothing stored"
        ) from error
    if given.ndim == 0 or given.shape[1:] != column.shape:
        hint = "nothing stored"
        if given.shape == column.shape:
            hint += "; for one row use push(row), or give [row]"
        whole = ", ".join(["n", *map(str, column.shape)])
        raise SpaceError(
            f"field {name!r}: expected rows of shape {column.shape} in an array of shape [{whole}], found "
            f"{list(given.shape)}; {hint}"
        )
    if given.dtype != column.dtype and not _fits(given, array):
        raise SpaceError(
            f"field {name!r}: expected values that fit {column.dtype.name}, found {value!r:.60}; "
            "nothing stored"
        )
    return np.ascontiguousarray(array).view(column.dtype)  # several NumPy types can have this dtype


def _fits(given: NDArray[Any], array: NDArray[Any]) -> bool:
    """Whether a conversion kept the values. Floats may be rounded, but not to infinity."""
    kind = array.dtype.kind
    if kind in "biu":
        if given.dtype.kind not in "biu":
            return given.size == 0
        low, high = (0, 1) if kind == "b" else (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
        return given.size == 0 or (int(given.min()) >= low and int(given.max()) <= high)
    if kind == "f":
        return given.dtype.kind in "biuf" and bool((np.isfinite(array) | ~np.isfinite(given)).all())
    return np.can_cast(given.dtype, array.dtype, "same_kind")
