"""Shoal's environments for RLlib, by the vector entry point of its new API stack.

    register("cartpole", "CartPole-v1")
    config.environment("cartpole").env_runners(**ENV_RUNNERS, num_envs_per_env_runner=64)

An EnvRunner then steps one vector environment of Shoal instead of a list of environments. RLlib expects that
the step after the end of an episode is the reset, so the autoreset mode is NEXT_STEP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from ray.tune.registry import register_env

from shoal.vector import VectorEnv, make_vec

__all__ = ["ENV_RUNNERS", "register"]

ENV_RUNNERS = {"gym_env_vectorize_mode": "vector_entry_point"}
"""The arguments of `config.env_runners` that make RLlib use the vector environment."""


def register(name: str, env: str | Path | EnvSpec | Callable[..., Any] | None = None, **options: Any) -> None:
    """Registers `env` with RLlib under a name. Without `env`, the name is also the id of the environment.

    `options`, and the entries of RLlib's `env_config`, are arguments of `shoal.make_vec`.
    """
    register_env(name, partial(_create, name if env is None else env, options))


def _create(env: Any, options: dict[str, Any], context: dict[str, Any]) -> VectorEnv:
    settings = {**options, **context}
    num_envs = settings.pop("num_envs", None)
    if num_envs is None:
        raise ValueError(
            "RLlib requested a single environment, but Shoal makes vector environments: use "
            'config.env_runners(gym_env_vectorize_mode="vector_entry_point")'
        )
    if settings.get("on_fault", "raise") != "raise":
        raise ValueError(
            'on_fault="restart" loses the last observation of an episode, so RLlib would bootstrap from a '
            "wrong one; use config.fault_tolerance(restart_failed_sub_environments=True)"
        )
    if settings.get("buffers") == "live":
        raise ValueError('buffers="live" changes observations that RLlib still needs; use "leased"')
    envs = make_vec(env, num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **settings)
    if envs.agents_per_env > 1:
        envs.close()
        raise ValueError(f"{env} has several agents; this adapter is for environments with one agent")
    return envs
