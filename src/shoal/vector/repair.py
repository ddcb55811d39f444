"""What a dead worker means: an exception, or a new worker whose rows come truncated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.errors import WorkerDied
from shoal.process.worker import OBSERVATION
from shoal.vector.exchange import Rows
from shoal.vector.lending import copied
from shoal.vector.workers import TRIES, Workers, copy_error

__all__ = ["Repair"]


class Repair:
    """The policy of one vector environment, and the workers whose death was raised and not yet mended."""

    def __init__(self, workers: Workers, restarts: bool, same_step: bool, limit_s: float | None) -> None:
        self._workers, self._restarts, self._same_step = workers, restarts, same_step
        self._limit_s = limit_s
        self.lost = workers.lost
        self.unreported: dict[int, WorkerDied] = {}
        """Workers that were replaced where no result says so: their environments' next step is to."""

    def after_step(self, faults: dict[int, WorkerDied], into: Rows, row: int) -> list[Any]:
        """Replaces workers that died in a step; the reports of their environments, which begin anew."""
        self._raise_unless(self._restarts, faults)
        reports: list[Any] = []
        for w, error in faults.items():
            self.unreported.pop(w, None)
            reports += self.replace(w, error, into, row)
        for w, error in self.unreported.items():  # nobody saw the beginning of what they step now
            begun, again = self._workers.reset_worker(w, into.number, row, self._limit_s)
            if again is None:
                reports += self._mark_restarted(w, error, into, row, begun)
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
        """Replaces workers that died in a reset, and has them do it once more.

        Their environments are marked in the info: one that was not to be reset is another now all the same.
        `mending`: the reset is to bring workers back, and so it does with these.
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
            self.lost.update(outcome.faults)
            error = outcome.faults[w]
        raise copy_error(error)

    def after_abandoned(self, faults: dict[int, WorkerDied], into: Rows, row: int) -> None:
        """Replaces workers that died in what nobody waits for."""
        self._raise_unless(self._restarts, faults)
        for w, error in faults.items():
            self._replace_worker(w, error, into.number, row)
            self.unreported[w] = error

    def after_call(self, faults: dict[int, WorkerDied], into: Rows, row: int) -> None:
        """Replaces workers that died in a call; there is no result, so the death is raised all the same."""
        self.after_abandoned(faults, into, row)
        for error in faults.values():
            after = "it has been replaced, and the next step shows its environments truncated"
            raise type(error)(f"{error}; {after}", **vars(error)) from None

    def revive(self, into: Rows, mask: Any) -> list[Any]:
        """An explicit reset brings back workers whose death was raised; what their environments say."""
        reports: list[Any] = []
        for w, error in list(self.lost.items()):
            reports += self._replace_worker(w, error, into.number, 0) + self._workers.make_fault_infos(
                w, error
            )
            self.unreported[w] = error
        for w, error in list(self.unreported.items()):  # those of calls before, too
            self._update_unreported(w, error, mask)
        return reports

    def _update_unreported(self, w: int, error: WorkerDied, mask: Any) -> None:
        """After a reset: environments of this worker that it left alone have begun anew all the same."""
        if mask is None or mask[self._workers.parts()[w]].all():
            self.unreported.pop(w, None)
        else:
            self.unreported[w] = error

    def replace(self, w: int, error: WorkerDied, into: Rows, row: int) -> list[Any]:
        return self._mark_restarted(w, error, into, row, self._replace_worker(w, error, into.number, row))

    def _mark_restarted(self, w: int, error: WorkerDied, into: Rows, row: int, begun: list[Any]) -> list[Any]:
        """What there is to say of environments that begin anew, and that their old episodes were cut off."""
        marks = self._workers.mark(w, error, into, row)
        if not self._same_step:
            return begun + marks
        # The end of the episode is lost; what follows it stands in, so that a learner finds something.
        sent = {env: what for env, kind, what in begun if kind == OBSERVATION}
        for number, (env, kind, info) in enumerate(marks):
            seen = sent[env].thaw() if into.memory is None else copied(into.memory.read_one(row + env))
            marks[number] = env, kind, {"final_obs": seen, "final_info": dict(info), **info}
        return begun + marks

    def _replace_worker(self, w: int, error: WorkerDied, slot: int, row: int) -> list[Any]:
        self.lost[w] = error
        reports = self._workers.replace(w, error, slot, row, self._limit_s)
        del self.lost[w]
        return reports

    def _raise_unless(self, replaced: bool, faults: dict[int, WorkerDied]) -> None:
        self.lost.update(faults)  # each until it is replaced: that of one may fail before the next's turn
        if faults and not replaced:
            raise copy_error(next(iter(faults.values())))
