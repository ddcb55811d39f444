"""Publishing: a process that steps environments writes snapshots of the watched ones at the host's request.

Publishing must not disturb the run: an exception is published as the snapshot's error. After a publication
that took t, the next one begins 150 t later, except the first one for a new watcher. A recording sees every
step of one episode, so it sets `due` itself until the episode ends; if it took t of the run's time, the next
one begins 200 t later. So snapshots take at most 0.7 % of the time, and recordings 0.5 % over a whole run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.state import names, notes
from shoal.state.notes import PUBLISH, RECORDED, Note
from shoal.state.recording import Glance, Recorder, Recording, write_recording
from shoal.state.snapshot import Snapshot
from shoal.state.windows import WriteWindow

__all__ = ["Publisher"]

_SHARE = 150
"""A process spends at most 1/_SHARE of its time on snapshots."""
_RECORDING_SHARE = 200
"""The same for recordings, on average over a run."""
_LIVE_NS = 50_000_000
"""The time between two publications during a recording, in which every step is due."""


class Publisher:
    """The windows of one stepping process."""

    def __init__(self, memory: Mapping[str, NDArray[Any]], first: int, count: int, line: int = 0) -> None:
        """`memory` has the host's list of (environment, generation); this process steps `count` of them, and
        has that line of `due`."""
        self._session, self._watched = memory["session"], memory["watched"]
        self._mine = range(first, first + count)
        self._windows: dict[int, tuple[int, WriteWindow]] = {}
        self._published: dict[int, int] = {}
        self._pause_until_ns = 0
        self._due = memory["due"][line]
        self._recorder: Recorder | None = None
        self._answered = 0
        """The number of the last request for a recording that was answered."""
        self._live_at_ns = self._paid_at_ns = 0

    def __call__(
        self, look: Callable[[int], Snapshot | None], glance: Callable[[int], Glance | None]
    ) -> None:
        """Publishes the snapshot that `look` returns for each watched environment of this process, and
        records the steps that `glance` returns for the recorded one."""
        now = time.monotonic_ns()
        *watched, (recorded, number) = self._watched.tolist()
        if self._is_recording(recorded, number, now):
            self._record(look, glance, now)
            if now < self._live_at_ns:
                return
            self._live_at_ns = now + _LIVE_NS
        asked = {env: generation for env, generation in watched if env in self._mine}
        for env in [env for env in self._windows if env not in asked]:
            self._windows.pop(env)[1].close()
        if now < self._pause_until_ns:  # publish only for new watchers
            asked = {env: new for env, new in asked.items() if self._generation(env) != new}
        spent = 0
        for env, generation in asked.items():
            start = time.monotonic_ns()
            try:
                snapshot = look(env)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                snapshot = Snapshot(env, 0, 0, time.monotonic_ns(), error=text)
            if snapshot is not None:
                self._publish(snapshot, generation)
            if self._published.get(env) == generation:
                spent += time.monotonic_ns() - start
            self._published[env] = generation  # the first time does not count: it may import modules
        if spent:
            self._pause_until_ns = time.monotonic_ns() + _SHARE * spent

    # -- recordings ------------------------------------------------------------------------------------

    def _is_recording(self, env: int, number: int, now: int) -> bool:
        """Whether a recording is going on; begins one that is asked for."""
        recorder = self._recorder
        if recorder is not None and (recorder.env_id, recorder.number) != (env, number):
            self._end_recording(recorder)  # nobody waits for it any more
            recorder = None
        is_new = env in self._mine and number != self._answered
        if recorder is None and is_new and now >= self._paid_at_ns:
            self._recorder = recorder = Recorder(env, number, now)
        return recorder is not None

    def _record(
        self, look: Callable[[int], Snapshot | None], glance: Callable[[int], Glance | None], began: int
    ) -> None:
        recorder = self._recorder
        assert recorder is not None
        try:
            found = recorder.step(glance(recorder.env_id), look)
            is_over = found is not None or recorder.gives_up(began)
        except Exception:  # such as an environment that was closed
            found, is_over = None, True
        if is_over:
            self._answered = recorder.number
            # A lack of memory or the end of the session must not disturb the run.
            with contextlib.suppress(ShoalError, OSError):
                self._send_recording(recorder, found)
        recorder.spent_ns += time.monotonic_ns() - began
        if is_over:
            self._end_recording(recorder)
        else:
            self._due[0] = 1  # the next step as well

    def _end_recording(self, recorder: Recorder) -> None:
        self._recorder = None
        self._paid_at_ns = time.monotonic_ns() + _RECORDING_SHARE * recorder.spent_ns

    def _send_recording(self, recorder: Recorder, found: Recording | None) -> None:
        """Sends the recording, or that there is none."""
        answer = Note(RECORDED, number=recorder.env_id, values=(recorder.number,))
        if found is None:
            return self._tell(answer)
        with write_recording(found) as segment, segment.reader() as reader:
            self._tell(replace(answer, fd=reader.fileno()))

    def _tell(self, note: Note) -> None:
        with self._connect() as channel:
            notes.send(channel, note)
            notes.receive(channel)  # the host has the descriptor

    # -- windows ---------------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        return names.connect(Path(os.fsdecode(self._session.tobytes().rstrip(b"\0"))))

    def _generation(self, env: int) -> int:
        return self._windows[env][0] if env in self._windows else -1

    def _publish(self, snapshot: Snapshot, generation: int) -> None:
        known = self._windows.get(snapshot.env_id)
        if known is not None and known[0] == generation and known[1].write(snapshot):
            return
        if known is not None:
            del self._windows[snapshot.env_id]
            known[1].close()
        # A lack of memory or the end of the session must not disturb the run.
        with contextlib.suppress(ShoalError, OSError):
            window = WriteWindow(snapshot)
            if self._send_window(snapshot.env_id, window):
                self._windows[snapshot.env_id] = generation, window
            else:  # the host has no room for another window now
                window.close()

    def _send_window(self, env: int, window: WriteWindow) -> bool:
        with self._connect() as channel, window.reader() as reader:
            notes.send(channel, Note(PUBLISH, number=env, fd=reader.fileno()))
            return notes.receive(channel) is not None

    def close(self) -> None:
        for _, window in self._windows.values():
            window.close()
        self._windows.clear()
