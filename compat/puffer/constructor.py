"""Finds the spaces and arguments of a PufferLib 3.0 environment by running the constructor in its NAME.py.

With that contract the class in NAME.py declares the observation and action spaces and passes the options to
the binding. This module parses the file, replaces imports of pufferlib, and runs the constructor for one
environment with a binding that records its arguments.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from shoal.errors import BuildError

__all__ = ["Declaration", "read_options", "run_constructor"]

# Options of the vector environment, not of one environment.
_VECTOR_OPTIONS = ("num_envs", "buf", "seed", "render_mode", "log_interval", "report_interval", "self")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a constructor declared."""

    observation_space: Space[Any]
    action_space: Space[Any]
    agents: int
    arguments: dict[str, float | int | str]
    """The arguments of the binding's my_init."""
    shared: dict[str, float | int | str]
    """The arguments of its my_shared."""
    state: str | None
    """The name of my_init's argument that receives the result of my_shared."""


def run_constructor(file: Path, options: Mapping[str, Any]) -> Declaration:
    """Runs the constructor of the environment in `file` with these options."""
    binding = _Binding()
    kind = _load_class(file, binding)
    known = inspect.signature(kind).parameters
    given = {name: value for name, value in options.items() if name in known}
    if "num_envs" in known:
        given["num_envs"] = 1
    env = kind.__new__(kind)
    try:
        kind.__init__(env, **given)
    except _Recorded:
        pass
    except FileNotFoundError as error:
        raise BuildError(f"{file} needs an asset that is missing: {error}") from error
    except Exception as error:
        raise BuildError(
            f"the constructor in {file} raised {type(error).__name__}: {error}. Pass "
            "observation_space= and action_space= (and agents=), and the binding's own options"
        ) from error
    if binding.call is None:
        raise BuildError(
            f"the constructor in {file} does not call binding.vec_init or env_init; pass observation_space= "
            "and action_space= (and agents=), and the binding's own options"
        )
    rows, arguments = binding.call
    plain, state = _plain(arguments, binding, file)
    shared, _ = _plain(binding.shared_with or {}, binding, file)
    agents = int(getattr(env, "num_agents", rows))
    return Declaration(env.single_observation_space, env.single_action_space, agents, plain, shared, state)


def read_options(file: Path) -> dict[str, Any]:
    """Returns the options of the environment in `file` and their defaults (inspect.Parameter.empty: none)."""
    parameters = inspect.signature(_load_class(file, _Binding())).parameters
    return {name: one.default for name, one in parameters.items() if name not in _VECTOR_OPTIONS}


class _Recorded(BaseException):
    """Raised to leave the constructor when everything is known."""


class _Handle:
    """The binding's result in place of a pointer."""


class _Binding:
    """A binding that records its arguments."""

    def __init__(self) -> None:
        self.call: tuple[int, dict[str, Any]] | None = None
        self.shared_with: dict[str, Any] | None = None
        self.handle = _Handle()

    def vec_init(self, observations: Any, *rest: Any, **arguments: Any) -> _Handle:
        self.call = len(observations), arguments
        raise _Recorded

    env_init = vec_init

    def shared(self, *args: Any, **arguments: Any) -> _Handle:
        self.shared_with = arguments
        return self.handle

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"it calls binding.{name}, which is C code that is not built yet")


class _PufferEnv:
    """Replaces pufferlib.PufferEnv: has the buffers that its constructor makes."""

    def __init__(self, buf: Any = None) -> None:
        del buf
        agents, space = int(self.num_agents), self.single_observation_space  # type: ignore[attr-defined]
        actions = self.single_action_space  # type: ignore[attr-defined]
        self.observations = np.zeros((agents, *space.shape), space.dtype)
        self.rewards = np.zeros(agents, np.float32)
        self.terminals = self.truncations = np.zeros(agents, bool)
        self.masks = np.ones(agents, bool)
        whole = np.float32 if isinstance(actions, gymnasium.spaces.Box) else np.int32
        self.actions = np.zeros((agents, *(actions.shape or ())), whole)


class _StandIn(SimpleNamespace):
    """Replaces a module that is not imported: its attributes are such objects again, or exception classes."""

    def __getattr__(self, name: str) -> Any:
        return type(name, (ValueError,), {}) if name.endswith("Error") else _StandIn()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _StandIn()


def _load_class(file: Path, binding: _Binding) -> Any:
    """Returns the class in `file` whose constructor uses the binding."""
    try:
        tree = ast.parse(file.read_text(errors="replace"), str(file))
    except (OSError, SyntaxError) as error:
        raise BuildError(f"{file} cannot be read as Python: {error}") from error
    pufferlib = _StandIn(PufferEnv=_PufferEnv, spaces=gymnasium.spaces, namespace=SimpleNamespace)
    names: dict[str, Any] = {"__name__": f"shoal_puffer_{file.stem}", "__file__": str(file)}
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_importable(node):
            for alias in node.names:
                module = binding if alias.name == "binding" else _resolve_import(pufferlib, node, alias.name)
                names[alias.asname or alias.name.split(".")[0]] = module
        else:
            body.append(node)
    users = [node.name for node in body if isinstance(node, ast.ClassDef) and _uses_binding(node)]
    if not users:
        raise BuildError(
            f"no class in {file} has a constructor that calls the binding; pass observation_space= and "
            "action_space= (and agents=)"
        )
    try:
        exec(compile(ast.Module(body, []), str(file), "exec"), names)
    except Exception as error:
        raise BuildError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    return names[users[0]]


def _is_importable(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom) and node.level:
        return False
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
    return all(
        module.split(".")[0] != "pufferlib" and importlib.util.find_spec(module.split(".")[0]) is not None
        for module in modules
    )


def _resolve_import(pufferlib: _StandIn, node: ast.Import | ast.ImportFrom, name: str) -> Any:
    if isinstance(node, ast.Import):
        return pufferlib if name.split(".")[0] == "pufferlib" else _StandIn()
    return getattr(pufferlib, name) if (node.module or "").startswith("pufferlib") else _StandIn()


def _uses_binding(node: ast.ClassDef) -> bool:
    inits = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    return any(isinstance(part, ast.Name) and part.id == "binding" for one in inits for part in ast.walk(one))


def _plain(
    arguments: Mapping[str, Any], binding: _Binding, file: Path
) -> tuple[dict[str, float | int | str], str | None]:
    """Returns arguments as numbers and strings, and the name of the one that is the shared handle."""
    plain: dict[str, float | int | str] = {}
    state = None
    for name, value in arguments.items():
        if value is binding.handle:
            state = name
        elif isinstance(value, (bool, int, np.integer, np.bool_)):
            plain[name] = int(value)
        elif isinstance(value, (float, np.floating)):
            plain[name] = float(value)
        elif isinstance(value, str):
            plain[name] = value
        else:
            raise BuildError(
                f"{file}: the binding's argument {name!r} must be a number or a string, found "
                f"{type(value).__name__}; pass it as an option: {name}=..."
            )
    return plain, state
