"""Windows: one snapshot as bytes in memory that only its publisher can write, protected by a seqlock.

    | head of the seqlock, stamps and generation | schema | array | array | ... | error text |

The schema is written only when it changes, together with a higher generation; see schema.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal import _core
from shoal.errors import UNREADABLE, SessionError
from shoal.memory import Layout, Segment
from shoal.state.schema import Description, Schema, align, describe, to_json
from shoal.state.snapshot import Snapshot

__all__ = ["ReadWindow", "WriteWindow", "count_content", "decode", "fill", "serialise"]

_HEAD_BYTES = 64
_SMALLEST = 16 << 10
_READ_TIMEOUT_NS = 200_000_000


def decode(stamps: Sequence[int], content: bytearray, held: Schema | None = None) -> tuple[Snapshot, Schema]:
    """Returns the snapshot in a window's content and its schema; reuses `held` if it has the same generation.

    Raises SessionError if the content is not a snapshot.
    """
    try:
        if held is None or held.generation != stamps[4]:
            held = Schema.parse(stamps[4], content)
        return held.read(stamps, content), held
    except UNREADABLE as error:
        raise SessionError(
            f"the published snapshot cannot be read ({error}); the run may use another version of Shoal"
        ) from error


class WriteWindow:
    """The publisher's side: its own memory, sealed so that no other process can write it."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Creates a window that holds this snapshot."""
        first, text = serialise(1, describe(snapshot))
        # Twice the size that is needed now, because worlds grow.
        size = _HEAD_BYTES + align(max(_SMALLEST, 2 * (first.end + len(_error(snapshot)))))
        self._segment = Segment.published(Layout({"window": (np.uint8, (size,))}))
        self._window = _core.Window(self._segment["window"])
        self._schema = first
        self._put(snapshot, first, text)

    def write(self, snapshot: Snapshot) -> bool:
        """Writes a snapshot; returns whether it fitted."""
        description = describe(snapshot)
        if self._schema.description == description:
            return self._put(snapshot, self._schema, b"")
        return self._put(snapshot, *serialise(self._schema.generation + 1, description))

    def _put(self, snapshot: Snapshot, schema: Schema, text: bytes) -> bool:
        fields, error = [*snapshot.world.values(), *snapshot.step.values()], _error(snapshot)
        count = schema.end + len(error)
        if count > self._window.capacity:
            return False
        parts: list[tuple[int, Any]] = [(0, text), (schema.end, error)]
        for offset, field in zip(schema.offsets, fields, strict=True):
            parts.append((offset, np.ascontiguousarray(field.data)))
        stamps = snapshot.env_id, snapshot.episode, snapshot.tick, snapshot.time_ns, schema.generation
        self._window.write(stamps, parts, count)
        self._schema = schema
        return True

    def reader(self) -> Segment:
        return self._segment.reader()

    def close(self) -> None:
        self._segment.close()


class ReadWindow:
    """The watcher's side, over a descriptor that the host sent."""

    def __init__(self, fd: int) -> None:
        segment = Segment.from_fileno(fd, readonly=True)
        try:
            self._window = _core.Window(segment["window"])
        except (KeyError, ValueError, TypeError) as error:
            raise SessionError(f"a window must have a field 'window' of bytes: {error}") from error
        finally:
            segment.close()  # the array keeps the memory
        self._schema: Schema | None = None

    @property
    def number(self) -> int:
        """The number of the newest snapshot; 0 if there is none."""
        return self._window.number

    def read(self) -> tuple[int, Snapshot] | None:
        """Returns the newest snapshot; None if there is none, or its writer died while writing it."""
        found = self._window.read(_READ_TIMEOUT_NS)
        if found is None:
            return None
        number, stamps, content = found
        snapshot, self._schema = decode(stamps, content, self._schema)
        return number, snapshot


def serialise(generation: int, description: Description) -> tuple[Schema, bytes]:
    """Returns a schema, and the bytes at the start of a window that has it."""
    text = to_json(description).encode()
    return Schema(generation, description, len(text)), len(text).to_bytes(8, "little") + text


def count_content(snapshot: Snapshot, schema: Schema) -> int:
    """Returns the bytes that `fill` writes."""
    return schema.end + len(_error(snapshot))


def fill(snapshot: Snapshot, schema: Schema, text: bytes, content: memoryview) -> None:
    """Writes the content of a window that holds a snapshot, for `decode`, into memory of zeros. `text` is the
    schema's, or empty for a reader that has it."""
    error = _error(snapshot)
    content[: len(text)] = text
    content[schema.end :] = error
    fields = *snapshot.world.values(), *snapshot.step.values()
    for offset, field in zip(schema.offsets, fields, strict=True):
        data = np.ascontiguousarray(field.data).reshape(-1).view(np.uint8)
        content[offset : offset + data.nbytes] = data.data


def _error(snapshot: Snapshot) -> bytes:
    return snapshot.error.encode("utf-8", "surrogatepass")
