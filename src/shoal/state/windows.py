"""Windows: one snapshot as bytes in memory that only its publisher can write.

| head of the sequence lock | length | JSON: fields, error | array | array | ...
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from shoal import _core
from shoal.errors import UNREADABLE, SessionError
from shoal.memory import Layout, Segment
from shoal.memory.layout import stored_dtype
from shoal.state.snapshot import Category, Field, Snapshot

__all__ = ["ReadWindow", "WriteWindow", "decode", "encode"]

_ALIGNMENT = 64
_HEAD_BYTES = 64
_SMALLEST = 16 << 10
_PATIENCE_NS = 200_000_000


def encode(snapshot: Snapshot) -> tuple[list[tuple[int, Any]], int]:
    """Parts with their offsets, and how many bytes they are together."""
    entries: list[dict[str, Any]] = []
    arrays: list[tuple[int, Any]] = []
    end = 0
    for part, fields in (("world", snapshot.world), ("step", snapshot.step)):
        for field in fields.values():
            data = np.ascontiguousarray(field.data)
            entries.append({"name": field.name, "part": part, "offset": end, **field.schema})
            arrays.append((end, data.reshape(-1).view(np.uint8)))
            end += _aligned(data.nbytes)
    head = json.dumps({"fields": entries, "error": snapshot.error}).encode()
    begin = _aligned(8 + len(head))
    parts = [(0, len(head).to_bytes(8, "little") + head)]
    return parts + [(begin + offset, data) for offset, data in arrays], begin + end


def decode(stamps: list[int], content: bytearray) -> Snapshot:
    """The snapshot in a window's content; SessionError if it is none."""
    try:
        length = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + length])
        begin = _aligned(8 + length)
        world: dict[str, Field] = {}
        step: dict[str, Field] = {}
        for entry in head["fields"]:
            field = _field(entry, content, begin)
            (world if entry["part"] == "world" else step)[field.name] = field
        return Snapshot(stamps[0], stamps[1], stamps[2], stamps[3], world, step, str(head["error"]))
    except UNREADABLE as error:
        raise SessionError(
            f"what the run published cannot be understood ({error}); is it of another version of Shoal?"
        ) from error


def _field(entry: dict[str, Any], content: bytearray, begin: int) -> Field:
    dtype, shape = stored_dtype(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if dtype.kind not in "biuf" or any(size < 0 for size in shape):
        raise ValueError(f"dtype {dtype} of shape {shape}")
    count = 1
    for size in shape:
        count *= size
    offset = begin + int(entry["offset"])
    array = np.frombuffer(content, dtype, count, offset) if count else np.zeros(0, dtype)
    array = array.reshape(shape)
    array.flags.writeable = False
    categories = tuple(
        Category(int(value), str(name), str(color)) for value, name, color in entry["categories"]
    )
    columns = tuple(map(str, entry["columns"]))
    return Field(str(entry["name"]), array, str(entry["role"]), columns, categories, bool(entry["stable"]))


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


class WriteWindow:
    """A publisher's: memory of its own, sealed against everybody else."""

    def __init__(self, capacity: int) -> None:
        # Twice what is needed now: worlds grow.
        size = _HEAD_BYTES + _aligned(max(_SMALLEST, 2 * capacity))
        self._segment = Segment.published(Layout({"window": (np.uint8, (size,))}))
        self._window = _core.Window(self._segment["window"])

    def write(self, snapshot: Snapshot, parts: list[tuple[int, Any]], count: int) -> bool:
        """Whether it fitted."""
        if count > self._window.capacity:
            return False
        stamps = (snapshot.env_id, snapshot.episode, snapshot.tick, snapshot.time_ns)
        self._window.write(stamps, parts, count)
        return True

    def reader(self) -> Segment:
        return self._segment.reader()

    def close(self) -> None:
        self._segment.close()


class ReadWindow:
    """A watcher's, over a descriptor it was given."""

    def __init__(self, fd: int) -> None:
        segment = Segment.from_fileno(fd, readonly=True)
        try:
            self._window = _core.Window(segment["window"])
        except (KeyError, ValueError, TypeError) as error:
            raise SessionError(f"a window has a field 'window' of bytes; {error}") from error
        finally:
            segment.close()  # the array keeps the memory

    @property
    def number(self) -> int:
        """Of the newest snapshot; 0 before there is one."""
        return self._window.number

    def read(self) -> tuple[int, Snapshot] | None:
        """The newest snapshot; None if there is none, or its writer died within."""
        found = self._window.read(_PATIENCE_NS)
        if found is None:
            return None
        number, stamps, content = found
        return number, decode(stamps, content)
