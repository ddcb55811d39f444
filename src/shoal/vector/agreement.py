"""Derives the spaces of a vector environment from those of its environments, by Gymnasium's modes."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_differing_spaces

from shoal.vector import arguments

__all__ = ["observation_spaces", "require_same"]


def observation_spaces(
    mode: Any, facts: dict[str, Any], given: Space[Any] | None, num_envs: int
) -> tuple[Space[Any], Space[Any]]:
    """Returns the batched observation space and that of one environment."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(
                "Expected both elements of observation_mode to be Spaces, got "
                f"{type(mode[0])} and {type(mode[1])}"
            )
        return mode
    if mode == "same":
        single = facts["observation_space"] if given is None else given
        return arguments.batched(single, num_envs), single
    if mode == "different":
        single = facts["spaces"][0] if given is None else given
        return batch_differing_spaces(facts["spaces"]), single
    raise ValueError(
        "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch "
        f"observation space, actual got {mode}"
    )


def require_same(
    mode: Any, same: list[tuple[bool, bool]], observation: Space[Any], action: Space[Any]
) -> None:
    """Raises RuntimeError, in Gymnasium's words, if spaces differ; it names these environments."""
    observations = [number for number, (fits, _) in enumerate(same) if not fits]
    actions = [number for number, (_, fits) in enumerate(same) if not fits]
    if observations and mode == "same":
        raise RuntimeError(
            f"observation_mode='same', however {_list_environments(observations)} differ from {observation}: "
            "the sub-environments observation spaces are not equivalent. If this is intentional, use "
            "`observation_mode='different'` instead."
        )
    if observations:
        raise RuntimeError(
            "observation_mode='different' or custom space, however the sub-environment's observation spaces "
            f"do not share a common shape and dtype: {_list_environments(observations)} differ from "
            f"{observation}."
        )
    if actions:
        raise RuntimeError(
            f"Some environments have an action space different from `{action}`: "
            f"{_list_environments(actions)}. "
            "In order to batch actions, the action spaces from all environments must be equal."
        )


def _list_environments(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    more = "" if len(numbers) <= 8 else f" and {len(numbers) - 8} more"
    return f"environment{'s' if len(numbers) > 1 else ''} {shown}{more}"
