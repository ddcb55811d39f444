"""Divides environments among workers: contiguous chunks of nearly equal size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal import _core
from shoal.native.plugin import PluginInfo
from shoal.process.pool import Plan, pickle_makers
from shoal.spaces import Bounds
from shoal.vector import arguments
from shoal.vector.probe import is_light

__all__ = ["Division", "PluginEnvs", "make_plans"]

_MOST_ENVS = 2**24


@dataclass(frozen=True, slots=True)
class PluginEnvs:
    """C environments for worker processes, in place of functions that make Python ones."""

    info: PluginInfo
    path: str
    num_envs: int
    time_limit: int
    render_mode: str | None = None

    def __len__(self) -> int:
        return self.num_envs


@dataclass(frozen=True, slots=True)
class Division:
    """The plans of all workers and of the caller's own chunk, and the rows they fill."""

    plans: list[Plan]
    local: Plan | None
    num_envs: int
    num_worlds: int
    rows: int
    """Includes the padding that the last chunk of a vectorised plug-in writes."""
    info: PluginInfo | None


def make_plans(
    env_fns: Sequence[Callable[[], Any]] | PluginEnvs,
    autoreset_mode: AutoresetMode,
    num_workers: int | None,
    max_concurrency: int | None,
    caller_steps: bool | Literal["auto"],
    context: str | None,
    daemon: bool,
    bounds: Bounds,
    observation_mode: Any,
    restarts: bool,
    is_batched: bool = False,
) -> Division:
    """Checks the arguments and divides the environments among workers."""
    native = isinstance(env_fns, PluginEnvs)
    if not native:
        env_fns = _require_functions(env_fns)
    worlds = arguments.count("the number of environments", len(env_fns), _MOST_ENVS)
    if context not in (None, "fork", "forkserver", "spawn"):
        raise ValueError(f"context must be None, 'fork', 'forkserver' or 'spawn', got {context!r}")
    if caller_steps != "auto":
        caller_steps = arguments.flag("caller_steps", caller_steps, "auto")
    elif isinstance(env_fns, PluginEnvs) or is_batched:
        caller_steps = False
    else:
        parts = min(worlds, _worker_count(num_workers, max_concurrency, True) + 1)
        caller_steps = parts > 1 and is_light(env_fns[0], worlds, parts)
    if native and caller_steps:
        raise ValueError(
            'caller_steps is for Python environments; use backend="native" to step C ones in this process'
        )
    workers = _worker_count(num_workers, max_concurrency, caller_steps)
    unit = env_fns.info.lanes if isinstance(env_fns, PluginEnvs) else 1
    agents = env_fns.info.agents if isinstance(env_fns, PluginEnvs) else 1
    units = -(-worlds // unit)
    parts = min(workers + caller_steps, units)
    edges = [min(worlds, int(edge) * unit) for edge in np.linspace(0, units, parts + 1).astype(int)]

    def plan(number: int) -> Plan:
        first, end = edges[number], edges[number + 1]
        makers: Any = None
        plugin = None
        if isinstance(env_fns, PluginEnvs):
            plugin = (env_fns.path, dict(env_fns.info.options), env_fns.time_limit)
        elif context == "fork" or (caller_steps and number == parts - 1):
            makers = list(env_fns[first:end])
        else:
            makers = pickle_makers(env_fns[first:end], first)
        return Plan(
            worker=number,
            first=first,
            count=end - first,
            num_envs=worlds,
            autoreset=arguments.AUTORESET_CODES[autoreset_mode],
            makers=makers,
            plugin=plugin,
            bounds=bounds,
            all_spaces=observation_mode == "different",
            restarts=restarts,
            daemon=daemon,
            crowded=parts > _core.cpu_count() - (not caller_steps),
            seeds=[None] * (end - first),
            agents=agents,
            lanes=unit,
        )

    plans = [plan(number) for number in range(parts)]
    local = plans.pop() if caller_steps and parts > 1 else None
    return Division(
        plans,
        local,
        worlds * agents,
        worlds,
        units * unit * agents,
        env_fns.info if native else None,  # type: ignore[union-attr]
    )


def _require_functions(env_fns: Any) -> list[Callable[[], Any]]:
    try:
        functions = list(env_fns)
    except TypeError:
        found = f"the class {env_fns.__name__}" if isinstance(env_fns, type) else type(env_fns).__name__
        raise TypeError(
            f"env_fns must be a list of functions that make environments, such as [make] * 8, got {found}"
        ) from None
    for number, function in enumerate(functions):
        if not callable(function):
            raise TypeError(
                f"env_fns[{number}] must be a function that makes an environment, such as "
                f"lambda: gymnasium.make('CartPole-v1'), got {function!r}"
            )
    if not functions:
        raise ValueError("env_fns must have at least one function, found an empty list")
    return functions


def _worker_count(num_workers: int | None, max_concurrency: int | None, caller_steps: bool) -> int:
    if num_workers is None:
        workers = max(1, _core.cpu_count() - caller_steps)
    else:
        workers = arguments.count("num_workers", num_workers, 4096)
    if max_concurrency is None:
        return workers
    if not isinstance(max_concurrency, (int, np.integer)):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}.")
    if max_concurrency < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
    return min(workers, int(max_concurrency))
