"""The session in the process of the run: its name, its facts, and the host thread that answers watchers."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import logger
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import NameInUse, SessionError, ShoalError, explain_os_errors
from shoal.memory.layout import FieldSpec
from shoal.state import names
from shoal.state.history import WriteHistory

__all__ = ["AUTO", "Hosted", "check_history", "check_session", "open_session", "watch_fields"]

AUTO = "auto"
"""Makes the session's name from the environment's name and the pid."""

_SAVE_S = 30.0
"""The time between two saves of a history file while the run goes on."""
_JOIN_S = 10.0
"""How long closing waits for a save, which may be slow on a network disk."""

_hosted: weakref.WeakSet[Hosted] = weakref.WeakSet()


def watch_fields(publishers: int) -> dict[str, FieldSpec]:
    """Returns the fields in which the host tells stepping processes its address, what to publish and when."""
    return {
        "session": (np.uint8, (128,)),
        "watched": (np.int64, (_core.WATCHED_ENTRIES, 2)),
        "due": (np.uint32, (publishers, _core.DUE_BYTES // 4)),
    }


def check_session(session: Any) -> str | None:
    """Returns the checked argument `session=`; None if there is to be no session."""
    setting = os.environ.get("SHOAL_SESSIONS", "").lower()
    if setting not in ("", "on", "1", "true", "yes", "off", "0", "false", "no"):
        raise ValueError(f"SHOAL_SESSIONS must be on or off, found {setting!r}")
    if session is None or setting in ("off", "0", "false", "no"):
        return None
    if session is False:
        raise TypeError("session must be a name, or None for no session; got False")
    return names.check_name(session)


def check_history(history: Any, session: str | None) -> str | None:
    """Returns the checked argument `history=`."""
    if history is None:
        return None
    if not isinstance(history, (str, os.PathLike)) or not os.fspath(history):
        raise TypeError(f"history must be the path of a file, or None; got {history!r}")
    if session is None:
        raise ValueError(
            f"history={os.fspath(history)!r} needs a session, which keeps the history; leave out "
            "session=None, and unset SHOAL_SESSIONS if it is off"
        )
    return os.path.abspath(os.fspath(history))  # a later chdir() does not move the file


def address_of(name: str) -> str:
    return str(names.directory() / name)


class Hosted:
    """A live session."""

    def __init__(
        self,
        asked: str,
        facts: Mapping[str, Any],
        num_worlds: int,
        memory: Mapping[str, NDArray[Any]],
        counted: Any,
        *,
        history_file: str | None = None,
    ) -> None:
        """`memory` has the fields of `watch_fields`, and each row's `last_return` and `last_length`.
        `counted` has the counters: a stepper, a flow or workers. The history is saved to `history_file`."""
        self.name, listening = _bind_name(asked, str(facts["env"]))
        self.address = address_of(self.name)
        address = os.fsencode(self.address)
        memory["session"][: len(address)] = np.frombuffer(address, np.uint8)  # before the host starts
        self._pid = os.getpid()
        self._host: _core.Host | None = None
        own = {"name": self.name, "pid": self._pid, "started": time.time(), "version": _core.__version__}
        self.facts = {**own, **facts}
        self._file: _HistoryFile | None = None
        facts_fd = history_fd = -1
        try:
            advice = "pass session=None to make the environments without a session"
            with explain_os_errors("start a session", SessionError, advice):
                facts_fd = _create_sealed_memory(json.dumps(self.facts).encode())
                self.history = WriteHistory()
                history_fd = self.history.open_reader()
                if history_file is not None:  # raises now if it cannot be written
                    self._file = _HistoryFile(history_file, self.history, self.facts)
                shared = memory["watched"], memory["due"], counted, self.history.memory, history_fd
                episodes = memory["last_return"], memory["last_length"]
                self._host = _core.Host(listening.fileno(), facts_fd, num_worlds, *shared, *episodes)
            listening.detach()  # the host owns the three descriptors from now on
        except BaseException:
            if self._file is not None:
                self._file.stop()
            listening.close()
            for fd in (facts_fd, history_fd):
                if fd >= 0:
                    os.close(fd)
            names.release(self.name)
            raise
        _hosted.add(self)

    def close(self) -> None:
        """Ends the session: the connections of watchers are closed."""
        host, self._host = self._host, None
        if host is None:
            return
        host.close()
        try:
            if self._pid == os.getpid():
                names.release(self.name)
                if self._file is not None:
                    self._file.stop()
                    self._file.save()
        finally:
            self.history.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


class _HistoryFile:
    """The file of a run's history. A thread saves it from time to time, so that a killed run leaves one.

    It does not refer to the session, so a session that nobody refers to is closed.
    """

    def __init__(self, path: str, history: WriteHistory, facts: Mapping[str, Any]) -> None:
        self._path, self._history, self._facts = path, history, facts
        self._has_warned = False
        history.copy(facts).save(path)
        # A lock and not an Event: releasing it is safe in a finalizer that runs anywhere.
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = threading.Thread(target=self._save_until_stopped, name="shoal-history", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise SessionError(
                f"cannot start the thread that saves {path}: {error}; raise the limit of threads, or leave "
                "out history="
            ) from error

    def save(self) -> None:
        """Saves the file. A failure causes one warning: the run goes on, or has ended well."""
        try:
            self._history.copy(self._facts).save(self._path)
        except (SessionError, ValueError) as error:
            has_warned, self._has_warned = self._has_warned, True
            if not has_warned:
                logger.warn("the history of this run cannot be saved: %s", error)

    def stop(self) -> None:
        """Ends the thread; it begins no save after this."""
        with contextlib.suppress(RuntimeError):  # it is stopped already
            self._running.release()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _save_until_stopped(self) -> None:
        while not self._running.acquire(timeout=_SAVE_S):
            with contextlib.suppress(Exception):  # a warning that is an error, no memory: it tries again
                self.save()


def open_session(asked: str, *arguments: Any, history_file: str | None = None) -> Hosted | None:
    """Returns a session; if one without a given name or file cannot be opened, warns and returns None."""
    try:
        return Hosted(asked, *arguments, history_file=history_file)
    except (ShoalError, OSError) as error:
        if asked != AUTO or history_file is not None:
            raise
        logger.warn("this run cannot be watched: %s (pass session=None to silence this)", error)
        return None


def _create_sealed_memory(data: bytes) -> int:
    """Returns a read-only descriptor of sealed memory with these bytes."""
    fd = _core.memory_create()
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _core.seal_writes(fd)
        return _core.reopen(fd, False)
    finally:
        os.close(fd)


def _bind_name(asked: str, env: str) -> tuple[str, Any]:
    if asked != AUTO:
        return asked, names.bind(asked)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", env).strip("-._")[:40] or "envs"
    for number in range(1, 10000):
        name = f"{plain}-{os.getpid()}" + (f"-{number}" if number > 1 else "")
        with contextlib.suppress(NameInUse):
            return name, names.bind(name)
    raise SessionError("this process has 9,999 sessions for this environment; close some of them")


def _close_all() -> None:
    for hosted in list(_hosted):
        hosted.close()
    _hosted.clear()


atexit.register(_close_all)
# A forked child has no host thread, and must not keep its parent's sockets open.
os.register_at_fork(after_in_child=_close_all)
