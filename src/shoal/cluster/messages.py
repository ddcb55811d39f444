"""What travels between a learner and the runners of its fleet.

Plan (once, to each runner) -> Request (one for each rollout) -> FleetRollout, by way of the object store
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FleetRollout", "Plan", "Request", "arrays_of", "mapped"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """All that a runner is made of. A learner that comes back reads it from any runner of the fleet."""

    env: Any
    num_envs: int
    policy: Callable[..., Any] | None
    seed: int
    options: dict[str, Any]
    runners: int
    strategy: str
    """How Ray placed them: "STRICT_SPREAD" is a node for each; "SPREAD" had too few nodes for that."""


@dataclass(frozen=True)
class Request:
    """One rollout to be made: which, by whom, how long, and with which weights at least."""

    learner: int
    """Who asks; of two, the one that attached later has the larger number."""
    branch: int
    """Of the seeds: 0 for the learner that made the fleet, another for each that attached."""
    number: int
    life: int
    first: int
    """The number of this life's first rollout: a runner that never lived it may begin it with no other."""
    length: int
    version: int
    weights: list[Any]
    """The reference of the weights, or nothing. In a list, since Ray would fetch a bare one too early."""


@dataclass
class FleetRollout:
    """What one runner's environments did: rows t of `observations` lead by `actions` t to rows t + 1.

    The arrays are read-only views of Ray's object store; keeping one keeps the whole rollout there.

    >>> from shoal.cluster import Fleet
    >>> with Fleet("CartPole-v1", 4, nodes=1) as fleet:
    ...     rollout = next(fleet.rollouts(8))
    >>> rollout.observations.shape, rollout.actions.shape, rollout.observations.flags.writeable
    ((9, 4, 4), (8, 4), False)
    """

    observations: Any
    """[T + 1, N, ...], nested as the space is."""
    actions: Any
    """[T, N, ...]"""
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    over: NDArray[np.bool_]
    """[N]: whose episode had ended before row 0, so that its first step is a reset."""
    extras: dict[str, Array]
    """[T, N, ...]: what the policy gave beside the actions."""
    version: int
    """Of the policy, from the first row to the last: what `set_weights` returned; 0 before the first."""
    runner: int
    node: str
    """Ray's id of the node it was made on."""
    number: int
    """Of this runner's rollouts; one more than the last, except for those that were lost."""
    life: int
    """How often this runner had been lost before."""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def nbytes(self) -> int:
        """Of all arrays: what lies in the object store."""
        return sum(array.nbytes for array in arrays_of(self))

    @property
    def counts(self) -> NDArray[np.bool_]:
        """[T, N]: which steps are transitions. A step after the end of an episode only begins the next."""
        counts = np.empty(self.rewards.shape, np.bool_)
        np.logical_not(self.over, out=counts[0])
        np.logical_or(self.terminated[:-1], self.truncated[:-1], out=counts[1:])
        np.logical_not(counts[1:], out=counts[1:])
        return counts

    def transitions(self) -> dict[str, Any]:
        """Rows for `ReplayBuffer.extend`: obs, action, reward, next_obs, terminated, truncated.

        Views where every step is a transition; else those that are, copied together.
        """
        counts = self.counts.reshape(-1)
        which = slice(None) if counts.all() else counts

        def rows(array: Array) -> Array:
            return array.reshape(-1, *array.shape[2:])[which]

        return {
            "obs": mapped(lambda array: rows(array[:-1]), self.observations),
            "action": mapped(rows, self.actions),
            "reward": rows(self.rewards),
            "next_obs": mapped(lambda array: rows(array[1:]), self.observations),
            "terminated": rows(self.terminated),
            "truncated": rows(self.truncated),
        }

    def __repr__(self) -> str:
        steps, rows = self.rewards.shape
        which = f"{self.number} of runner {self.runner}"
        return f"<FleetRollout {which}: {steps} steps x {rows} rows, version {self.version}>"


def mapped(function: Callable[[Array], Any], tree: Any) -> Any:
    """`function` of every array, nested as they are."""
    if isinstance(tree, dict):
        return {key: mapped(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(mapped(function, part) for part in tree)
    return function(tree)


def arrays_of(rollout: FleetRollout) -> list[Array]:
    """Every array of it."""
    found: list[Array] = [rollout.rewards, rollout.terminated, rollout.truncated, rollout.over]
    mapped(found.append, (rollout.observations, rollout.actions, rollout.extras))
    return found
