"""The messages between a learner and the runners of its fleet.

Plan (once, to each runner) -> Request (one for each rollout) -> FleetRollout, through the object store
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FleetRollout", "Plan", "Request", "list_arrays", "map_arrays"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """Everything needed to make a runner. A learner that attaches reads it from any runner of the fleet."""

    env: Any
    num_envs: int
    policy: Callable[..., Any] | None
    seed: int
    options: dict[str, Any]
    runners: int
    strategy: str
    """How Ray placed the runners: "STRICT_SPREAD": one per node; "SPREAD": some share a node."""


@dataclass(frozen=True)
class Request:
    """A request for one rollout."""

    learner: int
    """The number of the learner that asks; a learner that attached later has a larger number."""
    branch: int
    """Part of the seeds: 0 for the learner that made the fleet, a random number for each that attached."""
    number: int
    life: int
    first: int
    """The number of the first rollout of this life; a restarted runner can begin the life with no other."""
    length: int
    version: int
    """The minimum version of the weights."""
    weights: list[Any]
    """The reference of the weights, or nothing.

    It is in a list, because Ray would fetch a bare one too early.
    """


@dataclass
class FleetRollout:
    """Steps of one runner's environments: `actions[t]` lead from `observations[t]` to `observations[t + 1]`.

    The arrays are read-only views of Ray's object store; keeping one keeps the whole rollout there.

    >>> from shoal.cluster import Fleet
    >>> with Fleet("CartPole-v1", 4, nodes=1) as fleet:
    ...     rollout = next(fleet.rollouts(8))
    >>> rollout.observations.shape, rollout.actions.shape, rollout.observations.flags.writeable
    ((9, 4, 4), (8, 4), False)
    """

    observations: Any
    """[T + 1, N, ...], nested like the space."""
    actions: Any
    """[T, N, ...]"""
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    over: NDArray[np.bool_]
    """[N]: whether the row's episode had ended before step 0, so that its first step is a reset."""
    extras: dict[str, Array]
    """[T, N, ...]: the arrays that the policy returned with its actions."""
    version: int
    """The version of the weights, as `set_weights` returned it; 0 before the first.

    All steps have the same.
    """
    runner: int
    node: str
    """The Ray id of the node that collected it."""
    number: int
    """A counter of this runner's rollouts. Lost rollouts are counted, so it can skip numbers."""
    life: int
    """The number of times this runner had been lost before."""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """The number of steps, T."""
        return len(self.rewards)

    @property
    def nbytes(self) -> int:
        """The size of all arrays in the object store."""
        return sum(array.nbytes for array in list_arrays(self))

    @property
    def counts(self) -> NDArray[np.bool_]:
        """[T, N]: which steps are transitions. The step after the end of an episode is only a reset."""
        counts = np.empty(self.rewards.shape, np.bool_)
        np.logical_not(self.over, out=counts[0])
        np.logical_or(self.terminated[:-1], self.truncated[:-1], out=counts[1:])
        np.logical_not(counts[1:], out=counts[1:])
        return counts

    def transitions(self) -> dict[str, Any]:
        """Returns rows for `ReplayBuffer.extend`: obs, action, reward, next_obs, terminated, truncated.

        They are views if every step is a transition; otherwise the transitions are copied.
        """
        counts = self.counts.reshape(-1)
        which = slice(None) if counts.all() else counts

        def rows(array: Array) -> Array:
            return array.reshape(-1, *array.shape[2:])[which]

        return {
            "obs": map_arrays(lambda array: rows(array[:-1]), self.observations),
            "action": map_arrays(rows, self.actions),
            "reward": rows(self.rewards),
            "next_obs": map_arrays(lambda array: rows(array[1:]), self.observations),
            "terminated": rows(self.terminated),
            "truncated": rows(self.truncated),
        }

    def __repr__(self) -> str:
        steps, rows = self.rewards.shape
        which = f"{self.number} of runner {self.runner}"
        return f"<FleetRollout {which}: {steps} steps x {rows} rows, version {self.version}>"


def map_arrays(function: Callable[[Array], Any], tree: Any) -> Any:
    """Applies `function` to every array and returns the results in the same nesting."""
    if isinstance(tree, dict):
        return {key: map_arrays(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_arrays(function, part) for part in tree)
    return function(tree)


def list_arrays(rollout: FleetRollout) -> list[Array]:
    """Returns all arrays of the rollout."""
    arrays: list[Array] = [rollout.rewards, rollout.terminated, rollout.truncated, rollout.over]
    map_arrays(arrays.append, (rollout.observations, rollout.actions, rollout.extras))
    return arrays
