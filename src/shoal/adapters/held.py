"""Environments that can be paused. Workers import this module, so it imports no learning library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

__all__ = ["HeldEnv", "make_held"]


class HeldEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """While `shoal_held` is True, step and reset return the last observation and change nothing."""

    shoal_held = False
    _last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if self.shoal_held:
            return self._last, {}
        self._last, info = self.env.reset(seed=seed, options=options)
        return self._last, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.shoal_held:
            return self._last, 0.0, False, False, {}
        self._last, *rest = self.env.step(action)
        return self._last, *rest


def make_held(env: str | EnvSpec | Callable[..., Any], **options: Any) -> HeldEnv:
    """Makes an environment from an id, a spec or a function; `options` are options of the environment."""
    return HeldEnv(gymnasium.make(env, **options) if isinstance(env, (str, EnvSpec)) else env(**options))
