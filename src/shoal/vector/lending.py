"""Leases: chooses the memory for the next results, so that arrays a user holds are never overwritten."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from shoal import _core
from shoal.memory import Segment
from shoal.spaces import Bounds, Memory
from shoal.spaces.memory import DictMemory, LeafMemory, TupleMemory
from shoal.vector.exchange import Rows

__all__ = ["LeasedMemory", "Lender", "copy_arrays"]

_FLAGS = ("reward", "terminated", "truncated")
_NO_CAP = 2**62


class LeasedMemory:
    """The mappings that one vector environment leases results from (`shoal.torch.pin` registers them)."""

    def __init__(self) -> None:
        self._mappings: weakref.WeakSet[_core.Mapping] = weakref.WeakSet()
        self._callback: Callable[[_core.Mapping], None] | None = None

    def add(self, segment: Segment) -> None:
        mapping = segment.mapping
        self._mappings.add(mapping)
        if self._callback is not None:
            self._callback(mapping)

    def subscribe(self, callback: Callable[[_core.Mapping], None]) -> None:
        """Calls `callback` with every mapping now, and with each new one before it is first leased."""
        self._callback = callback
        for mapping in list(self._mappings):
            callback(mapping)


class _Memory:
    """Makes memory for results. The slots refer to it; it refers to neither them nor the environments."""

    def __init__(
        self,
        lent: LeasedMemory,
        space: Space[Any] | None,
        bounds: Bounds,
        announce: Callable[[Rows], None] | None,
        count: int,
        padded: int,
        finals: bool,
        with_ids: bool,
        fields: list[str | None] | None,
    ) -> None:
        self.leased_memory, self.space, self.bounds, self.announce = lent, space, bounds, announce
        self.count, self.padded = count, padded
        self._finals, self._with_ids = finals, with_ids
        self.numbers = 0
        self._first: Rows | None = self._add()
        self.paths: list[str] = []
        self.shape: Any = _shape(self._first.memory, self.paths)
        """How arrays make up an observation; None: only Python can read it."""
        if fields is not None:  # the plug-in's order
            ordered = ["observation" if name is None else f"observation/{name}" for name in fields]
            self.shape = _renumber(self.shape, self.paths, ordered)
            self.paths = ordered
        names = [name for name in self._first.segment if name.startswith("observation")]
        self.fields = len(names if self.shape is None else self.paths) + with_ids
        """How many arrays come before the rewards."""

    def _add(self) -> Rows:
        rows = Rows(
            self.numbers,
            self.space,
            self.padded,
            0,
            self.bounds,
            finals=self._finals,
            ids=self.count if self._with_ids else 0,
        )
        self.publish(rows)
        return rows

    def publish(self, rows: Rows) -> None:
        self.numbers += 1
        self.leased_memory.add(rows.segment)
        if self.announce is not None:
            self.announce(rows)

    def __call__(self) -> tuple[Rows, tuple[NDArray[Any], ...]]:
        rows, self._first = self._first or self._add(), None
        segment = rows.segment
        if self.shape is None:  # Memory returns views of the segment's own arrays
            names = [*(name for name in segment if name.startswith("observation")), *_FLAGS]
            arrays = tuple(segment[name] for name in names)
        else:
            finals = [path.replace("observation", "final", 1) for path in self.paths] if self._finals else []
            ids = ["env_id"] if self._with_ids else []
            names = [*self.paths, *ids, *_FLAGS, *finals]
            arrays = tuple(segment.rows(name, self.count) for name in names)
        segment.close()  # the arrays keep the memory; no descriptor is needed
        return rows, arrays


class Lender:
    """The slots of one vector environment.

    Slot 0 is never leased: it holds live results, results that are copied, and asynchronous results.
    """

    def __init__(
        self,
        lent: LeasedMemory,
        space: Space[Any],
        count: int,
        padded: int,
        bounds: Bounds,
        *,
        in_segment: bool = True,
        buffers: str = "leased",
        max_slots: int = _NO_CAP,
        finals: bool = False,
        with_ids: bool = False,
        fields: list[str | None] | None = None,
        announce: Callable[[Rows], None] | None = None,
    ) -> None:
        """`announce` announces new memory to workers; `fields` are a plug-in's field names in its order.

        If observations are not `in_segment`, they travel as messages.
        """
        own = space if in_segment else None
        self._memory = memory = _Memory(lent, own, bounds, announce, count, padded, finals, with_ids, fields)
        self.leased_memory = lent
        self._space, self._count, self._buffers = space, count, buffers
        shape: Any = () if memory.shape is None else memory.shape
        self.slots = _core.Slots(memory, memory.fields, shape, max_slots, buffers == "leased")
        self.is_plain = memory.shape is not None
        """Whether native code can build an observation, because it consists of arrays."""
        self.copies = 0
        self.take, self.rows = self.slots.take, self.slots.rows

    def results(self, slot: int, infos: dict[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Returns the results of a step whose rows are in a slot."""
        if self.is_plain:
            return self.slots.results(slot, infos)
        _, *flags, _ = self.slots.results(slot, infos)
        return (self.observation(slot), *flags, infos)

    def observation(self, slot: int) -> Any:
        if self.is_plain:
            return self.slots.observation(slot)
        return self.rows(slot).observation(self._space, self._count)

    def lend(self, slot: int, results: Any) -> Any:
        """Returns the results for the user: views of a slot, or copies of those in slot 0."""
        if slot != 0 or self._buffers == "live":
            return results
        self.copies += self._buffers == "leased"
        return copy_arrays(results)

    def block(self, length: int, actions: Space[Any]) -> Rows:
        """Returns memory for a rollout of `length` steps."""
        # A vectorised plug-in writes whole lanes, so the last step needs extra rows.
        memory = self._memory
        rows = length * self._count + (memory.padded - self._count)
        block = Rows(memory.numbers, memory.space, rows, self._count, memory.bounds, actions=actions)
        memory.publish(block)
        block.segment.close()
        return block

    def holds_live(self, array: NDArray[np.generic]) -> bool:
        return self._buffers == "live" and self.rows(0).segment.shares_memory(array)


def _shape(memory: Memory | None, paths: list[str]) -> Any:
    """Returns how arrays make up a value, by index in `paths`; None if only Python can read the value."""
    if type(memory) is LeafMemory:
        paths.append(memory.path)
        return len(paths) - 1
    if type(memory) is DictMemory:
        parts = {key: _shape(child, paths) for key, child in memory.children}
        return None if any(part is None for part in parts.values()) else parts
    if type(memory) is TupleMemory:
        several = tuple(_shape(child, paths) for child in memory.children)
        return None if any(part is None for part in several) else several
    return None


def _renumber(shape: Any, paths: list[str], ordered: list[str]) -> Any:
    if isinstance(shape, dict):
        return {key: _renumber(part, paths, ordered) for key, part in shape.items()}
    return ordered.index(paths[shape])


def copy_arrays(value: Any) -> Any:
    """Copies arrays in a nested structure."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        items = [copy_arrays(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: copy_arrays(item) for key, item in value.items()}
    return value
