"""Batches, and checks of the arrays that a caller gives for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SpaceError, SpaceKeyError

__all__ = [
    "Batch",
    "Kind",
    "PrioritizedBatch",
    "Specs",
    "allocate_batch",
    "fits_ids",
    "make_batch",
    "require_out",
]


class Batch(dict[str, Any]):
    """Rows as a dict of arrays by field (tensors, if a device was given), and their ids, which are unique.

    >>> with shoal.ReplayBuffer(10, {"x": (np.float32, ())}) as buffer:
    ...     _ = buffer.extend({"x": np.arange(4, dtype=np.float32)})
    ...     batch = buffer.latest(2)
    >>> batch["x"], batch.ids
    (array([2., 3.], dtype=float32), array([2, 3], dtype=uint64))
    """

    ids: NDArray[np.uint64] = np.empty(0, np.uint64)


class PrioritizedBatch(Batch):
    """Rows, their ids, and the importance-sampling weights that correct the bias of prioritized draws.

    >>> with shoal.ReplayBuffer(10, {"x": (np.float32, ())}) as buffer:
    ...     sampler = shoal.replay.PrioritizedSampler(buffer)
    ...     _ = buffer.extend({"x": np.arange(4, dtype=np.float32)})
    ...     sampler.sample(2).weights
    array([1., 1.], dtype=float32)
    """

    weights: Any
    """float32[n]: an array, or a tensor if the fields are tensors."""


Kind = TypeVar("Kind", bound=Batch)
Specs: TypeAlias = Mapping[str, tuple["np.dtype[Any]", tuple[int, ...]]]
"""The arrays of a batch: name to (dtype, shape of one row)."""


def make_batch(kind: type[Kind], n: int, arrays: Mapping[str, NDArray[Any]], out: Any = None) -> Kind:
    """Returns a batch over arrays that will be filled.

    If `out` is a batch, it also reuses its array of ids.
    """
    batch = kind(arrays)
    has_ids = isinstance(out, Batch) and fits_ids(out.ids, n)
    batch.ids = out.ids if has_ids else np.empty(n, np.uint64)
    if isinstance(batch, PrioritizedBatch):
        batch.weights = np.empty(n, np.float32)
    return batch


def allocate_batch(kind: type[Kind], n: int, specs: Specs) -> Kind:
    """Returns a batch of `n` rows in new arrays."""
    return make_batch(kind, n, {name: np.empty((n, *shape), dtype) for name, (dtype, shape) in specs.items()})


def fits_ids(ids: Any, n: int, dtype: Any = np.uint64) -> bool:
    """Whether `ids` is a writable, contiguous array of `n` values of this dtype."""
    fits = isinstance(ids, np.ndarray) and ids.dtype == dtype and ids.shape == (n,)
    return fits and ids.flags.c_contiguous and ids.flags.writeable


def require_out(out: Mapping[str, NDArray[Any]], n: int, specs: Specs) -> dict[str, NDArray[Any]]:
    """Returns the caller's arrays in the order of the specs; raises SpaceError for one that does not fit."""
    try:
        is_complete = out.keys() == specs.keys()
    except AttributeError:
        raise TypeError(f"out must be a dict of arrays, got {type(out).__name__}") from None
    if not is_complete:
        raise SpaceKeyError(f"out must have the keys {list(specs)}, found {list(out)}")
    for name, (dtype, shape) in specs.items():
        array, expected = out[name], (n, *shape)
        if not isinstance(array, np.ndarray):
            found = type(array).__name__
        elif array.dtype != dtype or array.shape != expected:
            found = f"{array.dtype}{list(array.shape)}"
        elif not array.flags.c_contiguous or not array.flags.writeable:
            found = "a strided array" if array.flags.writeable else "a read-only array"
        else:
            continue
        raise SpaceError(
            f"out[{name!r}] must be a writable C-contiguous array {dtype}{list(expected)}, found {found}"
        )
    return {name: out[name] for name in specs}
