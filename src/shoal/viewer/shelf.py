"""Keeps the best, the worst and the newest recorded episode of a run.

    session: a recording of a random environment, every few seconds --> Shelf: best, worst, newest --> pages

"Best" and "worst" are by return, of the recordings of the last ten minutes. There are at most three
recordings of at most 16 MiB each.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.errors import SessionError
from shoal.state.recording import Recording

if TYPE_CHECKING:
    from shoal.state.attach import Session

__all__ = ["Kept", "Recordings", "Shelf"]

RECENT_S = 600.0
_PAUSE_S = 2.0
_REFUSED_PAUSE_S = 10.0
_GIVE_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A recording, the number by which a page asks for it, and when it was recorded."""

    number: int
    recording: Recording
    at: float


class Shelf:
    """The recordings that are kept, by "best", "worst" and "newest"."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.times: list[float] = []
        """When the recordings of the last ten minutes were made, kept or not."""
        self._numbers = 0

    def add(self, recording: Recording, now: float) -> None:
        """Keeps a recording if it is the best, the worst or the newest. A return of NaN is neither."""
        self._numbers += 1
        self.times = [at for at in self.times if now - at < RECENT_S] + [now]
        one = Kept(self._numbers, recording, now)
        kept = {**self.kept, "newest": one}
        if not math.isnan(recording.episode_return):
            for kind, sign in (("best", 1), ("worst", -1)):
                held = kept.get(kind)
                if held is None or now - held.at >= RECENT_S or sign * _compare(recording, held) >= 0:
                    kept[kind] = one
        self.kept = kept

    def find(self, number: int) -> Kept | None:
        return next((one for one in self.kept.values() if one.number == number), None)


def _compare(recording: Recording, held: Kept) -> float:
    """Above 0 if the recording has the higher return; infinite returns can be equal."""
    new, old = recording.episode_return, held.recording.episode_return
    return float(new > old) - float(new < old)


class Recordings:
    """Asks a session for one recording after the other. It never waits."""

    def __init__(self, session: Session) -> None:
        self.shelf = Shelf()
        self.problem = ""
        """Why the last request failed; empty if it did not."""
        self._session = session
        self._asked_at: float | None = None
        self._next_at = 0.0

    def advance(self, is_wanted: bool, now: float) -> bool:
        """Asks for a recording, or takes one; returns whether the shelf or the problem has changed."""
        if self._asked_at is None:
            return is_wanted and now >= self._next_at and self._begin(now)
        try:
            found = self._session.take_recording()
        except SessionError as error:
            return self._end(now + _REFUSED_PAUSE_S, str(error))
        if found is not None:
            self.shelf.add(found, time.time())
            self._end(now + _PAUSE_S)
            return True
        if not is_wanted or now - self._asked_at > _GIVE_UP_S:
            self._session.cancel_recording()
            why = f"no episode of the chosen environment ended within {_GIVE_UP_S:g} s" if is_wanted else ""
            return self._end(now, why)
        return False

    def _begin(self, now: float) -> bool:
        env = random.randrange(self._session.facts["num_worlds"])
        if self._session.ask_for_recording(env):
            self._asked_at = now
            return False
        return self._end(now + _REFUSED_PAUSE_S, "another viewer records this run at the moment")

    def _end(self, next_at: float, problem: str = "") -> bool:
        changed, self.problem = self.problem != problem, problem
        self._asked_at, self._next_at = None, next_at
        return changed

    def describe(self) -> dict[str, Any]:
        """Returns the message "recordings" for pages."""
        return {
            "type": "recordings",
            "count": len(self.shelf.times),
            "problem": self.problem,
            "kept": {
                kind: {
                    "number": one.number,
                    "env": one.recording.env_id,
                    "episode": one.recording.episode,
                    "return": one.recording.episode_return,
                    "length": one.recording.length,
                    "snapshots": len(one.recording.snapshots),
                    "at": one.at,
                }
                for kind, one in self.shelf.kept.items()
            },
        }
