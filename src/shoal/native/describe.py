"""An environment in C, described in words: for `shoal envs`, `shoal info` and the pages of docs/envs.

describe() of the plug-in   fields, bounds, options, agents, time limit--+
shoal.info/1 (optional)     their meaning, names of elements and values--+-> EnvDescription -> text, page
"""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from shoal.errors import PluginError
from shoal.native.plugin import FieldInfo, PluginInfo, bundled, load

__all__ = ["EnvDescription", "FieldDescription", "describe_env", "format_env", "list_envs"]

SOURCES = (".c", ".cc", ".cpp")
ABILITIES = {
    "shoal.render/1": "renders pictures",
    "shoal.state/1": "exports its state to `shoal watch`",
    "shoal.checkpoint/1": "can be saved and restored (`save_env`, `restore_env`)",
}


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """One field of the observation or the action."""

    name: str | None
    space: str
    text: str
    elements: tuple[tuple[str, str], ...]  # name and range of each element of the last dimension
    values: tuple[tuple[int, str], ...]  # value and what it stands for


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """All that is known about an environment without running it."""

    name: str
    summary: str
    observations: tuple[FieldDescription, ...]
    actions: tuple[FieldDescription, ...]
    reward: str
    ending: str
    options: tuple[tuple[str, int | float | str, str], ...]  # name, value, help
    agents: int
    max_episode_steps: int
    abilities: tuple[str, ...]


def list_envs() -> dict[str, str]:
    """The bundled environments: each id with one line about it."""
    infos = {name: load(path, {}).plugin.info() for name, path in bundled().items()}
    return {name: str(info["summary"]) if info else "" for name, info in sorted(infos.items())}


def describe_env(env: str | Path, options: Mapping[str, Any] | None = None) -> EnvDescription:
    """Describes a bundled environment, a C file or a compiled library with these options."""
    info = load(_find_library(str(env)), options or {})
    name = info.plugin.name
    texts = info.plugin.info() or {}
    return EnvDescription(
        name,
        texts.get("summary", ""),
        _describe_fields(name, "observation", info.observations, texts.get("observations")),
        _describe_fields(name, "action", info.actions, texts.get("actions")),
        texts.get("reward", ""),
        texts.get("ending", ""),
        tuple((option, info.options[option], text) for option, text, _ in info.plugin.options),
        info.agents,
        info.max_episode_steps,
        _list_abilities(info),
    )


def _list_abilities(info: PluginInfo) -> tuple[str, ...]:
    return tuple(words for id, words in ABILITIES.items() if info.plugin.has_extension(id))


def _find_library(env: str) -> Path:
    if env in bundled():
        return bundled()[env]
    if env.endswith(SOURCES):
        from shoal.native.build import build

        return build(env)
    if env.endswith((".so", ".dylib")):
        return Path(env)
    names = sorted(bundled())
    stems = {name.rpartition("-")[0].lower(): name for name in names}
    asked = env.lower().rpartition("-v")[0] or env.lower()
    near = [stems[stem] for stem in difflib.get_close_matches(asked, list(stems), cutoff=0.5)]
    advice = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names)}."
    if env in gymnasium.registry:
        advice += f" Gymnasium has {env}: shoal.make_vec({env!r}) runs it in worker processes."
    else:
        advice += " For an environment of your own, give the path of its C file or library."
    raise PluginError(f"no bundled environment is called {env!r}. {advice}")


def _describe_fields(
    env: str, role: str, fields: list[FieldInfo], texts: list[tuple[str, list[str], list[str]]] | None
) -> tuple[FieldDescription, ...]:
    if texts is None:
        texts = [("", [], []) for _ in fields]
    if len(texts) != len(fields):
        raise PluginError(
            f"{env}: shoal.info/1 describes {len(texts)} {role} fields, but describe() adds {len(fields)}"
        )
    return tuple(_describe_field(env, role, field, *text) for field, text in zip(fields, texts, strict=True))


def _describe_field(
    env: str, role: str, field: FieldInfo, text: str, elements: list[str], values: list[str]
) -> FieldDescription:
    where = f"{env}: shoal.info/1: the {role} field {field.name or '(unnamed)'}"
    last = field.shape[-1] if field.shape else 1
    if elements and len(elements) != last:
        raise PluginError(f"{where} has {last} elements in its last dimension, but {len(elements)} names")
    allowed = _allowed_values(field)
    if values and (allowed is None or len(values) != len(allowed)):
        count = "values that cannot be named" if allowed is None else f"{len(allowed)} values"
        raise PluginError(f"{where} has {count}, but {len(values)} names of values")
    ranges = _ranges(field, last)
    return FieldDescription(
        field.name,
        _format_space(field),
        text,
        tuple((name, ranges[i]) for i, name in enumerate(elements)),
        tuple(zip(allowed, values, strict=True)) if allowed is not None and values else (),
    )


def _allowed_values(field: FieldInfo) -> range | None:
    """The integers that every element of the field may hold; None where they differ or are not integers."""
    space = field.space
    if isinstance(space, Discrete):
        return range(int(space.start), int(space.start) + int(space.n))
    if isinstance(space, MultiBinary):
        return range(2)
    if isinstance(space, MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, Box) and field.dtype.kind in "iu":
        low, high = space.low, space.high
    else:
        return None
    if low.size == 0 or np.any(low != low.flat[0]) or np.any(high != high.flat[0]):
        return None
    first, last = int(low.flat[0]), int(high.flat[0])
    return range(first, last + 1) if last - first < 4096 else None


def _ranges(field: FieldInfo, last: int) -> list[str]:
    """The range of each element of the last dimension, over all others; empty if the space's name says it."""
    if not isinstance(field.space, Box) or _has_one_range(field.space):
        return [""] * last
    low = np.asarray(field.space.low).reshape(-1, last).min(0)
    high = np.asarray(field.space.high).reshape(-1, last).max(0)
    return [_format_range(a, b) for a, b in zip(low, high, strict=True)]


def _has_one_range(space: Box) -> bool:
    low, high = space.low, space.high
    return bool(low.size and np.all(low == low.flat[0]) and np.all(high == high.flat[0]))


def _format_range(low: Any, high: Any) -> str:
    if math.isinf(low) and math.isinf(high):
        return "unbounded"
    return f"{_short(low)} to {_short(high)}"


def _short(number: Any) -> str:
    return f"{float(number):.6g}"


def _format_space(field: FieldInfo) -> str:
    """Such as `Box(-2 to 2, (1,), float32)`: Gymnasium's space in one line, whatever the number of bounds."""
    space = field.space
    if isinstance(space, Box):
        bounds = f"{_format_range(space.low.flat[0], space.high.flat[0])}, " if _has_one_range(space) else ""
        return f"Box({bounds}shape {space.shape}, {field.dtype})"
    if isinstance(space, Discrete):
        start = f", start={int(space.start)}" if space.start else ""
        return f"Discrete({int(space.n)}{start}), {field.dtype}"
    return f"{type(space).__name__}(shape {field.shape}, {field.dtype})"


def format_env(env: EnvDescription, width: int = 110) -> str:
    """The description as `shoal info` prints it."""
    lines = [env.name]
    if env.summary:
        lines.append(f"  {env.summary}.")
    for title, fields in (("Observation", env.observations), ("Action", env.actions)):
        for field in fields:
            name = f" {field.name!r}" if field.name is not None else ""
            lines += ["", f"{title}{name}: {field.space}", *_indent(field.text, width)]
            rows = [(str(i), *element) for i, element in enumerate(field.elements)]
            rows += [(str(value), text, "") for value, text in field.values]
            lines += _table(rows)
    lines += ["", "Reward", *_indent(env.reward or "The plug-in does not describe it.", width)]
    lines += ["", "End of an episode", *_indent(env.ending or "The plug-in does not describe it.", width)]
    lines += _indent(format_limit(env), width)
    lines += ["", "Agents", *_indent(format_agents(env), width)]
    lines += ["", "Options" if env.options else "Options: none"]
    lines += _table([(f"{name}={value!r}", text, "") for name, value, text in env.options])
    if env.abilities:
        lines += ["", "Extensions", *_indent(f"It {', '.join(env.abilities)}.", width)]
    return "\n".join(lines)


def format_limit(env: EnvDescription) -> str:
    """A sentence about the time limit."""
    if not env.max_episode_steps:
        return "There is no time limit unless you set max_episode_steps."
    return f"The time limit is {env.max_episode_steps} steps; max_episode_steps changes it."


def format_agents(env: EnvDescription) -> str:
    """A sentence about the number of agents, and the rows that follow from it."""
    if env.agents == 1:
        return "1 in each environment."
    return (
        f"{env.agents} in each environment, so arrays have num_worlds * {env.agents} rows; agent a of "
        f"environment e is row e * {env.agents} + a."
    )


def _indent(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")


def _table(rows: list[tuple[str, str, str]]) -> list[str]:
    first = max((len(row[0]) for row in rows), default=0)
    second = max((len(row[1]) for row in rows), default=0)
    return [f"    {a:{first}}  {b:{second}}  {c}".rstrip() for a, b, c in rows]
