"""Batches, and the arrays they are gathered into: new ones, the caller's, or those that become tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SpaceError, SpaceKeyError
from shoal.replay.arguments import checked_count

if TYPE_CHECKING:
    from shoal.replay.tensors import Tensors

__all__ = ["Batch", "Kind", "Outputs", "PrioritizedBatch", "Specs", "begun", "empty", "put"]


class Batch(dict[str, Any]):
    """Rows as arrays by field, as tensors if a device was asked for; and their ids, never used again.

    >>> with shoal.ReplayBuffer(10, {"x": (np.float32, ())}) as buffer:
    ...     _ = buffer.extend({"x": np.arange(4, dtype=np.float32)})
    ...     batch = buffer.latest(2)
    >>> batch["x"], batch.ids
    (array([2., 3.], dtype=float32), array([2, 3], dtype=uint64))
    """

    ids: NDArray[np.uint64] = np.empty(0, np.uint64)


class PrioritizedBatch(Batch):
    """Rows, their ids, and the weights that undo the bias of how they were drawn.

    >>> with shoal.ReplayBuffer(10, {"x": (np.float32, ())}) as buffer:
    ...     sampler = shoal.replay.PrioritizedSampler(buffer)
    ...     _ = buffer.extend({"x": np.arange(4, dtype=np.float32)})
    ...     sampler.sample(2).weights
    array([1., 1.], dtype=float32)
    """

    weights: Any
    """float32[n]: an array, or a tensor like the rest."""


Kind = TypeVar("Kind", bound=Batch)
Specs: TypeAlias = Mapping[str, tuple["np.dtype[Any]", tuple[int, ...]]]
"""What a batch holds for each row: name to dtype and shape."""


def begun(kind: type[Kind], n: int, arrays: Mapping[str, NDArray[Any]], out: Any = None) -> Kind:
    """A batch over arrays that are to be filled; those of `out`, if it is one, and then its ids too."""
    batch = kind(arrays)
    has_ids = isinstance(out, Batch) and _has_room(out.ids, n)
    batch.ids = out.ids if has_ids else np.empty(n, np.uint64)
    if isinstance(batch, PrioritizedBatch):
        batch.weights = np.empty(n, np.float32)
    return batch


def empty(kind: type[Kind], n: int, specs: Specs) -> Kind:
    """A batch of `n` rows in new arrays."""
    return begun(kind, n, {name: np.empty((n, *shape), dtype) for name, (dtype, shape) in specs.items()})


def put(batch: Batch, places: NDArray[Any], other: Batch, which: NDArray[np.bool_]) -> None:
    """Puts some rows of another batch into places of this one."""
    for name, array in other.items():
        batch[name][places] = array[which]
    batch.ids[places] = other.ids[which]
    if isinstance(batch, PrioritizedBatch) and isinstance(other, PrioritizedBatch):
        batch.weights[places] = other.weights[which]


class Outputs:
    """Where the batches of one buffer go."""

    def __init__(self) -> None:
        self._known: tuple[Any, dict[str, NDArray[Any]]] = None, {}
        self._tensors: Tensors | None = None

    def filled(
        self,
        kind: type[Kind],
        n: Any,
        specs: Specs,
        out: Mapping[str, NDArray[Any]] | None,
        device: Any,
        fill: Callable[[Kind], None],
    ) -> Kind:
        """A batch of `n` rows that `fill` has filled in place: arrays, those of `out`, or tensors."""
        n = checked_count("n", n)
        if device is not None:
            if out is not None:
                raise ValueError("out is for arrays, device for tensors; give one of the two")
            if self._tensors is None:
                from shoal.replay.tensors import Tensors  # and with it torch

                self._tensors = Tensors()
            return self._tensors.filled(device, kind, n, specs, fill)
        if out is None:
            batch = empty(kind, n, specs)
        else:
            given = self._given(out, n, specs)
            again = type(out) is kind and _has_room(out.ids, n) and [*out] == [*specs]
            batch = cast(Kind, out) if again else begun(kind, n, given, out)
        fill(batch)
        return batch

    def _given(self, out: Mapping[str, NDArray[Any]], n: int, specs: Specs) -> dict[str, NDArray[Any]]:
        try:
            key = n, specs, [*out], [id(array) for array in out.values()]
        except (TypeError, AttributeError):
            raise TypeError(f"out must be a dict of arrays, got {type(out).__name__}") from None
        known = self._known
        if key != known[0]:  # the same arrays were looked at before, and are kept
            known = self._known = key, _checked(out, n, specs)
        return known[1]


def _has_room(ids: Any, n: int) -> bool:
    """Whether it is an array for the ids of `n` rows."""
    fits = isinstance(ids, np.ndarray) and ids.dtype == np.uint64 and ids.shape == (n,)
    return fits and ids.flags.c_contiguous and ids.flags.writeable


def _checked(out: Mapping[str, NDArray[Any]], n: int, specs: Specs) -> dict[str, NDArray[Any]]:
    if out.keys() != specs.keys():
        raise SpaceKeyError(f"out must have the keys {list(specs)}, found {list(out)}")
    for name, (dtype, shape) in specs.items():
        array, expected = out[name], (n, *shape)
        if not isinstance(array, np.ndarray):
            found = type(array).__name__
        elif array.dtype != dtype or array.shape != expected:
            found = f"{array.dtype}{list(array.shape)}"
        elif not array.flags.c_contiguous or not array.flags.writeable:
            found = "a strided one" if array.flags.writeable else "a read-only one"
        else:
            continue
        raise SpaceError(
            f"out[{name!r}] must be a writable C-contiguous array {dtype}{list(expected)}, found {found}"
        )
    return {name: out[name] for name in specs}
