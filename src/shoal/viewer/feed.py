"""Reads a session in a thread of its own and keeps the newest of everything.

    session --> thread: counters twice a second, snapshots as they come --> counters, worlds --> whoever looks
                                                                     `----> news()

A run that is stopped in a debugger may keep a question waiting; only this thread waits with it. Nothing is
queued: who looks late sees the newest. After the end of the run it looks for another of the same name.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import ClosedError, SessionError
from shoal.viewer.protocol import MAX_WATCHED, World

if TYPE_CHECKING:
    from shoal.state.attach import Session

__all__ = ["Feed", "between"]

_COUNTERS_S = 0.5
_SHORTEST_S = 0.005
_AGAIN_S = 1.0


class Feed:
    """The newest of a session. Its attributes are replaced by the thread, never changed in place."""

    counters: tuple[int, dict[str, Any]] | None = None
    """How many came so far, and the message of the newest."""
    error: tuple[int, str] = (0, "")
    """How many came so far, and the newest."""
    ended = False

    def __init__(
        self, session: Session, news: Callable[[], None], again: Callable[[], Session] | None = None
    ) -> None:
        """`news` is called in the thread whenever something is new; `again` attaches to whatever session has
        the same name now."""
        self.run: tuple[int, dict[str, Any]] = (1, session.facts)
        """How many runs there were so far, and the facts of this one."""
        self.worlds: dict[int, World] = {}
        """The newest of each environment that is watched; after the end also of some that were."""
        self._past: dict[int, World] = {}
        self._session = session
        self._news = news
        self._again = again
        self._counts = itertools.count(1)
        self._wish: tuple[list[int], float] = ([], 1.0)
        self._watched: tuple[list[int], float] = ([], 1.0)
        self._granted = True
        self._ask_again = 0.0
        self._stamps = itertools.count(1)
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="shoal-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, env_ids: Sequence[int], rate_hz: float) -> None:
        """Replaces what is watched. After the run ended the last of each environment stays instead."""
        self._wish = (list(env_ids), rate_hz)
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread; one that waits for a run that does not answer is left behind."""
        self._stopped = True
        self._wake.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopped:
            found = self._wait_for_another(self._follow())
            if found is None:
                return
            self._session.close()
            self._begin(found)

    def _begin(self, session: Session) -> None:
        """From here on it is another run; who sees the new `run` sees nothing of the one before."""
        self._session, self._watched, self._granted = session, ([], 1.0), True
        self.worlds, self._past, self.counters, self.ended = {}, {}, None, False
        self.run = self.run[0] + 1, session.facts
        self._news()

    def _wait_for_another(self, last: dict[str, Any]) -> Session | None:
        """Another run of the same name, once there is one; None: it was stopped."""
        self.worlds = {**self._past, **self.worlds}
        self.ended, due = True, 0.0
        while not self._stopped:
            self._tell(last, last, "ended")
            self._news()
            if self._again is not None and time.monotonic() >= due:
                due = time.monotonic() + _AGAIN_S
                with contextlib.suppress(SessionError):  # there is none, mostly
                    found = self._again()
                    if _is_another(self._session, found):
                        return found
                    found.close()
            self._wake.clear()
            self._wake.wait(_COUNTERS_S)
        return None

    def _follow(self) -> dict[str, Any]:
        """Reads the session until its run has ended; the last counters."""
        last = {"time_ns": time.monotonic_ns(), "steps": 0, "episodes": 0, "return_sum": 0.0, "length_sum": 0}
        try:
            last = self._count(last)
            due = time.monotonic() + _COUNTERS_S
            while not self._stopped and self._session.alive:
                self._apply()
                news = self._look()
                if time.monotonic() >= due:
                    due = time.monotonic() + _COUNTERS_S
                    now = self._count(last)
                    self._tell(last, now, "stepping" if now["steps"] > last["steps"] else "idle")
                    last, news = now, True
                if news:
                    self._news()
                self._rest(due)
            if not self._stopped:
                self._look()  # what was published last
        except (SessionError, ClosedError):
            pass  # the run ended between two questions, or we did while one was open
        return last

    def _count(self, last: dict[str, Any]) -> dict[str, Any]:
        """The counters; the last ones if the run lives but does not answer, such as in a debugger."""
        try:
            return self._session.counters()
        except SessionError:
            if not self._session.alive:
                raise
            return {**last, "time_ns": time.monotonic_ns()}

    def _apply(self) -> None:
        """Asks for what is wished for, and again and again where it was refused."""
        (env_ids, rate_hz), now = self._wish, time.monotonic()
        # What was wished for while another run was shown may be more than there is.
        wish = [env for env in env_ids if env < self._session.facts["num_worlds"]], rate_hz
        if wish == self._watched and (self._granted or now < self._ask_again):
            return
        self._watched = wish
        for env in [env for env in self.worlds if env not in wish[0]]:
            self._past.pop(env, None)  # so that they are in the order of their last use
            self._past[env] = self.worlds.pop(env)
        for env in list(self._past)[:-MAX_WATCHED]:
            del self._past[env]
        try:
            self._session.watch(*wish)
            self._granted = True
        except SessionError as error:
            if not self._session.alive:
                raise
            if self._granted or self.error[1] != str(error):
                self.error = self.error[0] + 1, str(error)
                self._news()
            self._granted, self._ask_again = False, now + _COUNTERS_S

    def _look(self) -> bool:
        found = False
        for env in self._watched[0]:
            last = self.worlds.get(env)
            newer = self._session.latest(env, 0 if last is None else last.number)
            if newer is not None:
                self.worlds[env] = World.after(last, next(self._stamps), *newer)
                found = True
        return found

    def _rest(self, due: float) -> None:
        """Until the next look: half of what lies between two publications, so that none is seen late."""
        env_ids, rate_hz = self._watched
        pause = due - time.monotonic()
        if env_ids:
            pause = min(pause, max(_SHORTEST_S, 0.5 / rate_hz))
        if self._wake.wait(max(0.0, pause)):
            self._wake.clear()

    def _tell(self, last: dict[str, Any], now: dict[str, Any], run: str) -> None:
        self.counters = next(self._counts), {"type": "counters", **between(last, now), "run": run}


def _is_another(old: Session, new: Session) -> bool:
    return any(old.facts[fact] != new.facts[fact] for fact in ("pid", "started"))


def between(last: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What happened between two counts of a session, as the message "counters" tells it."""
    seconds = (now["time_ns"] - last["time_ns"]) / 1e9
    episodes = now["episodes"] - last["episodes"]
    return {
        "time": now["time_ns"] / 1e9,
        "steps": now["steps"],
        "episodes": now["episodes"],
        "steps_per_s": (now["steps"] - last["steps"]) / seconds if seconds > 0 else 0.0,
        "ended": episodes,
        "mean_return": (now["return_sum"] - last["return_sum"]) / episodes if episodes > 0 else None,
        "mean_length": (now["length_sum"] - last["length_sum"]) / episodes if episodes > 0 else None,
    }
