"""The ring in a segment: rows as records of named fields, handles that cross to other processes.

tail | writers [1024] | rows [capacity, stride] | schema (JSON: the fields)
                        `- word | done | reward | action | obs   small fields first
"""

from __future__ import annotations

import json
import math
import os
import secrets
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import CorruptFileError, LayoutError, NameInUse
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec

__all__ = ["Column", "Records", "sync_directory"]

_WRITERS = 1024
_LINE = 64
_WORD = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a record."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


class Records:
    """A ring of `capacity` records and this process's handle on it."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, FieldSpec],
        path: str | os.PathLike[str] | None = None,
        *,
        links: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        columns, stride = _columns(fields)
        schema = json.dumps(
            {
                "capacity": capacity,
                "stride": stride,
                "fields": [[c.name, c.dtype.str, list(c.shape), c.offset] for c in columns],
                "facts": dict(facts or {}),
            }
        ).encode()
        parts: dict[str, FieldSpec] = {
            "schema": (np.uint8, (len(schema),)),
            "tail": (np.uint64, (8,)),
            "writers": (np.uint64, (_WRITERS, 8)),
            "rows": (np.uint8, (capacity, stride)),
        }
        if links:
            parts["next"] = (np.uint64, (capacity,))
        layout = Layout(parts)
        try:
            segment = Segment(layout) if path is None else Segment.file(layout, path)
        except NameInUse:
            raise NameInUse(
                f"the file {str(path)!r} exists; open it with ReplayBuffer.open, or remove it first", pid=None
            ) from None
        segment["schema"][:] = np.frombuffer(schema, np.uint8)
        self._adopt(segment, capacity, stride, columns, dict(facts or {}))

    @classmethod
    def of(cls, segment: Segment) -> Records:
        """The ring in a segment that another process made."""
        self = cls.__new__(cls)
        try:
            facts = json.loads(bytes(segment["schema"]))
            columns = [
                Column(name, np.dtype(dtype), tuple(shape), offset)
                for name, dtype, shape, offset in facts["fields"]
            ]
            self._adopt(segment, int(facts["capacity"]), int(facts["stride"]), columns, facts["facts"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptFileError(f"{segment!r} does not hold a replay buffer: {error}") from error
        return self

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Records:
        """The ring in a file; mended if everybody who used it is gone."""
        self = cls.of(Segment.open(Path(path)))
        self.ring.recover()
        return self

    def _adopt(
        self, segment: Segment, capacity: int, stride: int, columns: list[Column], facts: dict[str, Any]
    ) -> None:
        self.segment, self.capacity, self.stride, self.facts = segment, capacity, stride, facts
        self.columns = {column.name: column for column in columns}
        arrays = tuple(segment[name] for name in ("tail", "writers", "rows"))
        places = [
            (c.name, c.dtype, np.empty(1, c.dtype).data.format, c.shape, c.offset, c.size_bytes)
            for c in columns
        ]
        self.ring = _core.Ring(arrays, capacity, stride, places, _core.reopen(segment.fileno(), True))
        _handles.add(self)

    def view(self, name: str) -> NDArray[Any]:
        """A field of all records, [capacity, ...]: the shared memory itself."""
        column = self.columns[name]
        rows = self.segment["rows"]  # its base is the mapping, which every view then keeps
        mapped = np.frombuffer(cast(memoryview, rows.base), np.uint8)
        start = rows.__array_interface__["data"][0] - mapped.__array_interface__["data"][0] + column.offset
        strides = (self.stride, *np.empty(column.shape, column.dtype).strides)
        whole: NDArray[Any] = np.ndarray(
            (self.capacity, *column.shape), column.dtype, cast(memoryview, rows.base), start, strides
        )
        return whole

    def empty(self, count: int) -> dict[str, NDArray[Any]]:
        """Arrays for `count` rows."""
        return {
            column.name: np.empty((count, *column.shape), column.dtype) for column in self.columns.values()
        }

    def last_ids(self, count: int) -> NDArray[np.uint64]:
        """Those of the last extend."""
        ids = np.empty(count, np.uint64)
        self.ring.last_ids(ids)
        return ids

    def snapshot(self, path: Path) -> int:
        """A copy in a file of its own, whole or not there at all."""
        partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        fields = {column.name: (column.dtype, column.shape) for column in self.columns.values()}
        try:
            copy = Records(self.capacity, fields, partial, links="next" in self.segment, facts=self.facts)
            try:
                rows = self.ring.copy_to(copy.ring)
                if "next" in self.segment:  # a link that leads nowhere is found out when it is followed
                    copy.segment["next"][:] = self.segment["next"]
                os.fsync(copy.segment.fileno())
            finally:
                copy.close()
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
        return rows

    def renew(self) -> None:
        """In a forked child: a writer's number is its process's, so the child gets its own."""
        if not self.segment.closed:
            self.ring.renew(_core.reopen(self.segment.fileno(), True))

    def close(self) -> None:
        self.ring.close()
        self.segment.close()


def _columns(fields: Mapping[str, FieldSpec]) -> tuple[list[Column], int]:
    """Fields placed in a record, small ones first, each aligned to its items; and the record's size.

    Records are whole cache lines, unless that wastes a quarter of them.
    """
    checked = Layout(fields)  # the same rules as everywhere: names, dtypes, shapes
    if not checked:
        raise LayoutError("a row needs at least one field")
    placed: dict[str, Column] = {}
    end = _WORD
    for field in sorted(checked.values(), key=lambda field: field.size_bytes):
        alignment = min(8, field.dtype.itemsize & -field.dtype.itemsize)
        end = -(-end // alignment) * alignment
        placed[field.name] = Column(field.name, field.dtype, field.shape, end)
        end += field.size_bytes
    whole_lines = -(-end // _LINE) * _LINE
    stride = whole_lines if whole_lines == _LINE or 4 * end >= 3 * whole_lines else -(-end // 16) * 16
    return [placed[name] for name in checked], stride


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory survive a crash of the machine."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_handles: weakref.WeakSet[Records] = weakref.WeakSet()


def _after_fork() -> None:
    for records in list(_handles):
        records.renew()


os.register_at_fork(after_in_child=_after_fork)
