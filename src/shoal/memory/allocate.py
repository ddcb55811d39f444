"""Creates the descriptor of a new segment: checks limits, reserves every byte, and names it when complete."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shoal import _core
from shoal.errors import DiskFullError, NameInUse, NoRoomError, SegmentError, ShmFullError, explain_os_errors
from shoal.memory import names
from shoal.memory.limits import (
    Limit,
    file_size_limits,
    format_bytes,
    memory_limits,
    require_room,
    space_limits,
)

__all__ = ["Handles", "fill_holes", "link_file", "map_segment", "reopen", "reserve_anonymous", "reserve_file"]

_RESERVE_STEP = 64 << 20
_SMALL = 1 << 20  # up to this size the limits are checked once
_TINY = 1 << 18  # up to this size memory limits are not checked: reading a dozen files takes longer


@dataclass(slots=True)
class Handles:
    """The descriptors and the name of a segment, released once; only its creator removes the name."""

    pid: int
    fd: int = -1
    lock_fd: int = -1
    path: Path | None = None
    temporary: str = ""

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        is_owner = self.pid == os.getpid()
        if self.temporary and is_owner:
            os.unlink(self.temporary)
            self.temporary = ""
        # A forked child closed the lock after the fork, and the number may belong to another file by now.
        lock_fd, self.lock_fd = self.lock_fd, -1
        if lock_fd >= 0 and is_owner:
            try:
                if self.path is not None:
                    names.unlink_own(lock_fd, self.path)
            finally:  # if the name remains, it has no lock, so others can take it over
                names.drop_lock(lock_fd)


def reserve_anonymous(handles: Handles, size: int, seal: bool = True) -> None:
    def limits() -> list[Limit]:
        return memory_limits() + file_size_limits()

    require_room(size, limits() if size > _TINY else file_size_limits())
    handles.fd = _system("create memory", _core.memory_create)
    _reserve(handles.fd, size, limits, NoRoomError)
    if seal:
        _system("seal the memory", _core.seal, handles.fd)


def reserve_file(handles: Handles, size: int, directory: str, named: bool) -> None:
    """Creates the file, which has no name yet, and reserves its bytes."""
    error = ShmFullError if named else DiskFullError

    def limits() -> list[Limit]:
        return space_limits(directory, error) + (memory_limits() if named else [])

    try:
        require_room(size, limits())
    except (FileNotFoundError, NotADirectoryError):
        raise SegmentError(f"{directory!r} is not a directory; create it first") from None
    except OSError as cause:
        raise SegmentError(
            f"the directory {directory!r} cannot be used: {cause.strerror}; choose another directory"
        ) from cause
    fd, handles.temporary = _system(f"create a file in {directory!r}", _core.file_create, directory)
    if named:
        handles.lock_fd = fd
        names.hold_lock(fd)
        # Children get a separate open file description, because sharing this one would share the lock.
        handles.fd = reopen(fd, True)
    else:
        handles.fd = fd
    _reserve(fd, size, limits, error)


def _reserve(fd: int, size: int, limits: Callable[[], list[Limit]], error: type[NoRoomError]) -> None:
    """Reserves in steps and checks the limits before each, because other processes allocate too."""
    for begin in range(0, size, _RESERVE_STEP):
        if size > _SMALL:
            require_room(size - begin, limits())
        try:
            _core.reserve(fd, begin, min(_RESERVE_STEP, size - begin))
        except OSError as cause:
            if cause.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG):
                raise SegmentError(f"cannot reserve {size} bytes: {cause.strerror}") from cause
            free = min((limit.free_bytes for limit in limits()), default=0)
            raise error(
                f"the segment needs {size} bytes ({format_bytes(size)}), but the system ran out of space "
                f"after {begin} bytes ({cause.strerror!r}, {free} bytes free); use a smaller segment or free "
                "some space",
                need_bytes=size,
                free_bytes=free,
            ) from cause


def fill_holes(fd: int, size: int) -> None:
    """Reserves the holes of a sparse file, because a store into a hole can raise SIGBUS."""
    with explain_os_errors("look at the segment's file", SegmentError):
        stat, system = os.fstat(fd), os.fstatvfs(fd)
    holes = size - 512 * stat.st_blocks
    if holes <= 0:  # without fallocate, the C library would rewrite bytes that other processes may change
        return
    if system.f_blocks:
        advice = "free some space, or open it with readonly=True"
        free = system.f_bavail * system.f_frsize
        require_room(holes, [Limit("the file system of this sparse file", free, advice, DiskFullError)])
    _reserve(fd, size, lambda: [], DiskFullError)


def reopen(fd: int, writable: bool) -> int:
    """Returns a second, independent descriptor of the same memory."""
    return cast(int, _system("open the segment again", _core.reopen, fd, writable))


def map_segment(fd: int, size: int, writable: bool) -> _core.Mapping:
    """Maps an open segment; raises NoRoomError if the address space is too small."""
    try:
        return _core.Mapping(fd, size, writable)
    except OSError as cause:
        if cause.errno == errno.ENOSPC:
            raise DiskFullError(
                f"the segment needs {size} bytes ({format_bytes(size)}), but its file is sparse and its file "
                "system is full; free some space",
                need_bytes=size,
                free_bytes=os.fstatvfs(fd).f_bavail * os.fstatvfs(fd).f_frsize,
            ) from cause
        if cause.errno != errno.ENOMEM:
            raise SegmentError(f"cannot map {size} bytes: {cause.strerror}") from cause
        free = min((limit.free_bytes for limit in memory_limits()), default=0)
        raise NoRoomError(
            f"the segment needs {size} bytes ({format_bytes(size)}) of address space, which the system did "
            "not grant; raise the limit with `ulimit -v unlimited` or use a smaller segment",
            need_bytes=size,
            free_bytes=free,
        ) from cause


def _system(action: str, function: Callable[..., Any], *args: Any) -> Any:
    with explain_os_errors(action, SegmentError):
        return function(*args)


def link_file(handles: Handles, path: Path) -> None:
    """Links the finished file to its path; raises NameInUse if the path exists."""
    try:
        _core.file_link(handles.fd, handles.temporary, str(path))
        handles.temporary = ""
    except FileExistsError:
        raise NameInUse(
            f"the file {str(path)!r} exists; open it with Segment.open, or remove it first",
            pid=None,
        ) from None
    except OSError as error:
        raise SegmentError(f"cannot create {str(path)!r}: {error.strerror}") from error
