"""A host stepper for one block of environments of a device.

The device has the native backend's layout. So a block of `lanes` environments can be copied to the host, used
there by the plug-in's own functions (checkpoint, render, state), and copied back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from shoal import _core
from shoal.cuda.device import Device
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec, array_fields
from shoal.native.look import Looker
from shoal.native.plugin import PluginInfo
from shoal.native.refusals import refuse
from shoal.state.snapshot import Field, Snapshot
from shoal.vector import arguments
from shoal.vector.backend import Common
from shoal.vector.hooks import ActionHooks

__all__ = ["Shadow"]


class Shadow:
    """One block on the host, made when it is first used."""

    def __init__(
        self,
        info: PluginInfo,
        common: Common,
        time_limit: int,
        device: Device,
        address: Callable[[str], int],
        num_envs: int,
    ) -> None:
        self._info, self._common, self._time_limit = info, common, time_limit
        self._device, self._address, self._num_envs = device, address, num_envs
        self._segment: Segment | None = None

    def _open(self) -> tuple[Any, Segment]:
        if self._segment is None:
            info = self._info
            rows = info.lanes * info.agents
            fields: dict[str, FieldSpec] = {
                **array_fields(
                    _core.STEPPER_ARRAYS, max(1, info.instance_bytes), row=rows, environment=info.lanes
                ),
                **{f"action/{i}": (f.dtype, (rows, *f.shape)) for i, f in enumerate(info.actions)},
            }
            segment = Segment(Layout(fields))
            actions = tuple(segment[f"action/{i}"] for i in range(len(info.actions)))
            code = arguments.AUTORESET_CODES[self._common.autoreset_mode]
            self._stepper = _core.Stepper(
                info.plugin, info.values, info.lanes, 1, code, self._time_limit, segment, actions,
                _ShadowHooks(info.actions), 0, _core.Guard(), None,
            )  # fmt: skip
            self._looker = Looker(info, segment["instances"])
            self._segment = segment
        return self._stepper, self._segment

    def _blocks(self, env: int) -> list[tuple[str, int, int]]:
        """Returns name, address on the device and bytes of each part of an environment's block."""
        lanes, agents = self._info.lanes, self._info.agents
        block = env // lanes * lanes
        parts = []
        for name, dtype, per, items in _core.STEPPER_ARRAYS:
            entry = np.dtype(dtype).itemsize * (items or max(1, self._info.instance_bytes))
            count = agents if per == "row" else 1
            parts.append((name, self._address(name) + block * count * entry, lanes * count * entry))
        return parts

    def fetch(self, env: int, stream: int) -> int:
        """Copies the block of an environment to the host; returns its number there."""
        _, segment = self._open()
        for name, address, size in self._blocks(env):
            data = self._device.read(address, size, stream)
            segment[name].reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        return env % self._info.lanes

    def use(self, method: str, env: int, stream: int, *rest: Any) -> Any:
        """Calls a method of the stepper for one environment; what `restore` changes goes to the device."""
        local = self.fetch(env, stream)
        stepper, segment = self._open()
        result = getattr(stepper, method)(local, *rest)
        if method == "restore":
            for name, address, _ in self._blocks(env):
                self._device.write(address, np.ascontiguousarray(segment[name]), stream)
        return result

    def fields(self, env: int, stream: int) -> dict[str, Field]:
        """Returns copies of the exported fields."""
        local = self.fetch(env, stream)
        found = self._looker.fields(self._stepper, local)
        return {
            name: replace(field, data=field.data.copy(), live=False, stable=False)
            for name, field in found.items()
        }

    def snapshot(self, env: int, rows: Any, stream: int) -> Snapshot | None:
        """Returns a snapshot of an environment; `rows` are those of its last step, as bytes."""
        local = self.fetch(env, stream)
        found = self._looker.snapshot(_Source(self._stepper, rows), local)
        return None if found is None else replace(found, env_id=env)

    def close(self) -> None:
        if self._segment is not None:
            self._stepper.close()
            self._segment.close()
            self._segment = None


class _Source:
    """What a Looker reads: the stepper of the shadow, and the rows of the last step."""

    def __init__(self, stepper: Any, rows: Any) -> None:
        self._stepper, self._rows = stepper, rows
        self.fields, self.render = stepper.fields, stepper.render

    def look(self, env: int) -> tuple[tuple[int, int], Any]:
        return self._stepper.look(env)[0], self._rows


class _ShadowHooks(ActionHooks):
    """What the shadow's stepper calls; it steps nothing and publishes nothing."""

    def refuse(self, reason: str) -> NoReturn:
        refuse(reason)

    def publish(self, source: Any) -> None: ...
