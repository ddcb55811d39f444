"""Merges the options of a PufferLib environment's .ini, Python file and caller into one line for C."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from shoal.compat.puffer.constructor import read_options, run_constructor
from shoal.errors import BuildError

if TYPE_CHECKING:
    from shoal.compat.puffer import Source

__all__ = ["format_settings", "read_config"]

_Value = int | float | str


def format_settings(source: Source, options: Mapping[str, Any], log: bool) -> str:
    """Returns all settings for C as one line of text (settings.h parses it)."""
    given = dict(options)
    observations = given.pop("observation_space", None)
    actions = given.pop("action_space", None)
    agents = given.pop("agents", None)
    from_ini = read_config(source.config)
    words = [f"root={quote(str(source.root))}"]
    if log:
        words.append("log=1")
    if source.contract == "3.0":
        if source.python is not None and observations is None:
            known = read_options(source.python)
            _refuse_unknown(source, given, known)
            fallback = {name: value for name, value in from_ini.items() if name in known}
            declaration = run_constructor(source.python, {**fallback, **given})
            observations, actions = declaration.observation_space, actions or declaration.action_space
            agents = declaration.agents if agents is None else agents
            arguments, shared = declaration.arguments, declaration.shared
            if declaration.state is not None:
                words.append(f"state={quote(declaration.state)}")
        else:
            arguments, shared = _numbers(source, given), {}
        if observations is None or actions is None:
            raise BuildError(
                f"{source.folder} has no {source.name}.py that declares its spaces; pass observation_space= "
                "and action_space= (and agents=)"
            )
        words += [f"obs={_observation(observations)}", f"act={_action(actions)}"]
        words += [f"h.{quote(name)}={quote(str(value))}" for name, value in shared.items()]
    else:
        if observations is not None or actions is not None:
            raise TypeError(
                "observation_space and action_space are for contract 3.0; leave them out, because the C code "
                "of this environment declares its spaces"
            )
        names = set(from_ini) | set(re.findall(r'"(\w+)"', source.file.read_text(errors="replace")))
        _refuse_unknown(source, given, {name: from_ini.get(name) for name in names})
        for name, value in given.items():  # C would read values of other types as 0
            default = from_ini.get(name)
            if isinstance(default, (int, float)) and not isinstance(value, (int, float, np.number, np.bool_)):
                problem = f"option {name!r} must be a number, as {default!r} in its .ini"
                raise TypeError(f"{source.name}: {problem}, got {value!r}")
        arguments = _numbers(source, {**from_ini, **given})
    if agents is not None:
        words.append(f"agents={int(agents)}")
    for name, value in arguments.items():
        kind = "s" if isinstance(value, str) else "f" if isinstance(value, float) else "i"
        words.append(f"{kind}.{quote(name)}={quote(str(value))}")
    return " ".join(words)


def read_config(config: Path | None, name: str = "env") -> dict[str, Any]:
    """Returns a section of the .ini file."""
    if config is None:
        return {}
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"), strict=False)
    try:
        parser.read(config)
    except configparser.Error as error:
        raise BuildError(f"{config} cannot be read: {error}") from error
    section = dict(parser[name]) if parser.has_section(name) else {}
    section.pop("num_envs", None)
    return {key: _literal(text) for key, text in section.items()}


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _numbers(source: Source, options: Mapping[str, Any]) -> dict[str, _Value]:
    numbers: dict[str, _Value] = {}
    for name, value in options.items():
        if isinstance(value, (bool, int, np.integer, np.bool_)):
            numbers[name] = int(value)
        elif isinstance(value, (float, np.floating)):
            numbers[name] = float(value)
        elif isinstance(value, str):
            numbers[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(one, (int, float)) for one in value):
            numbers[name] = ",".join(str(one) for one in value)
        else:
            raise TypeError(
                f"{source.name}: option {name!r} must be a number, a string or a list of numbers, "
                f"got {value!r}"
            )
    return numbers


def _refuse_unknown(source: Source, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TypeError(
            f"{source.name} has no option {', '.join(map(repr, unknown))}; it has {sorted(known)}"
        )


def _observation(space: Space[Any]) -> str:
    if not isinstance(space, Box) or space.dtype is None or not space.shape:
        raise BuildError(f"an observation space must be a Box with a shape, got {space}")
    kind = np.dtype(space.dtype)
    shape = "x".join(str(size) for size in space.shape)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    return f"{kind.kind}{kind.itemsize}:{shape}:{low!r}:{high!r}"


def _action(space: Space[Any]) -> str:
    if isinstance(space, Discrete):
        return f"discrete:{int(space.n)}"
    if isinstance(space, MultiDiscrete):
        return "multi:" + ",".join(str(int(size)) for size in np.ravel(space.nvec))
    if isinstance(space, Box):
        low, high = float(np.min(space.low)), float(np.max(space.high))
        return f"box:{int(np.prod(space.shape, dtype=int))}:{low!r}:{high!r}"
    raise BuildError(f"an action space must be Discrete, MultiDiscrete or Box, got {space}")
