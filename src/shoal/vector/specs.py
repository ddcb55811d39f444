"""Arguments that `make_vec` shares with `gymnasium.make_vec`: modes, wrappers, `vector_kwargs`, specs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode

__all__ = [
    "arguments_of_spec",
    "backend_of_mode",
    "record_spec",
    "require_wrappers",
    "split_vector_kwargs",
    "wrap",
]

_OF_VECTOR = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
_OF_EACH_ENV = ("max_episode_steps", "render_mode")
_ASYNC_ONLY = ("daemon", "worker", "observation_mode", "max_concurrency", "observation_space", "action_space")
"""Arguments of ProcessVectorEnv for which make_vec has no keyword."""


def arguments_of_spec(spec: EnvSpec, env: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of make_vec for a vector environment's spec, as Gymnasium reads them.

    `given` overrides the spec's kwargs, except those about the vector itself.
    """
    of_spec = copy.deepcopy(spec.kwargs)
    of_vector = {name: of_spec.pop(name) for name in _OF_VECTOR if name in of_spec}
    return {**of_spec, **given, **of_vector, "env": env}


def split_vector_kwargs(
    vector_kwargs: Any, given: Mapping[str, Any], keywords: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments that are keywords of make_vec, and those of ProcessVectorEnv only."""
    if not isinstance(vector_kwargs, Mapping):
        raise TypeError(
            f"vector_kwargs must be a dict, got {type(vector_kwargs).__name__}: {vector_kwargs!r}"
        )
    own, others = {}, {}
    for name, value in vector_kwargs.items():
        if name == "copy":
            own["buffers"] = "leased" if value else "live"
        elif name in keywords and name not in ("env", *_OF_VECTOR, *_OF_EACH_ENV):
            own[name] = value
        elif name in _ASYNC_ONLY:
            others[name] = value
        else:
            known = sorted({"copy", *_ASYNC_ONLY, *keywords} - {"env", *_OF_VECTOR, *_OF_EACH_ENV})
            raise TypeError(
                f"vector_kwargs has no argument {name!r}; it has {known}. Options of the environment are "
                "keyword arguments of make_vec"
            )
    twice = sorted(set(own) & set(given))
    if twice:
        raise TypeError(
            f"{', '.join(twice)}: given both in vector_kwargs and as a keyword argument; leave one out"
        )
    return own, others


def backend_of_mode(mode: VectorizeMode | str | None, backend: str | None) -> str | None:
    """Returns the backend for Gymnasium's vectorization_mode. Errors are Gymnasium's."""
    if mode is None:
        return backend
    try:
        known = VectorizeMode(mode)
    except ValueError as error:
        valid = [known.value for known in VectorizeMode if known != VectorizeMode.SYNC]
        advice = f"; did you mean backend={mode!r}?" if mode in ("native", "process") else ""
        raise ValueError(f"Invalid vectorization mode: {mode!r}, valid modes: {valid}{advice}") from error
    if known == VectorizeMode.SYNC:
        raise gymnasium.error.Error(
            "Shoal has no vectorization mode 'sync'. Leave vectorization_mode out: environments in C run in "
            "this process, those in Python in worker processes (num_workers=1 for a single one); or use "
            "gymnasium.make_vec(..., vectorization_mode='sync')"
        )
    meant = "process" if known == VectorizeMode.ASYNC else "native"
    if backend not in (None, meant):
        raise ValueError(
            f"vectorization_mode={known.value!r} means backend={meant!r}, but backend={backend!r} was given; "
            "leave one out"
        )
    return meant


def require_wrappers(wrappers: Any) -> tuple[Callable[[Any], Any], ...]:
    """Returns the wrappers as a tuple; raises TypeError unless they are functions of one environment."""
    if wrappers is None:
        return ()
    if isinstance(wrappers, (str, Mapping)) or not isinstance(wrappers, Sequence):
        raise TypeError(f"wrappers must be a list of functions, got {type(wrappers).__name__}: {wrappers!r}")
    for wrapper in wrappers:
        if not callable(wrapper):
            raise TypeError(
                f"a wrapper must be a class or function that takes an environment, got {wrapper!r}"
            )
    return tuple(wrappers)


def wrap(make: Callable[[], Any], wrappers: tuple[Callable[[Any], Any], ...]) -> Callable[[], Any]:
    """Returns a function that makes an environment with these wrappers, the last one outermost."""
    return partial(_make_wrapped, make, wrappers) if wrappers else make


def _make_wrapped(make: Callable[[], Any], wrappers: tuple[Callable[[Any], Any], ...]) -> Any:
    env = make()
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def record_spec(
    base: EnvSpec, mode: VectorizeMode, given: Mapping[str, Any], options: Mapping[str, Any]
) -> EnvSpec:
    """Returns the spec with make_vec's arguments in the places that `gymnasium.make_vec` uses.

    The session's name and history file are left out, because two runs cannot have the same ones.
    """
    spec = copy.deepcopy(base)
    keywords = {
        name: value
        for name, value in given.items()
        if name not in ("env", "backend", "session", "history", *_OF_VECTOR)
    }
    of_vector = dict(given.get("vector_kwargs") or {})
    if mode == VectorizeMode.ASYNC:
        of_vector |= {name: keywords.pop(name) for name in list(keywords) if name not in _OF_EACH_ENV}
    spec.kwargs = {**spec.kwargs, **options, **keywords}
    if given.get("num_envs", 1) != 1:
        spec.kwargs["num_envs"] = given["num_envs"]
    spec.kwargs["vectorization_mode"] = mode.value
    if of_vector:
        spec.kwargs["vector_kwargs"] = of_vector
    if given.get("wrappers"):
        spec.kwargs["wrappers"] = given["wrappers"]
    return spec
