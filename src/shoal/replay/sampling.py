"""The kinds of sampling of a buffer: the arrays of their batches, and the memory they use.

    sample(n)              fills free arrays of the buffer               (core/binding/batches.hpp)
    sample(n, out)         fills the caller's arrays
    sample(n, device=...)  fills tensors                                 (replay/tensors.py)

In each case one call of `_core.Plan` draws and copies the rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.replay.arguments import require_count
from shoal.replay.batches import Kind, PrioritizedBatch, allocate_batch, fits_ids, make_batch, require_out
from shoal.replay.draws import Draws

if TYPE_CHECKING:
    from shoal.replay.buffer import ReplayBuffer

__all__ = ["LEASES", "Part", "Sampling", "SamplingCache"]

LEASES = 16
"""The most sets of arrays that a buffer keeps for its batches."""
_MAX_CACHED = 16
"""The most kinds of sampling that are kept: a stack or length that changes often must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a batch: its name, the type and shape of its rows, and their source."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    role: Literal["row", "obs", "next_obs", "discount", "mask"]
    column: str = ""
    """The field of the buffer; "" for a discount or a mask."""


class Sampling(Generic[Kind]):
    """One kind of sampling: a plan in C, and the checks and error messages around it."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        kind: type[Kind],
        parts: list[Part],
        draws: Draws,
        weights: _core.Weights | None,
        stack: int = 1,
        length: int = 0,
    ) -> None:
        self._buffer = weakref.ref(buffer)  # not a cycle, which would delay freeing the memory
        self._kind, self._draws = kind, draws
        self.specs = {part.name: (part.dtype, part.shape) for part in parts}
        self._is_rows = length > 0 or buffer._links is None
        columns = list(buffer.fields)
        fields: list[tuple[str, Any, str, tuple[int, ...], str, int]] = [
            (
                part.name,
                part.dtype,
                np.empty(1, part.dtype).data.format,
                part.shape,
                part.role,
                columns.index(part.column) if part.column else 0,
            )
            for part in parts
        ]
        ring, leases = buffer._ring, buffer._leases
        self.plan = _core.Plan(ring, buffer._links, weights, leases, kind, fields, stack, length)

    def sample(self, n: Any, out: Mapping[str, NDArray[Any]] | None, device: Any, *options: Any) -> Kind:
        """Returns a batch of `n` rows in leased arrays, in the arrays of `out`, or in tensors."""
        if out is None and device is None:
            batch = self.plan.lease(self._draws.words, n, *options)
            if batch is not None:
                return cast(Kind, batch)
        n = require_count("n", n)
        if device is not None:
            if out is not None:
                raise ValueError("out is for arrays, device for tensors; give one of the two")
            return self._get_buffer()._get_tensors().sample(device, self, n, options)
        return self.lease(n, options) if out is None else self._fill_out(n, out, options)

    def lease(self, n: int, options: tuple[Any, ...]) -> Kind:
        """Returns a batch in leased arrays."""
        batch = self.plan.lease(self._draws.words, n, *options)
        if batch is None:
            if n > 1 << 40:
                allocate_batch(self._kind, n, self.specs)  # raises NumPy's error about the size
            self._raise_nothing_drawn()
        return cast(Kind, batch)

    def fill(self, batch: Kind, options: tuple[Any, ...]) -> None:
        """Fills the arrays of a batch, which must fit."""
        weights = batch.weights if isinstance(batch, PrioritizedBatch) else None
        n = len(batch.ids)
        drawn = self.plan.fill(self._draws.words, n, batch, batch.ids, weights, *options)
        assert drawn is not None, "every array was checked"
        if drawn < n:
            self._raise_nothing_drawn()

    def wrap(self, n: int, arrays: Mapping[str, NDArray[Any]]) -> Kind:
        """Returns a batch over arrays that will be filled."""
        return make_batch(self._kind, n, arrays)

    def empty(self) -> Kind:
        """Returns a batch of no rows."""
        return allocate_batch(self._kind, 0, self.specs)

    def _fill_out(self, n: int, out: Mapping[str, NDArray[Any]], options: tuple[Any, ...]) -> Kind:
        given = require_out(out, n, self.specs)
        can_reuse = type(out) is self._kind and fits_ids(out.ids, n) and [*out] == [*self.specs]
        if can_reuse and isinstance(out, PrioritizedBatch):
            can_reuse = fits_ids(out.weights, n, np.float32)
        batch = cast(Kind, out) if can_reuse else make_batch(self._kind, n, given, out)
        self.fill(batch, options)
        return batch

    def _raise_nothing_drawn(self) -> NoReturn:
        self._get_buffer()._raise_nothing_drawn(self._is_rows)

    def _get_buffer(self) -> ReplayBuffer:
        buffer = self._buffer()
        assert buffer is not None, "the caller refers to the buffer"
        return buffer


class SamplingCache(Generic[Kind]):
    """The kinds of sampling of a buffer or of a prioritized sampler; each is made when it is first used."""

    def __init__(
        self, buffer: ReplayBuffer, kind: type[Kind], draws: Draws, weights: _core.Weights | None = None
    ) -> None:
        self._buffer = weakref.ref(buffer)  # the buffer refers to this object
        self._kind, self._draws, self._weights = kind, draws, weights
        self._cached: dict[tuple[str, int], Sampling[Kind]] = {}

    def rows(self) -> Sampling[Kind]:
        """The kind of `sample`: rows, or transitions of a vector environment."""
        return self._get("rows", 1)

    def transitions(self, stack: int) -> Sampling[Kind]:
        """Transitions with stacked observations."""
        return self._get("transitions", stack)

    def n_step(self, stack: int) -> Sampling[Kind]:
        """Transitions over several steps, with the discount of the last step."""
        return self._get("n_step", stack)

    def sequences(self, length: int) -> Sampling[Kind]:
        """Sequences of consecutive rows."""
        return self._get("sequences", length)

    def _get(self, name: str, size: int) -> Sampling[Kind]:
        sampling = self._cached.get((name, size))
        if sampling is None:
            if len(self._cached) >= _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
            stack, length = (1, size) if name == "sequences" else (size, 0)
            buffer = self._buffer()
            assert buffer is not None, "the caller refers to the buffer"
            parts = buffer._list_parts(name, size)
            sampling = Sampling(buffer, self._kind, parts, self._draws, self._weights, stack, length)
            self._cached[name, size] = sampling
        return sampling
