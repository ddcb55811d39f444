"""`make_vec`: one function for bundled environments, C files, plug-ins and any Gymnasium environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import AutoresetMode

from shoal.errors import PluginError
from shoal.native.plugin import PluginInfo, bundled, load
from shoal.state.session import AUTO
from shoal.vector import arguments
from shoal.vector.async_vector import ProcessVectorEnv
from shoal.vector.backend import Common
from shoal.vector.env import VectorEnv
from shoal.vector.native import NativeBackend
from shoal.vector.plans import PluginEnvs
from shoal.vector.single import single_entry_point
from shoal.vector.specs import (
    arguments_of_spec,
    backend_of_mode,
    record_spec,
    require_wrappers,
    split_vector_kwargs,
    wrap,
)

__all__ = ["make_vec", "register_bundled"]


def make_vec(
    env: str | Path | EnvSpec | Callable[[], Any],
    num_envs: int = 1,
    vectorization_mode: VectorizeMode | str | None = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    *,
    backend: Literal["native", "process"] | None = None,
    device: str = "cpu",
    array: Literal["torch", "cupy", "jax", "numpy"] | None = None,
    num_threads: int | None = None,
    num_workers: int | None = None,
    caller_steps: bool | Literal["auto"] = False,
    context: str | None = None,
    on_fault: Literal["raise", "restart"] = "raise",
    step_timeout_s: float | None = None,
    reset_timeout_s: float | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    buffers: Literal["leased", "live", "copy"] = "leased",
    max_slots: int = 64,
    max_episode_steps: int | None = None,
    episode_stats: bool = False,
    check: Iterable[str] | None = None,
    render_mode: str | None = None,
    batch_size: int | None = None,
    shared_memory: bool = True,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    session: str | None = AUTO,
    history: str | os.PathLike[str] | None = None,
    **options: Any,
) -> VectorEnv:
    """Makes `num_envs` environments that step together.

    `env` is the id of a bundled environment ("CartPole-v1"), a C file (it is compiled first), a compiled
    plug-in, "puffer:" and the folder of a PufferLib environment, any other Gymnasium id, or a function that
    makes an environment. Further keywords are options of the environment. Environments in C run on threads
    of this process unless `backend="process"`, or on a GPU with `device="cuda"`; environments in Python run
    in worker processes.

    >>> import shoal
    >>> envs = shoal.make_vec("CartPole-v1", num_envs=8)
    >>> observations, info = envs.reset(seed=0)
    >>> observations.shape
    (8, 4)
    >>> envs.close()

    Args:
        env: The environment.
        num_envs: The number of environments.
        vectorization_mode: As in `gymnasium.make_vec`: "async" is backend="process", "vector_entry_point" is
            backend="native". There is no "sync".
        vector_kwargs: As in `gymnasium.make_vec`: further keyword arguments, of this function or of
            `ProcessVectorEnv`.
        wrappers: Python environments: functions that wrap each environment in its worker.
        backend: "native" steps C environments in this process, "process" any environment in worker processes.
        device: "cuda" or "cuda:N" steps C environments on that GPU, and results stay in its memory.
            "emulated" runs the same kernels on the CPU, slowly, to test them. See docs/cuda.md.
        array: With `device`: the library whose arrays the results are: "torch" (the default), "cupy" or
            "jax"; "numpy" for the emulated device.
        num_threads: Native backend: at most this many threads; None: one per core. Fewer are used where more
            would not help.
        num_workers: Process backend: the number of processes; None: one per core.
        caller_steps: Process backend: the caller steps a share itself; "auto": if environments are light
            (see `ProcessVectorEnv`).
        context: Process backend: how processes are started.
        on_fault: Process backend: "raise", or "restart" to replace dead workers.
        step_timeout_s: Process backend: kill a worker whose step takes longer than this many seconds.
        reset_timeout_s: Process backend: kill a worker whose reset takes longer than this many seconds.
        autoreset_mode: NEXT_STEP, SAME_STEP or DISABLED, as Gymnasium defines them.
        buffers: "leased": arrays that you keep never change. "live": the next step overwrites them. "copy":
            fresh arrays.
        max_slots: How many results you can hold before results are copied (`stats["copies"]` counts copies).
        max_episode_steps: Truncate episodes after this many steps; None: use the environment's limit.
        episode_stats: Put return and length of finished episodes into `info["episode"]`.
        check: What is checked in each step: "actions" (they are in the space, and not NaN), "nan" (no
            observation or reward is NaN). None: "actions" for environments in C, nothing for those in Python.
        render_mode: "rgb_array" for C environments with `shoal.render/1` (all bundled ones), or a mode of the
            Python environment.
        batch_size: Step asynchronously with `send` and `recv`, which returns the first `batch_size` ready.
        shared_memory: Process backend: False lets observations of custom spaces travel as messages.
        max_length: Process backend: the bound for Sequence spaces, which they need to be in shared memory.
        max_nodes: Process backend: the bound for nodes of Graph spaces.
        max_edges: Process backend: the bound for edges of Graph spaces.
        session: The name by which `shoal.attach` and `shoal watch` find this run; "auto": `ID-PID`. None: no
            session (SHOAL_SESSIONS=off turns all sessions off).
        history: A file for the run's history (returns, lengths, steps/s and what `envs.log` kept), written
            every 30 seconds, on closing and at exit; `shoal watch FILE` opens it.
        options: Options of the environment.
    """
    given = _select_changed(locals())
    if isinstance(env, EnvSpec) and (env.kwargs or _find_source(env) is not None):
        source = _find_source(env) or _without_kwargs(env)
        return make_vec(**arguments_of_spec(env, source, {**given, **options}))
    if vector_kwargs:
        own, vector_kwargs = split_vector_kwargs(vector_kwargs, given, list(_DEFAULTS))
        if own:
            return make_vec(**{**given, **own, "env": env, "vector_kwargs": vector_kwargs, **options})
    if backend is not None:
        arguments.choice("backend", backend, ("native", "process"))
    backend = backend_of_mode(vectorization_mode, backend)  # type: ignore[assignment]
    wrapped = require_wrappers(wrappers)
    shared: dict[str, Any] = {
        "autoreset_mode": autoreset_mode,
        "buffers": buffers,
        "max_slots": max_slots,
        "episode_stats": episode_stats,
        "batch_size": batch_size,
        "session": session,
        "history": history,
        "check": check,
    }
    processes: dict[str, Any] = {
        "num_workers": num_workers,
        "caller_steps": caller_steps,
        "context": context,
        "on_fault": on_fault,
        "step_timeout_s": step_timeout_s,
        "reset_timeout_s": reset_timeout_s,
        "shared_memory": shared_memory,
        "max_length": max_length,
        "max_nodes": max_nodes,
        "max_edges": max_edges,
        **(vector_kwargs or {}),
    }
    if device != "cpu":
        why = f"num_threads is for the CPU; leave it out with device={device!r}"
        _reject_if(num_threads is not None, why)
    given_env, given_options = env, options
    if isinstance(env, str) and env.startswith("puffer:"):
        env, options, num_threads = _prepare_puffer(env, options, episode_stats, num_threads, backend)
    library = _find_library(env)
    if device == "cpu":
        _reject_if(array is not None, 'array is for results on a GPU; use device="cuda"')
    else:
        _reject_if(backend is not None, 'device="cuda" is a backend of its own; leave backend out')
        if library is None:
            raise PluginError(f"{env!r} is not an environment in C, and only those run on a GPU")
    if library is None:
        if backend == "native":
            kind = PluginError if vectorization_mode is None else gymnasium.error.Error
            raise kind(f"{env!r} is not an environment in C; leave backend out, or use backend='process'")
        _reject_if(num_threads is not None, "num_threads is not for environments in Python; use num_workers")
        count = arguments.count("num_envs", num_envs, 2**24)
        maker, spec = _make_maker(env, max_episode_steps, render_mode, options)
        maker = wrap(maker, wrapped)
        try:
            made: VectorEnv = ProcessVectorEnv([maker] * count, **shared, **processes)
        except TypeError as error:
            names_none = _TAKES_NONE.search(str(error)) is not None
            for name, hint in _suggest_options(options).items():
                if names_none or f"'{name}'" in str(error):
                    raise TypeError(f"{error}; {hint}") from error
            raise
        made.spec = None if spec is None else record_spec(spec, VectorizeMode.ASYNC, given, options)
        return made
    if wrapped:
        raise gymnasium.error.Error(
            f"wrappers are for environments in Python, and {env} is in C; wrap the vector environment with "
            "gymnasium.wrappers.vector, or pass make_vec a function that makes and wraps one environment, "
            'gymnasium.make("shoal/...")'
        )
    info = load(library, options, _suggest_options(options))
    base = _find_plugin_spec(given_env, library, info)
    if backend == "process":
        _reject_if(num_threads is not None, "num_threads is not for worker processes; use num_workers")
        limit = info.max_episode_steps
        if max_episode_steps is not None:
            limit = arguments.count("max_episode_steps", max_episode_steps, 2**32 - 1)
        count = arguments.count("num_envs", num_envs, 2**24)
        mode = arguments.render_mode(render_mode, info.plugin)
        plugins = PluginEnvs(info, str(library.absolute()), count, limit, mode)
        made = ProcessVectorEnv(plugins, **shared, **processes)
        made.spec = None if base is None else record_spec(base, VectorizeMode.ASYNC, given, given_options)
        return made
    for name, value in processes.items():
        is_default = name in _DEFAULTS and value == _DEFAULTS[name]
        _reject_if(not is_default, f"{name} is for worker processes; use backend='process'")
    common = Common.from_arguments(**shared)
    if device != "cpu":
        made = _make_on_device(
            info, library, given_env, num_envs, common, device, array, max_episode_steps, render_mode
        )
        made.spec = None if base is None else record_spec(base, _ENTRY, given, given_options)
        return made
    threads = NativeBackend(
        info,
        num_envs,
        common,
        num_threads=num_threads,
        max_episode_steps=max_episode_steps,
        render_mode=render_mode,
    )
    made = VectorEnv(threads, common)
    made.spec = None if base is None else record_spec(base, _ENTRY, given, given_options)
    return made


_ENTRY = VectorizeMode.VECTOR_ENTRY_POINT


def _make_on_device(
    info: PluginInfo,
    library: Path,
    env: Any,
    num_envs: int,
    common: Common,
    device: str,
    array: str | None,
    max_episode_steps: int | None,
    render_mode: str | None,
) -> VectorEnv:
    from shoal.cuda import find_source, open_device  # nothing imports CUDA unless asked
    from shoal.vector.cuda import CudaBackend

    if not isinstance(device, str):
        raise TypeError(f'device must be a string such as "cuda", got {type(device).__name__}: {device!r}')
    opened = open_device(device)
    source = find_source(library, env)
    limits: dict[str, Any] = {"max_episode_steps": max_episode_steps, "render_mode": render_mode}
    return VectorEnv(CudaBackend(info, source, num_envs, common, opened, array=array, **limits), common)


_DEFAULTS = {
    name: parameter.default
    for name, parameter in signature(make_vec).parameters.items()
    if parameter.kind != parameter.VAR_KEYWORD
}


def _select_changed(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of make_vec that differ from the defaults."""
    return {name: given[name] for name, default in _DEFAULTS.items() if given[name] != default}


def _find_plugin_spec(env: Any, library: Path, info: PluginInfo) -> EnvSpec | None:
    """Returns the registered spec of a bundled environment, or a new one for a plug-in given by its path.

    Returns None if the plug-in's name is not an id that Gymnasium accepts.
    """
    registered = gymnasium.registry.get(f"shoal/{info.plugin.name}")
    if registered is not None and library == bundled().get(info.plugin.name):
        return registered
    source = env if str(env).startswith("puffer:") else str(Path(env).absolute())
    try:
        return EnvSpec(
            info.plugin.name,
            entry_point=single_entry_point(library.absolute(), info),
            vector_entry_point=_Registered(source),
            max_episode_steps=info.max_episode_steps or None,
        )
    except gymnasium.error.Error:
        return None


def _find_source(spec: EnvSpec) -> Any:
    """Returns the `env` argument that a C environment's spec was made from; None for other specs."""
    entry_point: Any = spec.vector_entry_point
    is_ours = isinstance(entry_point, _Registered)
    return entry_point.name if is_ours else None


def _without_kwargs(spec: EnvSpec) -> EnvSpec:
    bare = deepcopy(spec)
    bare.kwargs = {}
    return bare


def _prepare_puffer(
    env: str, options: dict[str, Any], episode_stats: bool, num_threads: int | None, backend: str | None
) -> tuple[Path, dict[str, Any], int | None]:
    """Compiles a PufferLib environment; returns its library, its options, and the number of threads."""
    from shoal.compat.puffer import prepare

    ready = prepare(env.removeprefix("puffer:"), options, log=episode_stats)
    if ready.writable_globals and backend != "process":
        if num_threads not in (None, 1):
            some = ", ".join(ready.writable_globals[:5])
            raise PluginError(
                f"{env} has variables that all its instances share ({some}), so it cannot run on several "
                "threads; leave num_threads out, or use backend='process' with num_workers="
            )
        num_threads = 1
    return ready.library, {"settings": ready.settings}, num_threads


_TAKES_NONE = re.compile(r"takes no (keyword )?arguments")
"""Python's error for a callable without parameters; it does not name the argument."""


def _suggest_options(options: dict[str, Any]) -> dict[str, str]:
    """Returns advice for options that are nearly a keyword of make_vec, or a keyword of AsyncVectorEnv."""
    close = {name: get_close_matches(name, _DEFAULTS, 1, 0.8) for name in options}
    hints = {name: f"did you mean the argument {found[0]!r}?" for name, found in close.items() if found}
    if "copy" in options:
        instead = 'buffers="leased", the default' if options["copy"] else 'buffers="live"'
        hints["copy"] = f"in place of copy={options['copy']!r} use {instead}"
    return hints


def _reject_if(given: bool, why: str) -> None:
    if given:
        raise TypeError(why)


def _make_maker(
    env: Any, max_episode_steps: int | None, render_mode: str | None, options: dict[str, Any]
) -> tuple[Callable[[], Any], EnvSpec | None]:
    """Returns a function that makes one environment in a worker, and its spec if it has one."""
    if callable(env) and not isinstance(env, EnvSpec):
        given = {"max_episode_steps": max_episode_steps, "render_mode": render_mode}
        given = {name: value for name, value in given.items() if value is not None}
        if given:
            raise TypeError(
                f"{', '.join(given)} cannot be given together with a function; set it inside the function"
            )
        return (partial(env, **options) if options else env), None
    keywords = dict(options)
    if max_episode_steps is not None:
        keywords["max_episode_steps"] = arguments.count("max_episode_steps", max_episode_steps, 2**32 - 1)
    if render_mode is not None:
        keywords["render_mode"] = render_mode
    if isinstance(env, EnvSpec):
        return partial(gymnasium.make, env, **keywords), env
    try:
        spec = gymnasium.spec(env) if ":" not in env else None
    except gymnasium.error.Error as error:
        raise PluginError(
            f"no environment {env!r}: Gymnasium says {error} Bundled with Shoal are {sorted(bundled())}. For "
            "your own environment in C pass its path, ending in .c or .so; for one in Python pass a function "
            "that makes it"
        ) from error
    return partial(gymnasium.make, env if spec is None else spec, **keywords), spec


def _find_library(env: Any) -> Path | None:
    """Returns the compiled plug-in; None if this is not an environment in C."""
    if not isinstance(env, (str, Path)):
        if callable(env) or isinstance(env, EnvSpec):
            return None
        advice = ""
        if isinstance(env, (list, tuple)):
            advice = "; for a list of functions use shoal.vector.ProcessVectorEnv([function, ...])"
        raise TypeError(
            f"env must be an id, a path, an EnvSpec or a function, got {type(env).__name__}: {env!r}{advice}"
        )
    text = str(env)
    if text.endswith((".c", ".cc", ".cpp")):
        from shoal.native.build import build

        return build(text)
    if text.endswith((".so", ".dylib")):
        return Path(text)
    return bundled().get(text.removeprefix("shoal/"))


def register_bundled() -> None:
    """Registers the bundled environments with Gymnasium as "shoal/<name>"."""
    for name, library in bundled().items():
        if f"shoal/{name}" not in gymnasium.registry:
            info = load(library, {})
            same = gymnasium.registry.get(name)
            gymnasium.register(
                id=f"shoal/{name}",
                entry_point=single_entry_point(library, info),
                vector_entry_point=_Registered(name),
                max_episode_steps=info.max_episode_steps or None,
                reward_threshold=None if same is None else same.reward_threshold,
            )


@dataclass(frozen=True)
class _Registered:
    """The function that gymnasium.make_vec calls. A dataclass, so that equal specs compare equal."""

    name: str

    def __call__(self, num_envs: int = 1, **options: Any) -> VectorEnv:
        return make_vec(self.name, num_envs, **options)
