"""A ring in a segment: rows as records of named fields, with handles that other processes can open.

tail | writers [1024] | rows [capacity, stride] | schema (JSON: the fields)
                        `- word | done | reward | action | obs | check   small fields first
                       only in files: checksum of the row and its id -'   core/durable.h
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import (
    UNREADABLE,
    CorruptFileError,
    LayoutError,
    NameInUse,
    SegmentError,
    VersionError,
    explain_os_errors,
)
from shoal.memory import Layout, Segment
from shoal.memory.allocate import reopen
from shoal.memory.layout import FieldSpec, parse_dtype

__all__ = ["Column", "Durability", "Records", "choose_records", "sync_directory"]

Durability: TypeAlias = Literal["process", "sync"]

_PROTOCOL = 1
"""How rows are claimed, written and checked: core/ring.h, core/durable.h."""
_LINE = 64
_HUGE = 8 << 20
"""Size from which 2 MB pages pay off: random reads then cause fewer TLB misses."""


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
    """This process's handle on a ring of `capacity` records."""

    durability: ClassVar[Durability] = "process"

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, FieldSpec],
        path: str | os.PathLike[str] | None = None,
        *,
        links: bool = False,
        facts: Mapping[str, Any] | None = None,
        resume: Callable[[str], bytes] | None = None,
    ) -> None:
        checks = path is not None
        token = secrets.token_hex(8)
        columns, stride = _columns(fields, checks)
        schema = json.dumps(
            {
                "protocol": _PROTOCOL,
                "capacity": capacity,
                "stride": stride,
                "fields": [[c.name, c.dtype.str, list(c.shape), c.offset] for c in columns],
                "facts": dict(facts or {}),
                "check": checks,
                "durability": self.durability,
                "token": token,
            }
        ).encode()
        resumed = b"" if resume is None else resume(token)
        parts: dict[str, FieldSpec] = {
            "schema": (np.uint8, (len(schema),)),
            "tail": (np.uint64, (_core.RING_TAIL_BYTES // 8,)),
            "writers": (np.uint64, (_core.RING_WRITERS, _core.RING_WRITER_BYTES // 8)),
            "rows": (np.uint8, (capacity, stride)),
        }
        if links:
            parts["next"] = (np.uint64, (capacity,))
        if resumed:
            parts["resume"] = (np.uint8, (len(resumed),))
        layout = Layout(parts)
        try:
            if path is None:
                segment = Segment(layout, huge_pages=layout.size_bytes >= _HUGE)
            else:
                segment = Segment.file(layout, path, huge_pages=None if self.durability == "sync" else False)
        except NameInUse:
            raise NameInUse(
                f"the file {str(path)!r} exists; open it with ReplayBuffer.open, or remove it first", pid=None
            ) from None
        try:
            segment["schema"][:] = np.frombuffer(schema, np.uint8)
            if resumed:
                segment["resume"][:] = np.frombuffer(resumed, np.uint8)
            self._adopt(segment, capacity, stride, columns, dict(facts or {}), checks)
            self.token = token
            if path is not None:
                with explain_os_errors(f"write the new file {str(path)!r} to disk"):
                    self.ring.begin(self._mapping)
                sync_directory(Path(path).absolute().parent)
        except BaseException:
            if hasattr(self, "ring"):
                self.ring.close()
            segment.close()
            if path is not None:
                Path(path).unlink(missing_ok=True)
            raise

    @staticmethod
    def of(segment: Segment) -> Records:
        """Returns a handle on the ring in an existing segment."""
        try:
            facts = json.loads(bytes(segment["schema"]))
            if type(protocol := facts["protocol"]) is not int:
                raise ValueError(f"its protocol is {protocol!r}")
            if protocol != _PROTOCOL:
                raise VersionError(
                    f"{segment!r} is a ring of protocol {protocol}, this version of Shoal speaks "
                    f"{_PROTOCOL}; save() its rows with the version that wrote it, and load() them here",
                    found=protocol,
                    expected=_PROTOCOL,
                )
            kind = _SyncedRecords if facts["durability"] == "sync" else Records
            self = kind.__new__(kind)
            columns = [
                Column(name, parse_dtype(dtype), tuple(shape), offset)
                for name, dtype, shape, offset in facts["fields"]
            ]
            capacity, stride, checks = int(facts["capacity"]), int(facts["stride"]), bool(facts["check"])
            fields = {column.name: (column.dtype, column.shape) for column in columns}
            if (columns, stride) != _columns(fields, checks) or capacity < 1:
                raise ValueError("its fields are not at the offsets that its schema gives")
            if segment["rows"].shape != (capacity, stride) or segment["rows"].dtype != np.uint8:
                raise ValueError("the number or the size of its rows is not what its schema gives")
            self._adopt(segment, capacity, stride, columns, facts["facts"], checks)
            self.token = str(facts.get("token", ""))
        except (*UNREADABLE, LayoutError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise CorruptFileError(f"{segment!r} does not hold a replay buffer: {why}") from error
        return self

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Records:
        """Opens the ring in a file. After a crash of the machine it drops incomplete rows."""
        if Path(path).is_dir():
            raise SegmentError(
                f"expected the file of a buffer at {os.fspath(path)!r}, found a directory; if `save` wrote "
                "it, use ReplayBuffer.load"
            )
        segment = Segment.open(Path(path))
        try:
            self = cls.of(segment)
        except BaseException:
            segment.close()
            raise
        try:
            self.ring.mend(self._mapping)
        except OSError as error:
            self.close()
            if error.errno == errno.EBADMSG:
                raise CorruptFileError(
                    f"{os.fspath(path)!r} is damaged: its count of pushed rows is impossibly large; "
                    "use a copy of it that is whole"
                ) from None
            raise OSError(
                error.errno,
                f"{os.fspath(path)!r} may have incomplete rows, and they cannot be removed from the file: "
                f"{error.strerror}; open a copy of it on another disk",
            ) from error
        return self

    def _adopt(
        self,
        segment: Segment,
        capacity: int,
        stride: int,
        columns: list[Column],
        facts: dict[str, Any],
        checks: bool,
    ) -> None:
        self.segment, self.capacity, self.stride, self.facts = segment, capacity, stride, facts
        self.columns = {column.name: column for column in columns}
        arrays = tuple(segment[name] for name in ("tail", "writers", "rows"))
        places = [
            (c.name, c.dtype, np.empty(1, c.dtype).data.format, c.shape, c.offset, c.size_bytes)
            for c in columns
        ]
        lock_fd = reopen(segment.fileno(), True)
        try:
            self.ring = _core.Ring(arrays, capacity, stride, places, lock_fd, checks)
        except BaseException:  # the ring closes it otherwise
            os.close(lock_fd)
            raise
        _handles.add(self)

    @property
    def _mapping(self) -> Any:
        return self.segment["rows"].base

    def view(self, name: str) -> NDArray[Any]:
        """Returns a field of all records, [capacity, ...], as a view of the shared memory."""
        column = self.columns[name]
        rows = self.segment["rows"]  # its base is the mapping, which every view keeps alive
        mapped = np.frombuffer(cast(memoryview, rows.base), np.uint8)
        start = rows.__array_interface__["data"][0] - mapped.__array_interface__["data"][0] + column.offset
        strides = (self.stride, *np.empty(column.shape, column.dtype).strides)
        whole: NDArray[Any] = np.ndarray(
            (self.capacity, *column.shape), column.dtype, cast(memoryview, rows.base), start, strides
        )
        return whole

    def empty(self, count: int) -> dict[str, NDArray[Any]]:
        """Allocates arrays for `count` rows."""
        return {
            column.name: np.empty((count, *column.shape), column.dtype) for column in self.columns.values()
        }

    def sync(self) -> None:
        """Waits until stored rows are on disk, if `durability` is "sync"."""

    @property
    def resume(self) -> bytes:
        """The state of the draws that a snapshot holds (replay/resume.py); b"" if it has none."""
        return bytes(self.segment["resume"]) if "resume" in self.segment else b""

    def snapshot(self, path: Path, resume: Callable[[str], bytes]) -> int:
        """Writes a copy to a file, complete or not at all.

        `resume` returns the state of the draws for a token.
        """
        is_own = False
        with explain_os_errors(f"look at {str(path)!r}"), contextlib.suppress(FileNotFoundError):
            is_own = os.path.samestat(os.stat(path), os.fstat(self.segment.fileno()))
        if is_own:
            raise FileExistsError(
                f"{str(path)!r} is the file of this buffer itself; give the snapshot another name"
            )
        partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        fields = {column.name: (column.dtype, column.shape) for column in self.columns.values()}
        try:
            linked = "next" in self.segment
            copy = type(self)(self.capacity, fields, partial, links=linked, facts=self.facts, resume=resume)
            try:
                rows = self.ring.copy_to(copy.ring)
                if "next" in self.segment:  # readers check every link, so an outdated one does no harm
                    copy.segment["next"][:] = self.segment["next"]
                with explain_os_errors(f"write the snapshot {str(path)!r} to disk"):
                    copy.ring.sync(copy._mapping)
            finally:
                copy.close()
            with explain_os_errors(f"give the snapshot its name {str(path)!r}"):
                os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
        return rows

    def renew(self) -> None:
        """In a forked child: takes a writer number of its own, since the old one belongs to the parent."""
        self.ring.close()
        if not self.segment.closed:
            with contextlib.suppress(OSError):  # no descriptors left: every call then raises ClosedError
                self.ring.renew(_core.reopen(self.segment.fileno(), True))

    def close(self) -> None:
        self.ring.close()
        self.segment.close()


class _SyncedRecords(Records):
    """Records in a file that are on disk when a push returns."""

    durability = "sync"

    def sync(self) -> None:
        try:
            self.ring.sync(self._mapping)
        except OSError as error:
            raise OSError(
                error.errno,
                f"the rows are in the buffer but may not be on disk: {error.strerror}; "
                "keep them with snapshot(path) on another disk",
            ) from error


def choose_records(durability: str, path: str | os.PathLike[str] | None) -> type[Records]:
    """Returns the class of records for a durability; raises ValueError if it needs a file."""
    if durability not in ("process", "sync"):
        raise ValueError(f"durability must be 'process' or 'sync', got {durability!r}")
    if durability == "sync" and path is None:
        raise ValueError(
            "durability='sync' needs a file, since memory does not survive a crash of the machine: set path="
        )
    return _SyncedRecords if durability == "sync" else Records


def _columns(fields: Mapping[str, FieldSpec], checks: bool) -> tuple[list[Column], int]:
    """Places the fields in a record, small ones first, each aligned; returns them and the record's size.

    The size is a multiple of a cache line, unless that wastes a quarter of it and records have no checksums.
    """
    checked = Layout(fields)  # checks names, dtypes and shapes
    if not checked:
        raise LayoutError('a row needs at least one field, such as {"obs": (np.float32, (4,))}; found none')
    placed: dict[str, Column] = {}
    end = _core.RECORD_WORD_BYTES
    for field in sorted(checked.values(), key=lambda field: field.size_bytes):
        alignment = min(8, field.dtype.itemsize & -field.dtype.itemsize)
        end = -(-end // alignment) * alignment
        dtype = np.dtype(field.dtype.str)  # the same object for all names of a type
        placed[field.name] = Column(field.name, dtype, field.shape, end)
        end += field.size_bytes
    end += _core.RECORD_CHECK_BYTES if checks else 0
    stride = -(-end // _LINE) * _LINE
    if stride > _LINE and 4 * end < 3 * stride and not checks:
        stride = -(-end // 16) * 16
    return [placed[name] for name in checked], stride


def sync_directory(directory: Path) -> None:
    """Writes the names in a directory to disk, so that they survive a crash of the machine."""
    with explain_os_errors(f"write the names in {str(directory)!r} to disk"):
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
