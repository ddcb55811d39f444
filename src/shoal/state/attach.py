"""Watches a run from another process; the run needs no setup for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import UNREADABLE, ClosedError, SegmentError, SessionError
from shoal.state import names, notes
from shoal.state.exports import describe_fields
from shoal.state.history import History, ReadHistory
from shoal.state.notes import COUNTERS, FACTS, HISTORY, MAX_WATCHED, RECORDED, RETURNS, WATCH, WINDOW, Note
from shoal.state.recording_requests import RecordingRequests
from shoal.state.snapshot import Snapshot
from shoal.state.windows import ReadWindow

__all__ = ["Session", "attach", "sessions"]

_ANSWER_S = 2.0
_MOST_FACTS = 1 << 20
_RATE_HZ = 20.0


def attach(name: str | None = None) -> Session:
    """Opens a read-only view of a running vector environment of this user.

    >>> import shoal
    >>> envs = shoal.make_vec("Snake-v0", num_envs=4, session="doctest")
    >>> _ = envs.reset(seed=0)
    >>> with shoal.attach("doctest") as session:  # in any process
    ...     session.facts["num_worlds"]
    4
    >>> envs.close()

    Args:
        name: The session's name, as `shoal ps` lists it; None: the only live session.
    """
    if name is None:
        live = names.list_paths()
        if len(live) != 1:
            if not live:
                raise SessionError(f"there are no live sessions in {names.directory()}; start a run first")
            found = ", ".join(path.name for path in live)
            raise SessionError(f"there are {len(live)} live sessions; pass the name of one: {found}")
        return Session(live[0])
    return Session(names.directory() / names.check_name(name))


def sessions() -> list[dict[str, Any]]:
    """Returns the facts of every live session of this user, and removes the names of dead ones.

    >>> envs = shoal.make_vec("CartPole-v1", 4, session="sessions-doc")
    >>> "sessions-doc" in [facts["name"] for facts in shoal.state.sessions()]
    True
    >>> envs.close()
    """
    found = []
    for path in names.list_paths():
        with contextlib.suppress(SessionError), Session(path) as session:  # it may end meanwhile
            found.append(session.facts)
    return found


class Session(RecordingRequests):
    """A read-only connection to a run; it cannot change the run or slow it down.

    >>> envs = shoal.make_vec("CartPole-v1", 4, session="session-doc")
    >>> _ = envs.reset(seed=0)
    >>> session = shoal.attach("session-doc")
    >>> session.facts["num_worlds"], session.counters()["steps"], session.alive
    (4, 0, True)
    >>> session.close(), envs.close()
    (None, None)
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._name = path.name
        self._lock = threading.RLock()
        self._windows: dict[int, ReadWindow] = {}
        self._seen: dict[int, tuple[ReadWindow, int, Snapshot]] = {}
        self._watching: list[int] = []
        self._history: ReadHistory | None = None
        self._rate_hz = _RATE_HZ
        self._closed = self._ended = False
        try:
            self._channel = names.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            live = ", ".join(found.name for found in names.list_paths()) or "none"
            raise SessionError(
                f"no session in {path.parent} is called {path.name!r}; live sessions: {live}. Start that "
                "run first, or choose a live session"
            ) from None
        except OSError as error:
            raise SessionError(f"session {path.name!r} does not answer: {error.strerror or error}") from error
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        try:
            self.facts: dict[str, Any] = self._read_facts()
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the run is going on and this connection is open."""
        self._receive_notes(0.0)
        return not (self._ended or self._closed)

    # -- requests to the host -------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """Returns `time_ns`, `steps`, `episodes`, and the episodes' `return_sum` and `length_sum` so far.

        `odd_returns` episodes had a return that is NaN or infinite; `return_sum` is without them.
        """
        values = self._ask(Note(COUNTERS)).values
        (returns,) = struct.unpack("=d", struct.pack("=q", values[4]))
        return {
            "time_ns": values[0],
            "steps": values[1],
            "episodes": values[2],
            "return_sum": returns,
            "length_sum": values[3],
            "odd_returns": values[5],
        }

    def history(self) -> History:
        """Returns a copy of the run's history: returns, lengths, steps/s and logged values since it began.

        If it was read once before the end of the run, it can be read after the end as well.
        """
        with self._lock:
            if self._history is None:
                note = self._ask(Note(HISTORY))
                if note.fd < 0:
                    raise SessionError(
                        f"session {self._name!r} keeps no history; it may be of another version"
                    )
                try:
                    self._history = ReadHistory(note.fd)
                except SegmentError as error:
                    raise SessionError(f"session {self._name!r}: its history is damaged: {error}") from error
            return self._history.copy(self.facts)

    def returns(self) -> dict[str, Any]:
        """Returns a histogram of the returns of each row's last episode: `count`, `low`, `high`, `bins`."""
        values = self._ask(Note(RETURNS)).values
        low, high = struct.unpack("=2d", struct.pack("=2q", *values[1:3]))
        bins = list(values[3 : 3 + _core.RETURN_BINS])
        if values[0] == 0:
            low = high = None
        return {"count": values[0], "low": low, "high": high, "bins": bins}

    def watch(self, env_ids: Sequence[int], rate_hz: float = _RATE_HZ) -> None:
        """Watches these environments instead of the previous ones, at most `rate_hz` times a second."""
        if not isinstance(env_ids, Iterable):
            raise TypeError(f"env_ids must be a list of ints, got {type(env_ids).__name__}: {env_ids!r}")
        wanted = [self._env_id(env) for env in dict.fromkeys(env_ids)]
        if len(wanted) > MAX_WATCHED:
            raise ValueError(f"at most {MAX_WATCHED} environments can be watched, asked for {len(wanted)}")
        if not isinstance(rate_hz, (int, float)) or not 0.1 <= rate_hz <= 60:
            raise ValueError(f"rate_hz must be a number from 0.1 to 60, got {rate_hz!r}")
        with self._lock:
            self._windows = {env: window for env, window in self._windows.items() if env in wanted}
            self._seen = {env: seen for env, seen in self._seen.items() if env in wanted}
            note = Note(WATCH, len(wanted), int(rate_hz * 1000), tuple(wanted))
            kept = self._ask(note).count
            self._watching, self._rate_hz = wanted, rate_hz
            if kept < len(wanted):
                raise SessionError(
                    f"only {kept} of these {len(wanted)} environments can be watched: all watchers of a run "
                    f"together can watch {MAX_WATCHED}; watch fewer, or close another watcher"
                )

    # -- snapshots ------------------------------------------------------------------------------------

    def latest(self, env_id: int, after: int = 0) -> tuple[int, Snapshot] | None:
        """Returns (number, newest snapshot) of a watched environment if number > `after`; never waits."""
        with self._lock:
            self._receive_notes(0.0)
            window = self._windows.get(env_id)
            if window is None:
                return None
            known = self._seen.get(env_id)
            if known is None or known[0] is not window or known[1] != window.number:
                found = window.read()
                if found is None:
                    return None
                self._seen[env_id] = known = (window, *found)
            snapshot = known[2]  # its time is the number, because a replaced window counts from 0 again
            return (snapshot.time_ns, snapshot) if snapshot.time_ns > after else None

    def snapshot(self, env_id: int = 0, timeout_s: float | None = 1.0) -> Snapshot:
        """Returns the newest snapshot (`age_s` is its age), and waits for one if there is none yet.

        Raises TimeoutError if the run does not step that environment in time, and SessionError if the run has
        ended (`latest` still returns the last snapshot).
        """
        env_id = self._env_id(env_id)
        self._receive_notes(0.0)
        self._require_alive()
        with self._lock:
            if env_id not in self._watching:
                self.watch([*self._watching[-MAX_WATCHED + 1 :], env_id], self._rate_hz)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.latest(env_id)
            if found is not None:
                return found[1]
            self._require_alive()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"environment {env_id} of {self._name!r} was not stepped within {timeout_s:g} s; wait "
                    "until the run steps again, or pass a longer timeout_s"
                )
            self._receive_notes(0.005)

    def state(self, env_id: int = 0) -> dict[str, dict[str, Any]]:
        """Returns a copy of what the environment exports, in the form of `envs.state`."""
        return describe_fields(self.snapshot(env_id).world)

    def state_arrays(self, env_id: int = 0) -> dict[str, NDArray[Any]]:
        """Returns what the environment exports as read-only arrays."""
        return {name: field.data for name, field in self.snapshot(env_id).world.items()}

    def observations(self, env_id: int = 0) -> dict[str, NDArray[Any]]:
        """Returns the newest observation: "observation", or one entry for each part of a Dict space."""
        step = self.snapshot(env_id).step
        return {name: field.data for name, field in step.items() if name.split("/")[0] == "observation"}

    def state_schema(self, env_id: int = 0) -> dict[str, dict[str, Any]]:
        """Returns the dtype, shape, role, columns, categories and stable flag of each exported field."""
        return {name: field.schema for name, field in self.snapshot(env_id).world.items()}

    def rewards(self, env_id: int = 0) -> NDArray[Any]:
        """Returns the reward of the newest step; with several agents, one for each."""
        found = self.snapshot(env_id).step.get("reward")
        if found is None:
            raise SessionError(f"environment {env_id} of {self._name!r} has made no step yet")
        return found.data

    # -- closing --------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Returns the socket's descriptor, which is readable when a note or the end of the run arrives."""
        return self._channel.fileno()

    def close(self) -> None:
        """Closes the connection, which ends watching. Idempotent; snapshots stay valid."""
        with self._lock:
            self._closed = True
            self._channel.close()
            self._windows.clear()
            self._seen.clear()
            self._drop_recording()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self._name!r}{', closed' if self._closed else ', ended' if self._ended else ''}>"

    # -- internals ------------------------------------------------------------------------------------

    def _read_facts(self) -> dict[str, Any]:
        note = self._ask(Note(FACTS))
        if note.fd < 0:
            raise SessionError(f"session {self._name!r} sent no facts; it may be of another version of Shoal")
        try:
            facts: dict[str, Any] = json.loads(os.pread(note.fd, _MOST_FACTS, 0))
            if not isinstance(facts["num_worlds"], int):
                raise ValueError("num_worlds is not an int")
        except (*UNREADABLE, OSError) as error:
            raise SessionError(f"session {self._name!r}: its facts cannot be read: {error}") from error
        finally:
            os.close(note.fd)
        return facts

    def _env_id(self, env_id: Any) -> int:
        if isinstance(env_id, bool) or not isinstance(env_id, (int, np.integer)):
            raise TypeError(f"an environment's id must be an int, got {type(env_id).__name__}: {env_id!r}")
        if not 0 <= env_id < self.facts["num_worlds"]:
            worlds = self.facts["num_worlds"]
            raise IndexError(
                f"environment {env_id} is out of range for {worlds} environments; ids are 0 to {worlds - 1}"
            )
        return int(env_id)

    def _require_alive(self) -> None:
        if self._closed:
            raise ClosedError(f"this connection to session {self._name!r} was closed; attach again")
        if self._ended:
            raise SessionError(f"the run {self._name!r} has ended; attach again when a new run has started")

    def _ask(self, note: Note) -> Note:
        """Sends a note and returns the answer; also opens windows that arrive meanwhile."""
        with self._lock:
            self._require_alive()
            deadline = time.monotonic() + _ANSWER_S
            try:
                notes.send(self._channel, note)
            except OSError:
                self._ended = True
            while True:
                self._require_alive()
                answer = self._receive_notes(max(0.0, deadline - time.monotonic()), note.kind)
                if answer is not None:
                    return answer
                if time.monotonic() >= deadline:
                    raise SessionError(f"session {self._name!r} did not answer within {_ANSWER_S:g} s")

    def _receive_notes(self, timeout_s: float, kind: int = 0) -> Note | None:
        """Waits up to `timeout_s`, handles the notes that arrived, and returns the first of this kind."""
        with self._lock:
            while not (self._closed or self._ended) and self._poll.poll(timeout_s * 1000):
                try:
                    note = notes.receive(self._channel)
                except OSError:
                    note = None
                if note is None:
                    self._ended = True
                elif note.kind == WINDOW and note.fd >= 0:
                    self._open_window(note)
                elif note.kind == RECORDED:
                    self._keep_recording(note)
                elif note.kind == kind:
                    return note
                elif note.fd >= 0:
                    os.close(note.fd)
                timeout_s = 0.0
        return None

    def _open_window(self, note: Note) -> None:
        with contextlib.suppress(SegmentError, SessionError):  # not a valid window: ignore it
            self._windows[note.number] = ReadWindow(note.fd)
