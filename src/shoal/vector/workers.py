"""The process backend: a crew with its slots and actions, stepped, waited for and repaired.

It only starts, steps and waits; results, infos and Gymnasium's rules are process.py's.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from shoal.process.chunks import EnvChunk, derived_seed
from shoal.process.mail import Failure, HungUp
from shoal.process.pool import DIED, IDLE, WorkerPool
from shoal.process.worker import ERROR, INFO
from shoal.state.exports import from_native
from shoal.state.snapshot import Field
from shoal.vector.exchange import Actions, Rows
from shoal.vector.infos import InfoRows
from shoal.vector.plans import Division
from shoal.vector.plugin_actions import PluginActions

__all__ = ["NOTHING", "TRIES", "Outcome", "Workers", "copy_error"]

_SLOW_S = 60.0
_DESCRIPTORS_AT_ONCE = 64  # the kernel takes some 250 with one message
_QUICK_NS = 1_000_000
"""What is done within this takes no other care: far less than any limit, far more than a light step."""
TRIES = 3
"""How many replacements in a row may die."""


@dataclass(slots=True)
class Outcome:
    """What came of a command."""

    answers: dict[int, Any] = field(default_factory=dict)
    """Worker to the message it finished with, if any."""
    faults: dict[int, WorkerDied] = field(default_factory=dict)
    """Workers that are gone, with what is known."""


NOTHING = Outcome()
"""All has gone well, and nobody has anything to say."""


def copy_error(error: WorkerDied) -> WorkerDied:
    """The same error to raise. One that was raised keeps its frames, and through them the environments."""
    return type(error)(*error.args, **vars(error))


class _Local:
    """Stands for a worker's process where the caller itself steps a chunk."""

    def __init__(self, board: Segment) -> None:
        self.board = board


class Workers:
    """All that steps the environments of one vector environment."""

    def __init__(
        self, division: Division, context: str | None, limit_s: float | None, guard: _core.Guard
    ) -> None:
        """`limit_s` is for messages on the way to a command, which take no time."""
        info = division.info
        instance_bytes = 0 if info is None else max(1, info.instance_bytes)
        self.pool = WorkerPool(division.plans, division.rows, context, instance_bytes, guard)
        self.pool.limit_s = self._limit_s = limit_s
        self._local_plan = division.local
        self.local: EnvChunk | None = None
        self._autoreset = division.plans[0].autoreset
        self.infos = InfoRows(self.pool.board, self.parts(), division.num_envs) if info is None else None
        self._native = division.info is not None
        self._bound: tuple[Any, ...] | None = None
        self._actions: Actions | PluginActions | None = None
        self._blocks: dict[int, tuple[Segment, int, int]] = {}
        self._dropped: list[tuple[int, Segment]] = []
        self.lost: dict[int, WorkerDied] = {}
        """Workers whose death was raised and not yet mended."""
        self._guard = guard
        self.is_asking = False
        """Whether a question is under way that no command knows of."""
        self._kept = Outcome()
        """What a wait that was cut short had heard already, and deaths nobody was told of yet."""
        self._seeds: list[int | None] = [None] * division.num_worlds
        self.restarted = np.zeros(division.num_worlds, np.bool_)
        """Environments whose last result says that their episode was cut off: they need no reset."""
        self.restarts = 0
        self._restarted: dict[int, int] = {}
        self._slow_warned = False
        self._local_call: Callable[[], list[Any]] | None = None
        self._local_reports: list[Any] = []
        self.local_ns = 0

    def start(self) -> dict[str, Any]:
        """Starts everything and gives the facts of the first environment; raises what an env_fn raised."""
        self.pool.start()
        if self._local_plan is not None:
            self.local = EnvChunk(self._local_plan, _Local(self.pool.board))
        outcome = self._raise_errors(self.wait(None))
        self.pool.made = True
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
        """Tells all chunks their spaces and blocks; for each environment whether its own are the same.

        `meanwhile` is called while they compare.
        """
        self._bound = (mode, observation, action, in_segment, actions.kind)
        self._actions = actions
        blocks = [(number, rows, ahead) for number, (_, rows, ahead) in self._blocks.items()]
        fds = [*self._action_fds(), *(segment.fileno() for segment, _, _ in self._blocks.values())]
        self.pool.ask_all("bind", *self._bound, blocks, fds=fds)
        try:
            meanwhile()
        finally:
            outcome = self._raise_errors(self.wait(None))
        same = [pair for w in sorted(outcome.answers) for pair in outcome.answers[w]]
        if self.local is not None:
            same += self.local.bind(*self._bound, actions.segment)
            for number, (segment, rows, ahead) in self._blocks.items():
                self.local.add_slot(segment, number, rows, ahead)
        return same

    def _action_fds(self) -> list[int]:
        assert self._actions is not None
        return [] if self._actions.segment is None else [self._actions.segment.fileno()]

    def add_block(self, block: Rows) -> None:
        """Makes memory for results known to all chunks."""
        segment, number, rows, ahead = block.segment, block.number, block.rows, block.ahead
        if self._dropped:
            dropped, self._dropped = self._dropped, []
            self._tell_all("drop", [number for number, _ in dropped])
            for _, old in dropped:
                old.close()
            if self.local is not None:
                self.local.on_drop([number for number, _ in dropped])
        # A replacement needs it too, so the descriptor stays ours as long as it is in use.
        self._blocks[number] = (Segment.from_fileno(reopen(segment.fileno(), True)), rows, ahead)
        if self._bound is None:
            return  # `bind` tells of it
        try:
            self._tell_all("slot", number, rows, ahead, fds=[segment.fileno()])
        except BaseException:
            self.drop_block(number)
            raise
        if self.local is not None:
            self.local.add_slot(segment, number, rows, ahead)

    def drop_block(self, number: int) -> None:
        """Nobody writes there any more; the workers are told at the next opportunity."""
        block = self._blocks.pop(number, None)
        if block is not None:  # closed when they are told: it may be on its way to a replacement just now
            self._dropped.append((number, block[0]))

    # -- commands -------------------------------------------------------------------------------------

    def post_step(self, slot: int, row: int, items: Any, raises: bool) -> bool:
        """With `raises`, False where a death is known already (`raise_known`): then nobody steps."""
        if items is None:
            if not self.pool.step(slot, row, raises):
                return False
        elif raises and not self.pool.gates.all_live:
            return False
        mine: Any = None
        if items is not None:
            if self.local is not None:
                # Copied as a message copies: an environment may keep or change what it is given.
                mine = copy.deepcopy(items[self._local_first :])
            parts = (items[plan.first : plan.first + plan.count] for plan in self.pool.plans)
            self.pool.ask_each([("step", slot, row, part) for part in parts])
        if self.local is not None:
            local = self.local
            self._local_call = lambda: local.step(slot, row, mine)
        return True

    def raise_known(self) -> NoReturn:
        """Raises a death that is known, and remembers all."""
        self._kept.faults.clear()  # they are gone, too
        for w in self.pool.gates.dead():
            self.pool.reap_worker(w)
        self.lost.update(self.pool.gone)
        self._guard.require_not_closing()  # which forgets deaths
        raise copy_error(next(iter(self.lost.values())))

    @property
    def _local_first(self) -> int:
        assert self._local_plan is not None
        return self._local_plan.first

    def remember(self, seeds: list[int | None]) -> None:
        """The seeds of a reset, from which those of replacements are derived."""
        self._seeds = [old if new is None else new for old, new in zip(self._seeds, seeds, strict=True)]

    def post_reset(self, slot: int, row: int, seeds: list[int | None], options: Any, mask: Any) -> None:
        arguments = (slot, row, seeds, options, mask)
        self.pool.ask_each([self._reset_message(*arguments, w) for w in range(self.pool.size)])
        if self.local is not None:
            local, part = self.local, self.parts()[-1]
            chosen = None if mask is None else mask[part].tolist()
            self._local_call = lambda: local.on_reset(slot, row, seeds[part], options, chosen)

    def post_reset_of(
        self, slot: int, row: int, seeds: list[int | None], options: Any, mask: Any, w: int
    ) -> None:
        self.pool.ask(w, *self._reset_message(slot, row, seeds, options, mask, w))

    def _reset_message(
        self, slot: int, row: int, seeds: list[int | None], options: Any, mask: Any, w: int
    ) -> tuple[Any, ...]:
        part = self.parts()[w]
        return "reset", slot, row, seeds[part], options, None if mask is None else mask[part].tolist()

    def parts(self) -> list[slice]:
        """The environments of each chunk."""
        plans = [*self.pool.plans, *([] if self._local_plan is None else [self._local_plan])]
        return [slice(plan.first, plan.first + plan.count) for plan in plans]

    def post_call(self, kind: str, arguments_of: list[tuple[Any, ...]]) -> None:
        self.pool.ask_each([(kind, *arguments_of[w]) for w in range(self.pool.size)])
        if self.local is not None:
            method = getattr(self.local, f"on_{kind}")
            self._local_call = lambda: method(*arguments_of[-1])

    def _run_local(self) -> None:
        """The caller's own share of what was posted. Its reports stay until a wait has ended well."""
        call, self._local_call = self._local_call, None
        assert call is not None
        begin = time.perf_counter_ns()
        self._local_reports = call()
        self.local_ns += time.perf_counter_ns() - begin
        if self.local is not None and self.local.interrupted is not None:
            error, self.local.interrupted = self.local.interrupted, None
            raise error

    def ask_owner(self, env_id: int, name: str, method: str, *rest: Any) -> Any:
        """Asks the worker of one environment, and gives its answer."""
        w = self.owner(env_id)
        self.is_asking = True
        self.pool.ask(w, name, method, env_id - self.parts()[w].start, *rest)
        outcome = self.wait(None)
        self.is_asking = False
        return self._raise_errors(outcome).answers.get(w)

    def catch_up(self) -> None:
        """After a question whose answer was not awaited, for Ctrl-C came: waits for all who live."""
        self.is_asking = False
        outcome = Outcome()
        self._wait(outcome, self._limit_s, None, None, time.monotonic())
        self._kept.faults.update(outcome.faults)

    def owner(self, env_id: int) -> int:
        """The worker of an environment; as many as there are for the caller's own."""
        return next(w for w, part in enumerate(self.parts()) if part.start <= env_id < part.stop)

    def look(self, w: int, local: int | None) -> list[dict[str, Field]]:
        """What one environment of an idle worker exports, or each of them."""
        if w == self.pool.size:
            assert self.local is not None
            return self.local.on_look(local)
        self.is_asking = True
        self.pool.ask(w, "look", local)
        outcome = Outcome()
        self._wait(outcome, self._limit_s, None, w, time.monotonic())
        self.is_asking = False
        found: list[Any] = self._raise_errors(outcome).answers[w]
        if not self._native:
            return found
        return [from_native(raw, self.pool.board["instances"][w]) for raw in found]

    def find_env_logs(self, info: PluginInfo) -> EnvLogs | None:
        """The logs of C environments that keep one, in the board."""
        self.pool.ask(0, "look", 0)
        outcome = Outcome()
        self._wait(outcome, self._limit_s, None, 0, time.monotonic())
        raw = self._raise_errors(outcome).answers[0][0]
        instances = self.pool.board["instances"]
        return find_env_logs(
            info, raw, [(instances[w], plan.count) for w, plan in enumerate(self.pool.plans)]
        )

    def _tell_all(self, name: str, *arguments: Any, fds: Sequence[int] = ()) -> None:
        """A message to every worker, answered, on the way to a command that will find out who is gone."""
        self.is_asking = True
        self.pool.ask_all(name, *arguments, fds=fds)
        outcome = self.wait(self._limit_s)
        self.is_asking = False
        self._kept.faults.update(outcome.faults)
        self._raise_errors(Outcome(outcome.answers))

    def _raise_errors(self, outcome: Outcome) -> Outcome:
        self.lost.update(outcome.faults)
        for error in outcome.faults.values():
            raise copy_error(error)
        for answer in outcome.answers.values():
            if isinstance(answer, Failure):
                raise answer.exception()
        return outcome

    # -- waiting --------------------------------------------------------------------------------------

    def wait(self, limit_s: float | None, timeout_s: float | None = None, *, raises: bool = False) -> Outcome:
        """Until all have finished. Who needs over `limit_s` is killed; TimeoutError after `timeout_s`.

        With `raises`, the first death is raised at once: who is busy still is for another wait.
        """
        begin = time.monotonic()
        if self._local_call is not None:
            self._run_local()
        gates = self.pool.gates
        quickly = timeout_s is None and not self.pool.gone
        if quickly and gates.wait(_QUICK_NS, -1, raises) == IDLE and not gates.replied:
            if not (self._local_reports or self._kept.faults or self._kept.answers):
                return NOTHING
        outcome = self._kept
        if not (raises and outcome.faults):
            self._wait(outcome, limit_s, timeout_s, None, begin, raises)
        outcome.faults.update({w: error for w, error in self.pool.gone.items() if w not in self.lost})
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
                    outcome.faults[w] = pool.reap_worker(w, limit_s if pool.alive(w) else None)
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
                    pool.gates.reply(w)  # only now: Ctrl-C before this finds it there again

    def _warn_slow(self, waited: float) -> None:
        self._slow_warned = True
        for w in self.pool.busy():
            plan = self.pool.plans[w]
            which = f"environments {plan.first}-{plan.first + plan.count - 1}"
            logger.warn(
                f"worker {w} (process {self.pool.pid(w)}, {which}) has been busy for {waited:.0f} s; "
                "step_timeout_s= would end it. Its Python stack:\n%s",
                self.pool.show_stack(w),
            )

    def settle(self, timeout_s: float) -> None:
        """Gives what is under way a little time to end; who died meanwhile is for close to find."""
        with contextlib.suppress(KeyboardInterrupt):
            self.pool.wait(timeout_s)

    def statistics(self, vector_steps: int, waited_ns: int, infos_ns: int) -> dict[str, Any]:
        steps, episodes, returns, lengths = self.pool.board["sums"].sum(axis=0)[:4].tolist()
        busy_ns, env_ns = (max(part) for part in zip(*self._times(), strict=True))
        share = 1e-3 / max(1, vector_steps)
        return {
            "steps": int(steps),
            "episodes": int(episodes),
            "mean_return": returns / episodes if episodes else float("nan"),
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
        """Of every chunk: how long it took for steps, and the environments' part of that."""
        times = [self.pool.gates.times(w) for w in range(self.pool.size)]
        return times if self.local is None else [*times, (self.local_ns, self.local_ns)]

    # -- repair ---------------------------------------------------------------------------------------

    def replace(self, w: int, error: WorkerDied, slot: int, row: int, limit_s: float | None) -> list[Any]:
        """A new worker in place of one that is gone; first observations of its environments in their rows."""
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
        if self.pool.present(w):  # a replacement whose environments could not be made
            self.pool.reap_worker(w)
        self.restarts += 1
        count = self._restarted[w] = self._restarted.get(w, 0) + 1
        seeds: list[int | None] = [None] * len(self._seeds)
        for env in range(part.start, part.stop):
            seeds[env] = derived_seed(self._seeds[env], env, count)
        plan.seeds = seeds[part]
        bound = self._bound
        assert bound is not None
        blocks, memory = [], []
        for number, (segment, rows, ahead) in list(self._blocks.items()):  # a rollout may go meanwhile
            blocks.append((number, rows, ahead))
            memory.append(segment.fileno())
        ask, first = self.pool.ask, _DESCRIPTORS_AT_ONCE
        steps: list[Callable[[], None]] = [
            partial(self.pool.start, [w]),
            partial(ask, w, "bind", *bound, blocks[:first], fds=[*self._action_fds(), *memory[:first]]),
        ]
        for block, fd in zip(blocks[first:], memory[first:], strict=True):
            steps.append(partial(ask, w, "slot", *block, fds=[fd]))
        steps.append(partial(self.post_reset_of, slot, row, seeds, None, None, w))
        return self._run(w, steps, limit_s)

    def take_infos(self, envs: list[int]) -> list[Any]:
        """The infos in rows of environments of an idle worker, as reports."""
        return [] if self.infos is None else self.infos.take(envs)

    def take_infos_of(self, w: int) -> list[Any]:
        part = self.parts()[w]
        return self.take_infos(list(range(part.start, part.stop)))

    def reset_worker(
        self, w: int, slot: int, row: int, limit_s: float | None
    ) -> tuple[list[Any], WorkerDied | None]:
        """Resets the environments of one worker; their first observations in their rows, or its death."""
        seeds: list[int | None] = [None] * len(self._seeds)
        return self._run(w, [partial(self.post_reset_of, slot, row, seeds, None, None, w)], limit_s)

    def _run(
        self, w: int, steps: list[Callable[[], None]], limit_s: float | None
    ) -> tuple[list[Any], WorkerDied | None]:
        answer: Any = None
        for act in steps:
            act()
            outcome = Outcome()
            # For this worker alone: asynchronous stepping keeps the others busy, or they are dead themselves.
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
        self.lost.clear()  # an exception keeps its frames, and these keep us
        self.pool.gone.clear()
        if self.local is not None:
            self.local.close()
            self.local = None

    def mark(self, w: int, error: WorkerDied, into: Rows, row: int) -> list[Any]:
        """Marks the rows of a replaced worker: truncated, with info["fault"]."""
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
