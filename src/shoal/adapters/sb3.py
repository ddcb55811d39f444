"""Shoal's environments as a Stable-Baselines3 VecEnv.

    make("CartPole-v1", 8)                     # was: make_vec_env("CartPole-v1", 8)
    make([make_one, make_another])             # was: SubprocVecEnv([make_one, make_another])
    DQN(..., replay_buffer_class=ReplayBuffer) # its rows are in shared memory

In the step that ends an episode, a VecEnv returns the first observation of the next episode, and the last one
of the old episode in `infos[i]["terminal_observation"]`. This needs autoreset mode SAME_STEP; other modes
raise ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common import vec_env

from shoal.adapters.addressed import make_addressed
from shoal.adapters.infos import info_of_row
from shoal.adapters.sb3_replay import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from shoal.native.plugin import bundled, load
from shoal.vector import ProcessVectorEnv, VectorEnv, arguments, make_vec

__all__ = ["DictReplayBuffer", "NStepReplayBuffer", "ReplayBuffer", "VecEnv", "make"]

_IN_C = (".c", ".cc", ".cpp", ".so", ".dylib")
_INSTEAD = {
    "n_envs": "use num_envs=",
    "seed": "call seed(...) on what make returns, before its first reset()",
    "start_index": "call seed(...) on what make returns, with the first environment's seed",
    "env_kwargs": "pass them as keyword arguments: make(env, num_envs, **env_kwargs)",
    "wrapper_class": "use wrappers=[wrapper_class]; for environments in C, a VecEnvWrapper around make(...)",
    "wrapper_kwargs": "use wrappers=[lambda env: wrapper_class(env, **wrapper_kwargs)]",
    "monitor_dir": "use VecMonitor(make(env, num_envs), filename)",
    "monitor_kwargs": "use VecMonitor(make(env, num_envs), filename, info_keywords)",
    "vec_env_cls": "leave it out: environments in C run in this process, others in num_workers processes",
    "vec_env_kwargs": "pass options of Shoal as keyword arguments, such as num_workers=2 or context='spawn'",
}
"""Arguments of SB3's make_vec_env that make does not have, and what to use instead."""


def make(
    env: str | Path | EnvSpec | Callable[..., Any] | Sequence[Callable[..., Any]],
    num_envs: int | None = None,
    **options: Any,
) -> VecEnv:
    """Makes environments like `shoal.make_vec`, with the autoreset mode that SB3 expects, as an SB3 VecEnv.

    `env` may also be a list of functions, one for each environment, as for SB3's SubprocVecEnv. Keywords
    that Shoal does not know are passed to the functions.
    """
    mode = arguments.autoreset_mode(options.pop("autoreset_mode", AutoresetMode.SAME_STEP))
    if mode != AutoresetMode.SAME_STEP:
        raise ValueError(f'SB3 needs autoreset_mode="SAME_STEP", got {mode.name}; leave autoreset_mode out')
    _reject_sb3_arguments(env, options)
    envs: VectorEnv
    if isinstance(env, (list, tuple)):
        envs = _make_from_list(env, num_envs, options)
    else:
        envs = _make_from_one(env, 1 if num_envs is None else num_envs, options)
    try:
        return VecEnv(envs)
    except BaseException:
        envs.close()
        raise


def _reject_sb3_arguments(env: Any, options: dict[str, Any]) -> None:
    """Raises TypeError for an argument of make_vec_env, unless the environment has that parameter."""
    for name in options:
        if name in _INSTEAD and not _has_parameter(env, name):
            raise TypeError(f"make has no argument {name!r}, which SB3's make_vec_env has: {_INSTEAD[name]}")


def _has_parameter(env: Any, name: str) -> bool:
    """Whether an environment, or every environment of a list, has a parameter of this name."""
    if isinstance(env, (list, tuple)):
        return bool(env) and all(_has_parameter(one, name) for one in env)
    if _is_in_c(env):
        library = bundled().get(str(env).removeprefix("shoal/"))
        return library is None or name in load(library, {}).options  # loading a file checks its options
    if isinstance(env, str):
        env = gymnasium.registry.get(env)
    creator: Any = env.entry_point if isinstance(env, EnvSpec) else env
    try:
        creator = load_env_creator(creator) if isinstance(creator, str) else creator
        return name in signature(creator).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        return False


def _is_in_c(env: Any) -> bool:
    path = str(env) if isinstance(env, (str, Path)) else ""
    return path.endswith(_IN_C) or path.startswith("puffer:") or path.removeprefix("shoal/") in bundled()


def _make_from_one(env: Any, num_envs: int, options: dict[str, Any]) -> VectorEnv:
    if not _is_in_c(env):
        taken = [name for name in ("max_episode_steps", "render_mode") if name in options]
        own: dict[str, Any] = {name: options.pop(name) for name in taken}
        if callable(env) and not isinstance(env, EnvSpec):
            _require_parameters("env", env, own)
        env = partial(make_addressed, env, **own)
    return make_vec(env, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)


def _make_from_list(
    functions: Sequence[Any], num_envs: int | None, options: dict[str, Any]
) -> ProcessVectorEnv:
    if not functions:
        raise ValueError("env is an empty list; it must have at least one function that makes an environment")
    if num_envs not in (None, len(functions)):
        raise ValueError(
            f"num_envs is {num_envs}, but the list has {len(functions)} functions; leave num_envs out"
        )
    for name in ("backend", "num_threads"):
        if options.pop(name, None) not in (None, "process"):
            raise TypeError(f"leave out {name}: a list of functions runs in num_workers processes")
    shoals = signature(ProcessVectorEnv).parameters
    own = {name: options.pop(name) for name in list(options) if name not in shoals}
    for number, function in enumerate(functions):
        if not callable(function):
            example = function if isinstance(function, str) else "FrozenLake-v1"
            raise TypeError(
                f"env[{number}] must be a function that makes an environment, got {function!r}; use "
                f"lambda: gymnasium.make({example!r}), or pass an id alone: make({example!r}, num_envs)"
            )
        _require_parameters(f"env[{number}]", function, own)
    makers = [partial(make_addressed, function, **own) for function in functions]
    return ProcessVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, **options)


def _require_parameters(name: str, function: Callable[..., Any], own: dict[str, Any]) -> None:
    """Raises TypeError, before any worker starts, if a function does not take these keywords."""
    try:
        signature(function).bind(**own)
    except TypeError as error:
        given = f"the keyword arguments {', '.join(own)}" if own else "no arguments"
        raise TypeError(
            f"{name} cannot be called with {given}: {error}. It is {function!r}; set options inside the "
            "function, such as lambda: gymnasium.make('FrozenLake-v1', render_mode='rgb_array')"
        ) from None
    except ValueError:  # written in C, without a signature
        pass


class VecEnv(vec_env.VecEnv):
    """Environments made with autoreset_mode="SAME_STEP", for SB3's algorithms and wrappers.

    If an environment has several agents, each agent is an environment for SB3.
    """

    def __init__(self, envs: VectorEnv) -> None:
        if not isinstance(envs, VectorEnv):
            raise TypeError(
                'VecEnv takes what shoal.make_vec(..., autoreset_mode="SAME_STEP") returns, got '
                f"{type(envs).__name__}; shoal.adapters.sb3.make(env, num_envs) makes a VecEnv from an id or "
                "a function, make([function, ...]) from a list of functions"
            )
        if envs.autoreset_mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                "SB3 expects that the step that ends an episode also resets it; make the "
                f'environments with autoreset_mode="SAME_STEP", not {envs.autoreset_mode.name}, or by '
                "shoal.adapters.sb3.make"
            )
        if envs.buffers == "live":
            raise ValueError(
                'buffers="live" changes observations that SB3 still needs; use buffers="leased", the default'
            )
        self.envs: Any = envs
        self._actions: Any = None
        self._pending = False
        self._in_c = envs.is_in_c
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        if "render_fps" in envs.metadata:  # for VecVideoRecorder
            self.metadata["render_fps"] = envs.metadata["render_fps"]

    def __repr__(self) -> str:
        return f"<shoal.adapters.sb3.VecEnv of {self.envs!r}>"

    # -- stepping -------------------------------------------------------------------------------------

    def reset(self) -> Any:
        if self._pending:  # discard the results of the pending step
            self.step_wait()
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError(
                "reset options must be the same for all environments; call set_options with one dict, "
                f"found {self._options}"
            )
        seeds = list(self._seeds[: self.envs.num_worlds])
        observations, infos = self.envs.reset(seed=seeds, options=options or None)
        self.reset_infos = [info_of_row(infos, row) for row in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        if self.envs.backend == "process":
            self.envs.step_async(actions)
        self._actions, self._pending = actions, True

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        self._pending = False
        if self.envs.backend == "process":
            results = self.envs.step_wait()
        else:
            results = self.envs.step(self._actions)
        observations, rewards, terminated, truncated, infos = results
        dones = terminated | truncated
        if infos:
            split = self._split_infos(infos, dones)
            for info, cut_off in zip(split, (truncated & ~terminated).tolist(), strict=True):
                info["TimeLimit.truncated"] = cut_off and "fault" not in info
        else:
            split = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        return observations, rewards.astype(np.float32), dones, split

    def _split_infos(self, infos: dict[str, Any], dones: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """Returns each environment's info of this step; infos of a reset go to `reset_infos`."""
        finals, ends = infos.get("final_obs"), infos.get("final_info", {})
        infos = {name: value for name, value in infos.items() if name.lstrip("_") not in _FINAL}
        split = [info_of_row(infos, row) for row in range(self.num_envs)]
        for row in np.flatnonzero(dones).tolist():
            self.reset_infos[row], split[row] = split[row], info_of_row(ends, row)
            for name in {"episode", "fault"} & set(
                self.reset_infos[row]
            ):  # these belong to the episode that ended
                split[row].setdefault(name, self.reset_infos[row].pop(name))
            if finals is not None and "fault" not in split[row]:  # a dead worker's last observation is lost
                split[row]["terminal_observation"] = finals[row]
        return split

    def close(self) -> None:
        self.envs.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return list(self.envs.render())

    # -- single environments --------------------------------------------------------------------------

    def has_attr(self, attr_name: str) -> bool:
        return (
            hasattr(self.envs, attr_name)
            if self._in_c
            else all(self.envs.call("has_wrapper_attr", attr_name))
        )

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns an attribute of each environment; for environments in C, that of the vector environment."""
        values = [getattr(self.envs, attr_name)] * self.num_envs if self._in_c else self.envs.call(attr_name)
        return [values[env] for env in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._require_python(attr_name)
        self.env_method("set_wrapper_attr", attr_name, value, indices=indices)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        self._require_python(method_name)
        chosen = list(self._get_indices(indices))
        if set(chosen) >= set(range(self.num_envs)):
            answers = self.envs.call(method_name, *args, **kwargs)
        elif not self.has_attr("shoal_ask"):
            raise ValueError(
                f"{method_name}: VecEnv(envs) can only call a method of all environments; leave indices "
                "out, or make them by shoal.adapters.sb3.make, which supports indices"
            )
        else:
            self.envs.set_attr("shoal_asked", [env in chosen for env in range(self.num_envs)])
            answers = self.envs.call("shoal_ask", method_name, args, kwargs)
        return [answers[env] for env in chosen]

    def _require_python(self, name: str) -> None:
        if self._in_c:
            raise AttributeError(
                f"environments in C have no attributes and methods, asked for {name!r}; pass options to "
                f"shoal.adapters.sb3.make: {', '.join(self.envs.options) or 'this one has none'}"
            )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Returns for each environment whether a wrapper of that class name is around it."""
        names = [""] * self.num_envs if self._in_c else self.envs.call("__str__")  # <Monitor<TimeLimit<...
        return [f"<{wrapper_class.__name__}<" in names[env] for env in self._get_indices(indices)]


_FINAL = ("final_obs", "final_info")
