"""Lets you call a method of single environments.

Workers import this module, so it imports no learning library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

__all__ = ["AddressedEnv", "make_addressed"]


class AddressedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Calls a method only if `shoal_asked` is set, since Gymnasium calls a method of all environments."""

    shoal_asked = False

    def shoal_ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.get_wrapper_attr(name)(*args, **kwargs) if self.shoal_asked else None


def make_addressed(env: str | EnvSpec | Callable[..., Any], **options: Any) -> AddressedEnv:
    """Makes an environment from an id, a spec or a function; `options` are options of the environment."""
    if isinstance(env, (str, EnvSpec)):
        return AddressedEnv(gymnasium.make(env, **options))
    return AddressedEnv(env(**options))
