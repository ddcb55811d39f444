"""Rollouts in place: a block of [T + 1, num_envs, ...] that step t fills directly, row t."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal import _core
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec
from shoal.native.plugin import PluginInfo

__all__ = ["Rollout"]


class Rollout:
    """Storage of an on-policy learner, filled without a copy.

    rollout = envs.rollout(128)
    rollout.start(observation)                 # what reset or the last step returned
    for t in range(128):
        rollout.step(policy(rollout.observations[t]))
    rollout.rewards                            # [128, num_envs]; observations has one row more
    """

    def __init__(
        self, stepper: _core.Stepper, info: PluginInfo, num_envs: int, padded: int, length: int
    ) -> None:
        self.length = length
        self.t: int | None = None
        """The row the next step fills; None before start."""
        self._stepper = stepper
        self._names = [field.name for field in info.observations]
        self._segment = Segment(_layout(info, num_envs, padded, length))
        fields = len(info.observations)
        self._observations = [self._segment.rows(f"observation/{i}", length + 1) for i in range(fields)]
        self.rewards = self._segment.rows("reward", length)
        self.terminated = self._segment.rows("terminated", length)
        self.truncated = self._segment.rows("truncated", length)
        actions = [self._segment.rows(f"action/{i}", length) for i in range(len(info.actions))]
        action_names = [field.name for field in info.actions]
        self.actions: Any = actions[0]
        if action_names[0] is not None:
            self.actions = dict(zip(action_names, actions, strict=True))
        self.observations: Any = self._observations[0]
        if self._names[0] is not None:
            self.observations = dict(zip(self._names, self._observations, strict=True))
        self._segment.close()  # the arrays keep the memory

    def start(self, observation: Any) -> None:
        """Begins again at row 0 with the observation the environments are at."""
        parts = [observation]
        if self._names[0] is not None:
            if not isinstance(observation, dict) or set(observation) != set(self._names):
                raise ValueError(
                    f"expected the observation's keys {self._names}, found {_found(observation)}"
                )
            parts = [observation[name] for name in self._names]
        for block, part in zip(self._observations, parts, strict=True):
            if np.shape(part) != block.shape[1:] or np.asarray(part).dtype != block.dtype:
                raise ValueError(
                    "start takes the observation that reset or the last step returned: expected "
                    f"{block.dtype}{list(block.shape[1:])}, found {_found(part)}"
                )
        for block, part in zip(self._observations, parts, strict=True):
            block[0] = part
        self.t = 0

    def step(self, actions: Any) -> None:
        """Steps: actions, rewards and flags go into row t, observations into row t + 1."""
        t = self.t
        if t is None:
            raise ValueError("call start(observation) first, with what reset or the last step returned")
        if t == self.length:
            raise IndexError(f"the rollout is full after {self.length} steps; call start() to fill it again")
        arrays = (*(block[t + 1] for block in self._observations), self.rewards[t], self.terminated[t])
        self._stepper.step_into(actions, (*arrays, self.truncated[t]))  # checks the actions
        if isinstance(self.actions, dict):
            for name, block in self.actions.items():
                block[t] = actions[name]
        else:
            self.actions[t] = actions
        self.t = t + 1

    def __repr__(self) -> str:
        at = "not started" if self.t is None else f"at step {self.t}"
        return f"<Rollout of {self.length} steps x {self.rewards.shape[1]} rows, {at}>"


def _found(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def _layout(info: PluginInfo, rows: int, padded: int, length: int) -> Layout:
    # The last row of a block may be written up to a whole number of lanes: keep room behind it.
    spare = -(-(padded - rows) // max(1, rows)) + 1 if padded > rows else 0
    fields: dict[str, FieldSpec] = {
        f"observation/{i}": (field.dtype, (length + 1 + spare, rows, *field.shape))
        for i, field in enumerate(info.observations)
    }
    for i, field in enumerate(info.actions):
        fields[f"action/{i}"] = (field.dtype, (length, rows, *field.shape))
    for name, dtype in (("reward", np.float64), ("terminated", np.bool_), ("truncated", np.bool_)):
        fields[name] = (dtype, (length + spare, rows))
    return Layout(fields)
