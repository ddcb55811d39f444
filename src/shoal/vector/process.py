"""The process backend: environments in worker processes, results in shared memory.

    post -> actions into the segment -> gates -> workers write rows of a slot -> wait

Faults: if a worker dies or exceeds a limit, WorkerDied or WorkerTimeout is raised. With on_fault="restart" it
is replaced, and its rows are truncated and have info["fault"]. Exceptions of environments are reports.
"""

from __future__ import annotations

import multiprocessing
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from gymnasium.spaces import Space
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ClosedError, ShoalError, WorkerDied
from shoal.memory import Segment
from shoal.native.refusals import refuse
from shoal.process.mail import Failure
from shoal.process.requests import StepperMethod
from shoal.process.worker import ERROR, STEP
from shoal.spaces import Bounds
from shoal.state.snapshot import Field
from shoal.vector import arguments
from shoal.vector.agreement import observation_spaces, require_same
from shoal.vector.backend import FROM_BUFFER, Call, Common, Facts, State, lend_segments
from shoal.vector.episodes import EpisodeInfos
from shoal.vector.exchange import Actions, Rows, is_laid_out
from shoal.vector.lending import LeasedMemory, Lender
from shoal.vector.nans import require_no_nan
from shoal.vector.plans import PluginEnvs, make_plans
from shoal.vector.plugin_actions import PluginActions
from shoal.vector.repair import Repair
from shoal.vector.reports import raise_errors, sort_reports
from shoal.vector.sendrecv import SendRecv
from shoal.vector.workers import NOTHING, Outcome, Workers, copy_error

__all__ = ["ProcessBackend"]

_RESTART_S = 60.0


class ProcessBackend:
    """Python or C environments in worker processes."""

    name = "process"
    checks_nan = False

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]] | PluginEnvs,
        common: Common,
        *,
        shared_memory: bool = True,
        context: str | None = None,
        daemon: bool = True,
        observation_mode: Any = "same",
        max_concurrency: int | None = None,
        num_workers: int | None = None,
        caller_steps: bool | Literal["auto"] = False,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        max_length: int | None = None,
        max_nodes: int | None = None,
        max_edges: int | None = None,
        on_fault: str = "raise",
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
    ) -> None:
        self._common, self._mode, self._shared_memory = common, observation_mode, shared_memory
        self._given_spaces = observation_space, action_space
        self._restarts = arguments.choice("on_fault", on_fault, ("raise", "restart")) == "restart"
        self._limits = {
            "step": arguments.seconds("step_timeout_s", step_timeout_s),
            "reset": arguments.seconds("reset_timeout_s", reset_timeout_s),
            "call": None,
        }
        self._bounds = Bounds(max_length, max_nodes, max_edges)
        self._division = make_plans(
            env_fns,
            common.autoreset_mode,
            num_workers,
            max_concurrency,
            caller_steps,
            context,
            daemon,
            self._bounds,
            observation_mode,
            self._restarts,
            common.batch_size is not None,
        )
        self._info = self._division.info
        self._render_mode = env_fns.render_mode if isinstance(env_fns, PluginEnvs) else None
        self._num_envs = self._division.num_envs
        self.guard = _core.Guard()
        self.workers = Workers(
            self._division, context, self._limits["step"] or self._limits["reset"], self.guard
        )
        self.info_rows = self.workers.infos
        self._disabled = common.disabled
        self.infos_ns = self._vector_steps = self._waited_ns = self._change_count = 0
        self._began = False
        self._flight: SendRecv | None = None

    def start(self) -> Facts:
        facts, division, info = self.workers.start(), self._division, self._info
        name = facts.get("name", "")
        if info is not None:
            facts = {
                "observation_space": info.observation_space,
                "action_space": info.action_space,
                "metadata": arguments.render_metadata(info.plugin),
                "render_mode": self._render_mode,
            }
            name = info.plugin.name
        observation, action = self._given_spaces
        batched, single = observation_spaces(self._mode, facts, observation, self._num_envs)
        in_segment = is_laid_out(single, self._bounds, required=self._shared_memory)
        self._facts = Facts(
            str(name),
            division.num_worlds,
            self._num_envs // division.num_worlds,
            division.rows,
            single,
            facts["action_space"] if action is None else action,
            batched,
            facts.get("metadata", {}),
            facts.get("render_mode"),
            self._bounds,
            info,
            in_segment,
            len(division.plans),
        )
        return self._facts

    @property
    def announce(self) -> Callable[[Rows], None]:
        return self.workers.add_block

    def make_lender(self, facts: Facts, lent: LeasedMemory) -> Lender:
        return lend_segments(self, facts, self._common, lent)

    def bind(self, lender: Lender, infos: EpisodeInfos | None, meanwhile: Callable[[], None]) -> None:
        common, facts, native = self._common, self._facts, self._info is not None
        single, action = facts.observation_space, facts.action_space
        self._single, self._lender = single, lender
        self._as_messages = not facts.in_segment
        self._actions: Actions | PluginActions
        if self._info is not None:
            self._actions = PluginActions(self._info, self._num_envs, common.checks)
        else:
            batched = arguments.batched(action, self._num_envs)
            checked = "actions" in common.checks
            self._actions = Actions(action, batched, self._num_envs, self._bounds, checked)
        if common.batch_size is None:
            lender.take()  # so that the first slot is announced together with the rest
        mode = "same" if self._mode == "same" else "different"
        same = self.workers.bind(mode, single, action, facts.in_segment, self._actions, meanwhile)
        require_same(mode, same, single, action)
        restart_s = self._limits["reset"]
        if (
            restart_s is None and self._limits["step"] is not None
        ):  # a limit for steps implies one for repairs
            restart_s = max(_RESTART_S, self._limits["step"])
        self._repair = Repair(self.workers, self._restarts, common.same_step, restart_s)
        board = self.workers.pool.board
        worlds = self._division.num_worlds
        self._over, self._will_reset = (board[name][:worlds] for name in ("over", "reset"))
        if infos is not None:
            rows = self._num_envs
            infos.last = board["last_return"][:rows], board["last_length"][:rows]
            if self._info is not None and self._info.keeps_log:
                infos.env_logs = self.workers.find_env_logs(self._info)
        if common.batch_size is not None:
            batch = arguments.count("batch_size", common.batch_size, self._num_envs)
            if common.buffers != "leased" or native or self.workers.local is not None:
                raise ValueError(
                    "batch_size needs Python environments, buffers='leased' and caller_steps=False; "
                    "C environments are stepped asynchronously by backend='native'"
                )
            assert isinstance(self._actions, Actions)
            in_slot = lender.rows(0)
            self._flight = SendRecv(self.workers, self._actions, in_slot, self._repair, self._num_envs, batch)
            self._batches = Lender(
                lender.leased_memory, single, batch, batch, self._bounds, in_segment=facts.in_segment
            )

    def session_sources(self) -> tuple[Segment, Any]:
        board = self.workers.pool.board
        return board, board["sums"]

    def begin_session(self) -> None: ...  # the workers publish

    @property
    def direct(self) -> dict[str, Any]:
        return {} if self._flight is None else {"send": self.send, "recv": self.recv}

    @property
    def actions(self) -> Any:
        return self._actions.shared

    # -- calls ----------------------------------------------------------------------------------------

    def require_ready(self, name: str) -> None:
        if self.workers.has_open_request:
            self.workers.catch_up()
        if self.workers.unreplaced and name != "reset":
            raise copy_error(next(iter(self.workers.unreplaced.values())))

    def take_actions(self, call: Call, actions: Any) -> None:
        if self.workers.has_open_request or self.workers.unreplaced:
            self.require_ready("step")
        if self._disabled and self._over.any():
            refuse("over")
        if self._info is not None and not self._began:
            refuse("not reset")
        if actions is FROM_BUFFER:
            if self._actions.shared is None:
                raise ShoalError(
                    f"{self._facts.action_space} has no single action buffer; pass actions to step"
                )
            self._actions.check_shared()
            call.actions = None
        elif isinstance(self._actions, PluginActions):
            call.taken = self._actions.take(actions)
            call.actions = None
        else:
            call.actions = self._actions.take(actions)

    def parts(self) -> list[slice]:
        return self.workers.parts()

    def set_pending(self, kind: str | None) -> None: ...

    def read_mask(self, options: Any) -> tuple[Any, dict[str, Any] | None]:
        return arguments.reset_mask(options, self._num_envs, self._division.num_worlds)

    def check(self) -> None: ...

    def prepare_reset(self, call: Call) -> None:
        if self._disabled:
            chosen = slice(None) if call.mask is None else call.mask
            restarted = self.workers.restarted
            call.ends_episodes = not (self._over | self._will_reset | restarted)[chosen].all()
            restarted[chosen] = False
        call.restarts_workers = bool(self.workers.unreplaced)
        call.reports = self._repair.restart_dead(call.into, call.mask)
        self.workers.remember(call.seeds)

    def post(self, call: Call) -> None:
        workers, number, row = self.workers, call.into.number, call.row
        try:
            if call.kind != "step":
                if call.kind == "reset":
                    workers.post_reset(number, row, call.seeds, call.options, call.mask)
                else:
                    workers.post_call(call.requests)
                return
            if call.actions is None and workers.local is None:
                is_posted = workers.pool.gates.post_all(STEP, number, row, not self._restarts)
            else:
                is_posted = workers.post_step(number, row, call.actions, not self._restarts)
        except BaseException as error:
            # The next call waits for workers that got this one. If it could not be pickled, none got it.
            is_under_way = not isinstance(error, Exception) or workers.pool.busy()
            call.state = State.ABANDONED if is_under_way else State.DONE
            raise
        if not is_posted:
            call.state = State.DONE
            workers.raise_known()

    def wait(self, call: Call, timeout: float | None = None, *, ignore_deaths: bool = False) -> list[Any]:
        raises = not (self._restarts or ignore_deaths or call.restarts_workers)
        begin = time.perf_counter_ns()
        try:
            outcome = self.workers.wait(self._limits[call.kind], timeout, raises=raises)
        except WorkerDied:  # the other workers may still be busy, even hang; the next call waits for them
            call.state = State.ABANDONED
            raise
        except ClosedError:  # another thread called close() and waits for this call
            call.state = State.DONE
            raise
        except BaseException as error:
            if not isinstance(error, TimeoutError) or timeout is None:
                # Ctrl-C: the user may wait again. A new call would abandon this one, as after a timeout.
                if call.state is not State.ABANDONED:
                    call.state = State.UNCLAIMED
                raise
            call.state = State.ABANDONED
            raise multiprocessing.TimeoutError(
                f"The call to `{call.kind}_wait` has timed out after {timeout} second(s)."
            ) from None
        was_abandoned = call.state is State.ABANDONED
        call.state = State.DONE
        if self._as_messages and call.kind != "call":
            call.into.values = [None] * self._num_envs
        if call.kind == "step":
            self._vector_steps += 1
            self._change_count += 1
            self._waited_ns += time.perf_counter_ns() - begin
            if self._disabled:
                self.workers.restarted[:] = False
            if outcome is NOTHING and not self._repair.unreported:
                return []
        elif call.kind == "reset":
            self._change_count += call.ends_episodes
            self._began = True
        return self._collect_reports(call, outcome, was_abandoned)

    def _collect_reports(self, call: Call, outcome: Outcome, was_abandoned: bool) -> list[Any]:
        """Returns the reports of a finished call; replaces workers that died."""
        unreported = self._repair.unreported if call.kind == "step" else {}
        reports, call.reports = call.reports, []
        for w in sorted(outcome.answers):
            if w in unreported:
                continue
            answer = outcome.answers[w]
            if isinstance(answer, Failure):
                answer = [answer if call.kind == "call" else (None, ERROR, answer)]
            reports += answer
        into, row, faults = call.into, call.row, outcome.faults
        if was_abandoned:  # nobody takes its results, but observations and deaths still matter
            if call.kind != "call":
                sort_reports(reports, into.values, lambda infos, info, env: infos)
            self._repair.after_abandoned(faults, into, row)
        elif call.kind == "step" and (faults or unreported):
            reports += self._repair.after_step(faults, into, row)
        elif call.kind == "reset" and faults:
            again = partial(self.workers.post_reset_of, into.number, row, call.seeds, call.options, call.mask)
            reports += self._repair.after_reset(faults, into, row, again, call.mask, call.restarts_workers)
        elif faults:
            self._repair.after_call(faults, into, row)
        return reports

    def count_changes(self) -> int:
        return self._change_count

    def rollout_step(
        self, observations: Any, actions: Any, flags: Sequence[NDArray[Any]]
    ) -> Callable[[int, Any], Any] | None:
        return None

    def require_rollout(self) -> None:
        """Raises if observations or actions travel as messages."""
        if self._as_messages or self._actions.kind == "message":
            raise ShoalError(
                "a rollout needs observations and actions in shared memory, but values of these spaces "
                "travel as messages; give bounds for Sequence and Graph spaces (max_length=, max_nodes=, "
                "max_edges=), or use step"
            )

    def drop_block(self, number: int) -> None:
        self.workers.drop_block(number)

    # -- asynchronous stepping ------------------------------------------------------------------------

    def async_reset(self, seeds: list[int | None], reset: Callable[[], list[Any]]) -> None:
        assert self._flight is not None
        if self._flight.under_way and not self.workers.unreplaced:
            refuse("under way")
        self._flight.abandon(self._limits["step"])
        self._flight.begin(reset())

    def send(self, actions: Any, env_ids: Any) -> None:
        with _core.Operation(self.guard, "send"):
            if self.workers.has_open_request or self.workers.unreplaced:
                self.require_ready("send")
            assert self._flight is not None
            self._flight.send(actions, env_ids)

    def recv(self, env_ids: Any = None) -> Any:
        with _core.Operation(self.guard, "recv"):
            if self.workers.has_open_request or self.workers.unreplaced:
                self.require_ready("recv")
            assert self._flight is not None
            taken = self._flight.recv(env_ids, self._limits["step"])
            slot = self._batches.take()
            infos, errors = self._flight.deliver(taken, self._batches.rows(slot))
            results = self._batches.results(slot, infos)
            if errors:
                raise_errors(errors, results)
            if "nan" in self._common.checks:
                require_no_nan(self._single, results, taken)
            return results

    # -- one environment ------------------------------------------------------------------------------

    def use_stepper(self, method: StepperMethod, env: int, *rest: Any) -> Any:
        answer = self.workers.use_stepper(env, method, *rest)
        self._change_count += method == "restore"
        return answer

    def look(self, env: int | None) -> list[dict[str, Field]]:
        parts = self.workers.parts()
        if env is not None:
            w = self.workers.owner(env)
            self._wait_until_idle(w)
            return self.workers.look(w, env - parts[w].start)
        found: list[dict[str, Field]] = []
        for w in range(len(parts)):
            self._wait_until_idle(w)
            found += self.workers.look(w, None)
        return found

    def _wait_until_idle(self, w: int) -> None:
        """Asynchronous stepping: waits until a worker has finished everything that was sent to it."""
        if self._flight is not None:
            self._flight.wait_until_idle(w, self._limits["step"], self.guard)

    @property
    def worker_pids(self) -> list[int | None]:
        return [self.workers.pool.pid(w) for w in range(len(self._division.plans))]

    @property
    def statistics(self) -> dict[str, Any]:
        slots = self._lender.slots.count + (0 if self._flight is None else self._batches.slots.count)
        times = self._vector_steps, self._waited_ns, self.infos_ns
        return {**self.workers.statistics(*times), "slots": slots}

    # -- the end --------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        self.workers.pool.kill()

    def finalize(self, envs: Any) -> weakref.finalize[Any, Any]:
        """Ends the workers when `envs` is garbage collected, at the latest when the process exits."""
        return weakref.finalize(envs, _close_forgotten, self.guard, self.workers)

    def close(self, limit_s: float) -> None:
        begin = time.monotonic()
        if not self.guard.is_forked:
            self.workers.drain(max(limit_s / 2, limit_s - 0.5))
        self.workers.close(max(0.0, limit_s - (time.monotonic() - begin)))
        self._actions.close()


def _close_forgotten(guard: _core.Guard, workers: Workers) -> None:
    """Ends workers of environments that nobody closed. At exit a daemon thread may be inside a call."""
    with _core.Closing(guard) as is_first:
        if is_first and guard.wait_until_free(0.5):
            workers.close(0.5)
        elif is_first:
            workers.pool.kill()
