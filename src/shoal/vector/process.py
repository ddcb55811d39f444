"""Worker processes behind Gymnasium's VectorEnv: a drop-in for AsyncVectorEnv.

    step_async  ->  actions into the segment  ->  gates  ->  workers write rows of a slot  ->  step_wait lends it

Faults: a dead or slow worker is WorkerDied or WorkerTimeout, or with on_fault="restart" it is replaced and its
rows come truncated, with info["fault"]. An exception of an environment arrives as itself.
"""

from __future__ import annotations

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
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ForkedError, ShoalError, WorkerDied
from shoal.process.chunks import ERROR, INFO, OBSERVATION, Frozen
from shoal.process.mail import Failure
from shoal.spaces import Bounds
from shoal.vector import arguments
from shoal.vector.exchange import Actions, Rows, Slot, blocks, is_laid_out
from shoal.vector.plans import PluginEnvs, make_plans
from shoal.vector.rollout import Rollout
from shoal.vector.sendrecv import SendRecv
from shoal.vector.slots import Infos, copied
from shoal.vector.workers import Workers

__all__ = ["ProcessVectorEnv"]

_BUFFERS = ("leased", "live", "copy")
_CLOSE_S = 1.5
_IN_PLACE = object()


class ProcessVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Steps environments in worker processes; results are lent from shared memory.

    >>> import gymnasium, shoal
    >>> envs = shoal.vector.ProcessVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8, num_workers=2)
    >>> observations, info = envs.reset(seed=0)
    >>> observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> envs.close()

    The arguments up to `max_concurrency` are AsyncVectorEnv's.

    Args:
        env_fns: Functions that make the environments; called in the workers, never here.
        shared_memory: False lets observations of spaces without a layout travel as messages.
        copy: True: results are leased, what you keep never changes. False: live, overwritten by the next step.
        context: How workers are started; None: from a clean process kept for this (no `__main__` guard needed).
        daemon: False lets environments start processes of their own.
        worker: Not supported: what a custom worker was for is an argument here, or a wrapper.
        observation_mode: "same", "different", or a tuple of (batched, single) observation space.
        autoreset_mode: NEXT_STEP, SAME_STEP or DISABLED, as Gymnasium defines them.
        max_concurrency: No more environments at a time than this: no more workers than this are used.
        num_workers: Processes; environments go to them in contiguous chunks. None: one per core.
        caller_steps: The caller steps a chunk of its own while the workers step theirs. For light environments
            you trust: they share the caller's fate.
        buffers: "leased", "live" or "copy"; None: as `copy` says.
        max_slots: Results you may hold without their being copied (`stats["copies"]` counts those).
        observation_space: Of one environment, if known ahead.
        action_space: Likewise.
        max_length: Bound for Sequence spaces, so that they live in shared memory.
        max_nodes: Bound for Graph spaces.
        max_edges: Bound for Graph spaces.
        on_fault: "raise", or "restart": replace a dead worker, make an environment that raised anew.
        step_timeout_s: A worker that takes longer for a step is killed; None: a warning after a minute.
        reset_timeout_s: Likewise for a reset.
        check: Values looked at each step: "actions" (they must be in the space), "nan" (observations, rewards).
        episode_stats: Put return and length of finished episodes into `info["episode"]`.
        session: Reserved; must be None.
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
        session: None = None,
    ) -> None:
        self.env_fns = env_fns
        self.shared_memory, self.copy, self.context, self.daemon = shared_memory, copy, context, daemon
        self.worker, self.observation_mode, self.max_concurrency = worker, observation_mode, max_concurrency
        self.autoreset_mode = arguments.autoreset_mode(autoreset_mode)
        self.buffers = arguments.choice("buffers", buffers or ("leased" if copy else "live"), _BUFFERS)
        self.on_fault = arguments.choice("on_fault", on_fault, ("raise", "restart"))
        self._limits = {
            "step": arguments.seconds("step_timeout_s", step_timeout_s),
            "reset": arguments.seconds("reset_timeout_s", reset_timeout_s),
            "call": None,
        }
        self._max_slots = arguments.count("max_slots", max_slots, 2**20)
        self._bounds = Bounds(max_length, max_nodes, max_edges)
        native = isinstance(env_fns, PluginEnvs)
        checks = arguments.checks(check, ("actions", "nan") if native else ())
        self._check_nan = "nan" in checks and not native
        if worker is not None:
            raise ValueError(
                "a custom `worker` is not supported: Shoal's workers step whole chunks in C. Wrap the environment "
                "in its env_fn instead, or use autoreset_mode, on_fault and options"
            )
        if session is not None:
            raise ValueError(f"session must be None in this version, got {session!r}")
        self._forks = _core.fork_count()
        self.closed = False
        self._pending: str | None = None
        self._episode_stats = episode_stats
        layout = make_plans(
            env_fns, self.autoreset_mode, num_workers, max_concurrency, caller_steps, context, daemon,
            self._bounds, observation_mode, on_fault == "restart",
        )  # fmt: skip
        self.num_envs, self.num_worlds, self.num_workers = layout.num_envs, layout.num_worlds, len(layout.plans)
        self._rows = layout.rows
        self.batch_size = batch_size
        self._lost: dict[int, WorkerDied] = {}
        self._waited_ns = self._infos_ns = self._numbers = self.copies = 0
        self._workers = Workers(layout.plans, layout.local, layout.rows, context, layout.plans[0].autoreset)
        self._finalizer = weakref.finalize(self, self._workers.close, 0.5)
        try:
            self._begin(layout.info, observation_space, action_space, "actions" in checks, native)
        except BaseException:
            self.closed = True
            self._finalizer()
            raise

    def _begin(
        self, info: Any, observation: Space[Any] | None, action: Space[Any] | None, checked: bool, native: bool
    ) -> None:
        """Starts the workers, takes the spaces from them, and makes the first slot."""
        facts = self._workers.start()
        self._info = info
        if info is not None:
            facts = {
                "observation_space": info.observation_space,
                "action_space": info.action_space,
                "metadata": {"render_modes": []},
                "render_mode": None,
            }
        self.metadata = {**facts["metadata"], "autoreset_mode": self.autoreset_mode}
        self.render_mode = facts["render_mode"]
        self.options = {} if info is None else dict(info.options)
        self.single_action_space = facts["action_space"] if action is None else action
        self.action_space = arguments.batched(self.single_action_space, self.num_envs)
        self._adopt_observation_space(facts, observation)
        in_segment = is_laid_out(self.single_observation_space, self._bounds, required=self.shared_memory)
        self._space = self.single_observation_space if in_segment else None
        self._actions = Actions(
            self.single_action_space, self.action_space, self.num_envs, self._bounds, checked, strict=native
        )
        mode = "same" if self.observation_mode == "same" else "different"
        same = self._workers.bind(
            mode, self.single_observation_space, self.single_action_space, in_segment, self._actions
        )
        self._require_same(same)
        self._slots: list[Slot] = []
        self._add_slot()  # the first is never lent: live results, and those that must be copied, go there
        self._last: tuple[Rows, int] = self._slots[0], 0
        self._infos: Infos | None = None
        finals = native and self.autoreset_mode == AutoresetMode.SAME_STEP
        if self._episode_stats or finals:
            board = self._workers.crew.board
            fields = [] if info is None else info.observations
            last = board["last_return"], board["last_length"]
            self._infos = Infos(fields, *last, self._episode_stats, self.num_envs)
        self._extras = self._infos is not None or self._check_nan
        self._batches: list[Slot] = []
        self._flight: SendRecv | None = None
        self._synchronous = False
        if self.batch_size is not None:
            batch = arguments.count("batch_size", self.batch_size, self.num_envs)
            if self.buffers != "leased" or native or self._workers.local is not None:
                raise ValueError(
                    "batch_size needs Python environments, buffers='leased' and caller_steps=False; C environments "
                    "are stepped asynchronously by backend='native'"
                )
            self._flight = SendRecv(self._workers, self._actions, self._slots[0], self.num_envs, batch)

    def _adopt_observation_space(self, facts: dict[str, Any], given: Space[Any] | None) -> None:
        mode = self.observation_mode
        if isinstance(mode, tuple) and len(mode) == 2:
            if not all(isinstance(space, Space) for space in mode):
                raise TypeError(
                    "Expected both elements of observation_mode to be Spaces, got "
                    f"{type(mode[0])} and {type(mode[1])}"
                )
            self.observation_space, self.single_observation_space = mode
        elif mode == "same":
            self.single_observation_space = facts["observation_space"] if given is None else given
            self.observation_space = arguments.batched(self.single_observation_space, self.num_envs)
        elif mode == "different":
            self.single_observation_space = facts["spaces"][0] if given is None else given
            self.observation_space = batch_differing_spaces(facts["spaces"])
        else:
            raise ValueError(
                "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch "
                f"observation space, actual got {mode}"
            )

    def _require_same(self, same: list[tuple[bool, bool]]) -> None:
        observations = [number for number, (fits, _) in enumerate(same) if not fits]
        actions = [number for number, (_, fits) in enumerate(same) if not fits]
        if observations and self.observation_mode == "same":
            raise RuntimeError(
                f"observation_mode='same', however the observation spaces of environments {_few(observations)} "
                f"differ from {self.single_observation_space}: the sub-environments observation spaces are not "
                "equivalent. If this is intentional, use `observation_mode='different'` instead."
            )
        if observations:
            raise RuntimeError(
                f"the observation spaces of environments {_few(observations)} do not share a common shape and "
                f"dtype with {self.single_observation_space}."
            )
        if actions:
            raise RuntimeError(
                f"environments {_few(actions)} have an action space different from `{self.single_action_space}`. "
                "In order to batch actions, the action spaces from all environments must be equal."
            )

    # -- reset ----------------------------------------------------------------------------------------

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or where `options["reset_mask"]` is True."""
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Begins a reset; `reset_wait` gives its results."""
        self._require_ready("reset_async")
        seeds = arguments.seeds(seed, self.num_worlds)
        mask, others = arguments.reset_mask(options, self.num_envs, self.num_worlds)
        if self._info is not None:
            arguments.no_options(others)
            others = None
        self._revive()
        slot = self._take_slot()
        if mask is not None:
            slot.copy_rows(*self._last, np.repeat(~mask, self.num_envs // self.num_worlds))
        known = self._workers.seeds or [None] * self.num_worlds
        self._workers.seeds = [old if new is None else new for old, new in zip(known, seeds, strict=True)]
        self._posted = slot, 0
        self._workers.post_reset(slot.number, 0, seeds, others, mask)
        self._again = lambda w: self._workers._post_reset_of(w, slot.number, 0, seeds, others, mask)
        self._pending = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The results of `reset_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        reports, slot = self._finish("reset", timeout)
        infos, errors = self._sorted(reports, slot)
        self._raise_errors(errors, (slot.observation(self.single_observation_space), infos))
        observation = slot.observation(self.single_observation_space)
        return self._lent(slot, observation), infos

    # -- step -----------------------------------------------------------------------------------------

    def step(self, actions: Any = _IN_PLACE) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """`step(actions)` steps every environment; `step()` with what was written into `self.actions`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any = _IN_PLACE) -> None:
        """Begins a step; `step_wait` gives its results."""
        self._require_ready("step_async")
        self._post_step(actions, self._take_slot(), 0)

    def _post_step(self, actions: Any, into: Any, row: int) -> None:
        items = None if actions is _IN_PLACE and self._actions.array is not None else self._actions.take(actions)
        self._posted = into, row
        self._workers.post_step(into.number, row, items)
        self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The results of `step_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        reports, slot = self._finish("step", timeout)
        infos, errors = self._sorted(reports, slot) if reports else ({}, [])
        results = (slot.observation(self.single_observation_space), *slot.flags(), infos)
        if self._extras:
            self._add_extras(slot, results, infos)
        if errors:
            self._raise_errors(errors, results)
        return self._lent(slot, results)  # type: ignore[no-any-return]

    def _finish(self, kind: str, timeout: float | None) -> tuple[list[Any], Any]:
        """Waits for what was posted; everybody's reports, and where the results are."""
        self._require_open()
        if self._pending != kind:
            raise NoAsyncCallError(f"Calling `{kind}_wait` without any prior call to `{kind}_async`.", kind)
        workers, (into, row) = self._workers, self._posted
        begin = time.perf_counter_ns()
        local = workers.run_local()
        try:
            outcome = workers.wait(self._limits[kind], timeout)
        except TimeoutError:
            self._pending = None
            workers.abandoned = True
            raise multiprocessing.TimeoutError(
                f"The call to `{kind}_wait` has timed out after {timeout} second(s)."
            ) from None
        self._pending = None
        self._waited_ns += time.perf_counter_ns() - begin
        reports: list[Any] = []
        for w in sorted(outcome.answers):
            answer = outcome.answers[w]
            reports += [(None, ERROR, answer)] if isinstance(answer, Failure) else answer
        reports += local
        if outcome.faults:
            reports += self._repaired(kind, outcome.faults, into, row)
        return reports, into

    def _repaired(self, kind: str, faults: dict[int, WorkerDied], into: Rows, row: int) -> list[Any]:
        """Raises, or replaces the workers that are gone and gives the reports of their new environments."""
        self._lost.update(faults)
        if self.on_fault == "raise":
            raise next(iter(faults.values()))
        reports: list[Any] = []
        limit = self._limits["reset"]
        for w, error in faults.items():
            begun = self._workers.replace(w, error, into.number, row, limit)
            if kind == "reset":
                self._again(w)
                outcome = self._workers.wait(limit)
                if outcome.faults:
                    raise outcome.faults[w]
                reports += outcome.answers.get(w, [])
            else:
                reports += begun + self._marked(w, error, into, row, begun)
            del self._lost[w]
        if kind == "call":
            raise next(iter(faults.values()))
        return reports

    def _marked(self, w: int, error: WorkerDied, into: Rows, row: int, begun: list[Any]) -> list[Any]:
        marks = self._workers.mark(w, error, into, row)
        if self.autoreset_mode != AutoresetMode.SAME_STEP:
            return marks
        # The end of the episode is lost; what follows it stands in, so that a learner finds something to read.
        sent = {env: what for env, kind, what in begun if kind == OBSERVATION}
        whole = []
        for env, kind, info in marks:
            seen = sent[env].thaw() if into.memory is None else copied(into.memory.read_one(row + env))
            whole.append((env, kind, {"final_obs": seen, "final_info": dict(info), **info}))
        return whole

    def _revive(self) -> None:
        """An explicit reset brings back workers whose death was raised."""
        for w, error in list(self._lost.items()):
            self._workers.replace(w, error, 0, 0, self._limits["reset"])
            del self._lost[w]

    def _sorted(self, reports: list[Any], slot: Any) -> tuple[dict[str, Any], list[Failure]]:
        """Reports as Gymnasium's infos, and the errors among them; observations go to their slot."""
        begin = time.perf_counter_ns()
        infos: dict[str, Any] = {}
        errors: list[Failure] = []
        for env, kind, what in reports:
            if kind == ERROR:
                errors.append(what)
                continue
            value = what.thaw() if type(what) is Frozen else what
            if kind == INFO:
                infos = self._add_info(infos, value, env)
            else:
                slot.values[env] = value
        self._infos_ns += time.perf_counter_ns() - begin
        return infos, errors

    def _raise_errors(self, errors: list[Failure], results: Any) -> None:
        """Raises the last environment's exception, its own, with the other results of the step beside it."""
        if not errors:
            return
        for failure in errors:
            logger.error(f"Received the following error from Worker-{failure.env_id} - Shutting it down")
            logger.error(failure.text)
        logger.error("Raising the last exception back to the main process.")
        error = errors[-1].exception()
        error.results = copied(results)  # type: ignore[attr-defined]
        raise error

    def _add_extras(self, slot: Slot, results: tuple[Any, ...], infos: dict[str, Any]) -> None:
        observation, reward, terminated, truncated, _ = results
        if self._infos is not None and (terminated | truncated).any():
            finals = [] if slot.finals is None else _leaves(slot.finals.read(0, self.num_envs))
            infos.update(self._infos(terminated, truncated, finals))
        if self._check_nan:
            _require_no_nan(observation, "observation")
            _require_no_nan(reward, "reward")

    # -- slots ----------------------------------------------------------------------------------------

    def _take_slot(self) -> Slot:
        """A slot nobody holds."""
        self._workers.catch_up(self._limits["step"])
        if self.buffers != "leased" or self._flight is not None:
            return self._slots[0]
        for slot in self._slots[1:]:
            if slot.free:
                return slot
        return self._slots[0] if len(self._slots) > self._max_slots else self._add_slot()

    def _add_slot(self) -> Slot:
        finals = self._info is not None and self.autoreset_mode == AutoresetMode.SAME_STEP
        slot = Slot(self._numbers, self._space, self.num_envs, self._rows, self._bounds, finals)
        self._numbers += 1
        self._workers.add_block(slot.segment, slot.number, self._rows, 0)
        self._slots.append(slot)
        slot.settle()
        return slot

    def _lent(self, slot: Slot, results: Any) -> Any:
        self._last = slot, 0
        if slot.number != 0 or self.buffers == "live":
            return results
        self.copies += self.buffers == "leased"
        return copied(results)

    # -- call -----------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or gets an attribute."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begins a call; `call_wait` gives its results."""
        self._require_ready("call_async")
        self._workers.catch_up(self._limits["step"])
        self._post_call("call", [(name, args, kwargs)] * (self.num_workers + 1))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of `call_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        answers, _ = self._finish("call", timeout)
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        self._raise_errors(failures, None)
        return tuple(answer.thaw() for answer in answers)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute: to each environment its own of a list or tuple, or the same value to all."""
        self._require_ready("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_worlds
        if len(values) != self.num_worlds:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_worlds} environments."
            )
        self._workers.catch_up(self._limits["step"])
        parts = self._workers.parts()
        self._post_call("set", [(name, list(values[part])) for part in parts])
        answers, _ = self._finish("call", None)
        self._raise_errors([answer for answer in answers if isinstance(answer, Failure)], None)

    def _post_call(self, kind: str, arguments_of: list[tuple[Any, ...]]) -> None:
        self._posted = self._slots[0], 0
        self._workers.post_call(kind, arguments_of)
        self._pending = "call"

    def render(self) -> tuple[Any, ...] | None:
        """What every environment's `render` gives."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of every environment's generator."""
        return self.get_attr("np_random_seed")

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of every environment's generator."""
        return self.get_attr("np_random")

    # -- beyond Gymnasium -----------------------------------------------------------------------------

    @property
    def actions(self) -> Any:
        """The action buffer itself: write into it, then call `step()` without arguments."""
        if self._actions.array is None:
            raise ShoalError(f"{self.single_action_space} has no single action buffer; pass actions to step")
        return self._actions.array

    @property
    def worker_pids(self) -> list[int | None]:
        """The worker processes; None where one is gone."""
        return [self._workers.crew.pid(w) for w in range(self.num_workers)]

    def shares_buffer(self, array: NDArray[Any]) -> bool:
        """Whether the next step may change this array: True for results of `buffers="live"` alone."""
        return self.buffers == "live" and self._slots[0].holds(array)

    @property
    def stats(self) -> dict[str, Any]:
        """Steps, episodes, slots, copies, restarts; and where the time of a step went, in microseconds."""
        self._require_open()
        return self._workers.statistics(
            slots=len(self._slots) - 1,
            copies=self.copies,
            waited_ns=self._waited_ns,
            infos_ns=self._infos_ns,
        )

    def async_reset(self, seed: Any = None) -> None:
        """Resets every environment; their first observations come with `recv`."""
        flight = self._require_flight("async_reset")
        if flight.began and flight.under_way:
            raise ShoalError("environments are under way: recv() them before this")
        self._synchronous = True
        try:
            self.reset_async(seed)
            reports, _ = self._finish("reset", None)
        finally:
            self._synchronous = False
        flight.begin(reports)

    def send(self, actions: Any, env_ids: Any) -> None:
        """Hands in the next actions of the environments `env_ids` (`info["env_id"]` of a `recv`)."""
        self._require_flight("send").send(actions, env_ids)

    def recv(self, env_ids: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """A step's five results of the first `batch_size` environments ready; `info["env_id"]` names them.

        With `env_ids` it waits for those instead: for halves that take turns.
        """
        flight = self._require_flight("recv")
        taken, reports = flight.recv(env_ids, self._limits["step"], self.on_fault == "restart")
        slot = next((slot for slot in self._batches if slot.free), None)
        copies = slot is None and len(self._batches) >= self._max_slots
        if slot is None:
            slot = Slot(-1, self._space, flight.batch, flight.batch, self._bounds, finals=False)
            slot.settle()
            if not copies:
                self._batches.append(slot)
        self.copies += copies
        flight.gathered(taken, slot)
        infos, errors = flight.infos(taken, reports)
        results = (slot.observation(self.single_observation_space), *slot.flags(), infos)
        self._raise_errors(errors, results)
        return results

    def _require_flight(self, name: str) -> SendRecv:
        self._require_open()
        if self._flight is None:
            raise ShoalError(f"{name} is for environments made with batch_size=; use reset and step")
        if self._lost:
            raise next(iter(self._lost.values()))
        return self._flight

    def rollout(self, length: int) -> Rollout:
        """Lends a block of `length + 1` rows of every environment; its `step` writes straight into it."""
        self._require_ready("rollout")
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            raise ShoalError(
                "rollout has no place for the final observations of autoreset_mode SAME_STEP; "
                "use NEXT_STEP or DISABLED"
            )
        length = arguments.count("length", length, 2**31)
        if self._space is None or self._actions.kind == "message":
            raise ShoalError("a rollout needs observations and actions that live in shared memory")
        self._workers.catch_up(self._limits["step"])
        # A vectorised plug-in writes whole lanes: the last row of the block needs room behind it.
        rows = length * self.num_envs + (self._rows - self.num_envs)
        block = Rows(
            self._numbers, self._space, rows, self.num_envs, self._bounds, actions=self.single_action_space
        )
        self._numbers += 1
        assert block.memory is not None and block.actions is not None
        shapes = (length, self.num_envs)
        actions = blocks(block.actions, *shapes)
        observations = blocks(block.memory, length + 1, self.num_envs)
        count = length * self.num_envs
        flags = (part[:count].reshape(shapes) for part in (block.reward, block.terminated, block.truncated))
        self._workers.add_block(block.segment, block.number, rows, self.num_envs)
        block.segment.close()
        rollout = Rollout(observations, actions, *flags, partial(self._step_into, block))
        weakref.finalize(rollout, self._workers.drop_block, block.number)
        return rollout

    def _step_into(self, block: Rows, t: int, actions: Any) -> dict[str, Any]:
        self._require_ready("step")
        self._workers.catch_up(self._limits["step"])
        row = t * self.num_envs
        self._post_step(actions, block, row)
        reports, _ = self._finish("step", None)
        infos, errors = self._sorted(reports, block)
        self._last = block, row
        self._raise_errors(errors, None)
        return infos

    # -- life -----------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None, terminate: bool = False) -> None:  # type: ignore[override]
        """Ends the workers, within two seconds or `timeout`. Idempotent; arrays that were returned stay valid."""
        if not self.closed:
            self.close_extras(timeout, terminate)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # type: ignore[override]
        if self.closed:
            return
        limit = 0.0 if terminate else _CLOSE_S if timeout is None else max(0.0, timeout)
        if self._pending is not None:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._pending}` to complete.")
        self.closed = True
        self._finalizer.detach()
        begin = time.monotonic()
        if self._forks == _core.fork_count():
            self._workers.settle(limit / 2)
        self._workers.close(max(0.0, limit - (time.monotonic() - begin)))
        self._actions.close()
        for slot in self._slots:
            slot.segment.close()

    def __enter__(self) -> ProcessVectorEnv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and hasattr(self, "_finalizer"):
            self.closed = True
            self._finalizer()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "environments are processes and memory of this process and cannot be pickled; make them where they "
            "are used: pass the arguments instead"
        )

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )
        if self._forks != _core.fork_count():
            raise ForkedError(
                "these environments belong to the parent process, which is not this one. Make new ones in the child"
            )

    def _require_ready(self, name: str) -> None:
        self._require_open()
        if self._flight is not None and not self._synchronous and name != "set_attr":
            raise ShoalError(
                f"{name.removesuffix('_async')} is not for environments made with batch_size=; use async_reset, "
                "send and recv"
            )
        if self._pending is not None:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._pending}` to complete.",
                self._pending,
            )
        if self._lost and name != "reset_async":
            raise next(iter(self._lost.values()))


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    return [value]


def _require_no_nan(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _require_no_nan(part, f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            _require_no_nan(part, f"{path}[{number}]")
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fc" and not np.isfinite(value.sum()):
        bad = np.argwhere(np.isnan(value))
        if len(bad):
            env, *index = bad[0].tolist()
            where = f" at {tuple(index)}" if index else ""
            raise ValueError(f"{path} of environment {env} is NaN{where} (check='nan' found it)")
