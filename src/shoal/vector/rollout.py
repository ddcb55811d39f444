"""Rollouts without copies: step t writes row t of a block [T + 1, num_envs, ...] directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError

__all__ = ["Rollout", "record"]


class Rollout:
    """Storage of an on-policy learner, filled without a copy. Made by `envs.rollout(length)`.

    >>> envs = shoal.make_vec("CartPole-v1", 8)
    >>> rollout = envs.rollout(128)
    >>> rollout.start(envs.reset(seed=0)[0])         # what reset or the last step returned
    >>> for t in range(128):
    ...     info = rollout.step((rollout.observations[t][:, 2] > 0).astype(np.int64))
    >>> rollout.rewards.shape, rollout.observations.shape  # observations have one row more
    ((128, 8), (129, 8, 4))
    >>> envs.close()
    """

    def __init__(
        self,
        observations: Any,
        actions: Any,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        *,
        step: Callable[[int, Any], dict[str, Any]],
        count_changes: Callable[[], int],
        guard: _core.Guard,
    ) -> None:
        self.observations, self.actions = observations, actions
        self.rewards, self.terminated, self.truncated = rewards, terminated, truncated
        self.length = len(rewards)
        self.t: int | None = None
        """The row that the next step fills; None before start."""
        self._step, self._count_changes = step, count_changes
        self._starting = _core.Operation(guard, "rollout.start")
        self._stepping = _core.Operation(guard, "rollout.step")
        self._expected_changes = 0  # what `count_changes` returns while the environments are at row t

    def start(self, observation: Any) -> None:
        """Starts at row 0 with the environments' current observation."""
        for block, part in _pairs(self.observations, observation, "the observation"):
            if not hasattr(part, "dtype"):
                part = np.asarray(part)
            if tuple(part.shape) != tuple(block.shape[1:]) or part.dtype != block.dtype:
                raise ValueError(
                    "start takes the observation that reset or the last step returned: expected "
                    f"{block.dtype}{list(block.shape[1:])}, found {_describe(part)}"
                )
        with self._starting:
            changes = self._count_changes()
            for block, part in _pairs(self.observations, observation, "the observation"):
                block[0] = part
            self._expected_changes, self.t = changes, 0

    def step(self, actions: Any) -> dict[str, Any]:
        """Steps; writes actions, rewards and flags to row t, observations to row t + 1. Returns the info."""
        with self._stepping:
            t = self.t
            if t is None:
                raise ValueError(
                    "the rollout has not started; call start(observation) with the observation that reset or "
                    "the last step returned"
                )
            if t == self.length:
                raise IndexError(
                    f"the rollout is full after {self.length} steps; call start() to fill it again"
                )
            if self._count_changes() != self._expected_changes:
                raise ShoalError(
                    f"the environments are no longer at step {t} of this rollout: they were reset or stepped "
                    "elsewhere, or a step raised. Call start(observation) with the observation that reset or "
                    "the last step returned"
                )
            info = self._step(t, actions)  # checks the actions and records them
            self._expected_changes, self.t = self._expected_changes + 1, t + 1
            return info

    def __repr__(self) -> str:
        at = "not started" if self.t is None else f"at step {self.t}"
        return f"<Rollout of {self.length} steps x {self.rewards.shape[1]} rows, {at}>"


def record(blocks: Any, t: int, actions: Any) -> None:
    """Copies the actions of step `t` into their blocks."""
    for block, part in _pairs(blocks, actions, "the actions"):
        block[t] = part


def _pairs(blocks: Any, value: Any, what: str) -> list[tuple[NDArray[Any], Any]]:
    """Pairs every array of the block with its part of a value that is nested in the same way."""
    if isinstance(blocks, dict):
        if not isinstance(value, dict) or set(value) != set(blocks):
            raise ValueError(f"{what} must have the keys {list(blocks)}, found {_describe(value)}")
        return [pair for key in blocks for pair in _pairs(blocks[key], value[key], what)]
    if isinstance(blocks, tuple):
        if not isinstance(value, tuple) or len(value) != len(blocks):
            raise ValueError(f"{what} must be a tuple of {len(blocks)}, found {_describe(value)}")
        parts = zip(blocks, value, strict=True)
        return [pair for block, part in parts for pair in _pairs(block, part, what)]
    return [(blocks, value)]


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
