"""The session of environments on a device: counters and watched environments are copied to the host.

counters   at most twice a second an asynchronous copy is enqueued; a later step reads it
watched    when a watcher is due, a step waits for the device and copies one block of environments
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal import _core
from shoal.cuda.arrays import Arrays
from shoal.cuda.bake import LAST_ROWS
from shoal.cuda.device import Device
from shoal.memory import Layout, Segment
from shoal.native.plugin import PluginInfo
from shoal.state.publish import Publisher
from shoal.state.recording import Glance, glance_at
from shoal.state.session import watch_fields
from shoal.state.snapshot import Snapshot
from shoal.vector.device_shadow import Shadow
from shoal.vector.device_state import SUMS_BYTES, add_up

__all__ = ["DeviceSession"]

_PERIOD_NS = 500_000_000


class DeviceSession:
    """Host memory that the session's host thread reads."""

    def __init__(
        self, info: PluginInfo, num_envs: int, device: Device, address: Callable[[str], int]
    ) -> None:
        self._info, self._num_envs = info, num_envs
        rows = min(num_envs * info.agents, LAST_ROWS)
        self.memory = Segment(
            Layout(
                {
                    **watch_fields(1),
                    "sums": (np.float64, (1, _core.SUMS)),
                    "last_return": (np.float64, (rows,)),
                    "last_length": (np.uint32, (rows,)),
                }
            )
        )
        parts = [("sums", SUMS_BYTES), ("last_return", 8 * rows), ("last_length", 4 * rows)]
        self._sources = [(address(name), size) for name, size in parts]
        self._rows = rows
        self._mirror = device.mirror(sum(size for _, size in parts))
        self._device = device
        self._next_ns = 0
        self._due = self.memory["due"][0]
        self._publisher: Publisher | None = None

    def begin(self) -> None:
        self._publisher = Publisher(self.memory, 0, self._num_envs)

    def publish(self, shadow: Shadow, arrays: Arrays, rows: Any, actions: Any, stream: int) -> None:
        """Called after each step and reset; `actions` is None after a reset."""
        now = time.monotonic_ns()
        if now >= self._next_ns:
            self._next_ns = now + _PERIOD_NS
            self._take_counters()
            self._mirror.start(self._sources, stream)
        if self._publisher is None or not self._due[0]:
            return
        self._due[0] = 0

        def look(env: int) -> Snapshot | None:
            return shadow.snapshot(env, self._read_rows(env, arrays, rows, actions, stream), stream)

        def glance(env: int) -> Glance | None:
            seen = look(env)
            return None if seen is None else glance_at(seen)

        self._publisher(look, glance)

    def _take_counters(self) -> None:
        """Writes the counters of the last copy where the host thread reads them."""
        data = self._mirror.poll()
        if data is None:
            return
        steps, episodes, total, length = add_up(data)
        self.memory["sums"][0, :4] = steps, episodes, total, length
        at = SUMS_BYTES
        self.memory["last_return"][:] = np.frombuffer(data, np.float64, self._rows, at)
        self.memory["last_length"][:] = np.frombuffer(data, np.uint32, self._rows, at + 8 * self._rows)

    def _read_rows(self, env: int, arrays: Arrays, rows: Any, actions: Any, stream: int) -> Any:
        """Returns the rows of an environment as bytes: observations, reward, flags, actions."""
        agents = self._info.agents

        def read(array: Any) -> bytes:
            size = array.nbytes // len(array) * agents
            return self._device.read(arrays.address(array) + env * size, size, stream)

        flags = [read(array) for array in (rows.rewards, rows.terminated, rows.truncated)]
        return [read(array) for array in rows.observations], *flags, [read(array) for array in actions or ()]

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._mirror.close()
        self.memory.close()
