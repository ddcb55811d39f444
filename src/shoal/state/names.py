"""Sessions on disk: sockets in a directory that only its user can access.

1. A socket listens before one link gives it its name, so a name that refuses connections is a dead run's.
2. Names are linked and removed under a lock on the directory, and checked again before they are removed.
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

__all__ = ["bind", "check_name", "connect", "directory", "list_paths", "release"]

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BACKLOG = 64
_TIMEOUT_S = 2.0
_MAX_PATH_BYTES = 100
"""The longest path of a socket that every system accepts."""


def directory(create: bool = False) -> Path:
    """Returns the directory of this user's sessions; raises SessionError if others can access it."""
    path = Path(os.environ.get("SHOAL_SESSION_DIR") or f"/tmp/shoal-{os.geteuid()}").absolute()
    if create:
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise SessionError(
                f"cannot create {path} for sessions: {error.strerror}; "
                "set SHOAL_SESSION_DIR to another directory"
            ) from error
    try:
        found = path.lstat()
    except FileNotFoundError:
        return path
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o077:
        raise SessionError(
            f"{path} must be a directory of user {os.geteuid()} with mode 0700, found user {found.st_uid} "
            f"and mode {mode:04o}; set SHOAL_SESSION_DIR to another directory"
        )
    return path


def check_name(name: object) -> str:
    """Returns `name` if it is a valid session name; raises TypeError or ValueError otherwise."""
    if not isinstance(name, str):
        raise TypeError(f"a session's name must be a str, got {type(name).__name__}: {name!r}")
    if not _VALID.fullmatch(name):
        raise ValueError(
            "a session's name must have 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or "
            f"digit; got {name[:80]!r}"
        )
    return name


def bind(name: str) -> socket.socket:
    """Returns a listening socket with that name; raises NameInUse if a live session has the name."""
    place = directory()
    path = place / check_name(name)
    temporary = place / f".{os.getpid()}-{secrets.token_hex(4)}"
    if max(len(os.fsencode(one)) for one in (path, temporary)) > _MAX_PATH_BYTES:
        raise SessionError(f"{path} is too long for a socket; set SHOAL_SESSION_DIR to a shorter directory")
    directory(create=True)
    advice = "set SHOAL_SESSION_DIR to another directory, or pass session=None for no session"
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
                        f"a live session is called {name!r} (`shoal ps` shows its process); use another "
                        "name, or end it",
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
    """Removes the name of a session that has closed, unless another session has taken it."""
    with contextlib.suppress(OSError, SessionError):
        place = directory()
        with _lock_directory(place):
            if _is_dead(place / name):
                (place / name).unlink(missing_ok=True)


def connect(path: Path) -> socket.socket:
    """Connects to a session; raises ConnectionRefusedError or FileNotFoundError if there is none."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(_TIMEOUT_S)
        channel.connect(str(path))
        if _core.peer_uid(channel.fileno()) != os.geteuid():
            raise SessionError(
                f"{path} belongs to a process of another user; attach to a session of your own"
            )
    except BaseException:
        channel.close()
        raise
    return channel


def list_paths() -> list[Path]:
    """Returns the sockets of live sessions, and removes those of dead ones."""
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
    """Returns whether no process listens on a socket; a listener that is busy counts as alive."""
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
