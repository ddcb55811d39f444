"""Shoal's environments for RLlib, through its new API stack's vector entry point.

    register("cartpole", "CartPole-v1")
    config.environment("cartpole").env_runners(**ENV_RUNNERS, num_envs_per_env_runner=64)

An EnvRunner then steps one vector of Shoal's where it would step a list of environments. RLlib expects the
step after an episode's end to be the reset: autoreset mode NEXT_STEP.
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
"""What `config.env_runners` must be told, for the vector to be asked for at all."""


def register(name: str, env: str | Path | EnvSpec | Callable[..., Any] | None = None, **options: Any) -> None:
    """Gives RLlib an environment under a name: `env`, or the one of that name.

    `options` are those of `shoal.make_vec`, and so are the entries of RLlib's `env_config`.
    """
    register_env(name, partial(_create, name if env is None else env, options))


def _create(env: Any, options: dict[str, Any], context: dict[str, Any]) -> VectorEnv:
    settings = {**options, **context}
    num_envs = settings.pop("num_envs", None)
    if num_envs is None:
        raise ValueError(
            "RLlib asked for a single environment, and Shoal steps vectors of them: use "
            'config.env_runners(gym_env_vectorize_mode="vector_entry_point")'
        )
    if settings.get("on_fault", "raise") != "raise":
        raise ValueError(
            'on_fault="restart" loses the last observation of an episode, and RLlib would bootstrap from '
            "another; use config.fault_tolerance(restart_failed_sub_environments=True)"
        )
    if settings.get("buffers") == "live":
        raise ValueError('buffers="live" changes observations that RLlib still needs; use "leased"')
    envs = make_vec(env, num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **settings)
    if envs.agents_per_env > 1:
        envs.close()
        raise ValueError(f"{env} has several agents; RLlib's vectors are of environments with one")
    return envs
