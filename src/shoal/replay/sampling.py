"""The ways to sample a buffer: what the batches of each hold, and where they go.

    sample(n)              arrays of the buffer that nobody holds        (core/binding/batches.hpp)
    sample(n, out)         the caller's arrays
    sample(n, device=...)  tensors                                       (replay/tensors.py)

Rows are drawn and copied by `_core.Plan` in one call, whichever it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.replay.arguments import checked_count
from shoal.replay.batches import Kind, PrioritizedBatch, begun, checked_out, empty, has_room
from shoal.replay.draws import Draws

if TYPE_CHECKING:
    from shoal.replay.buffer import ReplayBuffer

__all__ = ["LEASES", "Part", "Sampling", "Ways"]

LEASES = 16
"""Sets of arrays that a buffer keeps for its batches, at most; it makes one when all others are held."""
_WAYS = 16
"""Ways to sample that are kept: a stack or a length that is another each time must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a batch: its name, its rows, and what they are filled with."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    role: Literal["row", "obs", "next_obs", "discount", "mask"]
    column: str = ""
    """The field of the buffer, unless it is a discount or a mask."""


class Sampling(Generic[Kind]):
    """One way to sample: a plan in C, and the careful way around it."""

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
        self._buffer = weakref.ref(buffer)  # which holds this: a cycle would keep the memory
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
        """A batch of `n` rows: arrays, those of `out`, or tensors."""
        if out is None and device is None:
            batch = self.plan.lease(self._draws.words, n, *options)
            if batch is not None:
                return cast(Kind, batch)
        n = checked_count("n", n)
        if device is not None:
            if out is not None:
                raise ValueError("out is for arrays, device for tensors; give one of the two")
            return self._of()._tensors().filled(device, self, n, options)
        return self.lease(n, options) if out is None else self._fill_out(n, out, options)

    def lease(self, n: int, options: tuple[Any, ...]) -> Kind:
        """A batch in arrays that nobody holds."""
        batch = self.plan.lease(self._draws.words, n, *options)
        if batch is None:
            if n > 1 << 40:
                empty(self._kind, n, self.specs)  # raises: NumPy says that there is no such array
            self._raise_nothing_drawn()
        return cast(Kind, batch)

    def fill(self, batch: Kind, options: tuple[Any, ...]) -> None:
        """Fills the arrays of a batch, which fit."""
        weights = batch.weights if isinstance(batch, PrioritizedBatch) else None
        n = len(batch.ids)
        drawn = self.plan.fill(self._draws.words, n, batch, batch.ids, weights, *options)
        assert drawn is not None, "every array was looked at"
        if drawn < n:
            self._raise_nothing_drawn()

    def begun(self, n: int, arrays: Mapping[str, NDArray[Any]]) -> Kind:
        """A batch of such rows over arrays that are to be filled."""
        return begun(self._kind, n, arrays)

    def empty(self) -> Kind:
        """Such a batch of no rows."""
        return empty(self._kind, 0, self.specs)

    def _fill_out(self, n: int, out: Mapping[str, NDArray[Any]], options: tuple[Any, ...]) -> Kind:
        given = checked_out(out, n, self.specs)
        again = type(out) is self._kind and has_room(out.ids, n) and [*out] == [*self.specs]
        if again and isinstance(out, PrioritizedBatch):
            again = has_room(out.weights, n, np.float32)
        batch = cast(Kind, out) if again else begun(self._kind, n, given, out)
        self.fill(batch, options)
        return batch

    def _raise_nothing_drawn(self) -> NoReturn:
        self._of()._raise_nothing_drawn(self._is_rows)

    def _of(self) -> ReplayBuffer:
        buffer = self._buffer()
        assert buffer is not None, "whoever samples holds it"
        return buffer


class Ways(Generic[Kind]):
    """The ways to sample a buffer, by itself or by a sampler with weights; made when first asked for."""

    def __init__(
        self, buffer: ReplayBuffer, kind: type[Kind], draws: Draws, weights: _core.Weights | None = None
    ) -> None:
        self._buffer = weakref.ref(buffer)  # which holds this
        self._kind, self._draws, self._weights = kind, draws, weights
        self._known: dict[tuple[str, int], Sampling[Kind]] = {}

    def rows(self) -> Sampling[Kind]:
        """What `sample` gives: rows, or transitions of a vector environment."""
        return self._way("rows", 1)

    def transitions(self, stack: int) -> Sampling[Kind]:
        """Transitions; observations are stacks."""
        return self._way("transitions", stack)

    def n_step(self, stack: int) -> Sampling[Kind]:
        """Transitions over several steps, and the discount of the last."""
        return self._way("n_step", stack)

    def sequences(self, length: int) -> Sampling[Kind]:
        """Stretches of consecutive rows."""
        return self._way("sequences", length)

    def _way(self, name: str, size: int) -> Sampling[Kind]:
        way = self._known.get((name, size))
        if way is None:
            if len(self._known) >= _WAYS:
                del self._known[next(iter(self._known))]
            stack, length = (1, size) if name == "sequences" else (size, 0)
            buffer = self._buffer()
            assert buffer is not None, "whoever samples holds it"
            parts = buffer._parts_of(name, size)
            way = Sampling(buffer, self._kind, parts, self._draws, self._weights, stack, length)
            self._known[name, size] = way
        return way
