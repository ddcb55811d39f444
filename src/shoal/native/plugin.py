"""A plug-in in Python: its resolved options, and its fields as Gymnasium spaces."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import PluginError

__all__ = ["FieldInfo", "PluginInfo", "bundled", "load", "rng_words", "seed_generators", "split_value"]


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One declared field: its key in the Dict space (None: it is the whole space) and its own space."""

    name: str | None
    space: Space[Any]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def split_value(fields: list[FieldInfo], value: Any) -> list[Any]:
    """Returns the arrays of a value in the plug-in's order."""
    return [value] if fields[0].name is None else [value[field.name] for field in fields]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The description of a plug-in for one choice of options."""

    plugin: _core.Plugin
    values: list[int | float | str]
    options: dict[str, int | float | str]
    instance_bytes: int
    lanes: int
    agents: int
    max_episode_steps: int
    observations: list[FieldInfo]
    actions: list[FieldInfo]

    @property
    def keeps_log(self) -> bool:
        """Whether it keeps PufferLib's log (option log=1)."""
        return " log=1" in str(self.options.get("settings", ""))

    @property
    def observation_space(self) -> Space[Any]:
        return _join_fields(self.observations)

    @property
    def action_space(self) -> Space[Any]:
        return _join_fields(self.actions)


def load(path: str | Path, options: Mapping[str, Any], hints: Mapping[str, str] | None = None) -> PluginInfo:
    """Loads a compiled plug-in and lets it describe its fields for these options.

    `hints` has, for the error message, what to use in place of an unknown option.
    """
    plugin = _core.Plugin(str(Path(path).absolute()))
    values = _resolve_options(plugin, options, hints or {})
    facts = plugin.describe(list(values.values()))
    return PluginInfo(
        plugin,
        list(values.values()),
        values,
        facts["instance_bytes"],
        facts["lanes"],
        facts["agents"],
        facts["max_episode_steps"],
        [_field(field) for field in facts["observations"]],
        [_field(field) for field in facts["actions"]],
    )


@lru_cache(maxsize=1)
def bundled() -> dict[str, Path]:
    """Returns the library of each environment that comes with Shoal, by the id in the library."""
    directory = Path(_core.__file__).parent / "envs"
    return {_core.Plugin(str(path)).name: path for path in sorted(directory.glob("*.so"))}


def rng_words(seed: int) -> list[int]:
    """Returns the words of NumPy's generator for a seed, which may exceed 64 bits."""
    state = np.random.PCG64(np.random.SeedSequence(seed)).state["state"]
    word = 2**64 - 1
    return [state["state"] >> 64, state["state"] & word, state["inc"] >> 64, state["inc"] & word, 0]


def seed_generators(
    stepper: _core.Stepper,
    words: NDArray[np.uint64],
    seeds: Sequence[int | None],
    mask: NDArray[np.bool_] | None,
    is_seeded: bool,
    places: Sequence[int],
) -> None:
    """Seeds the generators of environments that are reset; `words` has the generators' memory, by place.

    A seed of None keeps the generator; if no generator was seeded before, it gets a random seed.
    """
    for env, seed in enumerate(seeds):
        if seed is None and not is_seeded:
            seed = secrets.randbits(62)
        if seed is None or (mask is not None and is_seeded and not mask[env]):
            continue
        if seed < 2**64:
            stepper.seed(places[env], seed)
        else:
            words[places[env]] = rng_words(seed)


def _resolve_options(
    plugin: _core.Plugin, given: Mapping[str, Any], hints: Mapping[str, str]
) -> dict[str, int | float | str]:
    """Returns the value of every option; the given ones must have the type of their default."""
    known = {name: default for name, _, default in plugin.options}
    unknown = sorted(set(given) - set(known))
    if unknown:
        has = f"it has {sorted(known)}" if known else "it has none"
        advice = "".join(f"; {hints[name]}" for name in unknown if name in hints)
        raise TypeError(f"{plugin.name} has no option {', '.join(map(repr, unknown))}; {has}{advice}")
    values: dict[str, int | float | str] = dict(known)
    for name, value in given.items():
        default = known[name]
        if isinstance(default, int) and isinstance(value, (bool, int, np.integer, np.bool_)):
            values[name] = int(value)
        elif isinstance(default, float) and isinstance(value, (int, float, np.integer, np.floating)):
            values[name] = float(value)
        elif isinstance(default, str) and isinstance(value, str):
            if "\0" in value or not value.isprintable():
                raise ValueError(f"{plugin.name}: option {name!r} must be printable text, got {value!r}")
            values[name] = value
        else:
            raise TypeError(
                f"{plugin.name}: option {name!r} must be of type {type(default).__name__}, "
                f"got {type(value).__name__}: {value!r}"
            )
        if isinstance(values[name], int) and not -(2**63) <= int(values[name]) < 2**63:
            raise PluginError(f"{plugin.name}: option {name!r} must fit 64 bits, got {value}")
    return values


def _field(facts: dict[str, Any]) -> FieldInfo:
    kind, shape = facts["kind"], tuple(facts["shape"])
    dtype = np.dtype(bool) if facts["dtype"] == "b1" else np.dtype(facts["dtype"])
    low, high = _bounds(facts["lows"], dtype, shape), _bounds(facts["highs"], dtype, shape)
    space: Space[Any]
    if kind == _core.FIELD_DISCRETE:
        space = Discrete(int(high) - int(low) + 1, start=int(low), dtype=dtype.type)
    elif kind == _core.FIELD_MULTI_DISCRETE:
        space = MultiDiscrete(high - low + 1, dtype=dtype.type, start=low)
    elif kind == _core.FIELD_MULTI_BINARY:
        space = MultiBinary(shape if len(shape) != 1 else shape[0])
    else:
        space = Box(low, high, shape, dtype.type)
    return FieldInfo(facts["name"], space, dtype, shape)


def _bounds(values: list[float], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    array = np.array(values, np.float64).astype(dtype)
    return np.full(shape, array[0]) if len(values) == 1 else array.reshape(shape)


def _join_fields(fields: list[FieldInfo]) -> Space[Any]:
    if fields[0].name is None:
        return fields[0].space
    return Dict({str(field.name): field.space for field in fields}, sort_keys=False)
