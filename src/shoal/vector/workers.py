"""The workers of one vector environment, with the memory they share: starts, steps, waits and replaces.

Results, infos and Gymnasium's rules are the business of process.py.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from gymnasium import logger
from gymnasium.spaces import Space

from shoal import _core
from shoal.errors import WorkerDied
from shoal.memory import Segment
from shoal.memory.allocate import reopen
from shoal.native.env_logs import EnvLogs, find_env_logs
from shoal.native.plugin import PluginInfo
from shoal.process.chunks import EnvChunk, derive_seed
from shoal.process.mail import Failure, HungUp
from shoal.process.pool import DIED, IDLE, WorkerPool
from shoal.process.requests import (
    AddSlot,
    Bind,
    CallMethod,
    DropSlots,
    ReadState,
    Request,
    Reset,
    SetAttribute,
    Step,
    StepperMethod,
    UseStepper,
)
from shoal.process.worker import ERROR, INFO
from shoal.state.exports import from_native
from shoal.state.snapshot import Field
from shoal.vector.exchange import Actions, Rows
from shoal.vector.infos import InfoRows
from shoal.vector.plans import Division
from shoal.vector.plugin_actions import PluginActions

__all__ = ["NOTHING", "TRIES", "Outcome", "Workers", "copy_error"]

_SLOW_S = 60.0
_DESCRIPTORS_AT_ONCE = 64  # the kernel accepts some 250 with one message
_QUICK_NS = 1_000_000
"""`wait` first waits this long without checking limits: far less than any limit, more than a light step."""
TRIES = 3
"""How many replacements in a row may die."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a command, by worker."""

    answers: dict[int, Any] = field(default_factory=dict)
    """The message with which a worker finished, if it sent one."""
    faults: dict[int, WorkerDied] = field(default_factory=dict)
    """Workers that died, and how."""


NOTHING = Outcome()
"""No worker died, and none sent a message."""


def copy_error(error: WorkerDied) -> WorkerDied:
    """Returns a copy to raise: an exception that was raised keeps its frames and the environments alive."""
    return type(error)(*error.args, **vars(error))


class _Local:
    """Takes the place of a worker's side (WorkerSide) where the caller itself steps a chunk."""

    def __init__(self, board: Segment) -> None:
        self.board = board


class Workers:
    """The worker processes of one vector environment, and the chunk that the caller steps itself."""

    def __init__(
        self, division: Division, context: str | None, limit_s: float | None, guard: _core.Guard
    ) -> None:
        """`limit_s` limits requests that should take no time, such as announcing memory."""
        info = division.info
        instance_bytes = 0 if info is None else max(1, info.instance_bytes)
        self.pool = WorkerPool(division.plans, division.rows, context, instance_bytes, guard)
        self.pool.limit_s = self._limit_s = limit_s
        self._local_plan = division.local
        self.local: EnvChunk | None = None
        self._autoreset = division.plans[0].autoreset
        self.infos = InfoRows(self.pool.board, self.parts(), division.num_envs) if info is None else None
        self._native = division.info is not None
        self._bound: Bind | None = None
        self._actions: Actions | PluginActions | None = None
        self._blocks: dict[int, tuple[Segment, int, int]] = {}
        self._dropped: list[tuple[int, Segment]] = []
        self.unreplaced: dict[int, WorkerDied] = {}
        """Workers whose death was raised and that were not replaced yet."""
        self._guard = guard
        self.has_open_request = False
        """Whether a request was posted whose answer was not read, because Ctrl-C came."""
        self._kept = Outcome()
        """Answers that an interrupted wait had read, and deaths that were not reported yet."""
        self._seeds: list[int | None] = [None] * division.num_worlds
        self.restarted = np.zeros(division.num_worlds, np.bool_)
        """Environments whose last result was truncated by a restart: they need no reset."""
        self.restarts = 0
        self._restarted: dict[int, int] = {}
        self._slow_warned = False
        self._local_call: Callable[[], list[Any]] | None = None
        self._local_reports: list[Any] = []
        self.local_ns = 0

    def start(self) -> dict[str, Any]:
        """Starts all workers; returns the facts of the first environment. Raises what an env_fn raised."""
        self.pool.start()
        if self._local_plan is not None:
            self.local = EnvChunk(self._local_plan, _Local(self.pool.board))
        outcome = self._raise_errors(self.wait(None))
        self.pool.has_started = True
        facts = [outcome.answers[w] for w in sorted(outcome.answers)]
        if self.local is not None:
            facts.append(self.local.facts())
        whole = dict(facts[0])
        if whole.get("spaces") is not None:
            whole["spaces"] = [space for part in facts for space in part["spaces"]]
        return whole

    def bind(
        self,
        mode: Any,
        observation: Space[Any],
        action: Space[Any],
        in_segment: bool,
        actions: Actions | PluginActions,
        meanwhile: Callable[[], None],
    ) -> list[tuple[bool, bool]]:
        """Sends spaces and memory to all chunks; returns for each environment whether its spaces agree.

        `meanwhile` is called while the workers compare spaces.
        """
        blocks = [(number, rows, ahead) for number, (_, rows, ahead) in self._blocks.items()]
        self._bound = Bind(mode, observation, action, in_segment, actions.kind, blocks)
        self._actions = actions
        fds = [*self._action_fds(), *(segment.fileno() for segment, _, _ in self._blocks.values())]
        self.pool.request_all(self._bound, fds)
        try:
            meanwhile()
        finally:
            outcome = self._raise_errors(self.wait(None))
        same = [pair for w in sorted(outcome.answers) for pair in outcome.answers[w]]
        if self.local is not None:
            same += self.local.bind(self._bound, actions.segment)
            for number, (segment, rows, ahead) in self._blocks.items():
                self.local.add_slot(segment, number, rows, ahead)
        return same

    def _action_fds(self) -> list[int]:
        assert self._actions is not None
        return [] if self._actions.segment is None else [self._actions.segment.fileno()]

    def add_block(self, block: Rows) -> None:
        """Announces memory for results to all chunks."""
        segment, number, rows, ahead = block.segment, block.number, block.rows, block.ahead
        if self._dropped:
            dropped, self._dropped = self._dropped, []
            self._request_all(DropSlots([number for number, _ in dropped]))
            for _, old in dropped:
                old.close()
            if self.local is not None:
                self.local.on_drop([number for number, _ in dropped])
        # A replacement needs the memory too, so this descriptor stays open as long as the block is in use.
        self._blocks[number] = (Segment.from_fileno(reopen(segment.fileno(), True)), rows, ahead)
        if self._bound is None:
            return  # `bind` will announce it
        try:
            self._request_all(AddSlot(number, rows, ahead), [segment.fileno()])
        except BaseException:
            self.drop_block(number)
            raise
        if self.local is not None:
            self.local.add_slot(segment, number, rows, ahead)

    def drop_block(self, number: int) -> None:
        """Forgets memory for results; the workers close theirs before the next block is added."""
        block = self._blocks.pop(number, None)
        if block is not None:  # not closed yet: its descriptor may be on its way to a replacement
            self._dropped.append((number, block[0]))

    # -- commands -------------------------------------------------------------------------------------

    def post_step(self, slot: int, row: int, items: Any, raises: bool) -> bool:
        """Posts a step. With `raises`, posts none and returns False if a worker is dead (`raise_known`)."""
        if items is None:
            if not self.pool.step(slot, row, raises):
                return False
        elif raises and not self.pool.gates.all_live:
            return False
        mine: Any = None
        if items is not None:
            if self.local is not None:
                # A message would be a copy, too: an environment may keep or change its action.
                mine = copy.deepcopy(items[self._local_first :])
            parts = (items[plan.first : plan.first + plan.count] for plan in self.pool.plans)
            self.pool.request_each([Step(slot, row, part) for part in parts])
        if self.local is not None:
            local = self.local
            self._local_call = lambda: local.on_step(slot, row, mine)
        return True

    def raise_known(self) -> NoReturn:
        """Reaps all dead workers, records them as not replaced, and raises the first death."""
        self._kept.faults.clear()  # pool.reaped has them, too
        for w in self.pool.gates.dead():
            self.pool.reap_worker(w)
        self.unreplaced.update(self.pool.reaped)
        self._guard.require_not_closing()  # close() clears the deaths
        raise copy_error(next(iter(self.unreplaced.values())))

    @property
    def _local_first(self) -> int:
        assert self._local_plan is not None
        return self._local_plan.first

    def remember(self, seeds: list[int | None]) -> None:
        """Stores the seeds of a reset; the seeds of replacements are derived from them."""
        self._seeds = [old if new is None else new for old, new in zip(self._seeds, seeds, strict=True)]

    def post_reset(self, slot: int, row: int, seeds: list[int | None], options: Any, mask: Any) -> None:
        """Posts a reset to all chunks."""
        chunks = range(len(self.parts()))
        requests = [self._make_reset(slot, row, seeds, options, mask, w) for w in chunks]
        self.pool.request_each(requests[: self.pool.size])
        if self.local is not None:
            self._local_call = partial(requests[-1].run, self.local)

    def post_reset_of(
        self, slot: int, row: int, seeds: list[int | None], options: Any, mask: Any, w: int
    ) -> None:
        """Posts a reset to one worker."""
        self.pool.request(w, self._make_reset(slot, row, seeds, options, mask, w))

    def _make_reset(
        self, slot: int, row: int, seeds: list[int | None], options: Any, mask: Any, w: int
    ) -> Reset:
        part = self.parts()[w]
        return Reset(slot, row, seeds[part], options, None if mask is None else mask[part].tolist())

    def parts(self) -> list[slice]:
        """The environments of each chunk."""
        plans = [*self.pool.plans, *([] if self._local_plan is None else [self._local_plan])]
        return [slice(plan.first, plan.first + plan.count) for plan in plans]

    def post_call(self, requests: Sequence[CallMethod | SetAttribute]) -> None:
        """Posts each chunk its request."""
        self.pool.request_each(requests[: self.pool.size])
        if self.local is not None:
            self._local_call = partial(requests[-1].run, self.local)

    def _run_local(self) -> None:
        """Runs the caller's own chunk. Its reports are kept until a wait has succeeded."""
        call, self._local_call = self._local_call, None
        assert call is not None
        begin = time.perf_counter_ns()
        self._local_reports = call()
        self.local_ns += time.perf_counter_ns() - begin
        if self.local is not None and self.local.interrupted is not None:
            error, self.local.interrupted = self.local.interrupted, None
            raise error

    def use_stepper(self, env_id: int, method: StepperMethod, *rest: Any) -> Any:
        """Calls a method of the native stepper in the worker of one C environment; returns its answer."""
        w = self.owner(env_id)
        self.has_open_request = True
        self.pool.request(w, UseStepper(method, env_id - self.parts()[w].start, rest))
        outcome = self.wait(None)
        self.has_open_request = False
        return self._raise_errors(outcome).answers.get(w)

    def catch_up(self) -> None:
        """Waits for an answer that Ctrl-C kept from being read."""
        self.has_open_request = False
        outcome = Outcome()
        self._wait(outcome, self._limit_s, None, None, time.monotonic())
        self._kept.faults.update(outcome.faults)

    def owner(self, env_id: int) -> int:
        """Returns the worker of an environment; `pool.size` for those that the caller steps itself."""
        return next(w for w, part in enumerate(self.parts()) if part.start <= env_id < part.stop)

    def look(self, w: int, local: int | None) -> list[dict[str, Field]]:
        """Returns the exported state of one environment of an idle worker, or of each of them."""
        if w == self.pool.size:
            assert self.local is not None
            return self.local.on_look(local)
        self.has_open_request = True
        self.pool.request(w, ReadState(local))
        outcome = Outcome()
        self._wait(outcome, self._limit_s, None, w, time.monotonic())
        self.has_open_request = False
        found: list[Any] = self._raise_errors(outcome).answers[w]
        if not self._native:
            return found
        return [from_native(raw, self.pool.board["instances"][w]) for raw in found]

    def find_env_logs(self, info: PluginInfo) -> EnvLogs | None:
        """Returns the logs that C environments keep, as views of the board."""
        self.pool.request(0, ReadState(0))
        outcome = Outcome()
        self._wait(outcome, self._limit_s, None, 0, time.monotonic())
        raw = self._raise_errors(outcome).answers[0][0]
        instances = self.pool.board["instances"]
        return find_env_logs(
            info, raw, [(instances[w], plan.count) for w, plan in enumerate(self.pool.plans)]
        )

    def _request_all(self, request: Request, fds: Sequence[int] = ()) -> None:
        """Sends every worker a request and waits. Deaths are kept for the command that follows."""
        self.has_open_request = True
        self.pool.request_all(request, fds)
        outcome = self.wait(self._limit_s)
        self.has_open_request = False
        self._kept.faults.update(outcome.faults)
        self._raise_errors(Outcome(outcome.answers))

    def _raise_errors(self, outcome: Outcome) -> Outcome:
        self.unreplaced.update(outcome.faults)
        for error in outcome.faults.values():
            raise copy_error(error)
        for answer in outcome.answers.values():
            if isinstance(answer, Failure):
                raise answer.exception()
        return outcome

    # -- waiting --------------------------------------------------------------------------------------

    def wait(self, limit_s: float | None, timeout_s: float | None = None, *, raises: bool = False) -> Outcome:
        """Waits until all workers have finished, and returns what they sent.

        A worker that takes longer than `limit_s` is killed; after `timeout_s` TimeoutError is raised. With
        `raises`, the first death is raised at once, and the next wait is for the workers still busy.
        """
        begin = time.monotonic()
        if self._local_call is not None:
            self._run_local()
        gates = self.pool.gates
        quickly = timeout_s is None and not self.pool.reaped
        if quickly and gates.wait(_QUICK_NS, -1, raises) == IDLE and not gates.replied:
            if not (self._local_reports or self._kept.faults or self._kept.answers):
                return NOTHING
        outcome = self._kept
        if not (raises and outcome.faults):
            self._wait(outcome, limit_s, timeout_s, None, begin, raises)
        outcome.faults.update({w: error for w, error in self.pool.reaped.items() if w not in self.unreplaced})
        if raises and outcome.faults:
            self.raise_known()
        self._kept = Outcome()
        if self._local_reports:
            outcome.answers[self.pool.size] = self._local_reports
            self._local_reports = []
        return outcome

    def _wait(
        self,
        outcome: Outcome,
        limit_s: float | None,
        timeout_s: float | None,
        only: int | None,
        begin: float,
        to_first_death: bool = False,
    ) -> None:
        pool = self.pool
        while True:
            waited = time.monotonic() - begin
            limits = [_SLOW_S if not self._slow_warned else 3600.0]
            limits += [limit - waited for limit in (limit_s, timeout_s) if limit is not None]
            status = pool.wait(min(limits), only, to_first_death)
            if status == IDLE:
                break
            waited = time.monotonic() - begin
            if status == DIED:
                for w in pool.gates.dead():
                    if to_first_death or w in pool.busy(only):
                        outcome.faults[w] = pool.reap_worker(w)
                if to_first_death and outcome.faults:
                    return
            elif limit_s is not None and waited >= limit_s:
                for w in pool.busy(only):
                    outcome.faults[w] = pool.reap_worker(w, limit_s if pool.is_alive(w) else None)
            elif timeout_s is not None and waited >= timeout_s:
                raise TimeoutError
            elif limit_s is None and waited >= _SLOW_S and not self._slow_warned:
                self._warn_slow(waited)
        if pool.gates.replied:
            until = None if limit_s is None else begin + limit_s
            for w in range(pool.size) if only is None else [only]:
                try:
                    answer = pool.answer(w, until, forget=False)
                except HungUp:
                    late = until is not None and time.monotonic() >= until
                    outcome.faults[w] = pool.reap_worker(w, limit_s if late else None)
                    continue
                if answer is not None:
                    outcome.answers[w] = answer
                    pool.gates.reply(w)  # last: after Ctrl-C before this line the answer is read again

    def _warn_slow(self, waited: float) -> None:
        self._slow_warned = True
        for w in self.pool.busy():
            plan = self.pool.plans[w]
            which = f"environments {plan.first}-{plan.first + plan.count - 1}"
            logger.warn(
                f"worker {w} (process {self.pool.pid(w)}, {which}) has been busy for {waited:.0f} s; pass "
                "step_timeout_s= to kill such a worker. Its Python stack:\n%s",
                self.pool.show_stack(w),
            )

    def drain(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` for the current command; ignores deaths, because close() follows."""
        with contextlib.suppress(KeyboardInterrupt):
            self.pool.wait(timeout_s)

    def statistics(self, vector_steps: int, waited_ns: int, infos_ns: int) -> dict[str, Any]:
        steps, episodes, returns, lengths, odd = self.pool.board["sums"].sum(axis=0)[:5].tolist()
        busy_ns, env_ns = (max(part) for part in zip(*self._times(), strict=True))
        share = 1e-3 / max(1, vector_steps)
        return {
            "steps": int(steps),
            "episodes": int(episodes),
            "mean_return": returns / episodes if episodes and not odd else float("nan"),
            "mean_length": lengths / episodes if episodes else float("nan"),
            "restarts": self.restarts,
            "time_us": {
                "environments": env_ns * share,
                "copy": max(0, busy_ns - env_ns) * share,
                "handoff": max(0, waited_ns - busy_ns) * share,
                "infos": infos_ns * share,
            },
        }

    def _times(self) -> list[tuple[int, int]]:
        """Returns for every chunk the time spent in steps, and the part of it inside environments.

        C environments write their rows themselves, so all of it is inside them.
        """
        times = [self.pool.gates.times(w) for w in range(self.pool.size)]
        if self._native:
            return [(busy_ns, busy_ns) for busy_ns, _ in times]
        return times if self.local is None else [*times, (self.local_ns, self.local_ns)]

    # -- repair ---------------------------------------------------------------------------------------

    def replace(self, w: int, error: WorkerDied, slot: int, row: int, limit_s: float | None) -> list[Any]:
        """Replaces a dead worker; writes the first observations of its environments, returns reports."""
        for _ in range(TRIES):
            reports, again = self._try_replace(w, slot, row, limit_s)
            if again is None:
                return reports
            error = again
        raise copy_error(error)

    def _try_replace(
        self, w: int, slot: int, row: int, limit_s: float | None
    ) -> tuple[list[Any], WorkerDied | None]:
        plan, part = self.pool.plans[w], self.parts()[w]
        if self.pool.has_process(w):  # an earlier replacement, whose environments could not be made
            self.pool.reap_worker(w)
        self.restarts += 1
        count = self._restarted[w] = self._restarted.get(w, 0) + 1
        seeds: list[int | None] = [None] * len(self._seeds)
        for env in range(part.start, part.stop):
            seeds[env] = derive_seed(self._seeds[env], env, count)
        plan.seeds = seeds[part]
        bound = self._bound
        assert bound is not None
        blocks, memory = [], []
        for number, (segment, rows, ahead) in list(self._blocks.items()):  # a finalizer may drop one
            blocks.append((number, rows, ahead))
            memory.append(segment.fileno())
        request, first = self.pool.request, _DESCRIPTORS_AT_ONCE
        steps: list[Callable[[], None]] = [
            partial(self.pool.start, [w]),
            partial(request, w, replace(bound, blocks=blocks[:first]), self._action_fds() + memory[:first]),
        ]
        for block, fd in zip(blocks[first:], memory[first:], strict=True):
            steps.append(partial(request, w, AddSlot(*block), [fd]))
        steps.append(partial(self.post_reset_of, slot, row, seeds, None, None, w))
        return self._run(w, steps, limit_s)

    def take_infos(self, envs: list[int]) -> list[Any]:
        """Takes the infos in the rows of an idle worker's environments, as reports."""
        return [] if self.infos is None else self.infos.take(envs)

    def take_infos_of(self, w: int) -> list[Any]:
        part = self.parts()[w]
        return self.take_infos(list(range(part.start, part.stop)))

    def reset_worker(
        self, w: int, slot: int, row: int, limit_s: float | None
    ) -> tuple[list[Any], WorkerDied | None]:
        """Resets the environments of one worker; returns their reports, or the worker's death."""
        seeds: list[int | None] = [None] * len(self._seeds)
        return self._run(w, [partial(self.post_reset_of, slot, row, seeds, None, None, w)], limit_s)

    def _run(
        self, w: int, steps: list[Callable[[], None]], limit_s: float | None
    ) -> tuple[list[Any], WorkerDied | None]:
        answer: Any = None
        for act in steps:
            act()
            outcome = Outcome()
            # Only for this worker: the others may be busy (asynchronous stepping) or dead.
            self._wait(outcome, limit_s, None, w, time.monotonic())
            if w in outcome.faults:
                return [], outcome.faults[w]
            answer = outcome.answers.get(w)
            if isinstance(answer, Failure):
                raise answer.exception()
        for _, kind, what in answer or []:
            if kind == ERROR:
                raise what.exception()
        return [*(answer or []), *self.take_infos_of(w)], None

    def close(self, timeout_s: float) -> None:
        self.pool.stop(timeout_s)
        for number in list(self._blocks):
            self.drop_block(number)
        for _, segment in self._dropped:
            segment.close()
        self._dropped.clear()
        self.unreplaced.clear()  # an exception refers to its frames, and those refer to this object
        self.pool.reaped.clear()
        if self.local is not None:
            self.local.close()
            self.local = None

    def mark_truncated(self, w: int, error: WorkerDied, into: Rows, row: int) -> list[Any]:
        """Marks the rows of a replaced worker as truncated; returns reports with info["fault"]."""
        plan = self.pool.plans[w]
        begin = row + plan.first * plan.agents
        rows = slice(begin, begin + plan.count * plan.agents)
        into.reward[rows] = 0
        into.terminated[rows] = False
        into.truncated[rows] = True
        envs = slice(plan.first, plan.first + plan.count)
        self.pool.board["reset"][envs] = self._autoreset == _core.AUTORESET_NEXT_STEP
        self.restarted[envs] = True
        return self.make_fault_infos(w, error)

    def make_fault_infos(self, w: int, error: WorkerDied) -> list[Any]:
        plan = self.pool.plans[w]
        first = plan.first * plan.agents
        rows = range(first, first + plan.count * plan.agents)
        return [(env, INFO, {"fault": error.summary}) for env in rows]
