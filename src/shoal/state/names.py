"""Sessions on disk: sockets in a directory that is the user's alone.

1. A socket listens before it gets its name, by one link; so a name that refuses connections is a dead run's.
2. Names are linked and removed under a lock on the directory, and looked at again before they are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from shoal import _core
from shoal.errors import NameInUse, SessionError, explain_os_errors

__all__ = ["bind", "connect", "directory", "list_paths", "release", "check_name"]

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BACKLOG = 64
_TIMEOUT_S = 2.0
_LONGEST = 100
"""Of a socket's path, on every system."""


def directory(create: bool = False) -> Path:
    """Where sessions of this user are; SessionError if it is not his alone."""
    path = Path(os.environ.get("SHOAL_SESSION_DIR") or f"/tmp/shoal-{os.geteuid()}").absolute()
    if create:
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise SessionError(
                f"cannot make {path} for sessions: {error.strerror}; name another one in SHOAL_SESSION_DIR"
            ) from error
    try:
        found = path.lstat()
    except FileNotFoundError:
        return path
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o077:
        raise SessionError(
            f"{path} must be a directory of user {os.geteuid()} with mode 0700, found user {found.st_uid} "
            f"and mode {mode:04o}; name another one in SHOAL_SESSION_DIR"
        )
    return path


def check_name(name: object) -> str:
    """`name` if a session can have it, else TypeError or ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a session's name must be a str, got {type(name).__name__}: {name!r}")
    if not _VALID.fullmatch(name):
        raise ValueError(
            "a session's name must have 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or "
            f"digit; got {name[:80]!r}"
        )
    return name


def bind(name: str) -> socket.socket:
    """A listening socket of that name; NameInUse if a live session has it."""
    place = directory()
    path = place / check_name(name)
    temporary = place / f".{os.getpid()}-{secrets.token_hex(4)}"
    if max(len(os.fsencode(one)) for one in (path, temporary)) > _LONGEST:
        raise SessionError(f"{path} is too long for a socket; name a shorter directory in SHOAL_SESSION_DIR")
    directory(create=True)
    advice = "name another directory in SHOAL_SESSION_DIR, or do without: session=None"
    with explain_os_errors(f"make a session in {place}", SessionError, advice):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(temporary))
            temporary.chmod(0o600)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            with _lock_directory(place):
                if path.exists() and not _is_dead(path):
                    raise NameInUse(
                        f"a live session is called {name!r} (`shoal ps` says whose); use another name, or "
                        "end it",
                        pid=None,
                    )
                path.unlink(missing_ok=True)
                os.link(temporary, path)
        except BaseException:
            listening.close()
            raise
        finally:
            temporary.unlink(missing_ok=True)
    return listening


def release(name: str) -> None:
    """Removes the name of a session that has closed, if it is its own still."""
    with contextlib.suppress(OSError, SessionError):
        place = directory()
        with _lock_directory(place):
            if _is_dead(place / name):
                (place / name).unlink(missing_ok=True)


def connect(path: Path) -> socket.socket:
    """A connection to a session; ConnectionRefusedError or FileNotFoundError where there is none."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(_TIMEOUT_S)
        channel.connect(str(path))
        if _core.peer_uid(channel.fileno()) != os.geteuid():
            raise SessionError(f"{path} belongs to a process of another user; it is not looked at")
    except BaseException:
        channel.close()
        raise
    return channel


def list_paths() -> list[Path]:
    """The sockets of sessions, dead ones removed on the way."""
    place = directory()
    if not place.is_dir():
        return []
    found = []
    with explain_os_errors(f"look for sessions in {place}", SessionError):
        for path in sorted(place.iterdir()):
            if path.name.startswith(".") or not _is_socket(path):
                continue
            if not _is_dead(path):
                found.append(path)
                continue
            with _lock_directory(place):
                if _is_dead(path):
                    path.unlink(missing_ok=True)
    return found


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:  # its run has ended since it was listed
        return False


def _is_dead(path: Path) -> bool:
    """Whether nobody listens there; a listener that has no time is alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.setblocking(False)
        try:
            channel.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False


@contextlib.contextmanager
def _lock_directory(place: Path) -> Iterator[None]:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
