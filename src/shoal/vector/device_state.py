"""The state of environments on a device, and the argument of the kernels: 64-bit words, sizes and addresses.

    words:  sizes | addresses of the state | of a reset's arguments | of saved rows | of results | of actions

The state has the native backend's layout. The order of the words is that of `shoal_grid` in kernel/grid.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.cuda.arrays import Arrays
from shoal.cuda.device import LARGE, Device, Kernels
from shoal.errors import ShoalError
from shoal.memory.layout import array_fields
from shoal.native.plugin import PluginInfo
from shoal.vector import arguments
from shoal.vector.backend import Common

__all__ = ["SUMS_BYTES", "DeviceState", "add_up"]

SUMS_BYTES = 1024 * 32
"""The counters: GRID_STRIPES times grid_sums of kernel/grid.c."""
_SIZES = ("num_envs", "time_limit", "autoreset", "checks", "spread", "threads", "is_backward")
_STATE = tuple(name for name, *_ in _core.STEPPER_ARRAYS)
_FAULTS = ("faults", "any_fault", "sums")
_RESET = ("mask", "seeds", "is_seeded")
_RESULTS = 6  # rewards, two flags, and three arrays of finished episodes
_SPREADS = ((LARGE, 1024, 4), (512, 1024, 1))
"""Environments of at least so many bytes: threads for each multiprocessor, and the most spread (measured)."""
_SMALL = 1024
"""So many environments for each multiprocessor run at once, and blocks have spare threads (kernel/grid.c)
unless environments are large, because these use all the room for threads. With more environments, spare
threads would take the room of others, and every second step runs backward instead."""
_SPARE = 32  # GRID_SPARE of kernel/grid.c


def add_up(data: bytes) -> tuple[int, int, float, int]:
    """Returns steps, episodes, the sum of their returns and that of their lengths."""
    counts = np.frombuffer(data, np.uint64, SUMS_BYTES // 8).reshape(-1, 4)
    steps, episodes, length = counts[:, :3].sum(axis=0).tolist()
    return steps, episodes, float(counts[:, 3].copy().view(np.float64).sum()), length


class DeviceState:
    """The arrays on the device, as bytes, and the kernels that use them."""

    def __init__(
        self,
        info: PluginInfo,
        common: Common,
        num_envs: int,
        time_limit: int,
        device: Device,
        arrays: Arrays,
        kernels: Kernels,
    ) -> None:
        self._info, self._num_envs, self._device, self._arrays = info, num_envs, device, arrays
        self._kernels = kernels
        self.padded_worlds = -(-num_envs // info.lanes) * info.lanes
        sizes = self._measure()
        self._require_memory(sum(sizes.values()))
        self._memory = {name: arrays.zeros((max(1, size),), np.uint8) for name, size in sizes.items()}
        self._words = np.zeros(kernels.words, np.uint64)
        self._argument = int(self._words.ctypes.data)
        self.spread = self._choose_spread()
        self._is_small = num_envs <= _SMALL * device.multiprocessors
        self._fill(common, time_limit)

    def _measure(self) -> dict[str, int]:
        """Returns the bytes of every array."""
        info, worlds = self._info, self.padded_worlds
        fields = array_fields(
            _core.STEPPER_ARRAYS, max(1, info.instance_bytes), row=worlds * info.agents, environment=worlds
        )
        sizes = {
            name: np.dtype(dtype).itemsize * int(np.prod(shape)) for name, (dtype, shape) in fields.items()
        }
        return {**sizes, "faults": worlds, "any_fault": 64, "sums": SUMS_BYTES}

    def _require_memory(self, state_bytes: int) -> None:
        """Raises if the state and the results of one step do not fit, before anything is allocated."""
        rows = self._num_envs * self._info.agents
        row = sum(f.dtype.itemsize * int(np.prod(f.shape)) for f in self._info.observations) + 10
        need = state_bytes + rows * row
        free = self._device.free_memory() + self._arrays.cached_bytes()
        if need > free:
            raise MemoryError(
                f"{self._num_envs} environments of {self._info.plugin.name} need {need:,} bytes on "
                f"{self._device.name}, and {free:,} are free; use fewer environments, or free memory there"
            )

    def _fill(self, common: Common, time_limit: int) -> None:
        names = [*_SIZES, *_STATE, *_FAULTS, *_RESET]
        self._at = {name: number for number, name in enumerate(names)}
        fields = len(self._info.observations)
        self._saved = slice(len(names), len(names) + fields)
        self._results = slice(self._saved.stop, self._saved.stop + _RESULTS + 2 * fields)
        self._acted = self._results.stop
        if self._acted + len(self._info.actions) != len(self._words):
            raise ShoalError("the kernels were built by another version of Shoal; delete the cache")
        for name in self._memory:
            self._words[self._at[name]] = self.address(name)
        sizes = (
            self._num_envs,
            time_limit or 2**32 - 1,
            arguments.AUTORESET_CODES[common.autoreset_mode],
            sum(arguments.CHECK_FLAGS[name] for name in common.checks),
            self.spread,
            self._kernels.block,
            0,
        )
        self._words[: len(sizes)] = sizes

    def _choose_spread(self) -> int:
        """Returns log2 of the threads per environment: more than one if environments are large and few.

        Threads of a warp that run different code take turns, and so do their waits for memory. If there are
        fewer environments than the device has room for threads, a warp gets fewer of them.
        """
        if self._kernels.unit > 1:
            return 0
        threads, most = next((rule for size, *rule in _SPREADS if self._info.instance_bytes >= size), (0, 0))
        spread = 0
        while spread < most and self._num_envs << (spread + 1) <= threads * self._device.multiprocessors:
            spread += 1
        return spread

    def address(self, name: str) -> int:
        return self._arrays.address(self._memory[name])

    def launch(self, kernel: str, stream: int, unit: int = 1, spread: int = 0, spare: int = 0) -> None:
        per_block, threads = self._kernels.block * unit >> spread, self._kernels.block + spare
        self._words[self._at["threads"]] = threads
        self._kernels.launch(kernel, -(-self._num_envs // per_block), threads, self._argument, stream)

    def set_saved(self, observations: Sequence[Any]) -> None:
        """Tells the kernels where the last observations are, for plug-ins that cannot write them again."""
        self._words[self._saved] = [self._arrays.address(part) for part in observations]

    def set_results(self, addresses: NDArray[np.uint64]) -> None:
        self._words[self._results] = addresses

    def step(self, actions: Sequence[Any], stream: int) -> None:
        for number, part in enumerate(actions, self._acted):
            self._words[number] = self._arrays.address(part)
        has_spare = self._is_small and self._kernels.unit == 1 and self._info.instance_bytes < LARGE
        self._words[self._at["is_backward"]] ^= np.uint64(not self._is_small)
        self.launch("shoal_step", stream, self._kernels.unit, self.spread, _SPARE if has_spare else 0)

    def reset(
        self, mask: Any, seeds: NDArray[np.uint64], is_seeded: NDArray[np.uint8] | None, stream: int
    ) -> None:
        """Resets the environments of the mask (None: all), after seeding those that have a seed."""
        held = [] if mask is None else [("mask", mask)]
        if is_seeded is not None:
            for name, values in (("seeds", seeds), ("is_seeded", is_seeded)):
                array = self._arrays.empty((values.nbytes,), np.uint8)
                self._device.write(self._arrays.address(array), values, stream)
                held.append((name, array))
        for name in _RESET:
            self._words[self._at[name]] = 0
        for name, array in held:
            self._words[self._at[name]] = self._arrays.address(array)
        self.launch("shoal_reset", stream)

    def take_faults(self, stream: int) -> NDArray[np.uint8] | None:
        """Waits for the device; returns each environment's fault and forgets it; None if there is none."""
        self._device.synchronize()
        word = self.address("any_fault")
        if not any(self._device.read(word, 4, stream)):
            return None
        kinds = self._device.read(self.address("faults"), self._num_envs, stream)
        self._device.write(word, bytes(4), stream)
        self._device.write(self.address("faults"), bytes(self._num_envs), stream)
        return np.frombuffer(kinds, np.uint8)

    def read_statistics(self, stream: int) -> dict[str, Any]:
        self._device.synchronize()
        data = self._device.read(self.address("sums"), SUMS_BYTES, stream)
        steps, episodes, total, length = add_up(data)
        mean = (total / episodes, length / episodes) if episodes else (float("nan"), float("nan"))
        return {"steps": steps, "episodes": episodes, "mean_return": mean[0], "mean_length": mean[1]}

    @property
    def is_closed(self) -> bool:
        return not self._memory

    def close(self) -> None:
        self._memory.clear()
