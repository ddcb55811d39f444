"""The shared memory of a space as a tree: leaves are arrays, branches are dicts and tuples as in Gymnasium.

    write(row, value):  1. stage: check and convert the whole value, without writing
                        2. commit: one copy per leaf
    read(lo, hi):       views of rows lo..hi, nested as the space is

A row is one environment's value. Inside a Sequence or a Graph one environment has many rows of a subspace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import SpaceError, SpaceIndexError, SpaceKeyError
from shoal.memory import Segment

__all__ = ["CustomMemory", "DictMemory", "LeafMemory", "Memory", "Staged", "TupleMemory"]

Staged: TypeAlias = "list[tuple[Any, int | slice, Any]]"
"""Copies `target[where] = data` to make after the whole value has been checked."""


_UNKNOWN = object()


class Memory:
    """One node of the tree: `rows` values of one space.

    >>> from gymnasium.spaces import Box
    >>> memory = shoal.spaces.create_shared_memory(Box(0, 1, (2,)), n=4)
    >>> memory.write(3, np.ones(2, np.float32))
    >>> memory.read_one(3), memory.rows
    (array([1., 1.], dtype=float32), 4)
    """

    rows: int
    path: str
    _writer: Any = _UNKNOWN

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        """Appends the copies that write `value` at `row`; raises SpaceError if it does not fit."""
        raise NotImplementedError

    def read(self, lo: int, hi: int) -> Any:
        """Returns the values of rows lo..hi, batched as Gymnasium batches this space."""
        raise NotImplementedError

    def read_one(self, row: int) -> Any:
        """Returns the value of one row, as the environment returned it."""
        raise NotImplementedError

    def tree(self) -> Any:
        """Returns the arrays below this node for RowWriter; None if a value needs more than copies."""
        return None

    def stage_rows(self, lo: int, limit: int, batch: Any, staged: Staged) -> int:
        """Stages a batched value into at most `limit` rows from `lo`; returns the number of rows."""
        count = self.check_count(len(batch), limit)
        for offset, value in enumerate(batch):
            self.stage(lo + offset, value, staged)
        return count

    def check_count(self, count: int, limit: int) -> int:
        """Returns `count` if it is at most `limit`; raises SpaceIndexError otherwise."""
        if count > limit:
            raise SpaceIndexError(
                f"{self.path}: {count} elements, but the memory was created for at most {limit}; "
                "raise max_length, max_nodes or max_edges"
            )
        return count

    def write(self, row: int, value: Any) -> None:
        """Writes a whole value, or raises an error and writes nothing."""
        writer = self._writer
        if writer is _UNKNOWN:
            tree = self.tree()
            writer = self._writer = None if tree is None else _core.RowWriter(tree)
        # The native writer writes values that fit exactly; for any other it returns False and writes nothing.
        if writer is not None and writer.write(row, value):
            return
        if not 0 <= row < self.rows:
            raise SpaceIndexError(f"environment index {row} is out of range for {self.rows} environments")
        staged: Staged = []
        self.stage(row, value, staged)
        for target, where, data in staged:
            target[where] = data


class LeafMemory(Memory):
    """One array, a row per value: Box, Discrete, MultiDiscrete, MultiBinary."""

    def __init__(self, segment: Segment, path: str) -> None:
        self.segment = segment
        self.path = path
        self.array: NDArray[Any] = segment[path]
        self.rows = self.array.shape[0]
        self.shape = self.array.shape[1:]
        self.dtype = self.array.dtype

    def _convert(self, value: Any) -> NDArray[Any]:
        try:
            if self.dtype.kind != "c" and np.iscomplexobj(value):
                raise TypeError("complex numbers")
            return np.asarray(value, dtype=self.dtype)
        except (TypeError, ValueError) as error:
            raise SpaceError(
                f"{self.path}: expected {self.dtype}{list(self.shape)}, found {type(value).__name__} "
                f"that NumPy cannot convert: {error}"
            ) from error

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        data = self._convert(value)
        if data.shape != self.shape:
            raise SpaceError(f"{self.path}: expected shape {self.shape}, found {data.shape}")
        staged.append((self.array, row, data))

    def stage_rows(self, lo: int, limit: int, batch: Any, staged: Staged) -> int:
        data = self._convert(batch)
        if data.shape == (0,):  # an empty list or tuple has no element shape to check
            return 0
        if data.shape[1:] != self.shape:
            raise SpaceError(f"{self.path}: expected elements of shape {self.shape}, found {data.shape[1:]}")
        count = self.check_count(len(data), limit)
        staged.append((self.array, slice(lo, lo + count), data))
        return count

    def read(self, lo: int, hi: int) -> NDArray[Any]:
        return self.array if hi - lo == self.rows else self.array[lo:hi]

    def read_one(self, row: int) -> Any:
        return self.array[row]

    def tree(self) -> Any:
        return self.array if self.array.flags.writeable else None

    def get_obj(self) -> NDArray[Any]:
        """Returns the memory as one flat array, which Gymnasium's functions read and write."""
        return self.array.reshape(-1)

    def __len__(self) -> int:
        return self.array.size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r} {self.dtype}{list(self.array.shape)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.segment, self.path)


class DictMemory(dict[Any, Any], Memory):
    """A Dict space: a dict of its children's memory."""

    def __init__(self, path: str, rows: int, children: Sequence[tuple[Any, Memory]]) -> None:
        super().__init__((key, _public(child)) for key, child in children)
        self.path = path
        self.rows = rows
        self.children = tuple(children)

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        for key, child in self.children:
            child.stage(row, self._item(value, key), staged)

    def stage_rows(self, lo: int, limit: int, batch: Any, staged: Staged) -> int:
        counts = {
            key: child.stage_rows(lo, limit, self._item(batch, key), staged) for key, child in self.children
        }
        return _require_equal_counts(self.path, counts)

    def _item(self, value: Any, key: Any) -> Any:
        try:
            return value[key]
        except KeyError:
            raise SpaceKeyError(
                f"{self.path}: the key {key!r} is missing; expected {list(self)}, found {list(value)}"
            ) from None
        except (TypeError, IndexError, ValueError):
            raise SpaceError(
                f"{self.path}: expected a dict with the keys {list(self)}, found {type(value).__name__}"
            ) from None

    def read(self, lo: int, hi: int) -> dict[Any, Any]:
        return {key: child.read(lo, hi) for key, child in self.children}

    def read_one(self, row: int) -> dict[Any, Any]:
        return {key: child.read_one(row) for key, child in self.children}

    def tree(self) -> Any:
        return _branch([key for key, _ in self.children], [child for _, child in self.children])

    def __reduce__(self) -> tuple[Any, ...]:
        return DictMemory, (self.path, self.rows, self.children)


class TupleMemory(tuple[Any, ...], Memory):
    """A Tuple space: a tuple of its children's memory."""

    def __new__(cls, path: str, rows: int, children: Sequence[Memory]) -> TupleMemory:
        return super().__new__(cls, map(_public, children))

    def __init__(self, path: str, rows: int, children: Sequence[Memory]) -> None:
        self.path = path
        self.rows = rows
        self.children = tuple(children)

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        for item, child in zip(self._items(value), self.children, strict=True):
            child.stage(row, item, staged)

    def stage_rows(self, lo: int, limit: int, batch: Any, staged: Staged) -> int:
        items = zip(self._items(batch), self.children, strict=True)
        counts = {
            position: child.stage_rows(lo, limit, item, staged)
            for position, (item, child) in enumerate(items)
        }
        return _require_equal_counts(self.path, counts)

    def _items(self, value: Any) -> Any:
        if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__len__"):
            raise SpaceError(
                f"{self.path}: expected a tuple of {len(self.children)} values, found {type(value).__name__}"
            )
        if len(value) != len(self.children):
            raise SpaceError(f"{self.path}: expected {len(self.children)} values, found {len(value)}")
        return value

    def read(self, lo: int, hi: int) -> tuple[Any, ...]:
        return tuple(child.read(lo, hi) for child in self.children)

    def read_one(self, row: int) -> tuple[Any, ...]:
        return tuple(child.read_one(row) for child in self.children)

    def tree(self) -> Any:
        return _branch(None, self.children)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.rows, self.children)


class CustomMemory(Memory):
    """Memory made by a function that a user registered for a custom space."""

    def __init__(
        self,
        path: str,
        rows: int,
        space: Any,
        public: Any,
        read: Callable[..., Any],
        write: Callable[..., Any],
    ) -> None:
        self.path = path
        self.rows = rows
        self.space = space
        self.public = public
        self._read = read
        self._write = write

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        # A custom function checks and writes in one call; it runs first, so that an error writes nothing.
        staged.insert(0, (self, row, value))

    def __setitem__(self, row: int | slice, value: Any) -> None:
        self._write(self.space, row, value, self.public)

    def read(self, lo: int, hi: int) -> Any:
        batch = self._read(self.space, self.public, self.rows)
        return batch if hi - lo == self.rows else batch[lo:hi]

    def read_one(self, row: int) -> Any:
        return self._read(self.space, self.public, self.rows)[row]

    def __reduce__(self) -> tuple[Any, ...]:
        return CustomMemory, (self.path, self.rows, self.space, self.public, self._read, self._write)


def _public(child: Memory) -> Any:
    return child.public if isinstance(child, CustomMemory) else child


def _branch(keys: list[Any] | None, children: Sequence[Memory]) -> Any:
    trees = tuple(child.tree() for child in children)
    return None if any(tree is None for tree in trees) or not trees else (keys, trees)


def _require_equal_counts(path: str, counts: dict[Any, int]) -> int:
    if len(set(counts.values())) > 1:
        raise SpaceError(f"{path}: all parts must have the same number of elements, found {counts}")
    return next(iter(counts.values()), 0)
