"""Fails the n-th call, n = 1, 2, ... until nothing is left to fail, and looks at what that leaves behind.

Runs where `shoal._core` is the build with tests/faults/table.c (tests/built.py). Calls of the core and those
that Shoal's Python makes are counted in one row.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import gc
import io
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal import _core
from shoal.errors import ShoalError
from shoal.memory.names import name_directory, reap
from shoal.state import names

SESSIONS = Path(os.environ["SHOAL_SESSION_DIR"])
_table = ctypes.CDLL(_core.__file__)
_table.shoal_faults_arm.argtypes = [ctypes.c_int64]
_table.shoal_faults_disarm.restype = ctypes.c_char_p
_table.shoal_faults_seen.restype = ctypes.c_int64
_table.shoal_faults_hit.argtypes = [ctypes.c_char_p, ctypes.c_int]

# What each of Python's calls that Shoal uses fails with.
_OS = {
    "open": errno.EMFILE,
    "pipe": errno.EMFILE,
    "dup": errno.EMFILE,
    "write": errno.ENOSPC,
    "pread": errno.EIO,
    "fsync": errno.EIO,
    "fstat": errno.EIO,
    "statvfs": errno.EIO,
    "fstatvfs": errno.EIO,
    "mkdir": errno.EACCES,
    "chmod": errno.EPERM,
    "link": errno.ENOSPC,
    "rename": errno.ENOSPC,
    "replace": errno.ENOSPC,
    "fork": errno.EAGAIN,
    "pidfd_open": errno.EMFILE,
    "set_blocking": errno.EBADF,
    "memfd_create": errno.EMFILE,
}
_OTHERS: list[tuple[Any, str, int]] = [
    (fcntl, "flock", errno.ENOLCK),
    (socket, "socketpair", errno.EMFILE),
    (socket, "send_fds", errno.ENOBUFS),
    (socket, "recv_fds", errno.ENOMEM),
    (socket.socket, "bind", errno.ENOSPC),
    (socket.socket, "listen", errno.ENOBUFS),
    (socket.socket, "connect", errno.ENOBUFS),
    (subprocess.Popen, "_execute_child", errno.EAGAIN),
    (io, "open", errno.EMFILE),
    (builtins, "open", errno.EMFILE),
    (tempfile, "mkdtemp", errno.ENOSPC),
]


_NOT_OURS = ("subprocess", "shutil", "tempfile", "importlib", "linecache", "tokenize", "multiprocessing")


def _routed(name: str, call: Callable[..., Any], error: int) -> Callable[..., Any]:
    word = name.encode()

    def through(*arguments: Any, **keywords: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not caller.startswith(_NOT_OURS) and _table.shoal_faults_hit(word, error):
            path = [os.fspath(one) for one in arguments[:1] if isinstance(one, (str, Path))]
            raise OSError(error, os.strerror(error), *path)  # as Python says it
        return call(*arguments, **keywords)

    return through


def _routed_thread_start(self: threading.Thread) -> None:
    if _table.shoal_faults_hit(b"threading.Thread.start", errno.EAGAIN):
        raise RuntimeError("can't start new thread")  # as Python says it
    _start_thread(self)


_start_thread = threading.Thread.start


class _Socket(socket.socket):
    """Made by Shoal as `socket.socket(...)`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        if (
            len(arguments) < 4
            and "fileno" not in keywords
            and _table.shoal_faults_hit(b"socket", errno.EMFILE)
        ):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        super().__init__(*arguments, **keywords)


def _places() -> list[tuple[Any, str, Any]]:
    found = [(os, name, _routed(f"os.{name}", getattr(os, name), error)) for name, error in _OS.items()]
    for place, name, error in _OTHERS:
        whole = f"{place.__name__}.{name}"
        found.append((place, name, _routed(whole, getattr(place, name), error)))
    found.append((threading.Thread, "start", _routed_thread_start))
    return found


@contextmanager
def _failing(n: int) -> Iterator[None]:
    """The n-th call within fails; forked children are left alone."""
    places = _places()
    before = [(place, name, place.__dict__.get(name)) for place, name, _ in places]
    plain_socket = socket.socket
    for place, name, call in places:
        setattr(place, name, call)
    socket.socket = _Socket  # type: ignore[misc]
    _table.shoal_faults_arm(n)
    try:
        yield
    finally:
        _table.shoal_faults_disarm()
        socket.socket = plain_socket  # type: ignore[misc]
        for place, name, call in before:
            if call is None:  # it was inherited
                delattr(place, name)
            else:
                setattr(place, name, call)


def held(directory: Path) -> Counter[str]:
    """What this process holds and left: descriptors, mappings, threads, children, names, files."""
    found: Counter[str] = Counter()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        found["descriptor " + re.sub(r"\[\d+\]|\d{3,}", "", target)] += 1
    with open("/proc/self/maps") as lines:
        for line in lines:
            if "shoal" in line and ("memfd:" in line or name_directory() in line) or str(directory) in line:
                found["mapping " + re.sub(r"\d{3,}", "", line.split(None, 5)[-1].strip())] += 1
    found["threads"] = len(os.listdir("/proc/self/task"))
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as children:
                found["children"] += len(children.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended meanwhile
    for place in (Path(name_directory()), SESSIONS):
        for path in place.iterdir() if place.is_dir() else ():
            if place is SESSIONS or f"-{os.getuid()}-{os.getpid()}-" in path.name:
                found[f"name {path}"] += 1
    for path in directory.rglob("*"):
        found[f"file {path.relative_to(directory)}"] += 1
    return found


def left_over(before: Counter[str], directory: Path) -> list[str]:
    """What is there that was not; a moment is given to threads and children that are ending."""
    deadline = time.monotonic() + 1.5
    while True:
        gc.collect()
        more = sorted((held(directory) - before).elements())
        if any(str(SESSIONS) in one for one in more):
            names.list_paths()  # a name that could not be removed is one that whoever looks removes
        if not more or time.monotonic() > deadline:
            return more
        time.sleep(0.01)


def complaint(error: BaseException) -> str:
    """Why this is no clean way to say that a call failed; "" if it is one."""
    text = str(error)
    if isinstance(error, MemoryError) and not isinstance(error, ShoalError):
        return ""
    if not isinstance(error, (ShoalError, OSError)):
        return f"{type(error).__name__} is none of ours"
    if isinstance(error, OSError) and text in ("", f"[Errno {error.errno}] {os.strerror(error.errno or 0)}"):
        return f"a bare {type(error).__name__}, {text!r}, that does not say what was being done"
    if len(text) < 20:
        return f"{type(error).__name__} says little: {text!r}"
    return ""


def fail_each(
    scenario: Callable[[Path], None], directory: Path, numbers: Iterator[int], limit_s: float
) -> tuple[int, Counter[str], list[str]]:
    """(cases, which calls failed, what was wrong), for numbers until one has nothing left to fail."""
    problems: list[str] = []
    calls: Counter[str] = Counter()
    deadline = time.monotonic() + limit_s
    scenario(_fresh(directory))  # loads what is loaded once
    scenario(_fresh(directory))
    gc.collect()
    gc.freeze()  # each case collects garbage several times, and looks at new objects alone
    before = held(_fresh(directory))
    cases = 0
    for n in numbers:
        place, said, unraised = _fresh(directory), "", []
        sys.unraisablehook = lambda unraisable, into=unraised: into.append(repr(unraisable.exc_value))
        begin = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            error: BaseException | None = None
            try:
                with _failing(n):
                    scenario(place)
            except Exception as raised:
                error, said = raised, f"{type(raised).__name__}: {raised}"
                raised.__traceback__ = None
            failed = _table.shoal_faults_disarm()
            if failed is None:
                if error is not None:
                    problems.append(f"call {n}: nothing failed, but {said}")
                break
            call = failed.decode()
            what = f"call {n} ({call})"
            cases += 1
            calls[call] += 1
            if error is not None and (why := complaint(error)):
                problems.append(f"{what}: {why}")
            error = None
            gc.collect()
        sys.unraisablehook = sys.__unraisablehook__
        if unraised:
            problems.append(f"{what}: thrown away: {unraised}")
        if time.monotonic() - begin > 10:
            problems.append(f"{what}: took {time.monotonic() - begin:.0f} s ({said})")
        if more := left_over(before, place):
            # What the system does not take back stays, if that is said; a name, for the next who looks.
            stayed = [one for one in more if one.startswith(f"name {name_directory()}")]
            if "cannot remove the name" in said and all(reap(Path(one[5:])) for one in stayed):
                more = left_over(before, place)
            if more and call != "munmap":
                problems.append(f"{what}: left {more} ({said})")
            before = held(place)
        place = _fresh(directory)
        try:
            scenario(place)
        except Exception as raised:
            problems.append(f"{what}: the next try: {type(raised).__name__}: {raised}")
        if more := left_over(before, place):
            problems.append(f"{what}: the next try left {more}")
            before = held(place)
        if time.monotonic() > deadline or len(problems) > 12:
            break
    return cases, calls, problems


def _fresh(directory: Path) -> Path:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    directory.mkdir(exist_ok=True)
    return directory
