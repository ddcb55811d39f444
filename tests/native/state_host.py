"""A host in ctypes for plug-ins with shoal.state/1: any number of agents and fields, and what they export.

It shares no code with Shoal, so that what a plug-in exports can be told apart from what Shoal makes of it.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.envs.plugin_harness import _ADD, _Dtype, _Entry, _Envs, _Spec, _Value, compiled

ROLES = ("", "grid", "entities", "scalar", "image")
CANARY = 0xA5


class _Category(ctypes.Structure):
    _fields_ = [("value", c_int64), ("name", c_char_p), ("rgb", c_uint32), ("reserved", c_uint32)]


class _StateField(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", _Dtype),
        ("ndim", c_uint32),
        ("shape", c_int64 * 6),
        ("data", c_void_p),
        ("flags", c_uint32),
        ("role", c_uint32),
        ("columns", POINTER(c_char_p)),
        ("num_columns", c_uint64),
        ("categories", POINTER(_Category)),
        ("num_categories", c_uint64),
    ]


_ADD_STATE = CFUNCTYPE(None, c_void_p, POINTER(_StateField))


class _State(ctypes.Structure):
    _fields_ = [("fields", CFUNCTYPE(None, POINTER(_Envs), c_uint64, c_void_p, _ADD_STATE))]


@dataclass
class Exported:
    data: np.ndarray[Any, Any]
    address: int
    role: str
    columns: list[str]
    categories: dict[int, tuple[str, int]]
    stable: bool


def _dtype(dtype: _Dtype) -> np.dtype[Any]:
    return np.dtype(f"{ {0: 'i', 1: 'u', 2: 'f', 6: 'b'}[dtype.code] }{dtype.bits // 8}")


class StateHost:
    """`num_envs` environments of one C file, number i seeded with `seed + i`; ValueError if it refuses."""

    def __init__(self, source: str, num_envs: int = 1, seed: int = 0, **options: Any) -> None:
        self._library = ctypes.CDLL(str(compiled(source)))
        self._entry = entry = _Entry.in_dll(self._library, "shoal_entry")
        values = (_Value * max(1, entry.num_options))()
        for i in range(entry.num_options):
            option = entry.options[i]
            values[i] = option.value
            if (name := option.name.decode()) in options:
                given = options.pop(name)
                setattr(values[i], "ifs"[option.type], given.encode() if option.type == 2 else given)
        assert not options, f"no such options: {sorted(options)}"
        declared: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []

        def add(_: Any, field: Any) -> None:
            name = (field[0].name or b"").decode()
            declared.append((name, _dtype(field[0].dtype), tuple(field[0].shape[: field[0].ndim])))

        spec = _Spec(lanes=1, agents=1)
        spec.add_observation, spec.add_action = _ADD(add), _ADD(lambda _, field: None)
        refusal = entry.describe(values, spec)
        if refusal is not None:
            raise ValueError(refusal.decode())
        self.num_envs, self.agents, self.instance_bytes = num_envs, spec.agents, spec.instance_bytes
        padded = -(-num_envs // spec.lanes) * spec.lanes
        rows = padded * spec.agents
        self.observations = {name: np.zeros((rows, *shape), dtype) for name, dtype, shape in declared}
        seen = list(self.observations.values())
        self.actions = np.zeros(rows, np.int64)
        self.rewards = np.zeros(rows)
        self.terminated, self.truncated = np.zeros(rows, np.uint8), np.zeros(rows, np.uint8)
        self.reset_flags = np.zeros(padded, np.uint8)
        self.rng = np.zeros((padded, 5), np.uint64)
        room = np.zeros(padded * spec.instance_bytes + 128, np.uint8)
        start = -room.ctypes.data % 64
        self.instances = room[start : start + padded * spec.instance_bytes].reshape(padded, -1)
        self._after = room[start + self.instances.size :]
        self._after[:] = CANARY
        self._envs = _Envs(
            num_envs=num_envs,
            options=values,
            instances=self.instances.ctypes.data,
            instance_bytes=spec.instance_bytes,
            rng=self.rng.ctypes.data,
            observations=(c_void_p * len(seen))(*(array.ctypes.data for array in seen)),
            observation_bytes=(c_uint64 * len(seen))(*(array.strides[0] for array in seen)),
            actions=(c_void_p * 1)(self.actions.ctypes.data),
            action_bytes=(c_uint64 * 1)(8),
            rewards=self.rewards.ctypes.data,
            terminated=self.terminated.ctypes.data,
            truncated=self.truncated.ctypes.data,
            reset=self.reset_flags.ctypes.data,
        )
        for env in range(num_envs):
            self.seed(env, seed + env)
            assert not entry.init or entry.init(self._envs, env) is None

    def seed(self, env: int, seed: int) -> None:
        state = np.random.PCG64(np.random.SeedSequence(seed)).state["state"]
        words = [state[key] >> shift & 2**64 - 1 for key in ("state", "inc") for shift in (64, 0)]
        self.rng[env] = np.array([*words, 0], np.uint64)

    def reset(self) -> None:
        self._entry.reset(self._envs, 0, self.num_envs)

    def step(self, actions: Any, resets: Any = 0) -> None:
        """Results are rubbish before each step: a plug-in must write every byte of them."""
        self.actions[: self.num_envs * self.agents] = actions
        self.reset_flags[: self.num_envs] = resets
        for array in (*self.observations.values(), self.rewards, self.terminated):
            array.view(np.uint8)[:] = CANARY
        self._entry.step(self._envs, 0, self.num_envs)
        begun = np.repeat(self.reset_flags != 0, self.agents)
        self.rewards[begun] = self.terminated[begun] = 0  # of no meaning after a reset
        assert (self._after == CANARY).all(), "instances were written past their end"

    def exported(self, env: int = 0) -> dict[str, Exported]:
        address = self._entry.get_extension(b"shoal.state/1")
        assert address is not None, "no shoal.state/1"
        found: dict[str, Exported] = {}

        def add(_: Any, given: Any) -> None:
            field = given[0]
            shape, dtype = tuple(field.shape[: field.ndim]), _dtype(field.dtype)
            size = int(np.prod(shape)) * dtype.itemsize
            data = np.frombuffer(ctypes.string_at(field.data, size), dtype).reshape(shape)
            categories = [field.categories[i] for i in range(field.num_categories)]
            found[field.name.decode()] = Exported(
                data,
                field.data,
                ROLES[field.role],
                [field.columns[i].decode() for i in range(field.num_columns)],
                {one.value: (one.name.decode(), one.rgb) for one in categories},
                bool(field.flags & 1),
            )

        _State.from_address(address).fields(self._envs, env, None, _ADD_STATE(add))
        return found

    def state(self, env: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        return {name: field.data for name, field in self.exported(env).items()}
