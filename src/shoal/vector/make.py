"""`make_vec`: one function for bundled environments, a C file and a compiled plug-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from shoal.errors import PluginError
from shoal.native.plugin import bundled, load
from shoal.vector.env import VectorEnv

__all__ = ["make_vec", "register_bundled"]

_OWN = (
    "num_threads",
    "autoreset_mode",
    "buffers",
    "max_slots",
    "max_episode_steps",
    "episode_stats",
    "check",
    "render_mode",
    "batch_size",
)


def make_vec(env: str | Path, num_envs: int = 1, **options: Any) -> VectorEnv:
    """Makes `num_envs` environments that step together.

    `env` is the id of a bundled environment ("CartPole-v1"), a C file (compiled on the way) or a compiled
    plug-in. Keywords: num_threads, autoreset_mode, buffers ("leased", "live", "copy"), max_slots,
    max_episode_steps, episode_stats, check, render_mode, batch_size (send and recv instead of step); all
    others are options of the environment.

    >>> import shoal
    >>> envs = shoal.make_vec("CartPole-v1", num_envs=8)
    >>> observations, info = envs.reset(seed=0)
    >>> observations.shape
    (8, 4)
    >>> envs.close()
    """
    own = {name: options.pop(name) for name in _OWN if name in options}
    return VectorEnv(load(_library(env), options), num_envs, **own)


def _library(env: str | Path) -> Path:
    text = str(env)
    if text.endswith((".c", ".cc", ".cpp")):
        from shoal.native.build import build

        return build(text)
    if text.endswith((".so", ".dylib")):
        return Path(text)
    known = bundled()
    name = text.removeprefix("shoal/")
    if name not in known:
        raise PluginError(
            f"no environment {text!r}: bundled are {sorted(known)}; a C environment is given by its path "
            "ending in .c or .so"
        )
    return known[name]


def register_bundled() -> None:
    """Makes gymnasium.make_vec("shoal/CartPole-v1", ...) work."""
    for name in bundled():
        if f"shoal/{name}" not in gymnasium.registry:
            gymnasium.register(id=f"shoal/{name}", vector_entry_point=_entry_point(name))


def _entry_point(name: str) -> Any:
    def make(num_envs: int = 1, **options: Any) -> VectorEnv:
        return make_vec(name, num_envs, **options)

    return make
