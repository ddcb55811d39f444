"""A host in ctypes for any plug-in: any number of lanes, agents and fields. Observations are rows of bytes.

It remembers what each environment's last step or reset wrote, and compares that with shoal.observe/1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .plugin_harness import (
    _ADD,
    CANARY,
    _Checkpoint,
    _Entry,
    _Envs,
    _Field,
    _generator,
    _Observe,
    _option_values,
    _Spec,
)

Array = np.ndarray[Any, Any]
_MARGIN = 4096
_RUBBISH = 0x5A  # in arrays that a plug-in must neither read nor write


@dataclass
class ActionBounds:
    """One action field."""

    dtype: np.dtype[Any]
    low: Array  # for each element
    high: Array

    def sample(self, rng: np.random.Generator, rows: int) -> Array:
        """Random rows, as bytes."""
        chosen = rng.uniform(self.low, self.high + (self.dtype.kind != "f"), (rows, len(self.low)))
        return np.floor(chosen).astype(self.dtype) if self.dtype.kind != "f" else chosen.astype(self.dtype)


class _Rows:
    """Rows of bytes with a canary on both sides; the first row is on a 64-byte boundary."""

    def __init__(self, count: int, row_bytes: int, fill: int = CANARY) -> None:
        self._room = np.full(2 * _MARGIN + count * row_bytes + 64, CANARY, np.uint8)
        self._start = _MARGIN + (-(self._room.ctypes.data + _MARGIN) % 64)
        self.bytes = self._room[self._start : self._start + count * row_bytes].reshape(count, row_bytes)
        self.bytes[:] = fill
        self.address = self._room.ctypes.data + self._start

    def everything(self) -> bytes:
        """Rows and margins."""
        return self._room.tobytes()

    def check_margins(self, name: str) -> None:
        assert (self._room[: self._start] == CANARY).all(), f"{name}: written before the first row"
        assert (self._room[self._start + self.bytes.size :] == CANARY).all(), f"{name}: written past the end"


def _pointers(rows: list[_Rows]) -> Any:
    return (c_void_p * len(rows))(*(field.address for field in rows))


def _row_bytes(rows: list[_Rows]) -> Any:
    return (c_uint64 * len(rows))(*(field.bytes.shape[1] for field in rows))


def _elements(field: _Field) -> tuple[np.dtype[Any], int]:
    letter = {0: "i", 1: "u", 2: "f", 6: "b"}[field.dtype.code]
    return np.dtype(f"{letter}{field.dtype.bits // 8}"), int(np.prod(field.shape[: field.ndim], dtype=int))


def _action(field: _Field) -> ActionBounds:
    dtype, size = _elements(field)
    bounds = [
        np.array([each[i] if each else every for i in range(size)], np.float64)
        for each, every in ((field.lows, field.low), (field.highs, field.high))
    ]
    return ActionBounds(dtype, *bounds)


class ByteHost:
    """`num_envs` environments of a plug-in, number i seeded with `seed + i`."""

    def __init__(self, library: Path, num_envs: int, seed: int = 0, **options: Any) -> None:
        self._library = ctypes.CDLL(str(library))
        self._entry = entry = _Entry.in_dll(self._library, "shoal_entry")
        self._values = _option_values(entry, options)
        sizes: list[int] = []
        self.action_bounds: list[ActionBounds] = []

        def add_observation(_: Any, field: Any) -> None:
            dtype, size = _elements(field[0])
            sizes.append(dtype.itemsize * size)

        spec = _Spec(lanes=1, agents=1)
        spec.add_observation = _ADD(add_observation)
        spec.add_action = _ADD(lambda _, field: self.action_bounds.append(_action(field[0])))
        refusal = entry.describe(self._values, spec)
        assert refusal is None, refusal
        self.num_envs, self.agents, self.lanes = num_envs, spec.agents, spec.lanes
        padded = -(-num_envs // spec.lanes) * spec.lanes
        rows = padded * spec.agents
        self.observations = [_Rows(rows, size) for size in sizes]
        self.expected = [field.bytes.copy() for field in self.observations]
        self.actions = [_Rows(rows, one.dtype.itemsize * len(one.low)) for one in self.action_bounds]
        self.arrays = {
            "instances": _Rows(padded, spec.instance_bytes, 0),
            "rng": _Rows(padded, 40),
            "rewards": _Rows(rows, 8),
            "terminated": _Rows(rows, 1, 0),
            "truncated": _Rows(rows, 1, 0),
            "reset": _Rows(padded, 1, 0),
        }
        self._envs = _Envs(
            num_envs=num_envs,
            options=self._values,
            instance_bytes=spec.instance_bytes,
            observations=_pointers(self.observations),
            observation_bytes=_row_bytes(self.observations),
            actions=_pointers(self.actions),
            action_bytes=_row_bytes(self.actions),
            **{name: array.address for name, array in self.arrays.items()},
        )
        for env in range(num_envs):
            self.arrays["rng"].bytes[env] = _generator(seed + env).view(np.uint8)
            assert not entry.init or entry.init(self._envs, env) is None

    def close(self) -> None:
        for env in range(self.num_envs if self._entry.close else 0):
            self._entry.close(self._envs, env)

    def _rows_of(self, begin: int, end: int) -> slice:
        return slice(begin * self.agents, end * self.agents)

    def _keep_observations(self, begin: int, end: int) -> None:
        rows = self._rows_of(begin, end)
        for kept, field in zip(self.expected, self.observations, strict=True):
            kept[rows] = field.bytes[rows]

    def sample_actions(self, rng: np.random.Generator) -> list[Array]:
        return [action.sample(rng, self.num_envs * self.agents) for action in self.action_bounds]

    def ended(self) -> Array:
        """Whether all agents of each environment ended in its last step."""
        terminated = self.arrays["terminated"].bytes[self._rows_of(0, self.num_envs)]
        return terminated.reshape(self.num_envs, self.agents).all(1)

    def reset(self, begin: int, end: int) -> None:
        for field in self.observations:
            field.bytes[self._rows_of(begin, end)] = CANARY
        self._entry.reset(self._envs, begin, end)
        self.arrays["terminated"].bytes[self._rows_of(begin, end)] = 0  # of no meaning after a reset
        self._keep_observations(begin, end)

    def step(self, actions: list[Array], resets: Array) -> None:
        for field, values in zip(self.actions, actions, strict=True):
            field.bytes[: len(values)] = values.view(np.uint8).reshape(len(values), -1)
        self.arrays["reset"].bytes[: self.num_envs, 0] = resets
        for rows in (*self.observations, self.arrays["rewards"], self.arrays["terminated"]):
            rows.bytes[:] = CANARY
        self.arrays["truncated"].bytes[:] = 0
        self._entry.step(self._envs, 0, self.num_envs)
        begun = np.repeat(resets, self.agents)
        self.arrays["terminated"].bytes[: len(begun)][begun] = 0
        self._keep_observations(0, self.num_envs)

    def snapshot(self) -> dict[str, bytes]:
        """Every byte but the observations."""
        for name, array in self.arrays.items():
            array.check_margins(name)
        return {name: array.bytes.tobytes() for name, array in self.arrays.items()}

    def check_observe(self, begin: int, end: int) -> None:
        """Observes into fresh arrays: the expected bytes in the range, none outside, and nothing changes."""
        address = self._entry.get_extension(b"shoal.observe/1")
        assert address is not None, "the plug-in does not offer shoal.observe/1"
        fresh = [_Rows(*field.bytes.shape) for field in self.observations]
        own, unread = _pointers(self.observations), [_Rows(*field.bytes.shape) for field in self.actions]
        for field in self.observations:
            field.bytes[:] = _RUBBISH
        flags = self.arrays["reset"].bytes.copy()
        self.arrays["reset"].bytes[:] = 1
        before = {name: array.everything() for name, array in self.arrays.items()}
        self._envs.observations, self._envs.actions = _pointers(fresh), _pointers(unread)
        _Observe.from_address(address).observe(self._envs, begin, end)
        self._envs.observations, self._envs.actions = own, _pointers(self.actions)
        for name, array in self.arrays.items():
            assert array.everything() == before[name], f"observe({begin}, {end}) changed {name}"
        self.arrays["reset"].bytes[:] = flags
        assert all((field.bytes == _RUBBISH).all() for field in self.observations), "it wrote the old arrays"
        rows = self._rows_of(begin, end)
        for i, (field, expected) in enumerate(zip(fresh, self.expected, strict=True)):
            field.check_margins(f"observation field {i}")
            wrong = np.flatnonzero((field.bytes[rows] != expected[rows]).any(1)) // self.agents + begin
            where = f"observe({begin}, {end}) of {self.num_envs}, field {i}"
            assert not len(wrong), f"{where}: environment {wrong[0]} has other bytes"
            field.bytes[rows] = CANARY
            assert (field.bytes == CANARY).all(), f"{where}: rows outside the range were written"

    def has_checkpoints(self) -> bool:
        return self._entry.get_extension(b"shoal.checkpoint/1") is not None

    def save(self, env: int) -> tuple[bytes, list[Array]]:
        """What a host keeps of an environment, and what to expect after restoring it."""
        address = self._entry.get_extension(b"shoal.checkpoint/1")
        checkpoint = _Checkpoint.from_address(address)
        if checkpoint.size:
            room = ctypes.create_string_buffer(checkpoint.size(self._envs, env))
            checkpoint.save(self._envs, env, ctypes.addressof(room))
            instance = room.raw
        else:
            instance = self.arrays["instances"].bytes[env].tobytes()
        rows = self._rows_of(env, env + 1)
        kept = [self.arrays["rng"].bytes[env], self.arrays["terminated"].bytes[rows]]
        return instance, [array.copy() for array in (*kept, *(field[rows] for field in self.expected))]

    def restore(self, env: int, saved: tuple[bytes, list[Array]]) -> None:
        instance, (generator, terminated, *expected) = saved
        checkpoint = _Checkpoint.from_address(self._entry.get_extension(b"shoal.checkpoint/1"))
        if checkpoint.restore:
            assert checkpoint.restore(self._envs, env, instance, len(instance)) is None
        else:
            self.arrays["instances"].bytes[env] = np.frombuffer(instance, np.uint8)
        rows = self._rows_of(env, env + 1)
        self.arrays["rng"].bytes[env] = generator
        self.arrays["terminated"].bytes[rows] = terminated
        for field, seen in zip(self.expected, expected, strict=True):
            field[rows] = seen


def play_and_observe(
    host: ByteHost,
    twin: ByteHost,
    steps: int,
    choose: Callable[[ByteHost, np.random.Generator], list[Array]] = ByteHost.sample_actions,
) -> int:
    """Observes after every change of `host`, never of `twin`, and compares them; how many episodes ended."""
    rng = np.random.default_rng(host.num_envs)
    count, ended = host.num_envs, 0

    def snapshot(one: ByteHost) -> dict[str, bytes]:
        arrays = one.snapshot()
        if not one.has_checkpoints():
            del arrays["instances"]  # with pointers in them
        return arrays

    def check() -> None:
        host.check_observe(0, count)
        host.check_observe(*random_range())
        assert snapshot(host) == snapshot(twin)
        for mine, others in zip(host.expected, twin.expected, strict=True):
            assert mine.tobytes() == others.tobytes()

    def random_range() -> list[int]:
        return sorted(rng.integers(0, count, 2, endpoint=True).tolist())

    for one in (host, twin):
        one.reset(0, count)
    check()
    for _ in range(steps):
        actions, ends = choose(host, rng), host.ended()
        ended += int(ends.sum())
        resets = ends | (rng.random(count) < 0.005)
        for one in (host, twin):
            one.step(actions, resets)
        check()
        if rng.random() < 0.02:
            begin, end = random_range()
            for one in (host, twin):
                one.reset(begin, end)
            check()
        if rng.random() < 0.05 and host.has_checkpoints():
            first, second = rng.integers(0, count, 2).tolist()
            for one in (host, twin):
                one.restore(second, one.save(first))
            check()
    return ended
