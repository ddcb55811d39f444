"""Asynchronous stepping in worker processes: `send` starts steps, `recv` returns the first that are ready.

    send(actions, env_ids) -> tickets -> workers step environments with a new ticket, into rows of slot 0
    recv()                 <- the first `batch_size` that finished, their rows gathered into a slot

1. An environment is under way from send to recv. Its row is written when its finished word equals its ticket.
2. A worker sends a report (info, exception) over the socket before it writes the finished word.
3. If a worker dies, its environments that are under way are returned as truncated. Its other environments are
   returned as truncated after their next send.
4. recv regularly checks for workers that died or exceeded the limit, even while other environments are ready.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError, WorkerDied
from shoal.process.mail import Failure
from shoal.process.pool import DIED, TIMEOUT
from shoal.process.worker import OBSERVATION
from shoal.vector.exchange import Actions, Rows
from shoal.vector.repair import Repair
from shoal.vector.reports import sort_reports
from shoal.vector.workers import Workers

__all__ = ["SendRecv"]

_SLICE_S = 0.05


class SendRecv:
    """The environments that are under way, and their reports."""

    def __init__(
        self,
        workers: Workers,
        actions: Actions,
        state: Rows,
        repair: Repair,
        num_envs: int,
        batch: int,
    ) -> None:
        self._workers, self._actions, self._state, self._repair = workers, actions, state, repair
        self.batch = batch
        self._num_envs = num_envs
        self._out = np.zeros(num_envs, np.uint8)
        self._worker_of = np.zeros(num_envs, np.int64)
        for w, part in enumerate(workers.parts()):
            self._worker_of[part] = w
        self._sent_at = np.zeros(num_envs)
        self._next_look = 0.0
        self._limit_s: float | None = None
        self._start = 0
        self._reports: dict[int, list[Any]] = {}
        self._faulted: dict[int, Any] = {}
        self.began = False
        # Gymnasium's method to batch infos, for `batch` environments.
        self._infos: Any = GymnasiumVectorEnv()
        self._infos.num_envs = batch

    @property
    def under_way(self) -> int:
        return int(self._out.sum())

    def begin(self, reports: list[Any]) -> None:
        """Records that every environment was reset and is ready for `recv`."""
        self._out[:] = 1
        self._sent_at[:] = time.monotonic()
        for left in (self._state.reward, self._state.terminated, self._state.truncated):
            left[:] = 0  # from the step before the reset
        self._faulted.clear()
        self._reports.clear()
        self.began = True
        self._store_reports(reports)

    def require_ids(self, env_ids: Any) -> NDArray[np.int64]:
        """Returns the ids as an array; raises if they are not different ids of environments."""
        ids = np.asarray(env_ids)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
            raise TypeError(f"env_ids must be a list of ints, got {ids.dtype} of shape {ids.shape}")
        ids = ids.astype(np.int64)
        if ids.size and not (0 <= ids.min() and ids.max() < self._num_envs):
            raise IndexError(f"env_ids must be from 0 to {self._num_envs - 1}, got {ids.tolist()}")
        if len(set(ids.tolist())) != len(ids):
            raise ValueError(f"env_ids must name every environment at most once, got {ids.tolist()}")
        return ids

    def send(self, actions: Any, env_ids: Any) -> None:
        if not self.began:
            raise ResetNeeded("call async_reset() before send()")
        ids = self.require_ids(env_ids)
        if self._out[ids].any():
            twice = ids[self._out[ids] != 0].tolist()
            raise ShoalError(f"environments {twice} are under way already; recv() them before send()")
        self._actions.take_some(actions, ids.tolist())
        for env in ids.tolist() if self._reports else ():
            self._reports.pop(env, None)  # from the previous step
        faulted = [env for env in ids.tolist() if env in self._faulted] if self._faulted else []
        for env in faulted:  # its worker was replaced: return the truncated result without a step
            self._out[env] = 1
            row, self._reports[env] = self._faulted.pop(env)
            self._restore(env, row)
            ids = ids[ids != env]
        self._sent_at[ids] = time.monotonic()
        self._workers.pool.send(self._out, ids, self._worker_of)

    def recv(self, env_ids: Any, limit_s: float | None) -> list[int]:
        """Returns the environments that are ready. They stay under way until `deliver`."""
        self._limit_s = limit_s
        self._check_workers(limit_s)
        out, most = self._out.copy(), self.batch  # a copy: after Ctrl-C all of them are still under way
        if env_ids is not None:
            wanted = self.require_ids(env_ids)
            if len(wanted) != self.batch:
                raise ValueError(
                    f"recv returns {self.batch} environments (batch_size), got {len(wanted)} env_ids"
                )
            if not self._out[wanted].all():
                resting = wanted[self._out[wanted] == 0].tolist()
                raise ShoalError(
                    f"recv cannot return environments {resting}, which are not under way; send() them first"
                )
            out = np.zeros_like(self._out)
            out[wanted] = 1
        if int(out.sum()) < most:
            raise ShoalError(
                f"recv would wait for ever: it returns {most} environments and only {int(out.sum())} are "
                "under way; call async_reset() or send() first"
            )
        taken = self._take_finished(out, most, limit_s)
        if env_ids is not None:
            taken = wanted.tolist()
        self._take_messages(limit_s)
        return taken

    def _take_finished(self, out: NDArray[np.uint8], most: int, limit_s: float | None) -> list[int]:
        taken: list[int] = []
        begin = time.monotonic()
        while len(taken) < most:
            status, more = self._workers.pool.take_finished(out, self._start, most - len(taken), _SLICE_S)
            taken += more
            until = None if limit_s is None else begin + limit_s
            if status == TIMEOUT:  # a worker may be blocked because the socket is full of reports
                self._workers.pool.take_posted(self._store_reports, until)
            if status == DIED:
                self._reap_and_replace(self._workers.pool.gates.dead(), None)
            elif len(taken) < most and until is not None and time.monotonic() >= until:
                self._reap_and_replace(self._unfinished(out), limit_s)
        return taken

    def _take_messages(self, limit_s: float | None) -> None:
        """Reads the workers' reports. If one stopped while sending, the next call checks it."""
        until = None if limit_s is None else time.monotonic() + limit_s
        self._workers.pool.take_posted(self._store_reports, until)
        if until is not None and time.monotonic() >= until:
            self._next_look = 0.0

    def _check_workers(self, limit_s: float | None) -> None:
        """Replaces workers that died or exceeded the limit, even if `recv` does not need them now."""
        now, pool = time.monotonic(), self._workers.pool
        if pool.cut_off:
            self._reap_and_replace([w for w in pool.cut_off if pool.has_process(w)], None)
        if pool.reaped:  # Ctrl-C came after they were reaped
            for w in pool.cut_off | set(self._unfinished(self._out)):
                if w in pool.reaped:
                    self._replace(w, pool.reaped[w])
        if now < self._next_look:
            return
        self._next_look = now + _SLICE_S
        unfinished = self._unfinished(self._out)
        self._reap_and_replace([w for w in unfinished if pool.has_process(w) and not pool.is_alive(w)], None)
        if limit_s is not None:
            late = self._out & (now - self._sent_at >= limit_s)
            self._reap_and_replace(self._unfinished(late), limit_s)

    def _unfinished(self, out: NDArray[np.uint8]) -> list[int]:
        """Returns workers with unfinished environments. The gate cannot tell: an idle worker may step on."""
        board = self._workers.pool.board
        waiting = (out != 0) & (board["ticket"] != board["finished"])[: self._num_envs]
        return np.unique(self._worker_of[waiting]).tolist()  # type: ignore[no-any-return]

    def _reap_and_replace(self, workers: list[int], limit_s: float | None) -> None:
        pool = self._workers.pool
        for w in workers:
            late_s = limit_s if pool.is_alive(w) else None
            if late_s is not None:
                pool.show_stack(w, 0.2)
            pool.kill_and_wait(w)
            self._take_messages(self._limit_s)  # its last reports
            self._replace(w, pool.reap_worker(w, late_s))

    def _replace(self, w: int, error: WorkerDied) -> None:
        board = self._workers.pool.board
        part = self._workers.parts()[w]
        envs = range(part.start, part.stop)
        whole = [env for env in envs if self._out[env] and board["ticket"][env] == board["finished"][env]]
        if w in self._workers.pool.cut_off:
            whole = []
        kept = {env: self._row(env) for env in whole}
        self._store_reports(self._workers.take_infos(whole))
        board["finished"][part] = board["ticket"][part]  # otherwise the replacement would step these
        reports = self._repair.after_step({w: error}, self._state, 0)
        for env in envs:
            if env not in kept:
                self._reports.pop(env, None)
        self._store_reports([report for report in reports if report[1] == OBSERVATION])
        for env in envs:
            own = [report for report in reports if report[0] == env and report[1] != OBSERVATION]
            if self._out[env] and env not in kept:
                self._reports[env] = own
                continue
            self._faulted[env] = self._row(env), own
            if env in kept:  # it had finished before the death: return that result first
                self._restore(env, kept[env])

    def wait_until_idle(self, w: int, limit_s: float | None, guard: _core.Guard) -> None:
        """Waits until a worker has stepped everything that was sent; keeps its reports for `recv`."""
        pool = self._workers.pool
        board, part = pool.board, self._workers.parts()[w]
        begin = time.monotonic()
        while not np.array_equal(board["ticket"][part], board["finished"][part]) or not pool.gates.idle(w):
            waited = time.monotonic() - begin
            if not pool.is_alive(w) or (limit_s is not None and waited > limit_s):
                what = "has not finished its steps" if pool.is_alive(w) else "has died"
                raise ShoalError(f"worker {w} {what}; call recv(), which raises the error with its details")
            pool.take_posted(self._store_reports, None if limit_s is None else begin + limit_s)
            guard.require_not_closing()
            time.sleep(min(0.001, waited + 2e-5))
        pool.take_posted(self._store_reports, None)  # before a request, whose answer uses the same socket

    def abandon(self, limit_s: float | None) -> None:
        """After a death was raised: waits until the other workers have finished, and drops their results."""
        pool = self._workers.pool
        for w, part in enumerate(self._workers.parts()):
            if not pool.has_process(w):  # Ctrl-C may have come before its environments were handled
                pool.board["finished"][part] = pool.board["ticket"][part]
        while True:
            with contextlib.suppress(WorkerDied):  # the reset restarts those workers
                self._take_finished(self._out.copy(), self.under_way, limit_s)
                break
        self._take_messages(limit_s)
        self._out[:] = 0

    def _row(self, env: int) -> tuple[Any, ...]:
        state = self._state
        parts = [leaf[env].copy() for leaf in state.observations]
        value = state.values[env] if state.values else None
        return parts, value, state.reward[env], state.terminated[env], state.truncated[env]

    def _restore(self, env: int, row: tuple[Any, ...]) -> None:
        state = self._state
        for leaf, part in zip(state.observations, row[0], strict=True):
            leaf[env] = part
        if state.values:
            state.values[env] = row[1]
        state.reward[env], state.terminated[env], state.truncated[env] = row[2:]

    def _store_reports(self, reports: list[Any]) -> None:
        for report in reports:
            if report[1] == OBSERVATION:
                self._state.values[report[0]] = report[2].load()
            else:
                self._reports.setdefault(report[0], []).append(report)

    def deliver(self, taken: list[int], into: Rows) -> tuple[dict[str, Any], list[Failure]]:
        """Gathers the results into a slot; returns infos by position in the batch (with `env_id`), errors."""
        into.gather(self._state, taken)
        reports = [self._reports.get(env, []) for env in taken]
        infos: dict[str, Any] = {}
        errors: list[Failure] = []
        rows = self._workers.infos
        if any(reports) or (rows is not None and rows.any()):
            placed = [(position, kind, what) for position, own in enumerate(reports) for _, kind, what in own]
            infos, errors = sort_reports(placed, [], self._infos._add_info, rows, list(taken))
        infos["env_id"] = np.array(taken, np.int64)
        self._start = (max(taken) + 1) % self._num_envs
        self._out[taken] = 0  # last, in one statement: after Ctrl-C before it the next recv returns them
        return infos, errors
