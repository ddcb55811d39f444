"""A host in ctypes for one plug-in: compiles it, describes it, and steps it in plain NumPy arrays.

It shares no code with Shoal, so that what a plug-in does can be told apart from what the engine does. Every
array ends in a canary: rows that a plug-in may not touch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tests.shared import make_once

ROOT = Path(__file__).resolve().parents[2]
FLAGS = "-std=c11 -O3 -ffp-contract=off -Wall -Wextra -Werror -fPIC -shared -Iinclude -Ienvs".split()
CANARY_ROWS = 8
CANARY = 0xA5


@functools.cache
def compiled(source: str, *flags: str) -> Path:
    """The library of `source` (from the root of the checkout), compiled once per run and set of flags."""
    library = f"{Path(source).stem}.so"

    def compile_library(directory: Path) -> None:
        command = ["cc", *FLAGS, *flags, source, "-o", str(directory / library), "-lm"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    name = hashlib.sha256("\n".join([source, *flags]).encode()).hexdigest()[:16]
    return make_once(f"plugin-{name}", compile_library) / library


class _Dtype(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", ctypes.c_uint16)]


class _Field(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", _Dtype),
        ("kind", c_uint32),
        ("ndim", c_uint32),
        ("reserved", c_uint32),
        ("shape", c_int64 * 6),
        ("low", c_double),
        ("high", c_double),
        ("lows", POINTER(c_double)),
        ("highs", POINTER(c_double)),
    ]


class _Value(ctypes.Union):
    _fields_ = [("i", c_int64), ("f", c_double), ("s", c_char_p)]


class _Option(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("help", c_char_p),
        ("type", c_uint32),
        ("reserved", c_uint32),
        ("value", _Value),
    ]


_ADD = CFUNCTYPE(None, c_void_p, POINTER(_Field))


class _Spec(ctypes.Structure):
    _fields_ = [
        ("instance_bytes", c_uint64),
        ("lanes", c_uint32),
        ("agents", c_uint32),
        ("max_episode_steps", c_int64),
        ("host", c_void_p),
        ("add_observation", _ADD),
        ("add_action", _ADD),
    ]


class _Envs(ctypes.Structure):
    _fields_ = [
        ("num_envs", c_uint64),
        ("options", POINTER(_Value)),
        ("instances", c_void_p),
        ("instance_bytes", c_uint64),
        ("rng", c_void_p),
        ("observations", POINTER(c_void_p)),
        ("observation_bytes", POINTER(c_uint64)),
        ("actions", POINTER(c_void_p)),
        ("action_bytes", POINTER(c_uint64)),
        ("rewards", c_void_p),
        ("terminated", c_void_p),
        ("truncated", c_void_p),
        ("reset", c_void_p),
    ]


_ONE = CFUNCTYPE(c_char_p, POINTER(_Envs), c_uint64)
_RANGE = CFUNCTYPE(None, POINTER(_Envs), c_uint64, c_uint64)


class _Entry(ctypes.Structure):
    _fields_ = [
        ("abi_major", c_uint32),
        ("abi_minor", c_uint32),
        ("name", c_char_p),
        ("options", POINTER(_Option)),
        ("num_options", c_uint64),
        ("describe", CFUNCTYPE(c_char_p, POINTER(_Value), POINTER(_Spec))),
        ("init", _ONE),
        ("reset", _RANGE),
        ("step", _RANGE),
        ("close", CFUNCTYPE(None, POINTER(_Envs), c_uint64)),
        ("get_extension", CFUNCTYPE(c_void_p, c_char_p)),
    ]


class _Checkpoint(ctypes.Structure):
    _fields_ = [
        ("size", CFUNCTYPE(c_uint64, POINTER(_Envs), c_uint64)),
        ("save", CFUNCTYPE(None, POINTER(_Envs), c_uint64, c_void_p)),
        ("restore", CFUNCTYPE(c_char_p, POINTER(_Envs), c_uint64, c_char_p, c_uint64)),
    ]


class _Observe(ctypes.Structure):
    _fields_ = [("observe", _RANGE)]


def _option_values(entry: _Entry, options: dict[str, Any]) -> ctypes.Array[_Value]:
    """The values of all options, those given and the others' defaults."""
    values = (_Value * max(1, entry.num_options))()
    for i in range(entry.num_options):
        option = entry.options[i]
        values[i] = option.value
        if (name := option.name.decode()) in options:
            given = options.pop(name)
            setattr(values[i], "ifs"[option.type], given.encode() if option.type == 2 else given)
    assert not options, f"no such options: {sorted(options)}"
    return values


def _generator(seed: int) -> np.ndarray[Any, Any]:
    """A shoal_rng as numpy.random.Generator(PCG64(seed)) begins."""
    state = np.random.PCG64(np.random.SeedSequence(seed)).state
    words = [state["state"][key] >> shift & 2**64 - 1 for key in ("state", "inc") for shift in (64, 0)]
    return np.array([*words, state["uinteger"] | state["has_uint32"] << 32], np.uint64)


def _space(field: _Field) -> gym.Space[Any]:
    letter = {0: "i", 1: "u", 2: "f", 6: "b"}[field.dtype.code]
    dtype = np.dtype(f"{letter}{field.dtype.bits // 8}")
    if field.kind == 1:
        return gym.spaces.Discrete(int(field.high - field.low) + 1, start=int(field.low), dtype=dtype)
    assert field.kind == 0 and field.name is None
    shape = tuple(field.shape[: field.ndim])
    bounds = []
    for each, every in ((field.lows, field.low), (field.highs, field.high)):
        values = [each[i] for i in range(int(np.prod(shape)))] if each else np.full(shape, every)
        exact = np.array(values, np.float64).reshape(shape)
        bounds.append(exact.astype(dtype))
        assert np.array_equal(bounds[-1].astype(np.float64), exact), "a bound is no number of its dtype"
    return gym.spaces.Box(bounds[0], bounds[1], shape, dtype=dtype.type)


def _rows(num_rows: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Rows on a 64-byte boundary, and the canary after them."""
    row_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.full((num_rows + CANARY_ROWS) * row_bytes + 64, CANARY, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + num_rows * row_bytes] = 0
    return room[start : start + (num_rows + CANARY_ROWS) * row_bytes].view(dtype).reshape(-1, *shape)


class Host:
    """`num_envs` environments of a plug-in, number i seeded with `seed + i`; ValueError if it refuses."""

    def __init__(self, library: Path, num_envs: int, seed: int = 0, **options: Any) -> None:
        self._library = ctypes.CDLL(str(library))
        self._entry = entry = _Entry.in_dll(self._library, "shoal_entry")
        self.name = entry.name.decode()
        values = _option_values(entry, options)
        observations: list[gym.Space[Any]] = []
        actions: list[gym.Space[Any]] = []
        spec = _Spec(lanes=1, agents=1)
        spec.add_observation = _ADD(lambda _, field: observations.append(_space(field[0])))
        spec.add_action = _ADD(lambda _, field: actions.append(_space(field[0])))
        refusal = entry.describe(values, spec)
        if refusal is not None:
            raise ValueError(refusal.decode())
        (self.observation_space,), (self.action_space,) = observations, actions
        self.lanes, self.max_episode_steps = spec.lanes, spec.max_episode_steps
        self.num_envs, self.padded = num_envs, -(-num_envs // spec.lanes) * spec.lanes

        def rows(space: gym.Space[Any]) -> np.ndarray[Any, Any]:
            return _rows(self.padded, space.shape or (), space.dtype)

        self.arrays = {
            "instances": _rows(self.padded, (spec.instance_bytes,), np.uint8),
            "rng": _rows(self.padded, (5,), np.uint64),
            "observations": rows(self.observation_space),
            "actions": rows(self.action_space),
            "rewards": _rows(self.padded, (), np.float64),
            "terminated": _rows(self.padded, (), np.uint8),
            "truncated": _rows(self.padded, (), np.uint8),
            "reset": _rows(self.padded, (), np.uint8),
        }
        at = {name: array.ctypes.data for name, array in self.arrays.items()}
        observation, action = self.arrays["observations"], self.arrays["actions"]
        self._envs = _Envs(
            num_envs=num_envs,
            options=values,
            instance_bytes=spec.instance_bytes,
            observation_bytes=(c_uint64 * 1)(observation.strides[0]),
            action_bytes=(c_uint64 * 1)(action.strides[0]),
            **{
                name: at[name] for name in ("instances", "rng", "rewards", "terminated", "truncated", "reset")
            },
        )
        self._envs.observations = (c_void_p * 1)(at["observations"])
        self._envs.actions = (c_void_p * 1)(at["actions"])
        for name in ("rng", "actions", "reset"):  # rows of no environment: nobody may reset them and draw
            self.arrays[name][num_envs : self.padded].view(np.uint8)[:] = CANARY
        for i in range(num_envs):
            self.seed(i, seed + i)
            assert not entry.init or entry.init(self._envs, i) is None

    def __getattr__(self, name: str) -> np.ndarray[Any, Any]:
        """observations, rewards, terminated, ...: of the environments, without padding."""
        try:
            return self.__dict__["arrays"][name][: self.num_envs]
        except KeyError:
            raise AttributeError(name) from None

    def seed(self, env: int, seed: int) -> None:
        self.arrays["rng"][env] = _generator(seed)

    def reset_all(self, begin: int = 0, end: int | None = None) -> None:
        self._entry.reset(self._envs, begin, self.num_envs if end is None else end)

    def step(self, actions: Any, resets: Any = 0, ranges: list[tuple[int, int]] | None = None) -> None:
        """Steps the ranges (all, unless given) in their order; `resets` tells which to reset instead."""
        self.actions[:] = np.asarray(actions).reshape(self.actions.shape)
        self.reset[:] = resets
        for name in ("observations", "rewards", "terminated"):
            self.arrays[name][: self.padded].view(np.uint8)[:] = CANARY  # to be overwritten, each byte
        self.truncated[:] = 0
        for begin, end in ranges or [(0, self.num_envs)]:
            self._entry.step(self._envs, begin, end)

    def states(self, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
        """The blocks of lanes as a view of shape (blocks, numbers per environment, lanes)."""
        blocks = self.arrays["instances"][: self.padded].reshape(self.padded // self.lanes, -1)
        return blocks.view(dtype).reshape(len(blocks), -1, self.lanes)

    def _checkpoint(self) -> _Checkpoint:
        return _Checkpoint.from_address(self._entry.get_extension(b"shoal.checkpoint/1"))

    def has_extension(self, name: str) -> bool:
        return self._entry.get_extension(name.encode()) is not None

    def save(self, env: int) -> bytes:
        saved = ctypes.create_string_buffer(self._checkpoint().size(self._envs, env))
        self._checkpoint().save(self._envs, env, ctypes.addressof(saved))
        return saved.raw

    def restore(self, env: int, saved: bytes) -> str | None:
        refusal = self._checkpoint().restore(self._envs, env, saved, len(saved))
        return None if refusal is None else refusal.decode()

    def results(self) -> bytes:
        """Every byte that the environments have written, and what decides their future."""
        self.check_canaries()
        names = ("observations", "rewards", "terminated", "truncated", "rng")
        saved = b"".join(self.save(env) for env in range(self.num_envs))
        return b"".join(getattr(self, name).tobytes() for name in names) + saved

    def check_canaries(self) -> None:
        for name, array in self.arrays.items():
            assert (array[self.padded :].view(np.uint8) == CANARY).all(), (
                f"{name} were written past their end"
            )
        padding = self.arrays["rng"][self.num_envs : self.padded].view(np.uint8)
        assert (padding == CANARY).all(), "drew for no environment"


def play(host: Host, steps: int, splits: Callable[[int], Any] = lambda _: None, resets: bool = True) -> bytes:
    """Random actions, and resets of whatever ended and some others; all bytes of all steps.

    An environment's actions do not depend on how many there are.
    """
    rng = np.random.default_rng(5)
    host.reset_all()
    seen = [host.results()]
    for step in range(steps):
        actions, flags = rng.random((2, 512))[:, : host.num_envs]
        if isinstance(host.action_space, gym.spaces.Discrete):
            actions = actions * host.action_space.n
        else:
            actions = (actions * 2 - 1) * host.action_space.high
        ends = resets * (host.terminated | (flags < 0.05))
        host.step(actions.astype(host.actions.dtype), ends, splits(step))
        seen.append(host.results())
    return b"".join(seen)
