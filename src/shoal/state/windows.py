"""Windows: one snapshot as bytes in memory that only its publisher can write.

    | head of the sequence lock, stamps and generation | schema | array | array | ... | error text |

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

__all__ = ["ReadWindow", "WriteWindow", "decode"]

_HEAD_BYTES = 64
_SMALLEST = 16 << 10
_READ_TIMEOUT_NS = 200_000_000


def decode(stamps: Sequence[int], content: bytearray, held: Schema | None = None) -> tuple[Snapshot, Schema]:
    """The snapshot in a window's content and its schema, which is `held` if that has the same generation.

    SessionError if the content is not a snapshot.
    """
    try:
        if held is None or held.generation != stamps[4]:
            held = Schema.parse(stamps[4], content)
        return held.read(stamps, content), held
    except UNREADABLE as error:
        raise SessionError(
            f"what the run published cannot be understood ({error}); is it of another version of Shoal?"
        ) from error


class WriteWindow:
    """A publisher's: memory of its own, sealed against everybody else."""

    def __init__(self, snapshot: Snapshot) -> None:
        """A window that holds this snapshot."""
        first, text = _serialise(1, describe(snapshot))
        # Twice what is needed now: worlds grow.
        size = _HEAD_BYTES + align(max(_SMALLEST, 2 * (first.end + len(_error(snapshot)))))
        self._segment = Segment.published(Layout({"window": (np.uint8, (size,))}))
        self._window = _core.Window(self._segment["window"])
        self._schema = first
        self._put(snapshot, first, text)

    def write(self, snapshot: Snapshot) -> bool:
        """Whether it fitted."""
        description = describe(snapshot)
        if self._schema.description == description:
            return self._put(snapshot, self._schema, b"")
        return self._put(snapshot, *_serialise(self._schema.generation + 1, description))

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
    """A watcher's, over a descriptor it was given."""

    def __init__(self, fd: int) -> None:
        segment = Segment.from_fileno(fd, readonly=True)
        try:
            self._window = _core.Window(segment["window"])
        except (KeyError, ValueError, TypeError) as error:
            raise SessionError(f"a window has a field 'window' of bytes; {error}") from error
        finally:
            segment.close()  # the array keeps the memory
        self._schema: Schema | None = None

    @property
    def number(self) -> int:
        """Of the newest snapshot; 0 before there is one."""
        return self._window.number

    def read(self) -> tuple[int, Snapshot] | None:
        """The newest snapshot; None if there is none, or its writer died within."""
        found = self._window.read(_READ_TIMEOUT_NS)
        if found is None:
            return None
        number, stamps, content = found
        snapshot, self._schema = decode(stamps, content, self._schema)
        return number, snapshot


def _serialise(generation: int, description: Description) -> tuple[Schema, bytes]:
    """A schema, and the bytes that a window begins with for it."""
    text = to_json(description).encode()
    return Schema(generation, description, len(text)), len(text).to_bytes(8, "little") + text


def _error(snapshot: Snapshot) -> bytes:
    return snapshot.error.encode("utf-8", "surrogatepass")
