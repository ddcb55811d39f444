"""The part of include/shoal/env.h, in ctypes, that stepping a plug-in needs (tests/abi compares both)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

__all__ = ["RNG_BYTES", "Entry", "Envs", "Observe", "Value", "find_entry", "find_observe", "to_values"]

RNG_BYTES = 40  # sizeof(shoal_rng)


class Value(ctypes.Union):
    _fields_ = [("i", c_int64), ("f", c_double), ("s", c_char_p)]


class Envs(ctypes.Structure):
    _fields_ = [
        ("num_envs", c_uint64),
        ("options", POINTER(Value)),
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


class Entry(ctypes.Structure):
    _fields_ = [
        ("abi_major", c_uint32),
        ("abi_minor", c_uint32),
        ("name", c_char_p),
        ("options", c_void_p),
        ("num_options", c_uint64),
        ("describe", c_void_p),
        ("init", CFUNCTYPE(c_char_p, POINTER(Envs), c_uint64)),
        ("reset", CFUNCTYPE(None, POINTER(Envs), c_uint64, c_uint64)),
        ("step", CFUNCTYPE(None, POINTER(Envs), c_uint64, c_uint64)),
        ("close", CFUNCTYPE(None, POINTER(Envs), c_uint64)),
        ("get_extension", CFUNCTYPE(c_void_p, c_char_p)),
    ]


class Observe(ctypes.Structure):
    """shoal_observe_v1 of include/shoal/ext/observe.h."""

    _fields_ = [("observe", CFUNCTYPE(None, POINTER(Envs), c_uint64, c_uint64))]


def find_entry(library: str) -> tuple[ctypes.CDLL, Any]:
    """Loads a library; returns it and its `shoal_entry`, which is valid while the library is loaded."""
    loaded = ctypes.CDLL(library)
    return loaded, Entry.in_dll(loaded, "shoal_entry")


def find_observe(entry: Any) -> Any:
    """Returns the function of shoal.observe/1; None if the plug-in does not have it."""
    address = entry.get_extension(b"shoal.observe/1") if entry.get_extension else None
    return None if address is None else Observe.from_address(address).observe


def to_values(options: Sequence[int | float | str]) -> Any:
    """Returns the options, in the plug-in's order, as an array of shoal_value."""
    values = (Value * max(1, len(options)))()
    for value, option in zip(values, options, strict=False):
        if isinstance(option, str):
            value.s = option.encode()
        elif isinstance(option, float):
            value.f = option
        else:
            value.i = option
    return values
