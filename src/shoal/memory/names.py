"""Named segments on disk: the file of a name, its owner, and how the name of a dead owner is reused.

1. A segment is complete and locked by its owner before one atomic link gives it its name.
2. The kernel releases the lock (flock) when the owner dies for any reason.
3. Only a holder of the lock unlinks a name, and only while the name still refers to the locked file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from shoal import _core
from shoal.errors import NameInUse, SegmentError, SegmentNotFound, explain_os_errors

__all__ = [
    "NameEntry",
    "check_name",
    "list_names",
    "name_directory",
    "name_path",
    "open_existing",
    "open_named",
    "publish_name",
    "reap",
    "unlink_own",
]

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REAP_WAIT_S = 0.5

_held_locks: set[int] = set()


def _drop_inherited_locks() -> None:
    # A forked child shares the owner's lock, and must not hold it after the owner has died.
    while _held_locks:
        os.close(_held_locks.pop())


os.register_at_fork(after_in_child=_drop_inherited_locks)


@dataclass(frozen=True, slots=True)
class NameEntry:
    """A named segment in the directory of names.

    >>> with shoal.Segment.named(shoal.Layout({"x": (np.float32, (8,))}), "entry-doc"):
    ...     [entry.alive for entry in list_names() if entry.name == "entry-doc"]
    [True]
    """

    name: str
    path: Path
    size_bytes: int
    owner_pid: int | None
    alive: bool


def check_name(name: object) -> str:
    """Returns `name` if it is a valid segment name; raises ValueError otherwise."""
    if not isinstance(name, str):
        raise TypeError(f"a segment's name must be a str, got {type(name).__name__}: {name!r}")
    if not _VALID.fullmatch(name):
        shown = repr(name) if len(name) <= 80 else f"{name[:80]!r}... ({len(name)} characters)"
        raise ValueError(
            "a segment's name must have 1 to 64 letters, digits, '.', '_' or '-', "
            f"beginning with a letter or digit; got {shown}"
        )
    return name


def _prefix() -> str:
    return f"shoal-{os.getuid()}-"


def name_directory() -> str:
    """The directory of named segments: `SHOAL_NAME_DIR` if that is set, else the system's."""
    chosen = os.environ.get("SHOAL_NAME_DIR")
    if not chosen:
        return _core.name_directory()
    if not os.path.isabs(chosen) or not os.path.isdir(chosen):
        raise SegmentError(
            "SHOAL_NAME_DIR must be the absolute path of an existing directory, "
            f"found {chosen!r}; create it, or unset SHOAL_NAME_DIR to use {_core.name_directory()}"
        )
    return chosen


def name_path(name: str) -> Path:
    """Returns the path of a name's file; it contains the uid, so users never share a file."""
    return Path(name_directory()) / (_prefix() + check_name(name))


def hold_lock(fd: int) -> None:
    """Locks a file until this process ends or calls `drop_lock`."""
    _held_locks.add(fd)
    with explain_os_errors("lock a named segment", SegmentError):
        fcntl.flock(fd, fcntl.LOCK_EX)


def drop_lock(fd: int) -> None:
    """Closes a descriptor that was passed to `hold_lock`, which releases the lock."""
    if fd in _held_locks:
        _held_locks.discard(fd)
        os.close(fd)


def publish_name(fd: int, temporary: str, name: str) -> Path:
    """Links the locked file to its name, or replaces a dead owner's file; raises NameInUse otherwise."""
    path = name_path(name)
    deadline = time.monotonic() + _REAP_WAIT_S
    while True:
        try:
            _core.file_link(fd, temporary, str(path))
            return path
        except FileExistsError:
            pass
        except OSError as error:
            raise SegmentError(f"cannot give a segment the name {name!r}: {error.strerror}") from error
        if reap(path):
            continue
        pid, alive = _owner(path)
        # Another process may be removing a dead owner's name: wait until it has finished.
        if not alive and time.monotonic() < deadline:
            time.sleep(0.001)
            continue
        owner = "an unknown process" if pid is None else f"process {pid}"
        raise NameInUse(
            f"the segment name {name!r} is in use by {owner}; attach to it with "
            f"Segment.attach({name!r}), choose another name, or end that process",
            pid=pid,
        )


def reap(path: Path) -> bool:
    """Removes the name of a dead owner. Returns True if the name is gone, False if the owner is alive."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlink_own(fd, path)
        return True
    except (OSError, SegmentError):
        return False
    finally:
        os.close(fd)


def unlink_own(fd: int, path: Path) -> None:
    """Unlinks `path` if it still refers to the file of `fd`. The caller holds its lock."""
    with explain_os_errors(f"remove the name {path}", SegmentError), contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
            os.unlink(path)


def open_named(name: str, writable: bool) -> int:
    """Opens the file of a name; raises SegmentError if it belongs to another user."""
    fd = open_existing(name_path(name), writable, f"named segment {name!r}")
    try:
        with explain_os_errors(f"look at the named segment {name!r}", SegmentError):
            owner = os.fstat(fd).st_uid
        if owner != os.getuid():
            raise SegmentError(
                f"the named segment {name!r} belongs to user {owner}, expected {os.getuid()}; "
                "choose another name"
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_existing(path: Path | str, writable: bool, what: str) -> int:
    """Opens a file that should be a segment, without following links or waiting for devices."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | (os.O_RDWR if writable else os.O_RDONLY))
    except FileNotFoundError:
        raise SegmentNotFound(
            f"there is no {what}; it was never created, or its owner has ended. Create it first, and keep "
            "its owner running"
            if what.startswith("named")
            else f"there is no {what}; create it first, or correct the path"
        ) from None
    except OSError as error:
        raise SegmentError(f"the {what} cannot be opened: {error.strerror}") from error


def _owner(path: Path) -> tuple[int | None, bool]:
    """Returns the owner's pid from the segment's header, and whether that same process is alive."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None, False
    except OSError:
        return None, True
    try:
        status, header = _core.inspect(fd)
        if status != 0:
            return None, True
        pid = int(header["owner_pid"])
        if pid >= 2**31:  # damaged: no process has that number
            return None, True
        started = _core.process_start(pid)
        alive = header["boot_id"] == _core.boot_id() and started == header["owner_start"] != 0
        return pid, alive
    except OSError:
        return None, True
    finally:
        os.close(fd)


def list_names() -> list[NameEntry]:
    """Returns every named segment of this user; `alive` says whether its owner still holds the lock.

    >>> with shoal.Segment.named(shoal.Layout({"x": (np.float32, (8,))}), "list-doc"):
    ...     "list-doc" in [entry.name for entry in list_names()]
    True
    """
    entries = []
    prefix = _prefix()
    directory = Path(name_directory())
    # Dot files are unfinished segments, on systems that cannot create a file without a name.
    for path in sorted((*directory.glob(prefix + "*"), *directory.glob(".shoal-*-??????"))):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            stat = os.fstat(fd)
            if stat.st_uid != os.getuid():
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may list too
                alive = False
            except BlockingIOError:
                alive = True
        finally:
            os.close(fd)
        pid, _ = _owner(path)
        entries.append(NameEntry(path.name.removeprefix(prefix), path, stat.st_size, pid, alive))
    return entries
