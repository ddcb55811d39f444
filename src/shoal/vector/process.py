"""Worker processes behind Gymnasium's VectorEnv: a drop-in for AsyncVectorEnv.

    step_async -> actions into the segment -> gates -> workers write rows of a slot -> step_wait lends it

Faults: a dead or slow worker is WorkerDied or WorkerTimeout; with on_fault="restart" it is replaced and its
rows come truncated, with info["fault"]. An exception of an environment arrives as itself.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, NoReturn

import gymnasium.vector
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ClosedError, ShoalError, WorkerDied
from shoal.native.refusals import refuse
from shoal.process.mail import Failure
from shoal.process.worker import ERROR
from shoal.spaces import Bounds
from shoal.state.session import AUTO, checked_session, open_session
from shoal.state.snapshot import Field
from shoal.vector import arguments
from shoal.vector.agreement import observation_spaces, require_same
from shoal.vector.exchange import Actions, Rows, blocks, is_laid_out
from shoal.vector.lending import Lender
from shoal.vector.looking import Looking
from shoal.vector.nans import require_no_nan
from shoal.vector.plans import PluginEnvs, make_plans
from shoal.vector.plugin_actions import PluginActions
from shoal.vector.repair import Repair
from shoal.vector.reports import raise_errors, sort_reports
from shoal.vector.rollout import Rollout, record
from shoal.vector.sendrecv import SendRecv
from shoal.vector.slots import Infos, Lent, copied
from shoal.vector.workers import NOTHING, Workers

__all__ = ["ProcessVectorEnv"]

_BUFFERS = ("leased", "live", "copy")
_CLOSE_S = 1.5
_MENDING_S = 60.0
_IN_PLACE = object()


class ProcessVectorEnv(Looking, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Steps environments in worker processes; results are lent from shared memory.

    >>> import gymnasium, shoal
    >>> envs = shoal.vector.ProcessVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8, num_workers=2)
    >>> observations, info = envs.reset(seed=0)
    >>> observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> observations.shape, len(envs.worker_pids)
    ((8, 4), 2)
    >>> envs.close()

    The arguments up to `max_concurrency` are AsyncVectorEnv's.

    Args:
        env_fns: Functions that make the environments; called in the workers, never here.
        shared_memory: False lets observations of spaces without a layout travel as messages.
        copy: True: results are leased, what you keep never changes. False: the next step overwrites the
            observations.
        context: How workers are started; None: from a clean process (no `__main__` guard is needed).
        daemon: False lets environments start processes of their own.
        worker: Not supported: what a custom worker was for is an argument here, or a wrapper.
        observation_mode: "same", "different", or a tuple of (batched, single) observation space.
        autoreset_mode: NEXT_STEP, SAME_STEP or DISABLED, as Gymnasium defines them.
        max_concurrency: No more environments at a time than this: no more workers than this are used.
        num_workers: Processes; environments go to them in contiguous chunks. None: one per core.
        caller_steps: The caller steps a chunk itself while the workers step theirs. For light environments
            you trust: they share the caller's fate.
        buffers: "leased", "live" or "copy", whatever `copy` says; None: as `copy` says.
        max_slots: Results you may hold without their being copied (`stats["copies"]` counts those).
        observation_space: Of one environment, if known ahead.
        action_space: Likewise.
        max_length: Bound for Sequence spaces, so that they live in shared memory.
        max_nodes: Bound for Graph spaces.
        max_edges: Bound for Graph spaces.
        on_fault: "raise", or "restart": replace a dead worker, make an environment that raised anew.
        step_timeout_s: A worker that takes longer for a step is killed; None: a warning after a minute.
        reset_timeout_s: Likewise for a reset, and for each stage of making a replacement (None: a minute if
            `step_timeout_s` is given).
        check: What is checked in each step: "actions" (they are in the space), "nan" (no observation or
            reward is NaN).
        episode_stats: Put return and length of finished episodes into `info["episode"]`.
        session: The name by which `shoal.attach` and `shoal watch` find this run; "auto": the environment's
            and this process's number. None: they do not.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]] | PluginEnvs,
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Any = None,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        num_workers: int | None = None,
        caller_steps: bool = False,
        batch_size: int | None = None,
        buffers: Literal["leased", "live", "copy"] | None = None,
        max_slots: int = 64,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        max_length: int | None = None,
        max_nodes: int | None = None,
        max_edges: int | None = None,
        on_fault: Literal["raise", "restart"] = "raise",
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        check: Iterable[str] | None = None,
        episode_stats: bool = False,
        session: str | None = AUTO,
    ) -> None:
        self.env_fns = env_fns
        asked = checked_session(session)
        self.shared_memory, self.copy, self.context, self.daemon = shared_memory, copy, context, daemon
        self.worker, self.observation_mode, self.max_concurrency = worker, observation_mode, max_concurrency
        self.autoreset_mode = arguments.autoreset_mode(autoreset_mode)
        self.lent = Lent()
        """The memory that results are lent from (`shoal.torch.pin`)."""
        self.buffers = arguments.choice("buffers", buffers or ("leased" if copy else "live"), _BUFFERS)
        self.on_fault = arguments.choice("on_fault", on_fault, ("raise", "restart"))
        self._raises = self.on_fault == "raise"
        self._limits = {
            "step": arguments.seconds("step_timeout_s", step_timeout_s),
            "reset": arguments.seconds("reset_timeout_s", reset_timeout_s),
            "call": None,
        }
        bounds = Bounds(max_length, max_nodes, max_edges)
        native = isinstance(env_fns, PluginEnvs)
        checks = arguments.checks(check, ("actions",) if native else ())
        self._check_nan = "nan" in checks
        if worker is not None:
            raise ValueError(
                "a custom `worker` is not supported: Shoal's workers step whole chunks. Wrap the environment "
                "in its env_fn instead; autoreset_mode, on_fault and check cover what workers were for"
            )
        self._guard = _core.Guard()
        """Every public call is inside it: one at a time, and close() waits for the one inside."""
        self._stepping = _core.Operation(self._guard, "step")
        self._pending: str | None = None
        self._abandoned: str | None = None
        """A call that timed out, or raised a death: nobody waits for it, but workers may be busy with it."""
        self._synchronous = self._interrupted = self._mending = False
        self._began = False  # whether all environments were reset once
        self._revived: list[Any] = []
        """What workers that a reset has brought back say of themselves."""
        self._mask: Any = None
        self._vector_steps = self._waited_ns = self._infos_ns = 0
        self._moves = 0  # steps, restores, and resets of environments that had not ended
        self._moved = True  # whether the reset under way is one of these
        self._disabled = self.autoreset_mode == AutoresetMode.DISABLED
        self._fresh_flags = buffers is None and not copy  # Gymnasium's copy=False shares observations alone
        division = make_plans(
            env_fns,
            self.autoreset_mode,
            num_workers,
            max_concurrency,
            caller_steps,
            context,
            daemon,
            bounds,
            observation_mode,
            on_fault == "restart",
        )
        self.num_envs, self.num_worlds = division.num_envs, division.num_worlds
        self.agents_per_env = self.num_envs // self.num_worlds
        self.num_workers = len(division.plans)
        self.batch_size = batch_size
        limit_s = self._limits["step"] or self._limits["reset"]
        self._workers = Workers(division, context, limit_s, self._guard)
        self._finalizer = weakref.finalize(self, _close_forgotten, self._guard, self._workers)
        try:
            facts = self._workers.start()
            self._adopt(facts, division.info, observation_space, action_space)
            name = str(facts["name"]) if division.info is None else division.info.plugin.name
            open_session = partial(self._open_session, asked, name)
            self._bind(bounds, checks, division.rows, max_slots, episode_stats, open_session)
        except BaseException:
            self.closed = True
            self._close_session()
            self._finalizer()
            raise

    def _open_session(self, asked: str | None, name: str) -> None:
        if asked is None:
            return
        board = self._workers.crew.board
        told = {
            "env": name,
            "num_envs": self.num_envs,
            "num_worlds": self.num_worlds,
            "agents": self.agents_per_env,
            "workers": self.num_workers,
            "backend": "process",
            "observation_space": str(self.single_observation_space),
            "action_space": str(self.single_action_space),
        }
        self._hosted = open_session(asked, told, self.num_worlds, board, board["sums"])

    def _close_session(self) -> None:
        if self._hosted is not None:
            self._hosted.close()

    def _adopt(
        self, facts: dict[str, Any], info: Any, observation: Space[Any] | None, action: Space[Any] | None
    ) -> None:
        """Takes over what the first environment says of itself."""
        self._info = info
        if info is not None:
            facts = {"observation_space": info.observation_space, "action_space": info.action_space}
        self.options = {} if info is None else dict(info.options)
        self.metadata = {**facts.get("metadata", {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = facts.get("render_mode")
        self.single_action_space = facts["action_space"] if action is None else action
        self.action_space = arguments.batched(self.single_action_space, self.num_envs)
        self.observation_space, self.single_observation_space = observation_spaces(
            self.observation_mode, facts, observation, self.num_envs
        )

    def _bind(
        self,
        bounds: Bounds,
        checks: set[str],
        rows: int,
        max_slots: int,
        episode_stats: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        """Agrees on spaces with the workers and makes the memory that is exchanged."""
        native = self._info is not None
        single, action = self.single_observation_space, self.single_action_space
        in_segment = is_laid_out(single, bounds, required=self.shared_memory)
        self._space = single if in_segment else None
        self._actions: Actions | PluginActions
        if native:
            self._actions = PluginActions(self._info.actions, self.num_envs, checks)
        else:
            self._actions = Actions(action, self.action_space, self.num_envs, bounds, "actions" in checks)
        same_step = self.autoreset_mode == AutoresetMode.SAME_STEP
        self._lender = Lender(
            self._workers,
            self.lent,
            self._space,
            self.num_envs,
            rows,
            bounds,
            native and same_step,
            self.buffers,
            arguments.count("max_slots", max_slots, 2**20),
        )
        if self.batch_size is None:
            self._lender.take()  # the first results will need it; so the workers are told of it with the rest
        mode = "same" if self.observation_mode == "same" else "different"
        same = self._workers.bind(mode, single, action, in_segment, self._actions, meanwhile)
        require_same(mode, same, single, action)
        mending_s = self._limits["reset"]
        if mending_s is None and self._limits["step"] is not None:  # who bounds a step bounds its repair too
            mending_s = max(_MENDING_S, self._limits["step"])
        self._repair = Repair(self._workers, self.on_fault == "restart", same_step, mending_s)
        board = self._workers.crew.board
        self._over, self._will_reset = (board[name][: self.num_worlds] for name in ("over", "reset"))
        self._infos: Infos | None = None
        if episode_stats or (native and same_step):
            fields = self._info.observations if native else []
            last = board["last_return"], board["last_length"]
            self._infos = Infos(fields, *last, episode_stats, self.num_envs)
            if self._info is not None and self._info.keeps_log:
                self._infos.told = self._workers.told(self._info)
        self._flight: SendRecv | None = None
        if self.batch_size is not None:
            batch = arguments.count("batch_size", self.batch_size, self.num_envs)
            if self.buffers != "leased" or native or self._workers.local is not None:
                raise ValueError(
                    "batch_size needs Python environments, buffers='leased' and caller_steps=False; "
                    "C environments are stepped asynchronously by backend='native'"
                )
            first = self._lender.first
            assert isinstance(self._actions, Actions)
            self._flight = SendRecv(self._workers, self._actions, first, self._repair, self.num_envs, batch)

    # -- reset ----------------------------------------------------------------------------------------

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or where `options["reset_mask"]` is True."""
        with _core.Operation(self._guard, "reset"):
            self._post_reset(seed, options)
            return self._reset_results(*self._finish("reset", None))

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Begins a reset; `reset_wait` gives its results."""
        with _core.Operation(self._guard, "reset_async"):
            self._post_reset(seed, options)
            self._interrupted = False  # somebody will wait for it

    def _post_reset(self, seed: Any, options: dict[str, Any] | None) -> None:
        self._require_ready("reset_async")
        seeds = arguments.seeds(seed, self.num_worlds)
        mask, others = arguments.reset_mask(options, self.num_envs, self.num_worlds)
        if self._info is not None:
            arguments.no_options(others)
        if mask is not None and not self._began and not mask.all():
            refuse("never reset")
        self._let_go()
        if self._disabled:
            chosen, begun_anew = slice(None) if mask is None else mask, self._workers.begun_anew
            self._moved = not (self._over | self._will_reset | begun_anew)[chosen].all()
            begun_anew[chosen] = False
        self._mending = bool(self._repair.lost)
        slot = self._lender.first if self._flight is not None else self._lender.take()
        self._revived = self._repair.revive(slot, mask)
        self._mask = mask
        self._workers.remember(seeds)
        self._posted: tuple[Any, int] = slot, 0
        self._again = partial(self._workers.post_reset_of, slot.number, 0, seeds, others, mask)
        self._post("reset", lambda: self._workers.post_reset(slot.number, 0, seeds, others, mask))

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The results of `reset_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        with _core.Operation(self._guard, "reset_wait"):
            return self._reset_results(*self._finish("reset", timeout))

    def _reset_results(self, reports: list[Any], slot: Any) -> tuple[Any, dict[str, Any]]:
        infos, errors = sort_reports(reports, slot.values, self._add_info, self._workers.infos)
        observation = slot.observation(self.single_observation_space)
        raise_errors(errors, (observation, infos))
        return self._lender.lent(slot, observation), infos

    # -- step -----------------------------------------------------------------------------------------

    def step(self, actions: Any = _IN_PLACE) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """`step(actions)` steps every environment; `step()` with what was written into `self.actions`."""
        with self._stepping:
            self._begin_step(actions)
            return self._step_results(*self._collected("step", None))

    def step_async(self, actions: Any = _IN_PLACE) -> None:
        """Begins a step; `step_wait` gives its results."""
        with _core.Operation(self._guard, "step_async"):
            self._begin_step(actions)
            self._interrupted = False

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The results of `step_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        with _core.Operation(self._guard, "step_wait"):
            return self._step_results(*self._finish("step", timeout))

    def _begin_step(self, actions: Any) -> None:
        self._require_ready("step_async")
        if self._abandoned is not None:
            self._catch_up()
        items = self._taken(actions)
        self._post_step(items, self._lender.take(), 0)

    def _taken(self, actions: Any) -> Any:
        if self._disabled and self._over.any():
            refuse("over")
        if self._info is not None and not self._began:
            refuse("not reset")
        if actions is _IN_PLACE:
            _ = self.actions  # raises where there is no such buffer
            self._actions.check_shared()
            return None
        return self._actions.take(actions)

    def _post_step(self, items: Any, into: Rows, row: int) -> None:
        self._posted = into, row
        self._interrupted, self._pending = True, "step"  # first: Ctrl-C may come in between
        try:
            is_posted = self._workers.post_step(into.number, row, items, self._raises)
        except BaseException as error:
            self._abandon_post("step", error)
            raise
        if not is_posted:
            self._pending = None
            self._workers.raise_known()

    def _post(self, kind: str, post: Callable[[], None]) -> None:
        self._interrupted, self._pending = True, kind
        try:
            post()
        except BaseException as error:
            self._abandon_post(kind, error)
            raise

    def _abandon_post(self, kind: str, error: BaseException) -> None:
        """Posting raised: the next call waits for workers that got it. What cannot be pickled, nobody got."""
        self._pending = None
        if not isinstance(error, Exception) or self._workers.crew.busy():
            self._abandoned = kind

    def _step_results(self, reports: list[Any], slot: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        infos, errors = self._sorted(reports, slot) if reports else (self._plain_infos(slot), [])
        flags = slot.flags()
        if self._fresh_flags:
            flags = copied(flags)
        results = (slot.observation(self.single_observation_space), *flags, infos)
        if self._infos is not None:
            self._add_episodes(slot, results)
        if errors:
            raise_errors(errors, results)
        if self._check_nan:
            require_no_nan(self.single_observation_space, results)
        return self._lender.lent(slot, results)  # type: ignore[no-any-return]

    def _finish(self, kind: str, timeout: float | None) -> tuple[list[Any], Any]:
        """Waits for what was posted; everybody's reports, and where the results are."""
        if self._pending != kind:
            raise NoAsyncCallError(f"Calling `{kind}_wait` without any prior call to `{kind}_async`.", kind)
        return self._collected(kind, timeout)

    def _catch_up(self, patient: bool = False) -> None:
        """Waits for what was abandoned. Its results are nobody's; its observations and deaths count."""
        if self._abandoned is not None:
            self._collected(self._abandoned, None, patient)

    def _let_go(self) -> None:
        """Catches up for a reset, which waits for all who live, and brings back whom it lost."""
        with contextlib.suppress(WorkerDied):
            self._catch_up(patient=True)

    def _collected(self, kind: str, timeout: float | None, patient: bool = False) -> tuple[list[Any], Any]:
        into, row = self._posted
        catching_up, mends = self._abandoned is not None, kind == "reset" and self._mending
        raises = self._raises and not patient and not mends
        begin = time.perf_counter_ns()
        try:
            outcome = self._workers.wait(self._limits[kind], timeout, raises=raises)
        except WorkerDied:  # at once: the others may be busy, even hang, and the next call waits for them
            self._pending, self._abandoned, self._interrupted = None, kind, False
            raise
        except ClosedError:  # another thread closes, and waits for this call
            self._pending = None
            raise
        except BaseException as error:
            if not isinstance(error, TimeoutError) or timeout is None:
                # Ctrl-C: wait for it again, or begin something else: then as after a timeout.
                self._interrupted = True
                raise
            self._pending, self._abandoned = None, kind
            raise multiprocessing.TimeoutError(
                f"The call to `{kind}_wait` has timed out after {timeout} second(s)."
            ) from None
        self._pending = self._abandoned = None
        self._interrupted = False
        if kind != "call" and self._space is None:
            into.values = [None] * self.num_envs
        if kind == "step":
            self._vector_steps += 1
            self._moves += 1
            if self._disabled:
                self._workers.begun_anew[:] = False
            self._waited_ns += time.perf_counter_ns() - begin
        reports: list[Any] = []
        if kind == "reset":
            reports, self._revived = self._revived, []
            self._moves += self._moved
            self._began = True
        owed = self._repair.owed if kind == "step" else ()
        if outcome is NOTHING and not owed:
            return reports, into
        for w in sorted(outcome.answers):
            if w in owed:
                continue
            answer = outcome.answers[w]
            if isinstance(answer, Failure):
                answer = [answer if kind == "call" else (None, ERROR, answer)]
            reports += answer
        if catching_up:
            if kind != "call":
                sort_reports(reports, into.values, lambda infos, info, env: infos)
            self._repair.after_abandoned(outcome.faults, into, row)
        elif kind == "step" and (outcome.faults or owed):
            reports += self._repair.after_step(outcome.faults, into, row)
        elif outcome.faults and kind == "reset":
            again, mask = self._again, self._mask
            reports += self._repair.after_reset(outcome.faults, into, row, again, mask, mends)
        elif outcome.faults:
            self._repair.after_call(outcome.faults, into, row)
        return reports, into

    def _sorted(self, reports: list[Any], rows: Rows) -> tuple[dict[str, Any], list[Failure]]:
        begin = time.perf_counter_ns()
        infos, errors = sort_reports(reports, rows.values, self._add_info, self._workers.infos)
        self._infos_ns += time.perf_counter_ns() - begin
        return infos, errors

    def _plain_infos(self, rows: Rows) -> dict[str, Any]:
        """The infos of a step without reports: almost always out of shared memory alone."""
        infos = self._workers.infos
        if infos is None or not infos.any():
            return {}
        begin = time.perf_counter_ns()
        found = infos.batch(None)
        self._infos_ns += time.perf_counter_ns() - begin
        return self._sorted([], rows)[0] if found is None else found

    def _add_episodes(self, slot: Any, results: tuple[Any, ...]) -> None:
        """Adds what there is to say of episodes that ended."""
        _, _, terminated, truncated, infos = results
        assert self._infos is not None
        if (terminated | truncated).any():
            finals = [] if slot.finals is None else slot.finals.read(0, self.num_envs)
            if isinstance(finals, dict):
                finals = list(finals.values())
            infos.update(self._infos(terminated, truncated, finals if isinstance(finals, list) else [finals]))

    # -- call -----------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or gets an attribute."""
        return self._call("call", name, args, kwargs)

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begins a call; `call_wait` gives its results."""
        with _core.Operation(self._guard, "call_async"):
            self._post_call("call_async", "call", [(name, args, kwargs)] * len(self._workers.parts()))
            self._interrupted = False

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of `call_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        with _core.Operation(self._guard, "call_wait"):
            return self._call_results(timeout)

    def _call(
        self, operation: str, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> tuple[Any, ...]:
        with _core.Operation(self._guard, operation):
            self._post_call("call_async", "call", [(name, args, kwargs or {})] * len(self._workers.parts()))
            return self._call_results(None)

    def _call_results(self, timeout: float | None) -> tuple[Any, ...]:
        answers, _ = self._finish("call", timeout)
        raise_errors([answer for answer in answers if isinstance(answer, Failure)], None)
        return tuple(answer.thaw() for answer in answers)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self._call("get_attr", name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute: to each environment its own of a list or tuple, or the same value to all."""
        with _core.Operation(self._guard, "set_attr"):
            if not isinstance(values, (list, tuple)):
                values = [values] * self.num_worlds
            if len(values) != self.num_worlds:
                raise ValueError(
                    "Values must be a list or tuple with length equal to the number of environments. "
                    f"Got `{len(values)}` values for {self.num_worlds} environments."
                )
            self._post_call("set_attr", "set", [(name, list(values[part])) for part in self._workers.parts()])
            self._call_results(None)

    def _post_call(self, name: str, kind: str, parts: list[tuple[Any, ...]]) -> None:
        self._require_ready(name)
        self._catch_up()
        self._posted = self._lender.first, 0
        self._post("call", lambda: self._workers.post_call(kind, parts))

    def render(self) -> tuple[Any, ...] | None:
        """What every environment's `render` gives."""
        return self._call("render", "render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of every environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of every environment's generator."""
        return self.get_attr("np_random")

    # -- beyond Gymnasium -----------------------------------------------------------------------------

    @property
    def actions(self) -> Any:
        """The action buffer itself: write into it, then call `step()` without arguments."""
        self._require_open()
        shared = self._actions.shared
        if shared is None:
            raise ShoalError(f"{self.single_action_space} has no single action buffer; pass actions to step")
        return shared

    @property
    def worker_pids(self) -> list[int | None]:
        """The worker processes; None where one is gone."""
        return [self._workers.crew.pid(w) for w in range(self.num_workers)]

    @property
    def stats(self) -> dict[str, Any]:
        """Steps, episodes, slots, copies, restarts; and in `time_us` where the time of a vector step went.

        `environments`: inside env.step, of the slowest worker; `copy`: the rest of its work, such as writing
        rows; `handoff`: waiting for it beyond that; `infos`: building the info dict. Averages.
        """
        self._require_open()
        counted = {"slots": self._lender.slots, "copies": self._lender.copies}
        times = self._vector_steps, self._waited_ns, self._infos_ns
        return self._workers.statistics(*times) | counted

    def shares_buffer(self, array: NDArray[Any]) -> bool:
        """Whether the next step may change this array: True for results of `buffers="live"` alone."""
        return self._lender.holds_live(array)

    def async_reset(self, seed: Any = None) -> None:
        """Resets every environment; their first observations come with `recv`."""
        with _core.Operation(self._guard, "async_reset"):
            flight = self._require_flight("async_reset")
            if flight.under_way and not self._repair.lost:
                raise ShoalError("environments are under way: recv() them before this")
            self._let_go()
            flight.abandon(self._limits["step"])
            self._synchronous = True
            try:
                self._post_reset(seed, None)
                flight.begin(self._finish("reset", None)[0])
            finally:
                self._synchronous = False

    def send(self, actions: Any, env_ids: Any) -> None:
        """Hands in the next actions of the environments `env_ids` (`info["env_id"]` of a `recv`)."""
        with _core.Operation(self._guard, "send"):
            self._require_flight("send").send(actions, env_ids)

    def recv(self, env_ids: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """A step's five results of the first `batch_size` environments ready; `info["env_id"]` names them.

        With `env_ids` it waits for those instead: for halves that take turns.
        """
        with _core.Operation(self._guard, "recv"):
            flight = self._require_flight("recv")
            taken, reports = flight.recv(env_ids, self._limits["step"])
            slot = self._lender.take_batch(flight.batch)
            infos, errors = flight.deliver(taken, reports, slot)
            results = (slot.observation(self.single_observation_space), *slot.flags(), infos)
            if errors:
                raise_errors(errors, results)
            if self._check_nan:
                require_no_nan(self.single_observation_space, results, taken)
            return results

    def rollout(self, length: int) -> Rollout:
        """Lends a block of `length + 1` rows of every environment; its `step` writes straight into it."""
        with _core.Operation(self._guard, "rollout"):
            self._require_ready("rollout")
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                raise ShoalError(
                    "rollout has no place for the final observations of autoreset_mode SAME_STEP; "
                    "use NEXT_STEP or DISABLED"
                )
            length = arguments.count("length", length, 2**31)
            if self._space is None or self._actions.kind == "message":
                raise ShoalError(
                    "a rollout needs observations and actions that live in shared memory, and values of "
                    "these spaces are messages; give Sequence and Graph bounds (max_length=, max_nodes=, "
                    "max_edges=), or use step"
                )
            self._catch_up()
            block = self._lender.block(length, self.single_action_space)
            assert block.memory is not None and block.actions is not None
            shape = length, self.num_envs
            recorded = blocks(block.actions, *shape)
            rollout = Rollout(
                blocks(block.memory, length + 1, self.num_envs),
                recorded,
                block.reward[: length * self.num_envs].reshape(shape),
                block.terminated[: length * self.num_envs].reshape(shape),
                block.truncated[: length * self.num_envs].reshape(shape),
                step=partial(self._step_into, block, recorded),
                moves=self._moves_made,
                guard=self._guard,
            )
            weakref.finalize(rollout, self._workers.drop_block, block.number).atexit = False
            return rollout

    def _moves_made(self) -> int:
        self._require_ready("step")
        if self._abandoned in ("step", "reset"):
            raise ShoalError(
                f"a {self._abandoned} that nobody waited for is under way, so no observation shows where the "
                "environments are; call reset(), or step() once, then start(observation)"
            )
        return self._moves

    def _step_into(self, block: Rows, recorded: Any, t: int, actions: Any) -> dict[str, Any]:
        self._catch_up()
        row = t * self.num_envs
        items = self._taken(actions)
        shared = self._actions.shared if items is None else None
        record(recorded, t, actions if shared is None else shared)
        self._post_step(items, block, row)
        reports, _ = self._finish("step", None)
        infos, errors = self._sorted(reports, block)
        raise_errors(errors, None)
        if self._check_nan:
            assert block.memory is not None
            first, end = row + block.ahead, row + self.num_envs
            seen = block.memory.read(first, first + self.num_envs)
            flags = block.terminated[row:end], block.truncated[row:end]
            require_no_nan(self.single_observation_space, (seen, block.reward[row:end], *flags, infos))
        return infos

    def has_extension(self, id: str) -> bool:
        """Whether environments in C have an ability, such as "shoal.checkpoint/1"."""
        return self._info is not None and self._info.plugin.has_extension(id)

    def save_env(self, env_id: int) -> bytes:
        """All that C environment `env_id` is, for `restore_env` of any environments with these options."""
        return self._of_stepper("save", env_id)  # type: ignore[no-any-return]

    def restore_env(self, env_id: int, data: bytes) -> None:
        """Makes C environment `env_id` what it was when `save_env` gave `data`."""
        if not isinstance(data, bytes):
            raise TypeError(f"a checkpoint is bytes, got {type(data).__name__}")
        self._of_stepper("restore", env_id, data)

    def render_env(self, env_id: int) -> NDArray[np.uint8]:
        """A picture of one C environment, [height, width, 3]."""
        height, width, pixels = self._of_stepper("render", env_id)
        return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)

    def _of_stepper(self, method: str, env_id: int, *rest: Any) -> Any:
        with _core.Operation(self._guard, f"{method}_env"):
            self._require_ready(method)
            if self._info is None:
                raise ShoalError(f"{method}_env is for environments in C; use call for those in Python")
            env = arguments.env_id(env_id, self.num_worlds)
            self._catch_up()
            if method == "restore" and not self._began:  # the other environments must be somewhere too
                self._workers.ask_owner(env, "stepper", "require_checkpoint", *rest)
                self._post_reset(None, None)
                self._finish("reset", None)
            answer = self._workers.ask_owner(env, "stepper", method, *rest)
            self._moves += method == "restore"
            return answer

    def _world(self, env_id: int) -> dict[str, Field]:
        env = arguments.env_id(env_id, self.num_worlds)
        with self._look("state"):
            w = self._workers.owner(env)
            self._rest(w)
            return self._workers.look(w, env - self._workers.parts()[w].start)[0]

    def _worlds(self) -> list[dict[str, Field]]:
        found: list[dict[str, Field]] = []
        with self._look("states"):
            for w in range(len(self._workers.parts())):
                self._rest(w)
                found += self._workers.look(w, None)
        return found

    def _rest(self, w: int) -> None:
        """Waits until a worker is between steps, and has nothing to do before somebody sends it."""
        if self._flight is not None:
            self._flight.rest(w, self._limits["step"], self._guard)
            return
        self._require_ready("state")
        self._catch_up()

    # -- life -----------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None, terminate: bool = False) -> None:  # type: ignore[override]
        """Ends the workers within two seconds, or `timeout`. Idempotent; arrays it returned stay valid.

        From another thread than the one that steps: a call that is inside raises ClosedError, and close
        waits until it has.
        """
        self.close_extras(timeout, terminate)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        limit = 0.0 if terminate else _CLOSE_S if timeout is None else max(0.0, timeout)
        with _core.Closing(self._guard) as is_first:
            if is_first and self._is_left_alone(limit):
                self._close(limit)

    def _is_left_alone(self, limit: float) -> bool:
        """Whether no call is inside any more. One that waits for a worker ends at the latest with it."""
        if self._guard.wait_until_free(limit):
            return True
        self._workers.crew.kill()
        return self._guard.wait_until_free(math.inf)

    def _close(self, limit: float) -> None:
        self.closed = True
        self._finalizer.detach()
        self._close_session()
        begin = time.monotonic()
        if not self._guard.is_forked:
            self._workers.settle(max(limit / 2, limit - 0.5))  # then they are asked to end
        self._workers.close(max(0.0, limit - (time.monotonic() - begin)))
        self._actions.close()
        pending, self._pending = self._pending, None
        if pending is not None and not self._interrupted:  # last: a warning may be made an error
            logger.warn(f"Calling `close` while waiting for a pending call to `{pending}` to complete.")

    def __enter__(self) -> ProcessVectorEnv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed and hasattr(self, "_finalizer"):
            self.closed = True
            self._close_session()
            self._finalizer()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "environments are processes and memory of this process and cannot be pickled; make them where "
            "they are used: pass the arguments instead"
        )

    def _require_open(self) -> None:
        self._guard.require_open()

    def _require_ready(self, name: str) -> None:
        if self._flight is not None and not self._synchronous:
            raise ShoalError(
                f"{name.removesuffix('_async')} is not for environments made with batch_size=; use "
                "async_reset, send and recv"
            )
        if self._interrupted and self._pending is not None:
            self._pending, self._abandoned, self._interrupted = None, self._pending, False
        if self._workers.is_asking:
            self._workers.catch_up()
        if self._pending is not None:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._pending}` to complete.",
                self._pending,
            )
        if self._repair.lost and name != "reset_async":
            raise next(iter(self._repair.lost.values()))

    def _require_flight(self, name: str) -> SendRecv:
        if self._flight is None:
            raise ShoalError(f"{name} is for environments made with batch_size=; use reset and step")
        if self._repair.lost and name != "async_reset":
            raise next(iter(self._repair.lost.values()))
        return self._flight


def _close_forgotten(guard: _core.Guard, workers: Workers) -> None:
    """For environments that nobody closed. At exit, a daemon thread may be inside a call, and stays there."""
    with _core.Closing(guard) as is_first:
        if is_first and guard.wait_until_free(0.5):
            workers.close(0.5)
        elif is_first:
            workers.crew.kill()
