"""A watcher's side of recordings: asks a run for whole episodes of its environments."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from shoal.errors import SegmentError, SessionError
from shoal.state.notes import RECORD, Note
from shoal.state.recording import Recording, read_recording

__all__ = ["RecordingRequests"]


class RecordingRequests:
    """A mixin of Session."""

    _lock: threading.RLock
    _name: str

    def __init__(self) -> None:
        self._recorded: Note | None = None

    def record(self, env_id: int = 0, timeout_s: float = 10.0) -> Recording:
        """Records the next whole episode of an environment and waits for its end.

        The run spends at most 2 % of its time on it. Raises TimeoutError if no episode begins and ends in
        time, and SessionError if the run ends, if another watcher records, or if an episode is too long.

        >>> envs = shoal.make_vec("CartPole-v1", 4, session="record-doc")
        >>> _ = envs.reset(seed=0)
        >>> with shoal.attach("record-doc") as session:
        ...     session.ask_for_recording(2)
        ...     while (found := session.take_recording()) is None:
        ...         _ = envs.step(np.zeros(envs.num_envs, np.int64))
        True
        >>> found.env_id, found.episode_return == found.length
        (2, True)
        >>> envs.close()
        """
        if not self.ask_for_recording(env_id):
            raise SessionError(
                f"another watcher records an episode of {self._name!r}; try again when it is done"
            )
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                found = self.take_recording()
                if found is not None:
                    return found
                self._require_alive()
                self._receive_notes(0.02)
        finally:
            self.cancel_recording()
        raise TimeoutError(
            f"no episode of environment {env_id} of {self._name!r} began and ended within {timeout_s:g} s; "
            "pass a longer timeout_s"
        )

    def ask_for_recording(self, env_id: int = 0) -> bool:
        """Asks for a recording of the next whole episode; replaces an earlier request of this session.

        Returns False if another watcher records; a run makes one recording at a time.
        """
        env_id = self._env_id(env_id)
        with self._lock:
            self._drop_recording()
            return self._ask(Note(RECORD, number=env_id)).count == 1

    def take_recording(self) -> Recording | None:
        """Returns the recording that was asked for, or None if there is none yet; never waits.

        Raises SessionError if the run could not record it; then ask again.
        """
        with self._lock:
            self._receive_notes(0.0)
            note, self._recorded = self._recorded, None
        if note is None:
            return None
        if note.fd < 0:
            raise SessionError(
                f"the episode of environment {note.number} of {self._name!r} is too long to be recorded, or "
                "the run had no memory for it; choose another environment"
            )
        try:
            return read_recording(note.fd)
        except SegmentError as error:
            raise SessionError(f"session {self._name!r}: its recording is damaged: {error}") from error

    def cancel_recording(self) -> None:
        """Takes the request back, if the run is alive."""
        with self._lock:
            self._drop_recording()
            if self.alive:
                self._ask(Note(RECORD, number=-1))
                self._drop_recording()

    def _keep_recording(self, note: Note) -> None:
        self._drop_recording()
        self._recorded = note

    def _drop_recording(self) -> None:
        note, self._recorded = self._recorded, None
        if note is not None and note.fd >= 0:
            os.close(note.fd)

    # -- of the session --------------------------------------------------------------------------------

    alive: Any

    def _env_id(self, env_id: Any) -> int:
        raise NotImplementedError

    def _ask(self, note: Note) -> Note:
        raise NotImplementedError

    def _require_alive(self) -> None:
        raise NotImplementedError

    def _receive_notes(self, timeout_s: float, kind: int = 0) -> Note | None:
        raise NotImplementedError
