"""PPO over a fleet: the learner of `shoal.learner`, with rollouts from other machines.

A rollout may be some updates old when it arrives. It contains the log probabilities that its policy gave to
the actions it sampled, and PPO's ratios use these; `rollout.version` is the version of that policy.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from shoal.cluster.fleet import Fleet
from shoal.learner import Learner, Settings
from shoal.learner.model import Array, Categorical, Model
from shoal.learner.ppo import Batch, make_distribution

__all__ = ["ActorPolicy", "FleetLearner"]


class ActorPolicy:
    """The demo's policy, on a node: samples actions and returns their log probabilities.

    >>> with Fleet("CartPole-v1", 4, nodes=1, policy=ActorPolicy) as fleet:
    ...     rollout = next(fleet.rollouts(8))
    >>> rollout.extras["score"].shape
    (8, 4)
    """

    def __init__(self, envs: Any, rng: np.random.Generator, hidden: int = Settings.hidden) -> None:
        inputs, head = make_distribution(envs)
        self._model, self._rng = Model(inputs, head, hidden, rng), rng
        rows = envs.num_envs
        self._categorical = isinstance(head, Categorical)
        self._drawn: Array = (
            np.zeros(rows, envs.single_action_space.dtype)
            if self._categorical
            else np.zeros((rows, head.outputs), np.float32)
        )

    def __call__(self, observations: Array) -> tuple[Array, dict[str, Array]]:
        head = self._model.head
        out = self._model.actor.forward(observations.astype(np.float32, copy=False))
        actions = head.sample(out, self._rng, self._drawn)
        score, _ = head.evaluate(out, self._drawn)
        return actions, {"score": score} if self._categorical else {"score": score, "drawn": self._drawn}

    def set_weights(self, weights: Array) -> None:
        """Copies the learner's weights into this policy."""
        self._model.weights[:] = weights


class FleetLearner(Learner):
    """Learns from rollouts of a fleet whose policy is `ActorPolicy`; `collect` takes the next rollout.

    `times["env"]` is the time spent waiting for rollouts.

    >>> with Fleet("CartPole-v1", 16, nodes=1, policy=ActorPolicy) as fleet:
    ...     learner = FleetLearner(fleet, seed=0)
    ...     for _ in range(2):
    ...         learner.collect()
    ...         learner.update()
    ...     fleet.version  # the first weights, and those of two updates
    3
    """

    envs: Fleet

    def _start(self, seed: int) -> None:
        self._arriving = self.envs.rollouts(self.length)
        self._sums: dict[int, tuple[Array, Array]] = {}
        self.envs.set_weights(self.model.weights)

    def collect(self) -> None:
        """Waits for the next rollout and takes it."""
        begin = time.perf_counter()
        rollout = self.rollout = next(self._arriving)
        self.times["env"] += time.perf_counter() - begin
        self._samples = rollout.extras.get("drawn", rollout.actions)
        if rollout.runner not in self._sums or "fault" in rollout.info:
            rows = len(rollout.over)
            self._sums[rollout.runner] = np.zeros(rows), np.zeros(rows, np.int64)
        self._running_returns, self._running_lengths = self._sums[rollout.runner]
        self._is_transition[-1] = ~rollout.over
        self._record_episodes(rollout.terminated | rollout.truncated)

    def update(self) -> None:
        """Updates the model from the rollout and sends the new weights to the fleet."""
        super().update()
        self.envs.set_weights(self.model.weights)

    def _build_batch(self, observations: Array) -> Batch:
        batch = super()._build_batch(observations)
        batch.old_log_probs = self.rollout.extras["score"].reshape(-1)  # those of the policy that acted
        return batch

    def play(self) -> None:
        """Not supported: a fleet's environments run on other machines."""
        raise NotImplementedError("a fleet's environments run on its nodes and cannot be watched from here")
