"""Steps a plug-in in memory with guard bytes around every piece, and finds writes outside a piece.

    one array:    guard | rows of environment 0 | guard | guard | rows of environment 1 | guard | ...

Each environment (each block of `lanes` environments) has its own pieces: the struct, the generator, and its
rows of every array. The plug-in sees ordinary arrays: each call is for one block, and its base addresses are
chosen so that the usual offsets lead to its pieces. Under AddressSanitizer the guard bytes are poisoned, so
it reports the instruction that accesses them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from shoal.check.abi import RNG_BYTES, Envs, find_entry, find_observe, to_values
from shoal.check.subject import CheckFailed, Region, Subject
from shoal.check.traces import Moment, Moves, Trace, name_array
from shoal.native.plugin import PluginInfo, rng_words

__all__ = ["GuardedEnvs", "Pieces", "collect", "guard_trace", "play"]

_GUARD, _LINE = 0xA5, 64
_LEAST, _MOST = 256, 1 << 14
_POISON: Any = getattr(ctypes.CDLL(None), "__asan_poison_memory_region", None)
_UNPOISON: Any = getattr(ctypes.CDLL(None), "__asan_unpoison_memory_region", None)


class Pieces:
    """One array: for each block of environments a piece of `size` bytes between guard bytes."""

    def __init__(self, name: str, size: int, blocks: int) -> None:
        self.name, self.size = name, size
        self._guard = -(-min(max(size, _LEAST), _MOST) // _LINE) * _LINE
        gap = 2 * self._guard  # the guards of two neighbours; whole cache lines, so that pieces ...
        self._stride = gap + size  # ... have the alignment that they have in an array without guards
        self._memory = np.full(gap + blocks * self._stride + _LINE, _GUARD, np.uint8)
        self._first = gap + -self._memory.ctypes.data % _LINE
        self._pieces = as_strided(self._memory[self._first :], (blocks, size), (self._stride, 1))
        self._gaps = as_strided(self._memory[self._first - gap :], (blocks + 1, gap), (self._stride, 1))
        self.write(0)

    def write(self, values: NDArray[np.uint8] | int) -> None:
        """Writes the pieces, one after another."""
        self._pieces[:] = values if isinstance(values, int) else values.reshape(self._pieces.shape)

    def read(self) -> NDArray[np.uint8]:
        """Returns a copy of the pieces, one after another, as in an array without guards."""
        copy: NDArray[np.uint8] = self._pieces.copy().reshape(-1)
        return copy

    def base(self, block: int) -> int:
        """Returns the base address at which the usual offset of a block leads to its piece."""
        return self.region(block)[0] - block * self.size

    def region(self, block: int) -> tuple[int, int]:
        """Returns the addresses at which the piece of a block begins and ends."""
        begin = int(self._memory.ctypes.data) + self._first + block * self._stride
        return begin, begin + self.size

    def forbid(self) -> None:
        """Tells AddressSanitizer, if it is loaded, that guard bytes are out of bounds until `find_damage`."""
        begin, _ = self.region(0)
        for gap in range(len(self._gaps) if _POISON is not None else 0):
            _POISON(c_void_p(begin - 2 * self._guard + gap * self._stride), c_size_t(2 * self._guard))

    def find_damage(self) -> tuple[int, str] | None:
        """Returns (block, description) of the first damaged guard bytes; None if there are none."""
        if _UNPOISON is not None:
            _UNPOISON(c_void_p(self._memory.ctypes.data), c_size_t(len(self._memory)))
        damaged = self._gaps != _GUARD
        if not damaged.any():
            return None
        gap = int(damaged.any(axis=1).argmax())  # the one before the piece of that number
        offsets = np.flatnonzero(damaged[gap])
        if gap > 0 and offsets[0] < self._guard:
            where = f"the first is byte {offsets[0] + 1} after its end"
            return gap - 1, f"{_count(len(offsets))} outside {self.name}; {where}"
        where = f"the nearest is byte {2 * self._guard - offsets[-1]} before its start"
        block = min(gap, len(self._pieces) - 1)
        return block, f"{_count(len(offsets))} outside {self.name}; {where}"


def _count(number: int) -> str:
    return "1 byte" if number == 1 else f"{number} bytes"


class GuardedEnvs:
    """`num_envs` environments whose memory has guard bytes; every call checks for damage.

    With `in_one_block`, guard bytes are only around all environments together, so calls can have any range.
    """

    def __init__(self, subject: Subject, num_envs: int, in_one_block: bool = False) -> None:
        self._subject = subject
        self.info = info = subject.describe()
        self.num_envs, self.per_block = num_envs, info.lanes
        if in_one_block:
            self.per_block = -(-num_envs // info.lanes) * info.lanes
        self.blocks = -(-num_envs // self.per_block)
        self._library, self._entry = find_entry(str(subject.library))
        self._functions = {
            **{name: getattr(self._entry, name) for name in ("init", "reset", "step", "close")},
            "observe": find_observe(self._entry),
        }
        rows = self.per_block * info.agents

        def pieces(name: str, size: int) -> Pieces:
            return Pieces(name, size, self.blocks)

        def field_pieces(kind: str, fields: Any) -> list[Pieces]:
            return [
                pieces(name_array(kind, field), rows * _row_bytes(field.dtype, field.shape))
                for field in fields
            ]

        self.instances = pieces("its struct", self.per_block * info.instance_bytes)
        self.rng = pieces("its generator (rng)", self.per_block * RNG_BYTES)
        self.observations = field_pieces("observation", info.observations)
        self.actions = field_pieces("action", info.actions)
        self.rewards = pieces("reward", rows * 8)
        self.terminated = pieces("terminated", rows)
        self.truncated = pieces("truncated", rows)
        self.reset_flags = pieces("reset", self.per_block)
        self.results = [*self.observations, self.rewards, self.terminated, self.truncated]
        self.inputs = [*self.actions, self.reset_flags]
        self.all = [self.instances, self.rng, *self.results, *self.inputs]
        self._values = to_values(info.values)
        self._bytes = [
            (c_uint64 * len(fields))(*(_row_bytes(field.dtype, field.shape) for field in fields))
            for fields in (info.observations, info.actions)
        ]
        self._envs = [self._make_envs(block) for block in range(self.blocks)]

    def _make_envs(self, block: int) -> Envs:
        """Returns the struct that is passed to the plug-in for one block."""
        observations, actions = (
            (c_void_p * len(fields))(*(one.base(block) for one in fields))
            for fields in (self.observations, self.actions)
        )
        return Envs(
            self.num_envs,
            self._values,
            self.instances.base(block),
            self.info.instance_bytes,
            self.rng.base(block),
            observations,
            self._bytes[0],
            actions,
            self._bytes[1],
            self.rewards.base(block),
            self.terminated.base(block),
            self.truncated.base(block),
            self.reset_flags.base(block),
        )

    def regions(self) -> list[Region]:
        return [
            Region(one.name, self.name_block(block), *one.region(block))
            for one in self.all
            for block in range(self.blocks)
        ]

    def name_block(self, block: int) -> str:
        return self.name_envs(block * self.per_block, self.per_block)

    def name_envs(self, first: int, count: int) -> str:
        last = max(first, min(self.num_envs, first + count) - 1)
        return f"environment {first}" if first == last else f"environments {first} to {last}"

    def fill_results(self, fill: int) -> None:
        for one in self.results:
            one.write(fill)

    def start(self) -> None:
        self._seed(0)
        self._forbid()
        for env in range(self.num_envs if self._entry.init else 0):
            message = self._call("init", env // self.per_block, env)
            if message is not None:
                raise CheckFailed(f"init of environment {env}: {message.decode(errors='replace')}")
        self._require_undamaged("init")

    def reset(self, seed: int) -> None:
        self._seed(seed)
        self.reset_range(0, self.num_envs)

    def reset_range(self, begin: int, end: int) -> None:
        """Resets these environments without seeding their generators."""
        self._forbid()
        for env in range(begin, end):
            self._call("reset", env // self.per_block, env, env + 1)
        self._require_undamaged("reset")

    @property
    def can_observe(self) -> bool:
        return self._functions["observe"] is not None

    def observe(self, begin: int, end: int) -> None:
        """Observes a range that is in one block."""
        self._forbid()
        self._call("observe", begin // self.per_block, begin, end)
        for damage in [one.find_damage() for one in self.all]:
            if damage is not None:
                raise CheckFailed(f"observe({begin}, {end}) wrote {damage[1]}")

    def write_inputs(
        self, actions: Sequence[NDArray[Any]], resets: NDArray[np.bool_]
    ) -> list[NDArray[np.uint8]]:
        """Writes actions and reset flags; returns the bytes of each of `inputs`."""
        rows = self.blocks * self.per_block
        given = [_pad(action, rows * self.info.agents) for action in actions] + [_pad(resets, rows)]
        for one, values in zip(self.inputs, given, strict=True):
            one.write(values)
        return given

    def step(self, actions: Sequence[NDArray[Any]], resets: NDArray[np.bool_]) -> None:
        given = self.write_inputs(actions, resets)
        self.truncated.write(0)
        self._forbid()
        for block in range(self.blocks):
            begin = block * self.per_block
            self._call("step", block, begin, min(self.num_envs, begin + self.per_block))
        self._require_undamaged("step")
        for one, values in zip(self.inputs, given, strict=True):
            changed = np.flatnonzero(one.read() != values)
            if len(changed):
                block_name = self.name_block(int(changed[0]) // one.size)
                raise CheckFailed(f"step of {block_name} wrote to {one.name}, which it may only read")

    def close(self) -> None:
        self._forbid()
        for env in range(self.num_envs if self._entry.close else 0):
            self._call("close", env // self.per_block, env)
        self._require_undamaged("close")

    def _seed(self, seed: int) -> None:
        """Seeds environment i with `seed + i`."""
        words = [rng_words(seed + env) for env in range(self.blocks * self.per_block)]
        self.rng.write(np.array(words, np.uint64).reshape(-1).view(np.uint8))

    def _call(self, name: str, block: int, *numbers: int) -> Any:
        envs = self._envs[block]
        table = bytes(envs)
        result = self._subject.watch(self._functions[name], name)(ctypes.byref(envs), *numbers)
        if bytes(envs) != table:
            raise CheckFailed(f"{name} of {self.name_block(block)} changed *envs, which belongs to the host")
        return result

    def _forbid(self) -> None:
        for one in self.all:
            one.forbid()

    def _require_undamaged(self, call: str) -> None:
        for damage in [one.find_damage() for one in self.all]:
            if damage is not None:
                raise CheckFailed(f"{call} of {self.name_block(damage[0])} wrote {damage[1]}")


def _pad(rows: NDArray[Any], count: int) -> NDArray[np.uint8]:
    """Returns the bytes of `count` rows; missing rows are zeros."""
    padded = np.zeros((count, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded.reshape(-1).view(np.uint8)


def _row_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return int(dtype.itemsize * np.prod(shape, dtype=np.int64))


def guard_trace(
    subject: Subject, num_envs: int, steps: int, fill: int
) -> tuple[Trace, list[NDArray[np.bool_]]]:
    """Steps guarded environments into results that hold `fill` beforehand.

    Returns what they wrote, and which environments each step reset. Raises CheckFailed if something was
    written outside its own memory.
    """
    envs = GuardedEnvs(subject, num_envs)
    if subject.report_regions is not None:
        subject.report_regions(envs.regions())
    envs.start()
    envs.fill_results(fill)
    envs.reset(seed=3)
    trace, resets = [collect("after reset", envs, is_reset=True)], [np.ones(num_envs, bool)]
    for was_reset in play(envs, steps, fill):
        resets.append(was_reset)
        trace.append(collect(f"at step {len(trace)}", envs))
    envs.close()
    return trace, resets


def play(envs: GuardedEnvs, steps: int, fill: int) -> Iterator[NDArray[np.bool_]]:
    """Steps all environments and yields which were reset; every second one is also reset at random."""
    info = envs.info
    moves, chance = Moves(info.actions, 3), np.random.default_rng(3)
    rows = np.arange(envs.num_envs * info.agents)
    elapsed, ended = np.zeros(envs.num_envs, np.int64), np.zeros(envs.num_envs, bool)
    for step in range(steps):
        ended[1::2] |= chance.random(len(ended[1::2])) < 0.05
        envs.fill_results(fill)
        envs.step(moves.pick(rows, step), ended)
        yield ended
        elapsed = np.where(ended, 0, elapsed + 1)
        flags = _read_rows(envs, envs.terminated, np.uint8) | _read_rows(envs, envs.truncated, np.uint8)
        over = flags.reshape(envs.num_envs, info.agents).all(axis=1)
        late = elapsed >= info.max_episode_steps if info.max_episode_steps > 0 else False
        ended = ~ended & (over | late)


def _read_rows(envs: GuardedEnvs, pieces: Pieces, dtype: Any, shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """Returns the rows of one array, without guards and padding."""
    rows: NDArray[Any] = pieces.read().view(dtype).reshape(-1, *shape)
    return rows[: envs.num_envs * envs.info.agents]


def collect(when: str, envs: GuardedEnvs, is_reset: bool = False) -> Moment:
    info: PluginInfo = envs.info
    results = {
        pieces.name: _read_rows(envs, pieces, field.dtype, field.shape)
        for pieces, field in zip(envs.observations, info.observations, strict=True)
    }
    if not is_reset:
        results["reward"] = _read_rows(envs, envs.rewards, np.float64)
        results["terminated"] = _read_rows(envs, envs.terminated, np.uint8)
    return Moment(when, results)
