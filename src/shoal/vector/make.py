"""`make_vec`: one function for bundled environments, a C file and a compiled plug-in."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import gymnasium
from gymnasium.vector import AutoresetMode

from shoal.errors import PluginError
from shoal.native.plugin import bundled, load
from shoal.vector.env import VectorEnv

__all__ = ["make_vec", "register_bundled"]


def make_vec(
    env: str | Path,
    num_envs: int = 1,
    *,
    num_threads: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    buffers: Literal["leased", "live", "copy"] = "leased",
    max_slots: int = 64,
    max_episode_steps: int | None = None,
    episode_stats: bool = False,
    check: Iterable[str] = ("actions", "nan"),
    render_mode: str | None = None,
    batch_size: int | None = None,
    **options: Any,
) -> VectorEnv:
    """Makes `num_envs` C environments that step together.

    `env` is the id of a bundled environment ("CartPole-v1"), a C file (compiled on the way) or a compiled
    plug-in; further keywords are options of the environment.

    >>> import shoal
    >>> envs = shoal.make_vec("CartPole-v1", num_envs=8)
    >>> observations, info = envs.reset(seed=0)
    >>> observations.shape
    (8, 4)
    >>> envs.close()

    Args:
        env: Which environment.
        num_envs: How many.
        num_threads: At most this many threads step them; None: one per core. Fewer where more do not pay.
        autoreset_mode: NEXT_STEP, SAME_STEP or DISABLED, as Gymnasium defines them.
        buffers: "leased": what you keep never changes. "live": overwritten by the next step. "copy".
        max_slots: Results you may hold without their being copied (`stats["copies"]` counts those).
        max_episode_steps: Truncate there; None: where the environment says.
        episode_stats: Put return and length of finished episodes into `info["episode"]`.
        check: Which values are looked at before a step: "actions" (discrete ranges), "nan".
        render_mode: "rgb_array" for environments that can be drawn.
        batch_size: Step asynchronously: `send` and `recv`, the first `batch_size` ready.
        options: The environment's own.
    """
    own = signature(make_vec).parameters
    close = {name: get_close_matches(name, own, 1, 0.8) for name in options}
    info = load(_library(env), options, {name: found[0] for name, found in close.items() if found})
    return VectorEnv(
        info,
        num_envs,
        num_threads=num_threads,
        autoreset_mode=autoreset_mode,
        buffers=buffers,
        max_slots=max_slots,
        max_episode_steps=max_episode_steps,
        episode_stats=episode_stats,
        check=check,
        render_mode=render_mode,
        batch_size=batch_size,
    )


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
            f"no C environment {text!r}: bundled are {sorted(known)}; your own is given by its path, ending "
            "in .c or .so. Environments in Python are for gymnasium.make_vec"
        )
    return known[name]


def register_bundled() -> None:
    """Makes gymnasium.make_vec("shoal/CartPole-v1", ...) work."""
    for name, library in bundled().items():
        if f"shoal/{name}" not in gymnasium.registry:
            limit = load(library, {}).max_episode_steps or None
            gymnasium.register(
                id=f"shoal/{name}", vector_entry_point=_entry_point(name), max_episode_steps=limit
            )


def _entry_point(name: str) -> Any:
    def make(num_envs: int = 1, **options: Any) -> VectorEnv:
        return make_vec(name, num_envs, **options)

    return make
