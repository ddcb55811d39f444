"""Handles dead workers: raises their error, or replaces them and marks their rows as truncated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.errors import WorkerDied
from shoal.process.worker import OBSERVATION
from shoal.vector.exchange import Rows
from shoal.vector.lending import copy_arrays
from shoal.vector.workers import TRIES, Workers, copy_error

__all__ = ["Repair"]


class Repair:
    """The fault policy of one vector environment, and the workers that were not replaced yet."""

    def __init__(self, workers: Workers, restarts: bool, same_step: bool, limit_s: float | None) -> None:
        self._workers, self._restarts, self._same_step = workers, restarts, same_step
        self._limit_s = limit_s
        self.unreplaced = workers.unreplaced
        self.unreported: dict[int, WorkerDied] = {}
        """Workers that were replaced without a result that says so. The next step must mark their rows."""

    def after_step(self, faults: dict[int, WorkerDied], into: Rows, row: int) -> list[Any]:
        """Replaces workers that died in a step; returns the reports of their new environments."""
        self._raise_unless(self._restarts, faults)
        reports: list[Any] = []
        for w, error in faults.items():
            self.unreported.pop(w, None)
            reports += self.replace(w, error, into, row)
        for w, error in self.unreported.items():  # the user never got the first observations: reset again
            first, again = self._workers.reset_worker(w, into.number, row, self._limit_s)
            if again is None:
                reports += self._mark_restarted(w, error, into, row, first)
            else:
                reports += self.replace(w, again, into, row)
        self.unreported.clear()
        return reports

    def after_reset(
        self,
        faults: dict[int, WorkerDied],
        into: Rows,
        row: int,
        again: Callable[[int], None],
        mask: Any,
        restarts_workers: bool,
    ) -> list[Any]:
        """Replaces workers that died in a reset, and resets again (`again`).

        All their environments get info["fault"], because those outside `mask` are new, too. With
        `restarts_workers`, the reset was called to restart workers, so it also replaces these.
        """
        self._raise_unless(self._restarts or restarts_workers, faults)
        reports: list[Any] = []
        for w, error in faults.items():
            reports += self._restart_and_reset(w, error, into, row, again)
            self._update_unreported(w, error, mask)
        return reports

    def _restart_and_reset(
        self, w: int, error: WorkerDied, into: Rows, row: int, again: Callable[[int], None]
    ) -> list[Any]:
        for _ in range(TRIES):
            self._replace_worker(w, error, into.number, row)
            again(w)
            outcome = self._workers.wait(self._limit_s)
            if w not in outcome.faults:
                reports: list[Any] = outcome.answers.get(w, []) + self._workers.take_infos_of(w)
                return reports + self._workers.make_fault_infos(w, error)
            self.unreplaced.update(outcome.faults)
            error = outcome.faults[w]
        raise copy_error(error)

    def after_abandoned(self, faults: dict[int, WorkerDied], into: Rows, row: int) -> None:
        """Replaces workers that died in an abandoned call."""
        self._raise_unless(self._restarts, faults)
        for w, error in faults.items():
            self._replace_worker(w, error, into.number, row)
            self.unreported[w] = error

    def after_call(self, faults: dict[int, WorkerDied], into: Rows, row: int) -> None:
        """Replaces workers that died in a call, then raises: without them the call has no result."""
        self.after_abandoned(faults, into, row)
        for error in faults.values():
            after = "it was replaced, and the next step returns its environments as truncated"
            raise type(error)(f"{error}; {after}", **vars(error)) from None

    def restart_dead(self, into: Rows, mask: Any) -> list[Any]:
        """Restarts workers whose death was raised, for a reset; returns their environments' reports."""
        reports: list[Any] = []
        for w, error in list(self.unreplaced.items()):
            reports += self._replace_worker(w, error, into.number, 0) + self._workers.make_fault_infos(
                w, error
            )
            self.unreported[w] = error
        for w, error in list(self.unreported.items()):  # also those of earlier calls
            self._update_unreported(w, error, mask)
        return reports

    def _update_unreported(self, w: int, error: WorkerDied, mask: Any) -> None:
        """After a reset: the worker stays unreported if the reset left out some of its environments."""
        if mask is None or mask[self._workers.parts()[w]].all():
            self.unreported.pop(w, None)
        else:
            self.unreported[w] = error

    def replace(self, w: int, error: WorkerDied, into: Rows, row: int) -> list[Any]:
        return self._mark_restarted(w, error, into, row, self._replace_worker(w, error, into.number, row))

    def _mark_restarted(self, w: int, error: WorkerDied, into: Rows, row: int, first: list[Any]) -> list[Any]:
        """Marks the old episodes as truncated; returns these reports and those of the first observations."""
        marks = self._workers.mark_truncated(w, error, into, row)
        if not self._same_step:
            return first + marks
        # The last observation is lost. The first of the next episode replaces it, so that final_obs exists.
        sent = {env: what for env, kind, what in first if kind == OBSERVATION}
        for number, (env, kind, info) in enumerate(marks):
            seen = sent[env].load() if into.memory is None else copy_arrays(into.memory.read_one(row + env))
            marks[number] = env, kind, {"final_obs": seen, "final_info": dict(info), **info}
        return first + marks

    def _replace_worker(self, w: int, error: WorkerDied, slot: int, row: int) -> list[Any]:
        self.unreplaced[w] = error
        reports = self._workers.replace(w, error, slot, row, self._limit_s)
        del self.unreplaced[w]
        return reports

    def _raise_unless(self, replaced: bool, faults: dict[int, WorkerDied]) -> None:
        self.unreplaced.update(faults)  # replacing one of them may raise before the others are replaced
        if faults and not replaced:
            raise copy_error(next(iter(faults.values())))
