"""One C environment as a `gymnasium.Env`, as `gymnasium.make("shoal/Squared-v0")` makes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Dict, Discrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.native.plugin import PluginInfo, load
from shoal.vector import arguments
from shoal.vector.backend import Common
from shoal.vector.env import VectorEnv
from shoal.vector.native import NativeBackend

__all__ = ["SingleEnv", "make_single", "single_entry_point"]


class SingleEnv(gymnasium.Env[Any, Any]):
    """A vector environment of size one as a `gymnasium.Env`. Made by `gymnasium.make`.

    >>> import gymnasium, shoal
    >>> env = gymnasium.make("shoal/CartPole-v1")
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(1)
    >>> observation.shape, reward, terminated, truncated
    ((4,), 1.0, False, False)
    >>> env.close()

    It has no step limit of its own: `gymnasium.make` adds the wrapper TimeLimit. Observations are leased,
    as in every vector environment, so arrays that you keep never change.
    """

    def __init__(self, info: PluginInfo, render_mode: str | None = None) -> None:
        if info.agents > 1:
            raise gymnasium.error.Error(
                f"{info.plugin.name} has {info.agents} agents per environment, and gymnasium.Env supports "
                "one; use shoal.make_vec, whose rows are agents, or shoal.adapters.pettingzoo"
            )
        common = Common.from_arguments(AutoresetMode.DISABLED)
        unlimited = replace(info, max_episode_steps=0)
        backend = NativeBackend(unlimited, 1, common, num_threads=1, render_mode=render_mode)
        self._envs = VectorEnv(backend, common)
        self._name = info.plugin.name
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.render_mode = render_mode
        self.metadata = arguments.render_metadata(info.plugin)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts a new episode; with a seed, the same as environment 0 of a vector environment."""
        super().reset(seed=seed)
        if options:
            raise ValueError(
                f"reset of {self._name} takes no options, got {sorted(options)}; pass options of the "
                "environment to gymnasium.make"
            )
        observations, infos = self._envs.reset(seed=seed)
        return _first(self.observation_space, observations), _first_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps once. After an episode has ended, call reset first."""
        try:
            results = self._envs.step(_batch(self.action_space, action))
        except ResetNeeded:
            raise ResetNeeded("no episode is running: call reset() before the next step") from None
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"action {action!r} is not in {self.action_space}; nothing was stepped. Pass an action like "
                "those of env.action_space.sample()"
            ) from None
        observations, rewards, terminated, truncated, infos = results
        observation = _first(self.observation_space, observations)
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _first_info(infos)

    def render(self) -> NDArray[np.uint8]:
        """Returns a picture, [height, width, 3], for render_mode="rgb_array"."""
        picture: NDArray[np.uint8] = self._envs.render()[0]
        return picture

    def close(self) -> None:
        """Ends the environment. Idempotent; arrays that were returned stay valid."""
        self._envs.close()

    def __repr__(self) -> str:
        return f"<{self._name}>"

    __str__ = __repr__


def make_single(library: Path, *, render_mode: str | None = None, **options: Any) -> SingleEnv:
    """Makes the environment in a compiled plug-in; further keywords are its options."""
    return SingleEnv(load(library, options), render_mode)


def single_entry_point(library: Path, info: PluginInfo) -> Any:
    """Returns the entry point for `gymnasium.make`, whose metadata lists the render modes."""
    return SingleMaker(library, arguments.render_metadata(info.plugin))


@dataclass(frozen=True)
class SingleMaker:
    """Makes the environment in a compiled plug-in. A dataclass, so that equal specs compare equal."""

    library: Path
    metadata: dict[str, Any]

    def __call__(self, **keywords: Any) -> SingleEnv:
        return make_single(self.library, **keywords)


def _first(space: Space[Any], batch: Any) -> Any:
    """Returns the only row of a batch, as a value of the space."""
    if isinstance(space, Dict):
        return {name: _first(part, batch[name]) for name, part in space.spaces.items()}
    return batch[0] if isinstance(space, Discrete) else batch[0, ...]


def _batch(space: Space[Any], action: Any) -> Any:
    """Returns a batch of one action."""
    if isinstance(space, Dict) and isinstance(action, dict):
        return {name: np.asarray(value)[None] for name, value in action.items()}
    return np.asarray(action)[None]


def _first_info(infos: dict[str, Any]) -> dict[str, Any]:
    """Returns the info of the only environment from Gymnasium's arrays with masks."""
    return {
        name: _row(value)
        for name, value in infos.items()
        if not name.startswith("_") and infos.get(f"_{name}", (True,))[0]
    }


def _row(value: Any) -> Any:
    return _first_info(value) if isinstance(value, dict) else value[0]
