"""Reads a session in its own thread and keeps the newest counters and snapshots.

    session --> thread: counters twice a second, snapshots as they come --> counters, worlds --> clients
                                                                     `----> notify()

A run that is stopped in a debugger may not answer a request; only this thread waits for it. There is no
queue: a client that reads late sees the newest data. After the end of the run, the thread waits for another
run of the same name.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import ClosedError, SessionError
from shoal.state.history import History
from shoal.viewer.protocol import MAX_WATCHED, World
from shoal.viewer.shelf import Recordings

if TYPE_CHECKING:
    from shoal.state.attach import Session

__all__ = ["Feed", "compare_counters"]

_COUNTERS_S = 0.5
_SHORTEST_S = 0.005
_REATTACH_S = 1.0
_KEEP_S = 10.0


class Feed:
    """The newest data of a session. The thread replaces the attributes and never changes them in place."""

    counters: tuple[int, dict[str, Any]] | None = None
    """The number of counter messages so far, and the newest message."""
    history: tuple[int, History, dict[str, Any] | None] | None = None
    """The number of histories so far, the newest, and the histogram of returns at that time."""
    recorded: tuple[int, Recordings] | None = None
    """The number of changes of the recordings so far, and the recordings."""
    error: tuple[int, str] = (0, "")
    """The number of errors so far, and the newest error."""
    ended = False

    def __init__(
        self,
        session: Session,
        notify: Callable[[], None],
        reattach: Callable[[], Session] | None = None,
        keep: Callable[[History], None] | None = None,
    ) -> None:
        """The thread calls `notify` whenever there is new data, `reattach` to attach to the session that has
        the same name now, and `keep` with the history: every ten seconds, at the end of the run and of the
        thread."""
        self.run: tuple[int, dict[str, Any]] = (1, session.facts)
        """The number of runs so far, and the facts of the current one."""
        self.worlds: dict[int, World] = {}
        """The newest of each watched environment; after the end also of some that were watched before."""
        self._past: dict[int, World] = {}
        self._session = session
        self._recordings = Recordings(session)
        self._notify = notify
        self._reattach = reattach
        self._keep = keep
        self._keep_at = 0.0
        self._counts = itertools.count(1)
        self._requested: tuple[list[int], float] = ([], 1.0)
        self._watched: tuple[list[int], float] = ([], 1.0)
        self._is_granted = True
        self._retry_at = 0.0
        self._stamps = itertools.count(1)
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="shoal-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, env_ids: Sequence[int], rate_hz: float) -> None:
        """Replaces the watched environments. After the run has ended, the last snapshots are kept instead."""
        self._requested = (list(env_ids), rate_hz)
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread.

        If it waits for a run that does not answer, this returns after a second without it.
        """
        self._stopped = True
        self._wake.set()
        self._thread.join(1.0)

    def end(self) -> None:
        """Ends the thread and closes the session."""
        self.stop()
        self._session.close()

    def _run(self) -> None:
        while not self._stopped:
            found = self._wait_for_another(self._follow())
            if found is None:
                return
            self._session.close()
            self._switch_session(found)

    def _switch_session(self, session: Session) -> None:
        """Switches to another run.

        `run` is replaced last, so a reader of it never sees data of the old run.
        """
        self._session, self._watched, self._is_granted = session, ([], 1.0), True
        self.worlds, self._past, self.counters, self.ended = {}, {}, None, False
        self.history = self.recorded = None
        self._recordings = Recordings(session)
        self.run = self.run[0] + 1, session.facts
        self._notify()

    def _wait_for_another(self, last: dict[str, Any]) -> Session | None:
        """Waits for another run of the same name and returns its session, or None if the feed was stopped."""
        self.worlds = {**self._past, **self.worlds}
        self.ended, due = True, 0.0
        while not self._stopped:
            self._publish_counters(last, last, "ended")
            self._notify()
            if self._reattach is not None and time.monotonic() >= due:
                due = time.monotonic() + _REATTACH_S
                with contextlib.suppress(SessionError):  # usually there is none yet
                    found = self._reattach()
                    if _is_other_run(self._session, found):
                        return found
                    found.close()
            self._wake.clear()
            self._wake.wait(_COUNTERS_S)
        return None

    def _follow(self) -> dict[str, Any]:
        """Reads the session until its run has ended; returns the last counters."""
        last: dict[str, Any] = {"time_ns": time.monotonic_ns(), "steps": 0, "episodes": 0, "odd_returns": 0}
        last |= {"return_sum": 0.0, "length_sum": 0}
        try:
            last = self._read_counters(last)
            self._read_history()
            due = time.monotonic() + _COUNTERS_S
            while not self._stopped and self._session.alive:
                self._apply_request()
                is_new = self._read_worlds()
                if self._recordings.advance(bool(self._watched[0]), time.monotonic()):
                    self.recorded, is_new = (next(self._counts), self._recordings), True
                if time.monotonic() >= due:
                    due = time.monotonic() + _COUNTERS_S
                    now = self._read_counters(last)
                    self._publish_counters(last, now, "stepping" if now["steps"] > last["steps"] else "idle")
                    self._read_history()
                    last, is_new = now, True
                if is_new:
                    self._notify()
                self._sleep(due)
            if not self._stopped:
                self._read_worlds()  # the last published snapshots
        except (SessionError, ClosedError):
            pass  # the run ended between two requests, or this side closed during a request
        self._read_history(is_last=True)
        return last

    def _read_history(self, is_last: bool = False) -> None:
        """Reads the history, also after the end of the run. A history that cannot be read is an error for the
        pages, and is not tried again until the next time."""
        try:
            found = self._session.history()
        except (SessionError, ClosedError) as error:
            if not is_last and self._session.alive and self.error[1] != str(error):
                self.error = self.error[0] + 1, str(error)
            return
        returns = None if self.history is None else self.history[2]
        if not is_last:
            with contextlib.suppress(SessionError, ClosedError):
                returns = self._session.returns()
        self.history = next(self._counts), found, returns
        if self._keep is not None and (is_last or time.monotonic() >= self._keep_at):
            self._keep_at = time.monotonic() + _KEEP_S
            self._keep(found)

    def _read_counters(self, last: dict[str, Any]) -> dict[str, Any]:
        """Returns the counters, or `last` if the run is alive but does not answer, as in a debugger."""
        try:
            return self._session.counters()
        except SessionError:
            if not self._session.alive:
                raise
            return {**last, "time_ns": time.monotonic_ns()}

    def _apply_request(self) -> None:
        """Watches the requested environments; retries every half second while the session rejects them."""
        (env_ids, rate_hz), now = self._requested, time.monotonic()
        # The request may be older than this run, which may have fewer environments.
        request = [env for env in env_ids if env < self._session.facts["num_worlds"]], rate_hz
        if request == self._watched and (self._is_granted or now < self._retry_at):
            return
        self._watched = request
        for env in [env for env in self.worlds if env not in request[0]]:
            self._past.pop(env, None)  # keeps the order of last use
            self._past[env] = self.worlds.pop(env)
        for env in list(self._past)[:-MAX_WATCHED]:
            del self._past[env]
        try:
            self._session.watch(*request)
            self._is_granted = True
        except SessionError as error:
            if not self._session.alive:
                raise
            if self._is_granted or self.error[1] != str(error):
                self.error = self.error[0] + 1, str(error)
                self._notify()
            self._is_granted, self._retry_at = False, now + _COUNTERS_S

    def _read_worlds(self) -> bool:
        found = False
        for env in self._watched[0]:
            last = self.worlds.get(env)
            newer = self._session.latest(env, 0 if last is None else last.number)
            if newer is not None:
                self.worlds[env] = World.after(last, next(self._stamps), *newer)
                found = True
        return found

    def _sleep(self, due: float) -> None:
        """Sleeps until the next read: half of the time between two snapshots, so that none is read late."""
        env_ids, rate_hz = self._watched
        pause = due - time.monotonic()
        if env_ids:
            pause = min(pause, max(_SHORTEST_S, 0.5 / rate_hz))
        if self._wake.wait(max(0.0, pause)):
            self._wake.clear()

    def _publish_counters(self, last: dict[str, Any], now: dict[str, Any], run: str) -> None:
        self.counters = next(self._counts), {"type": "counters", **compare_counters(last, now), "run": run}


def _is_other_run(old: Session, new: Session) -> bool:
    return any(old.facts[fact] != new.facts[fact] for fact in ("pid", "started"))


def compare_counters(last: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of the message "counters" from two counts of a session."""
    seconds = (now["time_ns"] - last["time_ns"]) / 1e9
    episodes = now["episodes"] - last["episodes"]
    returns = episodes - (now["odd_returns"] - last["odd_returns"])
    return {
        "time": now["time_ns"] / 1e9,
        "steps": now["steps"],
        "episodes": now["episodes"],
        "steps_per_s": (now["steps"] - last["steps"]) / seconds if seconds > 0 else 0.0,
        "ended": episodes,
        "mean_return": (now["return_sum"] - last["return_sum"]) / returns if returns > 0 else None,
        "mean_length": (now["length_sum"] - last["length_sum"]) / episodes if episodes > 0 else None,
    }
