"""Every exception Shoal raises, as one tree.

ShoalError
|-- LayoutError            fields that cannot be laid out, or two layouts that differ
|-- ClosedError            use after close()
|-- ForkedError            use in a forked child of the process that made it
|-- PluginError            a C environment that cannot be loaded, described or started
|   `-- BuildError         a C environment that cannot be compiled
|-- WorkerError            worker processes that cannot be started or talked to
|   |-- WorkerDied         a worker process ended by itself or was killed
|   `-- WorkerTimeout      a worker process was too slow, and was killed
|-- SessionError           a run that cannot be looked at, or has ended
|-- SpaceError             a value that does not fit its space (also a ValueError)
|   |-- SpaceKeyError      a missing key, an unknown character (also a KeyError)
|   `-- SpaceIndexError    an index or a length out of range (also an IndexError)
`-- SegmentError           shared memory that cannot be had
    |-- NoRoomError        a memory limit (cgroup, rlimit, RAM) is smaller than the segment
    |   |-- ShmFullError   the tmpfs of named segments is full
    |   `-- DiskFullError  the file system of a file segment is full
    |-- NameInUse          the name or path is taken
    |-- SegmentNotFound    nothing has that name or path
    |-- CorruptFileError   not a segment, truncated, or damaged
    `-- VersionError       a segment of another format or byte order
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium.error import ClosedEnvironmentError

__all__ = [
    "BuildError",
    "ClosedError",
    "CorruptFileError",
    "DiskFullError",
    "ForkedError",
    "LayoutError",
    "NameInUse",
    "NoRoomError",
    "PluginError",
    "SegmentError",
    "SegmentNotFound",
    "SessionError",
    "ShmFullError",
    "ShoalError",
    "SpaceError",
    "SpaceIndexError",
    "SpaceKeyError",
    "VersionError",
    "WorkerDied",
    "WorkerError",
    "WorkerTimeout",
]


def _rebuild(kind: type[ShoalError], message: str, facts: dict[str, Any]) -> ShoalError:
    return kind(message, **facts)


class ShoalError(Exception):
    """Root of all Shoal errors: a message for people, and the facts behind it as attributes."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self._facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return str(self.args[0])

    # Errors travel between processes, and the default would lose the facts.
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], self._facts)


class LayoutError(ShoalError, ValueError):
    """Fields that cannot be laid out, or a segment whose layout is not the expected one."""


class ClosedError(ShoalError, ClosedEnvironmentError, ValueError):
    """The object was closed. Arrays taken from it before stay valid."""


class ForkedError(ShoalError, RuntimeError):
    """Threads do not survive fork(): the child must make environments of its own."""


class PluginError(ShoalError):
    """A plug-in is no Shoal environment, of another ABI, or refused its options."""


class BuildError(PluginError):
    """The compiler is missing, or refused the source; its own message is in this one."""


class WorkerError(ShoalError, RuntimeError):
    """A worker process cannot be started, or cannot be understood."""


class WorkerDied(WorkerError):
    """A worker process is dead, and the environments in it are lost."""

    env_ids: list[int]
    pid: int
    signal: int | None
    exitcode: int | None
    stderr: str
    summary: str


class WorkerTimeout(WorkerDied, TimeoutError):
    """A worker process took longer than it may, and was killed."""


class SessionError(ShoalError):
    """There is no such run, it may not be looked at, or it has ended."""


class SpaceError(ShoalError, ValueError):
    """A value does not fit its space. Nothing of it was written."""


class SpaceKeyError(SpaceError, KeyError):
    """A key is missing from a Dict value, or a character from a Text's charset."""


class SpaceIndexError(SpaceError, IndexError):
    """An environment index, a OneOf index or a length is out of range."""


class SegmentError(ShoalError):
    """A segment could not be created or opened."""


class NoRoomError(SegmentError, MemoryError):
    """A limit is smaller than the segment; checked before anything is allocated."""

    need_bytes: int
    free_bytes: int


class ShmFullError(NoRoomError):
    """The file system that holds named segments has too little space."""


class DiskFullError(NoRoomError):
    """The file system of a file segment has too little space."""


class NameInUse(SegmentError, FileExistsError):
    """The name belongs to a living owner, or the path exists."""

    pid: int | None


class SegmentNotFound(SegmentError, FileNotFoundError):
    """No segment has that name or path."""


class CorruptFileError(SegmentError):
    """The file is not a segment, or not whole."""


class VersionError(SegmentError):
    """The segment was written in a format this version of Shoal does not read."""

    found: int
    expected: int


@contextmanager
def telling(action: str, kind: type[ShoalError] | None = None) -> Iterator[None]:
    """What the system refuses within is told as "cannot ACTION: why; what to do"; None: as an OSError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ShoalError):
            raise
        message = f"cannot {action}: {error.strerror or error}"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            message += "; raise the limit on open files with `ulimit -n`"
        if kind is None:
            raise OSError(error.errno, message) from error
        raise kind(message) from error
