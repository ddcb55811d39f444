"""The native backend: C environments on threads of this process. A step is one C call.

state segment   instances, generators, episode counters, actions
Stepper         all environments step together
Flow            with batch_size: units of adjacent environments step when they are sent
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError, explain_os_errors
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec, array_fields
from shoal.native.env_logs import find_env_logs
from shoal.native.look import Looker
from shoal.native.plugin import PluginInfo, seed_generators, split_value
from shoal.native.refusals import refuse, refuse_attribute
from shoal.process.requests import StepperMethod
from shoal.spaces import Bounds
from shoal.state.publish import Publisher
from shoal.state.session import watch_fields
from shoal.state.snapshot import Field
from shoal.vector import arguments
from shoal.vector.backend import FROM_BUFFER, Call, Common, Facts, lend_segments
from shoal.vector.episodes import EpisodeInfos
from shoal.vector.hooks import Hooks
from shoal.vector.lending import LeasedMemory, Lender
from shoal.vector.plugin_backend import PluginBackend

__all__ = ["NativeBackend"]

_VIEWS_KEPT = 4096  # rows of a rollout; a view takes 100 bytes


class NativeBackend(PluginBackend):
    """C environments of one plug-in."""

    name = "native"

    def __init__(
        self,
        info: PluginInfo,
        num_envs: int,
        common: Common,
        *,
        num_threads: int | None = None,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(info, num_envs, common, max_episode_steps, render_mode)
        self._threads = (
            _core.cpu_count() if num_threads is None else arguments.count("num_threads", num_threads, 4096)
        )
        # With batch_size, units of adjacent environments step together, each in blocks of its own.
        self._unit = info.lanes
        worlds = self._num_envs
        if common.batch_size is not None:
            self._unit = self._compute_unit(common.batch_size)
            worlds = self._num_envs // self._unit * info.lanes
        self._worlds = worlds
        self._padded = -(-worlds // info.lanes) * info.lanes * info.agents
        self._state = Segment(self._state_layout())  # raises if the sizes do not fit into memory
        self._looker = Looker(info, self._state["instances"])
        self._watching = _Watching(self._looker)
        self._flow: _core.Flow | None = None

    def _compute_unit(self, batch_size: int) -> int:
        """Returns how many environments step together: the greatest common divisor of three counts."""
        batch = arguments.count("batch_size", batch_size, self._num_envs)
        mode = self._common.autoreset_mode.name
        if mode != "NEXT_STEP" or self._common.buffers != "leased":
            raise ValueError(
                "batch_size needs autoreset_mode NEXT_STEP and buffers='leased', found "
                f"{mode} and {self._common.buffers!r}"
            )
        if self._info.agents > 1:
            raise ValueError(
                f"batch_size is for environments with one agent, and this one has {self._info.agents}; leave "
                "batch_size out, and use step"
            )
        return math.gcd(self._num_envs, batch, self._info.lanes)

    def _state_layout(self) -> Layout:
        info, rows = self._info, self._padded
        worlds = rows // info.agents
        fields: dict[str, FieldSpec] = {
            **array_fields(_core.STEPPER_ARRAYS, max(1, info.instance_bytes), row=rows, environment=worlds),
            **watch_fields(1),
        }
        for number, field in enumerate(info.actions):
            fields[f"action/{number}"] = (field.dtype, (rows, *field.shape))
        return Layout(fields)

    def make_lender(self, facts: Facts, lent: LeasedMemory) -> Lender:
        return lend_segments(self, facts, self._common, lent)

    def bind(self, lender: Lender, infos: EpisodeInfos | None, meanwhile: Callable[[], None]) -> None:
        info, common = self._info, self._common
        rows = self._num_envs * info.agents
        self._lender = lender
        self._hooks = Hooks(info.actions, lender, infos, info.observation_space, self._watching)
        self._actions = [self._state.rows(f"action/{i}", rows) for i in range(len(info.actions))]
        flags = sum(arguments.CHECK_FLAGS[name] for name in common.checks)
        flags += _core.STEPPER_LIVE if common.buffers == "live" else 0
        flags += _core.STEPPER_INFOS if infos is not None else 0
        self._stepper = _core.Stepper(
            info.plugin,
            info.values,
            self._worlds,
            self._threads if common.batch_size is None else 1,
            arguments.AUTORESET_CODES[common.autoreset_mode],
            self._time_limit,
            self._state,
            tuple(self._state[f"action/{i}"] for i in range(len(info.actions))),
            self._hooks,
            flags,
            self.guard,
            lender.slots,
        )
        if infos is not None:
            infos.last = self._state["last_return"][:rows], self._state["last_length"][:rows]
            if common.episode_stats and info.keeps_log:
                parts = [(self._state["instances"], self._padded // info.agents)]
                infos.env_logs = find_env_logs(info, self._stepper.fields(0), parts)
        self._source: Any = self._stepper
        if common.batch_size is not None:
            batch, names = common.batch_size, [field.name for field in info.observations]
            batches = Lender(
                lender.leased_memory,
                info.observation_space,
                batch,
                batch,
                Bounds(),
                fields=names,
                with_ids=True,
            )
            threads = min(self._threads, self._num_envs // self._unit)
            with explain_os_errors(f"start {threads} threads", ShoalError):
                self._source = self._flow = _core.Flow(
                    self._stepper,
                    threads,
                    self._unit,
                    batch,
                    "nan" in common.checks,
                    self._hooks,
                    batches.slots,
                )
            self._batches = batches
        meanwhile()

    @property
    def direct(self) -> dict[str, Any]:
        """The native methods themselves: a step is one call with no Python frame in between."""
        if self._flow is None:
            return {"step": self._stepper.step, "_count_changes": self._stepper.count_changes}
        return {"send": self.send, "recv": self.recv}

    def session_sources(self) -> tuple[Segment, Any]:
        return self._state, self._source

    def begin_session(self) -> None:
        self._watching.publisher = Publisher(self._state, 0, self._num_envs)
        self._stepper.set_watch(self._state["due"], None)

    @property
    def actions(self) -> Any:
        if self._info.actions[0].name is None:
            return self._actions[0]
        return {field.name: rows for field, rows in zip(self._info.actions, self._actions, strict=True)}

    # -- calls ----------------------------------------------------------------------------------------

    def take_actions(self, call: Call, actions: Any) -> None:
        if actions is None:
            raise TypeError("step takes the actions, found None; nothing was stepped")
        call.actions = None if actions is FROM_BUFFER else actions

    def set_pending(self, kind: str | None) -> None:
        self._stepper.set_pending(kind)

    def read_mask(self, options: Any) -> tuple[Any, dict[str, Any] | None]:
        return arguments.reset_mask(options, self._num_envs * self._info.agents, self._num_envs)

    def check(self) -> None: ...

    def _run(self, call: Call) -> None:
        if call.kind == "call":
            refuse_attribute(call.requests[0].name)
        arrays = self._lender.slots.arrays(call.slot)
        if call.kind == "step":
            self._stepper.step_into(call.actions, arrays, None)
        else:
            self._seed(call.seeds, call.mask)
            self._stepper.reset_into(call.mask, arrays)
            self._began = True

    def count_changes(self) -> int:
        return self._stepper.count_changes()

    def rollout_step(
        self, observations: Any, actions: Any, flags: Sequence[NDArray[Any]]
    ) -> Callable[[int, Any], Any]:
        stepper, length = self._stepper, len(flags[0])
        seen, acted = (
            split_value(self._info.observations, observations),
            split_value(self._info.actions, actions),
        )
        # Views of each row, made once and kept: results, and the recorded actions.
        rows: dict[int, tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any], ...]]] = {}

        def step(t: int, given: Any) -> dict[str, Any]:
            if given is None:
                raise TypeError("rollout.step takes the actions, found None; nothing was stepped")
            row = rows.get(t)
            if row is None:
                results = (*(array[t + 1] for array in seen), *(array[t] for array in flags))
                row = results, tuple(array[t : t + 1] for array in acted)
                if length <= _VIEWS_KEPT:
                    rows[t] = row
            stepper.step_into(given, *row)
            return {}

        return step

    def _seed(self, seeds: list[int | None], mask: NDArray[np.bool_] | None) -> None:
        place = [self._place(env) for env in range(self._num_envs)]
        seed_generators(self._stepper, self._state["rng"], seeds, mask, self._seeded, place)
        self._seeded = True

    def _place(self, env: int) -> int:
        """Returns the index of environment `env` in the engine."""
        return env // self._unit * self._info.lanes + env % self._unit

    # -- asynchronous stepping ------------------------------------------------------------------------

    def async_reset(self, seeds: list[int | None], reset: Callable[[], list[Any]]) -> None:
        assert self._flow is not None
        if self._flow.under_way:
            refuse("under way")
        self._seed(seeds, None)
        self._flow.reset()

    def send(self, actions: Any, env_ids: Any) -> None:
        assert self._flow is not None
        ids = np.asarray(env_ids)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
            raise TypeError(f"env_ids must be a list of ints, got {ids.dtype} of shape {ids.shape}")
        if not ids.size and isinstance(actions, (list, tuple)) and not actions:
            actions = self._no_actions()  # NumPy would make an array of floats of it
        self._flow.send(actions, np.ascontiguousarray(ids, np.int64))

    def _no_actions(self) -> Any:
        parts = {field.name: np.empty((0, *field.shape), field.dtype) for field in self._info.actions}
        return parts.get(None, parts)

    def recv(self, env_ids: Any = None) -> Any:
        assert self._flow is not None
        if env_ids is not None:
            raise ShoalError("recv(env_ids) is for worker processes; with C environments leave env_ids out")
        return self._flow.recv()

    # -- one environment ------------------------------------------------------------------------------

    def use_stepper(self, method: StepperMethod, env: int, *rest: Any) -> Any:
        if self._flow is not None and self._flow.under_way:
            refuse("under way")
        return getattr(self._stepper, method)(self._place(env), *rest)

    def look(self, env: int | None) -> list[dict[str, Field]]:
        chosen = range(self._num_envs) if env is None else [env]
        return [self._looker.fields(self._source, one) for one in chosen]

    @property
    def statistics(self) -> dict[str, Any]:
        slots = self._lender if self._flow is None else self._batches
        return {**self._source.statistics, "slots": slots.slots.count}

    def close(self, limit_s: float) -> None:
        self._watching.close()
        if self._flow is not None:
            self._flow.close()
        self._stepper.close()
        self._state.close()


class _Watching:
    """The stepper calls this when a watched environment is due. It does not refer to the stepper."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self.publisher: Publisher | None = None

    def __call__(self, source: Any) -> None:
        if self.publisher is not None:
            self.publisher(partial(self._looker.snapshot, source), partial(self._looker.glance, source))

    def close(self) -> None:
        if self.publisher is not None:
            self.publisher.close()
