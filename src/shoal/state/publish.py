"""Publishing: a process that steps environments writes snapshots of the watched ones at the host's request.

Publishing must not disturb the run: an exception is published as the snapshot's error, and after each
publication the process waits fifty times as long as it took.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.state import names, notes
from shoal.state.notes import PUBLISH, Note
from shoal.state.snapshot import Snapshot
from shoal.state.windows import WriteWindow

__all__ = ["Publisher"]

_SHARE = 50
"""A process spends at most 1/_SHARE of its time on publishing."""


class Publisher:
    """The windows of one stepping process."""

    def __init__(self, memory: Mapping[str, NDArray[Any]], first: int, count: int) -> None:
        """`memory` has the host's list of (environment, generation); this process steps `count` of them."""
        self._session, self._watched = memory["session"], memory["watched"]
        self._mine = range(first, first + count)
        self._windows: dict[int, tuple[int, WriteWindow]] = {}
        self._published: dict[int, int] = {}
        self._pause_until_ns = 0

    def __call__(self, look: Callable[[int], Snapshot | None]) -> None:
        """Publishes the snapshot that `look` returns for each watched environment of this process."""
        now = time.monotonic_ns()
        asked = {env: generation for env, generation in self._watched.tolist() if env in self._mine}
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
        address = os.fsdecode(self._session.tobytes().rstrip(b"\0"))
        with names.connect(Path(address)) as channel, window.reader() as reader:
            notes.send(channel, Note(PUBLISH, number=env, fd=reader.fileno()))
            return notes.receive(channel) is not None

    def close(self) -> None:
        for _, window in self._windows.values():
            window.close()
        self._windows.clear()
