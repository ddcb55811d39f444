"""The cuda backend: C environments on a GPU, one kernel per step, with results in the GPU's memory.

DeviceState    what is on the device: instances, generators, episodes; and the argument of the kernels
Shadow         a host stepper for one block of environments, for what only the plug-in can do

A call enqueues kernels on the caller's current stream and returns. Nothing waits for the device, except calls
that need its memory on the host: check, save_env, restore_env, render, state, stats and watchers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cuda.arrays import Arrays, choose_arrays
from shoal.cuda.device import Device
from shoal.errors import ShoalError
from shoal.memory import Segment
from shoal.native.plugin import FieldInfo, PluginInfo, split_value
from shoal.native.refusals import refuse, refuse_attribute
from shoal.process.requests import StepperMethod
from shoal.state.snapshot import Field
from shoal.vector import arguments
from shoal.vector.backend import FROM_BUFFER, Call, Common, Facts
from shoal.vector.device_faults import raise_faults
from shoal.vector.device_lending import DeviceLender, DeviceRows, addresses_of, join
from shoal.vector.device_session import DeviceSession
from shoal.vector.device_shadow import Shadow
from shoal.vector.device_state import DeviceState
from shoal.vector.lending import LeasedMemory
from shoal.vector.plugin_backend import PluginBackend

__all__ = ["CudaBackend"]


class CudaBackend(PluginBackend):
    """C environments of one plug-in on one device."""

    name = "cuda"
    builds_infos = False

    def __init__(
        self,
        info: PluginInfo,
        source: Path,
        num_envs: int,
        common: Common,
        device: Device,
        *,
        array: str | None = None,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if common.batch_size is not None:
            raise ValueError("batch_size is for the CPU: on a device all environments step together")
        if array == "jax" and common.buffers == "live":
            raise ValueError("buffers='live' overwrites arrays, which JAX's must not be; use 'leased'")
        super().__init__(info, num_envs, common, max_episode_steps, render_mode)
        self._device = device
        self._arrays: Arrays = choose_arrays(array, device)
        with device.enter():
            kernels = device.load(info, source)
            self._state = state = DeviceState(
                info, common, self._num_envs, self._time_limit, device, self._arrays, kernels
            )
        self._padded = state.padded_worlds * info.agents if kernels.unit > 1 else self._rows
        self._array = array
        self._changes = 0
        self._session: DeviceSession | None = None
        self._saved: DeviceRows | None = None
        if not info.plugin.has_extension("shoal.observe/1"):  # rows that a call does not write
            self._saved = DeviceRows(self._arrays, info, common, self._rows, self._padded)
            state.set_saved(self._saved.observations)
        self._shadow = Shadow(info, common, self._time_limit, device, state.address, self._num_envs)

    # -- starting -------------------------------------------------------------------------------------

    def make_lender(self, facts: Facts, lent: LeasedMemory) -> Any:
        return DeviceLender(self._arrays, self._info, self._common, self._rows, self._padded)

    def bind(self, lender: Any, infos: Any, meanwhile: Callable[[], None]) -> None:
        self._lender: DeviceLender = lender
        shapes = [((self._padded, *field.shape), field.dtype) for field in self._info.actions]
        self._own_actions = [self._arrays.zeros(*shape)[: self._rows] for shape in shapes]
        with self._device.enter():
            self._state.launch("shoal_init", self._arrays.stream())
            self._raise_faults()
        meanwhile()

    def session_sources(self) -> tuple[Segment, Any]:
        with self._device.enter():
            self._session = DeviceSession(self._info, self._num_envs, self._device, self._state.address)
        return self._session.memory, self._session.memory["sums"]

    def begin_session(self) -> None:
        assert self._session is not None
        self._session.begin()

    def require_rollout(self) -> None:
        if self._array == "jax":
            raise ShoalError(
                'a rollout is written in place, which arrays of JAX must not be; use array="torch" or "cupy"'
            )

    @property
    def actions(self) -> Any:
        return join(self._info.actions, self._own_actions)

    # -- calls ----------------------------------------------------------------------------------------

    def set_pending(self, kind: str | None) -> None: ...

    def read_mask(self, options: Any) -> tuple[Any, dict[str, Any] | None]:
        """Returns which environments to reset, as bytes on the device, and the other options."""
        if options is None or not isinstance(options, dict) or "reset_mask" not in options:
            return arguments.reset_mask(options, self._rows, self._num_envs)
        others = dict(options)
        what = "options['reset_mask']"
        given = others.pop("reset_mask")
        mask = self._arrays.take(given, what, (self._rows,), np.dtype(np.bool_))
        if self._info.agents > 1:
            mask = mask.reshape((self._num_envs, -1)).any(1)
        return mask, others

    def take_actions(self, call: Call, actions: Any) -> None:
        """Checks where the actions are and what type they have; the kernel checks their values."""
        if not self._began:
            refuse("not reset")
        # So that the memory of the last step can be used again.
        call.into = call.actions = None  # type: ignore[assignment]
        if actions is None:
            raise TypeError("step takes the actions, found None; nothing was stepped")
        if actions is FROM_BUFFER:
            call.actions = self._own_actions
            return
        call.actions = self._take_parts(actions)

    def _take_parts(self, actions: Any) -> list[Any]:
        fields = self._info.actions
        if fields[0].name is None:
            parts = [actions]
        elif isinstance(actions, dict) and set(actions) == {field.name for field in fields}:
            parts = [actions[field.name] for field in fields]
        else:
            found = f"the keys {list(actions)}" if isinstance(actions, dict) else type(actions).__name__
            names = [field.name for field in fields]
            raise ValueError(f"expected actions with the keys {names}, found {found}")
        return [self._take(field, part) for field, part in zip(fields, parts, strict=True)]

    def _take(self, field: FieldInfo, part: Any) -> Any:
        what = "actions" if field.name is None else f"actions[{field.name!r}]"
        taken = self._arrays.take(part, what, (self._rows, *field.shape), field.dtype)
        if self._arrays.address(taken) % field.dtype.itemsize:
            raise ValueError(
                f"{what}: expected an address that is a multiple of {field.dtype.itemsize}; pass a copy. "
                "Nothing was done"
            )
        if self._padded == self._rows:
            return taken
        padded = self._arrays.zeros((self._padded, *field.shape), field.dtype)
        padded[: self._rows] = taken
        return padded

    def _run(self, call: Call) -> None:
        if call.kind == "call":
            refuse_attribute(call.requests[0].name)
        rows: Any = call.into
        with self._device.enter():
            stream = self._arrays.stream()
            if call.kind == "step" and self._common.buffers != "live" and self._device.is_capturing(stream):
                raise ShoalError(
                    "a CUDA graph repeats the addresses that it captured, and each step of "
                    "buffers='leased' has new ones; make the environments with buffers='live', or capture "
                    "the steps of a rollout"
                )
            self._state.set_results(rows.addresses)
            if call.kind == "step":
                self._step(call.actions, stream)
            else:
                self._reset(call, stream)
            self._keep_observations(rows)
            self._publish(rows, call.actions if call.kind == "step" else None, stream)

    def _refuse_capture(self, name: str, stream: int) -> None:
        if self._device.is_capturing(stream):
            raise ShoalError(
                f"{name} waits for the device, so it cannot be captured; call it before or after"
            )

    def _step(self, actions: Sequence[Any], stream: int) -> None:
        self._state.step(actions, stream)
        self._changes += 1

    def _reset(self, call: Call, stream: int) -> None:
        self._refuse_capture("reset", stream)
        seeds, is_seeded = self._choose_seeds(call.seeds)
        self._raise_faults()
        self._state.reset(call.mask, seeds, is_seeded, stream)
        # In DISABLED mode, a reset of some environments is part of a rollout: those that ended.
        self._changes += call.mask is None or not self._common.disabled
        self._began = self._seeded = True

    def _choose_seeds(self, seeds: list[int | None]) -> tuple[NDArray[np.uint64], NDArray[np.uint8] | None]:
        """Returns the seeds and which environments have one; (.., None): no generator changes."""
        if not self._seeded:
            seeds = [secrets.randbits(62) if seed is None else seed for seed in seeds]
        chosen = np.array([seed is not None for seed in seeds], np.uint8)
        if not chosen.any():
            return np.zeros(0, np.uint64), None
        large = next((seed for seed in seeds if seed is not None and seed >= 2**64), None)
        if large is not None:
            raise ValueError(f"a seed on a device must fit 64 bits, got {large}")
        return np.array([seed or 0 for seed in seeds], np.uint64), chosen

    def _keep_observations(self, rows: Any) -> None:
        """Copies the observations, if the plug-in cannot write them again."""
        if self._saved is None:
            return
        stream = self._arrays.stream()
        for mine, theirs in zip(self._saved.observations, rows.observations, strict=True):
            size = self._rows * (mine.nbytes // len(mine))
            self._device.copy(self._arrays.address(mine), self._arrays.address(theirs), size, stream)

    def count_changes(self) -> int:
        return self._changes

    def rollout_step(
        self, observations: Any, actions: Any, flags: Sequence[Any]
    ) -> Callable[[int, Any], Any]:
        seen, acted = (
            split_value(self._info.observations, observations),
            split_value(self._info.actions, actions),
        )
        made: dict[int, _RolloutRows] = {}

        def step(t: int, given: Any) -> dict[str, Any]:
            if given is None:
                raise TypeError("rollout.step takes the actions, found None; nothing was stepped")
            call = Call("step", 1, self._lender.rows(1))
            self.take_actions(call, given)
            for block, part in zip(acted, call.actions, strict=True):
                block[t] = part[: self._rows]
            if t not in made:
                made[t] = _RolloutRows(
                    self._arrays, [array[t + 1] for array in seen], [array[t] for array in flags]
                )
            rows = made[t]
            with self._device.enter():
                stream = self._arrays.stream()
                self._state.set_results(rows.addresses)
                self._step(call.actions, stream)
                self._keep_observations(rows)
                self._publish(rows, call.actions, stream)
            return {}

        return step

    # -- faults ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Waits for the device and raises what the kernels found wrong since the last check."""
        with self._device.enter():
            self._refuse_capture("check", self._arrays.stream())
            self._raise_faults()

    def _raise_faults(self) -> None:
        kinds = self._state.take_faults(self._arrays.stream())
        if kinds is not None:
            raise_faults(kinds, self._info)

    # -- one environment ------------------------------------------------------------------------------

    def async_reset(self, seeds: list[int | None], reset: Callable[[], list[Any]]) -> None:
        raise AssertionError("batch_size was refused")

    def send(self, actions: Any, env_ids: Any) -> None:
        raise AssertionError("batch_size was refused")

    def recv(self, env_ids: Any = None) -> Any:
        raise AssertionError("batch_size was refused")

    def use_stepper(self, method: StepperMethod, env: int, *rest: Any) -> Any:
        with self._device.enter():
            stream = self._arrays.stream()
            self._refuse_capture(method, stream)
            self._device.synchronize()
            result = self._shadow.use(method, env, stream, *rest)
        if method == "restore":
            self._changes += 1
            self._began = True
        return result

    def look(self, env: int | None) -> list[dict[str, Field]]:
        chosen = range(self._num_envs) if env is None else [env]
        with self._device.enter():
            stream = self._arrays.stream()
            self._refuse_capture("state", stream)
            self._device.synchronize()
            return [self._shadow.fields(one, stream) for one in chosen]

    def _publish(self, rows: Any, actions: Any, stream: int) -> None:
        if self._session is not None and not self._device.is_capturing(stream):
            self._session.publish(self._shadow, self._arrays, rows, actions, stream)

    @property
    def direct(self) -> dict[str, Any]:
        return {}

    @property
    def statistics(self) -> dict[str, Any]:
        with self._device.enter():
            stream = self._arrays.stream()
            self._refuse_capture("stats", stream)
            return {**self._state.read_statistics(stream), "slots": self._lender.count}

    def close(self, limit_s: float) -> None:
        if self._state.is_closed:  # the first call raised what the kernels had found
            return
        try:
            self.check()
        finally:
            if self._session is not None:
                with self._device.enter():
                    self._session.close()
            self._shadow.close()
            self._state.close()
            self._lender.close()
            self._own_actions = []
            self._saved = None


class _RolloutRows:
    """The rows of one step of a rollout, in the shape of DeviceRows."""

    finals: Sequence[Any] = ()
    episode: Sequence[Any] = ()
    finished: Any = None

    def __init__(self, arrays: Arrays, observations: list[Any], flags: list[Any]) -> None:
        self.observations = observations
        self.rewards, self.terminated, self.truncated = flags
        self.addresses = addresses_of(arrays, self)
