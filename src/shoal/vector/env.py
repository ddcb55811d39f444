"""Shoal's vector environment: Gymnasium's VectorEnv over any backend, with results leased from slots.

    reset / step  ->  a free slot  ->  (observations, rewards, terminated, truncated, info)

Every array is a view of a segment. buffers="leased": a slot is free again when its arrays are released, so
arrays that you keep never change. "live": one slot, overwritten by the next step. "copy": fresh arrays.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import gymnasium.vector
import numpy as np
from gymnasium import logger
from gymnasium.error import NoAsyncCallError
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError, WorkerDied
from shoal.native.refusals import refuse, refuse_pending
from shoal.process.mail import Failure
from shoal.process.requests import CallMethod, SetAttribute, StepperMethod
from shoal.state.session import open_session
from shoal.vector import arguments
from shoal.vector.backend import FROM_BUFFER, Backend, Call, Common, State
from shoal.vector.episodes import EpisodeInfos
from shoal.vector.exchange import Rows
from shoal.vector.lending import LeasedMemory, copy_arrays
from shoal.vector.nans import require_no_nan
from shoal.vector.reports import raise_errors, sort_reports
from shoal.vector.rollout import Rollout, record
from shoal.vector.state_access import StateAccess

__all__ = ["VectorEnv"]

_CLOSE_S = 1.5

Seed = int | Sequence[int | None] | None
Results = tuple[Any, Any, Any, Any, dict[str, Any]]


class VectorEnv(StateAccess, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Steps environments together. Made by `shoal.make_vec`.

    >>> envs = shoal.make_vec("CartPole-v1", num_envs=8)
    >>> observations, info = envs.reset(seed=0)
    >>> observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> observations.shape, rewards.dtype, envs.stats["steps"]
    ((8, 4), dtype('float64'), 8)
    >>> envs.close()

    For environments with several agents, each row of an array is one agent. `num_envs` then counts rows,
    and `num_worlds` counts environments.
    """

    _has_fresh_flags = False

    def __init__(self, backend: Backend, common: Common) -> None:
        self._backend, self._common, self._guard = backend, common, backend.guard
        self.backend = backend.name
        """ "native", "process" or "cuda"."""
        self.autoreset_mode, self.buffers = common.autoreset_mode, common.buffers
        self.batch_size = common.batch_size
        self._call: Call | None = None
        """The last call that was posted, until its results are taken."""
        self._began = False  # whether all environments were reset once
        self._check_nan = "nan" in common.checks and not backend.checks_nan
        self._stepping = _core.Operation(self._guard, "step")
        self._log = _core.History(None).log  # checks values and keeps none, unless there is a session
        self.leased_memory = LeasedMemory()
        """The memory that results are leased from (`shoal.torch.pin` registers it)."""
        self._finalizer = backend.finalize(self)
        try:
            self._start()
        except BaseException:
            self.closed = True
            self._close_session()
            if self._finalizer is not None:
                self._finalizer()
            raise
        for name, method in backend.direct.items():
            setattr(self, name, method)

    def _start(self) -> None:
        backend, common = self._backend, self._common
        facts = self._facts = backend.start()
        info = self._info = facts.info
        self.num_worlds, self.agents_per_env = facts.num_worlds, facts.agents
        self.num_envs = facts.num_worlds * facts.agents
        self.num_workers = facts.workers
        self.is_in_c = info is not None
        """Whether the environments are plug-ins written in C."""
        self.options = {} if info is None else dict(info.options)
        self.metadata = {**facts.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = facts.render_mode
        self.single_observation_space = facts.observation_space
        self.single_action_space = facts.action_space
        self.observation_space = facts.batched_observation_space
        self.action_space = arguments.batched(facts.action_space, self.num_envs)
        self._infos = None
        needs_infos = common.episode_stats or (info is not None and common.same_step)
        if needs_infos and facts.builds_infos:
            self._infos = EpisodeInfos([] if info is None else info.observations, common.episode_stats)
        self._lender = backend.make_lender(facts, self.leased_memory)
        self._info_rows = backend.info_rows
        self._results = self._lender.slots.results if self._lender.is_plain else self._lender.results
        self._step_call = Call("step", 0, self._lender.rows(0), state=State.DONE)
        backend.bind(self._lender, self._infos, self._open_session)

    def _open_session(self) -> None:
        if self._common.session is None:
            return
        facts = {
            "env": self._facts.name,
            "num_envs": self.num_envs,
            "num_worlds": self.num_worlds,
            "agents": self.agents_per_env,
            "workers": self.num_workers,
            "backend": self.backend,
            "observation_space": str(self.single_observation_space),
            "action_space": str(self.single_action_space),
        }
        memory, counted = self._backend.session_sources()
        asked, history_file = self._common.session, self._common.history
        self._hosted = open_session(asked, facts, self.num_worlds, memory, counted, history_file=history_file)
        if self._hosted is not None:
            self._log = self._hosted.history.log
            self._backend.begin_session()

    def _close_session(self) -> None:
        if self._hosted is not None:
            self._hosted.close()

    # -- reset ----------------------------------------------------------------------------------------

    def reset(
        self, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or where `options["reset_mask"]` is True."""
        self._require_synchronous("reset", "async_reset")
        with _core.Operation(self._guard, "reset"):
            self._begin_reset(seed, options)
            return self._reset_results(*self._finish("reset", None))

    def reset_async(self, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Begins a reset; `reset_wait` returns its results."""
        self._require_synchronous("reset_async", "async_reset")
        with _core.Operation(self._guard, "reset_async"):
            self._mark_pending(self._begin_reset(seed, options))

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns the results of `reset_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        with _core.Operation(self._guard, "reset_wait"):
            return self._reset_results(*self._finish("reset", timeout))

    def _begin_reset(self, seed: Seed, options: Any) -> Call:
        self._require_ready("reset")
        seeds = arguments.seeds(seed, self.num_worlds)
        mask, others = self._backend.read_mask(options)
        if self._info is not None:
            arguments.no_options(others)
        if mask is not None and not self._began and not mask.all():
            refuse("never reset")
        self._finish_before_reset()
        slot = 0 if self.batch_size is not None else self._lender.take()
        call = Call("reset", slot, self._lender.rows(slot), seeds=seeds, options=others, mask=mask)
        self._backend.prepare_reset(call)
        return self._post(call)

    def _reset_results(self, call: Call, reports: list[Any]) -> tuple[Any, dict[str, Any]]:
        self._began = True
        infos, errors = sort_reports(reports, call.into.values, self._add_info, self._info_rows)
        observation = self._lender.observation(call.slot)
        raise_errors(errors, (observation, infos))
        return self._lender.lend(call.slot, observation), infos

    # -- step -----------------------------------------------------------------------------------------

    def step(self, actions: Any = FROM_BUFFER) -> Results:
        """Steps every environment with `actions`; `step()` uses the actions in the buffer `self.actions`."""
        if self.batch_size is not None:
            self._require_synchronous("step", "send and recv")
        with self._stepping:
            call = self._begin_step(actions)
            return self._step_results(call, self._backend.wait(call))

    def step_async(self, actions: Any = FROM_BUFFER) -> None:
        """Begins a step; `step_wait` returns its results."""
        self._require_synchronous("step_async", "send and recv")
        with _core.Operation(self._guard, "step_async"):
            self._mark_pending(self._begin_step(actions))

    def step_wait(self, timeout: float | None = None) -> Results:
        """Returns the results of `step_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        with _core.Operation(self._guard, "step_wait"):
            return self._step_results(*self._finish("step", timeout))

    def _begin_step(self, actions: Any) -> Call:
        if self._call is not None:
            self._finish_abandoned("step")
        call = self._step_call
        self._backend.take_actions(call, actions)
        call.slot = slot = self._lender.take()
        call.into, call.row = self._lender.rows(slot), 0
        call.state, self._call = State.UNCLAIMED, call
        self._backend.post(call)
        return call

    def _step_results(self, call: Call, reports: list[Any]) -> Results:
        self._call = None
        infos: dict[str, Any] = {}
        errors: list[Failure] = []
        if reports or (self._info_rows is not None and self._info_rows.any()):
            infos, errors = self._sort(reports, call.into)
        results = self._results(call.slot, infos)
        if self._has_fresh_flags:
            results = (results[0], *copy_arrays(results[1:4]), infos)
        if self._infos is not None and (results[2] | results[3]).any():
            infos.update(self._infos(results[2], results[3], self._lender.slots.finals(call.slot)))
        if errors:
            raise_errors(errors, results)
        if self._check_nan:
            require_no_nan(self.single_observation_space, results)
        return results if call.slot else self._lender.lend(0, results)  # type: ignore[no-any-return]

    def _sort(self, reports: list[Any], rows: Rows) -> tuple[dict[str, Any], list[Failure]]:
        begin = time.perf_counter_ns()
        infos, errors = sort_reports(reports, rows.values, self._add_info, self._info_rows)
        self._backend.infos_ns += time.perf_counter_ns() - begin
        return infos, errors

    # -- one call at a time ---------------------------------------------------------------------------

    def _post(self, call: Call) -> Call:
        self._call = call  # before posting, because Ctrl-C may come in between
        self._backend.post(call)
        return call

    def _finish(self, kind: str, timeout: float | None) -> tuple[Call, list[Any]]:
        """Waits for the call that was posted; returns it and the environments' reports."""
        call = self._call
        is_own = call is not None and call.into is self._lender.rows(call.slot)  # not a rollout's step
        if call is None or not is_own or call.kind != kind or call.state in (State.ABANDONED, State.DONE):
            raise NoAsyncCallError(f"Calling `{kind}_wait` without any prior call to `{kind}_async`.", kind)
        timeout = arguments.timeout(timeout)
        self._backend.set_pending(None)
        reports = self._backend.wait(call, timeout)
        self._call = None
        return call, reports

    def _mark_pending(self, call: Call) -> None:
        """Records that the user must wait for this call."""
        call.state = State.PENDING
        self._backend.set_pending(call.kind)

    def _require_ready(self, name: str) -> None:
        call = self._call
        if call is not None:
            if call.state is State.PENDING:
                refuse_pending(name, call.kind)
            if call.state is State.UNCLAIMED:
                call.state = State.ABANDONED
            elif call.state is State.DONE:
                self._call = None
        self._backend.require_ready(name)

    def _finish_abandoned(self, name: str, *, ignore_deaths: bool = False) -> None:
        """Waits for a call that was abandoned, and discards its results."""
        self._require_ready(name)
        if self._call is not None:
            self._backend.wait(self._call, ignore_deaths=ignore_deaths)
            self._call = None

    def _finish_before_reset(self) -> None:
        """Waits for an abandoned call before a reset. The reset restarts workers that died in it."""
        with contextlib.suppress(WorkerDied):
            self._finish_abandoned("reset", ignore_deaths=True)

    def _require_synchronous(self, name: str, instead: str) -> None:
        if self.batch_size is not None:
            self._guard.require_open()
            raise ShoalError(f"{name} is not available for environments made with batch_size=; use {instead}")

    def _require_asynchronous(self, name: str) -> None:
        if self.batch_size is None:
            self._guard.require_open()
            raise ShoalError(f"{name} needs environments made with batch_size=; use reset and step")

    # -- call -----------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or gets an attribute."""
        return self._call_and_wait("call", name, args, kwargs)

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begins a call; `call_wait` returns its results."""
        with _core.Operation(self._guard, "call_async"):
            self._mark_pending(self._begin_call("call_async", [CallMethod(name, args, kwargs)]))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Returns the results of `call_async`; multiprocessing.TimeoutError after `timeout` seconds."""
        with _core.Operation(self._guard, "call_wait"):
            return self._call_results(timeout)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of every environment."""
        return self._call_and_wait("get_attr", name, (), {})

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment; `values` is a list or tuple, or one value for all."""
        with _core.Operation(self._guard, "set_attr"):
            if not isinstance(values, (list, tuple)):
                values = [values] * self.num_worlds
            if len(values) != self.num_worlds:
                raise ValueError(
                    "Values must be a list or tuple with length equal to the number of environments. "
                    f"Got `{len(values)}` values for {self.num_worlds} environments."
                )
            parts = self._backend.parts()
            self._begin_call("set_attr", [SetAttribute(name, list(values[part])) for part in parts])
            self._call_results(None)

    def _call_and_wait(self, operation: str, name: str, args: Any, kwargs: Any) -> tuple[Any, ...]:
        with _core.Operation(self._guard, operation):
            self._begin_call(operation, [CallMethod(name, args, kwargs)])
            return self._call_results(None)

    def _begin_call(self, name: str, requests: Sequence[CallMethod | SetAttribute]) -> Call:
        """Posts a call with one request per chunk, or with the same request for all."""
        self._require_synchronous(name, "async_reset, send and recv")
        self._finish_abandoned(name)
        call = Call("call", 0, self._lender.rows(0))
        chunks = len(self._backend.parts())
        call.requests = requests if len(requests) == chunks else [requests[0]] * chunks
        return self._post(call)

    def _call_results(self, timeout: float | None) -> tuple[Any, ...]:
        _, answers = self._finish("call", timeout)
        raise_errors([answer for answer in answers if isinstance(answer, Failure)], None)
        return tuple(answer.load() for answer in answers)

    def render(self) -> tuple[Any, ...]:
        """Returns a picture of every environment: what its `render` returns, or an array (C)."""
        if self._info is None:
            return self._call_and_wait("render", "render", (), {})
        with _core.Operation(self._guard, "render"):
            if self.render_mode is None:
                if not self.metadata["render_modes"]:
                    raise ValueError(arguments.describe_undrawable(self._info.plugin.name))
                raise ValueError('render needs render_mode="rgb_array"; pass it to make_vec')
            return tuple(self._picture("render", env) for env in range(self.num_worlds))

    @property
    def np_random_seed(self) -> Any:
        """The seed of every environment's generator."""
        if self._info is None:
            return self._call_and_wait("np_random_seed", "np_random_seed", (), {})
        return super().np_random_seed

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """A copy of every environment's generator."""
        if self._info is None:
            return self._call_and_wait("np_random", "np_random", (), {})
        return gymnasium.vector.VectorEnv.np_random.fget(self)  # type: ignore[attr-defined]

    # -- beyond Gymnasium -----------------------------------------------------------------------------

    @property
    def actions(self) -> Any:
        """The action buffer: write actions into it, then call `step()` without arguments."""
        self._guard.require_open()
        shared = self._backend.actions
        if shared is None:
            raise ShoalError(f"{self.single_action_space} has no single action buffer; pass actions to step")
        return shared

    @property
    def worker_pids(self) -> list[int | None]:
        """The process ids of the workers; None for one that died and was not replaced."""
        return list(self._backend.worker_pids)

    @property
    def stats(self) -> dict[str, Any]:
        """Counters: steps, episodes, their mean return and length, slots, and results that had to be copied.

        With worker processes also restarts, and in `time_us` the average parts of a vector step:
        `environments`: inside env.step of the slowest worker; `copy`: the rest of its work, such as writing
        rows; `handoff`: further time until this process noticed; `infos`: building the info dict.
        """
        self._guard.require_open()
        return {**self._backend.statistics, "copies": self._lender.copies}

    def async_reset(self, seed: Seed = None) -> None:
        """Resets every environment; `recv` returns the first observations."""
        self._require_asynchronous("async_reset")
        with _core.Operation(self._guard, "async_reset"):
            seeds = arguments.seeds(seed, self.num_worlds)
            self._finish_before_reset()
            self._backend.async_reset(seeds, partial(self._reset_all, seeds))

    def _reset_all(self, seeds: list[int | None]) -> list[Any]:
        self._begin_reset(seeds, None)
        self._began = True
        return self._finish("reset", None)[1]

    def send(self, actions: Any, env_ids: Any) -> None:
        """Starts a step of the environments `env_ids` (`info["env_id"]` of a `recv`) with these actions."""
        self._require_asynchronous("send")
        self._backend.send(actions, env_ids)

    def recv(self, env_ids: Any = None) -> Results:
        """Returns step's five results for the first `batch_size` environments ready (`info["env_id"]`).

        With `env_ids` (worker processes only) it waits for those, for example for two halves in turn.
        """
        self._require_asynchronous("recv")
        return self._backend.recv(env_ids)  # type: ignore[no-any-return]

    def shares_buffer(self, array: NDArray[Any]) -> bool:
        """Whether the next step may change this array: True only for results of `buffers="live"`."""
        return self._lender.holds_live(array)  # type: ignore[no-any-return]

    def rollout(self, length: int) -> Rollout:
        """Returns storage for `length` steps of every environment; its `step` writes into it directly."""
        self._require_synchronous("rollout", "send and recv")
        if self._common.same_step:
            raise ShoalError(
                "a rollout cannot store the final observations of autoreset_mode SAME_STEP; "
                "use NEXT_STEP or DISABLED"
            )
        with _core.Operation(self._guard, "rollout"):
            length = arguments.count("length", length, 2**31)
            self._backend.require_rollout()
            self._finish_abandoned("rollout")
            block = self._lender.block(length, self.single_action_space)
            dropped = weakref.finalize(block, self._backend.drop_block, block.number)
            dropped.atexit = False
            observations, actions, flags = block.as_rollout(length, self.num_envs)
            step = self._backend.rollout_step(observations, actions, flags)
            rollout = Rollout(
                observations,
                actions,
                *flags,
                step=step or partial(self._step_into, block, actions),
                count_changes=self._count_changes,
                guard=self._guard,
            )
            dropped.detach()
            weakref.finalize(rollout, self._backend.drop_block, block.number).atexit = False
            return rollout

    def _count_changes(self) -> int:
        call = self._call
        self._require_ready("step")
        if call is not None and call.state is State.ABANDONED and call.kind != "call":
            raise ShoalError(
                f"a {call.kind} whose results were not taken is still running, so no observation shows the "
                "current state; call reset(), or step() once, then start(observation)"
            )
        return self._backend.count_changes()

    def _step_into(self, block: Rows, recorded: Any, t: int, actions: Any) -> dict[str, Any]:
        row = t * self.num_envs
        self._finish_abandoned("step")
        call = Call("step", 0, block, row)
        self._backend.take_actions(call, actions)
        taken = call.taken
        if taken is None and call.actions is None:
            taken = self._backend.actions
        record(recorded, t, actions if taken is None else taken)  # before stepping, because it may raise
        reports = self._backend.wait(self._post(call))
        self._call = None
        infos: dict[str, Any] = {}
        errors: list[Failure] = []
        if reports or (self._info_rows is not None and self._info_rows.any()):
            infos, errors = self._sort(reports, block)
        raise_errors(errors, None)
        if self._check_nan:
            assert block.memory is not None
            first, end = row + block.ahead, row + self.num_envs
            seen = block.memory.read(first, first + self.num_envs)
            flags = block.terminated[row:end], block.truncated[row:end]
            require_no_nan(self.single_observation_space, (seen, block.reward[row:end], *flags, infos))
        return infos

    def check(self) -> None:
        """Raises what the kernels of a GPU found wrong since the last check; it waits for them.

        A step on a GPU does not wait, so it cannot raise for a bad action value. `reset` and `close` check,
        too. On the CPU nothing is left to raise.
        """
        with _core.Operation(self._guard, "check"):
            self._backend.check()

    def has_extension(self, id: str) -> bool:
        """Whether environments in C have an extension, such as "shoal.checkpoint/1"."""
        return self._info is not None and self._info.plugin.has_extension(id)

    def save_env(self, env_id: int) -> bytes:
        """Returns the whole state of a C environment, for `restore_env` in any run with these options."""
        with _core.Operation(self._guard, "save_env"):
            return self._use_stepper("save_env", "save", env_id)  # type: ignore[no-any-return]

    def restore_env(self, env_id: int, data: bytes) -> None:
        """Sets C environment `env_id` to the state that `save_env` returned as `data`."""
        if not isinstance(data, bytes):
            raise TypeError(f"a checkpoint must be bytes, got {type(data).__name__}")
        with _core.Operation(self._guard, "restore_env"):
            if not self._began and self.batch_size is None:  # the other environments need a state, too
                self._use_stepper("restore_env", "require_checkpoint", env_id, data)
                self._reset_all([None] * self.num_worlds)
            self._use_stepper("restore_env", "restore", env_id, data)

    def render_env(self, env_id: int) -> NDArray[np.uint8]:
        """Returns a picture of one C environment, [height, width, 3]."""
        with _core.Operation(self._guard, "render_env"):
            return self._picture("render_env", env_id)

    def _picture(self, operation: str, env_id: int) -> NDArray[np.uint8]:
        height, width, pixels = self._use_stepper(operation, "render", env_id)
        # In the memory of a bytearray, which nobody else has: users may draw on it.
        return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)

    def _use_stepper(self, operation: str, method: StepperMethod, env_id: int, *rest: Any) -> Any:
        """Calls a method of the stepper; `operation` is what the user called."""
        if self._info is None:
            raise ShoalError(f"{operation} is for environments in C; use call for those in Python")
        env = arguments.env_id(env_id, self.num_worlds)
        self._finish_abandoned(operation)
        return self._backend.use_stepper(method, env, *rest)

    def _read_states(self, env: int | None) -> Any:
        if self.batch_size is None:
            self._finish_abandoned("state")
        return self._backend.look(env)

    # -- closing --------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None, terminate: bool = False) -> None:  # type: ignore[override]
        """Ends threads and workers; workers within two seconds, or `timeout`. Idempotent.

        Arrays that were returned stay valid. If another thread is inside a call, that call raises
        ClosedError, and close waits for it.
        """
        seconds = arguments.timeout(timeout)
        limit = 0.0 if terminate else _CLOSE_S if seconds is None else max(0.0, seconds)
        with _core.Closing(self._guard) as is_first:
            if not is_first:
                return
            if not self._guard.wait_until_free(limit):
                self._backend.interrupt()
                if not self._guard.wait_until_free(math.inf):
                    return
            self.closed = True
            if self._finalizer is not None:
                self._finalizer.detach()
            self._close_session()  # first, because its thread reads the backend's memory
            self._backend.close(limit)
            call, self._call = self._call, None
            if call is not None and call.state is State.PENDING:  # last, because a warning may be an error
                logger.warn(f"Calling `close` while waiting for a pending call to `{call.kind}` to complete.")

    close_extras = close

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed and getattr(self, "_finalizer", None) is not None:
            self.closed = True
            self._close_session()
            self._finalizer()  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<{self._facts.name} x {self.num_worlds}, {self.backend}, buffers={self.buffers!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "vector environments cannot be pickled: they consist of threads, processes and memory of this "
            "process. Pass the arguments of make_vec instead, and make them where they are used"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()
