"""Stable-Baselines3's VecEnv over Shoal's environments.

    make("CartPole-v1", 8)                     # was: make_vec_env("CartPole-v1", 8)
    make([make_one, make_another])             # was: SubprocVecEnv([make_one, make_another])

A VecEnv gives the next episode's first observation at once, and the last one of the episode that ended in
`infos[i]["terminal_observation"]`: that is autoreset mode SAME_STEP, and others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common import vec_env

from shoal.adapters.addressed import make_addressed
from shoal.native.plugin import bundled
from shoal.vector import ProcessVectorEnv, VectorEnv, arguments, make_vec
from shoal.vector.plans import PluginEnvs

__all__ = ["VecEnv", "make"]

_IN_C = (".c", ".cc", ".cpp", ".so", ".dylib")


def make(
    env: str | Path | EnvSpec | Callable[..., Any] | Sequence[Callable[..., Any]],
    num_envs: int | None = None,
    **options: Any,
) -> VecEnv:
    """`shoal.make_vec` with the autoreset mode that SB3 expects, as a VecEnv of SB3.

    `env` may also be a list of functions, one for each environment, as for SB3's SubprocVecEnv. Keywords that
    are not Shoal's go to the functions.
    """
    mode = arguments.autoreset_mode(options.pop("autoreset_mode", AutoresetMode.SAME_STEP))
    if mode != AutoresetMode.SAME_STEP:
        raise ValueError(f'SB3 needs autoreset_mode="SAME_STEP", got {mode.name}; leave autoreset_mode out')
    envs: VectorEnv | ProcessVectorEnv
    if isinstance(env, (list, tuple)):
        envs = _make_from_list(env, num_envs, options)
    else:
        envs = _make_from_one(env, 1 if num_envs is None else num_envs, options)
    try:
        return VecEnv(envs)
    except BaseException:
        envs.close()
        raise


def _make_from_one(env: Any, num_envs: int, options: dict[str, Any]) -> VectorEnv | ProcessVectorEnv:
    path = str(env) if isinstance(env, (str, Path)) else ""
    in_c = path.endswith(_IN_C) or path.startswith("puffer:") or path.removeprefix("shoal/") in bundled()
    if not in_c:
        taken = [name for name in ("max_episode_steps", "render_mode") if name in options]
        own: dict[str, Any] = {name: options.pop(name) for name in taken}
        if callable(env) and not isinstance(env, EnvSpec):
            _require_parameters(env, own)
        env = partial(make_addressed, env, **own)
    return make_vec(env, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)


def _make_from_list(
    functions: Sequence[Any], num_envs: int | None, options: dict[str, Any]
) -> ProcessVectorEnv:
    if num_envs not in (None, len(functions)):
        raise ValueError(
            f"num_envs is {num_envs}, but the list has {len(functions)} functions; leave num_envs out"
        )
    for name in ("backend", "num_threads"):
        if options.pop(name, None) not in (None, "process"):
            raise TypeError(f"{name} is not for a list of functions: they run in num_workers processes")
    shoals = signature(ProcessVectorEnv).parameters
    own = {name: options.pop(name) for name in list(options) if name not in shoals}
    for number, function in enumerate(functions):
        if not callable(function):
            raise TypeError(
                f"env[{number}] must be a function that makes an environment, got {function!r}; such as "
                "lambda: gymnasium.make('FrozenLake-v1')"
            )
        _require_parameters(function, own)
    makers = [partial(make_addressed, function, **own) for function in functions]
    return ProcessVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, **options)


def _require_parameters(function: Callable[..., Any], own: dict[str, Any]) -> None:
    """TypeError before anything is started if a function does not take these keywords."""
    try:
        signature(function).bind(**own)
    except TypeError as error:
        names = ", ".join(own) or "no keyword"
        raise TypeError(
            f"{function!r} was to be called with {names}: {error}. Let it choose for itself, such as "
            "lambda: gymnasium.make('FrozenLake-v1', render_mode='rgb_array')"
        ) from None
    except ValueError:  # written in C, without a signature
        pass


class VecEnv(vec_env.VecEnv):
    """Shoal's environments, made with autoreset_mode="SAME_STEP", for SB3's algorithms and wrappers.

    With several agents in an environment, each agent is an environment to SB3.
    """

    def __init__(self, envs: VectorEnv | ProcessVectorEnv) -> None:
        if not isinstance(envs, (VectorEnv, ProcessVectorEnv)):
            raise TypeError(
                'VecEnv takes what shoal.make_vec(..., autoreset_mode="SAME_STEP") returns, got '
                f"{type(envs).__name__}; shoal.adapters.sb3.make(env, num_envs) makes a VecEnv from an id or "
                "a function, make([function, ...]) from a list of functions"
            )
        if envs.autoreset_mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                "SB3 expects the end of an episode and the beginning of the next in one step; make the "
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
        self._in_c = isinstance(envs, VectorEnv) or isinstance(envs.env_fns, PluginEnvs)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    # -- stepping -------------------------------------------------------------------------------------

    def reset(self) -> Any:
        if self._pending:  # nobody wants what is under way
            self.step_wait()
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError(
                "reset options must be the same for all environments; call set_options with one dict, "
                f"found {self._options}"
            )
        seeds = list(self._seeds[: self.envs.num_worlds])
        observations, infos = self.envs.reset(seed=seeds, options=options or None)
        self.reset_infos = [_of_row(infos, row) for row in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        if isinstance(self.envs, ProcessVectorEnv):
            self.envs.step_async(actions)
        self._actions, self._pending = actions, True

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        self._pending = False
        if isinstance(self.envs, ProcessVectorEnv):
            results = self.envs.step_wait()
        else:
            results = self.envs.step(self._actions)
        observations, rewards, terminated, truncated, infos = results
        dones = terminated | truncated
        if infos:
            told = self._told(infos, dones)
            for info, cut_off in zip(told, (truncated & ~terminated).tolist(), strict=True):
                info["TimeLimit.truncated"] = cut_off and "fault" not in info
        else:
            told = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        return observations, rewards.astype(np.float32), dones, told

    def _told(self, infos: dict[str, Any], dones: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """Each environment's info of this step; what begins another episode goes into reset_infos."""
        finals, ends = infos.get("final_obs"), infos.get("final_info", {})
        infos = {name: value for name, value in infos.items() if name.lstrip("_") not in _FINAL}
        told = [_of_row(infos, row) for row in range(self.num_envs)]
        for row in np.flatnonzero(dones).tolist():
            self.reset_infos[row], told[row] = told[row], _of_row(ends, row)
            for name in {"episode", "fault"} & set(self.reset_infos[row]):  # Shoal's own, of what ended
                told[row].setdefault(name, self.reset_infos[row].pop(name))
            if finals is not None and "fault" not in told[row]:  # with a worker, its last observation is lost
                told[row]["terminal_observation"] = finals[row]
        return told

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
        """An attribute of each; of environments in C, what the vector of them has."""
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
                f"{method_name}: VecEnv(envs) can only ask all environments at once; leave indices out, or "
                "make them by shoal.adapters.sb3.make, which can ask some"
            )
        else:
            self.envs.set_attr("shoal_asked", [env in chosen for env in range(self.num_envs)])
            answers = self.envs.call("shoal_ask", method_name, args, kwargs)
        return [answers[env] for env in chosen]

    def _require_python(self, name: str) -> None:
        if self._in_c:
            raise AttributeError(
                f"environments in C have no attributes and methods, asked for {name!r}; their options are "
                f"keywords of shoal.adapters.sb3.make: {', '.join(self.envs.options) or 'this one has none'}"
            )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Whether a wrapper of that name is around each environment."""
        names = [""] * self.num_envs if self._in_c else self.envs.call("__str__")  # <Monitor<TimeLimit<...
        return [f"<{wrapper_class.__name__}<" in names[env] for env in self._get_indices(indices)]


_FINAL = ("final_obs", "final_info")


def _of_row(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """One environment's part of infos that Gymnasium has batched: `{key: array, _key: mask}`."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        is_mask = key.startswith("_") and key[1:] in infos
        if not is_mask and (f"_{key}" not in infos or infos[f"_{key}"][row]):
            found[key] = _of_row(value, row) if isinstance(value, dict) else value[row]
    return found
