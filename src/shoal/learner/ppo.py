"""PPO in plain NumPy on rollouts in place: environments write their results where the learner reads them.

    rollout.observations[t] -> actor -> rollout.actions[t] -> rollout.step -> observations[t + 1], rewards[t]
    then `epochs` times: minibatches in random order; each is a range of the rollout's rows, so it is a view

An environment is reset in the step after the one that ended its episode (NEXT_STEP). Row t + 1 then holds the
episode's last observation, so a truncated episode is bootstrapped from its value. The step that resets
ignores its action, so its row has weight 0.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from shoal.errors import ShoalError
from shoal.learner.model import Array, Categorical, Gaussian, Model

__all__ = ["Adam", "Batch", "Learner", "Settings", "compute_advantages", "differentiate", "make_distribution"]


@dataclass(frozen=True)
class Settings:
    """The hyperparameters. The defaults solve CartPole, and learn in the other small environments too."""

    rows: int = 2048
    """Minimum size of a rollout: environments times steps."""
    length: int = 8
    """Minimum steps of each environment per rollout."""
    minibatch: int = 256
    """Rows of a minibatch."""
    epochs: int = 8
    """Passes over each rollout."""
    rate: float = 1e-3
    """Learning rate of Adam; it decreases linearly to 0 at the last step."""
    gamma: float = 0.98
    """Discount factor."""
    decay: float = 0.95
    """Lambda of generalised advantage estimation (GAE)."""
    clip: float = 0.2
    """The ratio of probabilities is clipped to 1 - clip and 1 + clip."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    value: float = 0.5
    """Coefficient of the value loss."""
    norm: float = 0.5
    """Maximum norm of the gradient; longer gradients are scaled down to it."""
    hidden: int = 64
    """Units of each hidden layer."""


@dataclass
class Batch:
    """Rows of a rollout. Rows with weight 0 are resets, not transitions, and are not trained on."""

    observations: Array
    samples: Array
    """The samples of the action distribution; for a Box they are not yet scaled and clipped to it."""
    old_log_probs: Array
    advantages: Array
    returns: Array
    weights: Array

    def select_rows(self, rows: slice) -> Batch:
        """Returns some of the rows, as views, with weights that sum to 1."""
        weights = self.weights[rows] / max(1.0, self.weights[rows].sum())
        observations, samples, old_log_probs = (
            self.observations[rows],
            self.samples[rows],
            self.old_log_probs[rows],
        )
        return Batch(observations, samples, old_log_probs, self.advantages[rows], self.returns[rows], weights)


def differentiate(model: Model, batch: Batch, settings: Settings) -> float:
    """Writes the gradient of PPO's loss over these rows into `model.gradient`; returns the loss."""
    log_probs, entropy = model.head.evaluate(model.actor.forward(batch.observations), batch.samples)
    ratio = np.exp(log_probs - batch.old_log_probs)
    unclipped = ratio * batch.advantages
    clipped = ratio.clip(1 - settings.clip, 1 + settings.clip) * batch.advantages
    value_error = model.critic.forward(batch.observations)[:, 0] - batch.returns
    objective = np.minimum(unclipped, clipped) + settings.entropy * entropy - settings.value * value_error**2

    d_log_probs = np.where(unclipped <= clipped, -unclipped, 0) * batch.weights
    model.actor.backward(model.head.backward(d_log_probs, -settings.entropy * batch.weights))
    model.critic.backward((2 * settings.value * value_error * batch.weights)[:, None])
    return -float(objective @ batch.weights)


class Adam:
    """The Adam optimizer."""

    def __init__(self, size: int) -> None:
        self._mean, self._square = np.zeros((2, size), np.float32)
        self._count = 0

    def step(self, weights: Array, gradient: Array, rate: float, max_norm: float) -> None:
        gradient *= min(1.0, max_norm / (math.sqrt(gradient @ gradient) + 1e-8))
        self._count += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient * gradient - self._square)
        rate *= math.sqrt(1 - 0.999**self._count) / (1 - 0.9**self._count)
        weights -= rate * self._mean / (np.sqrt(self._square) + 1e-7)


def compute_advantages(
    rewards: Array, values: Array, terminated: Array, truncated: Array, gamma: float, gae_lambda: float
) -> Array:
    """Returns generalised advantage estimates (GAE).

    `values` has one row more than `rewards`: the values after the last step.
    """
    advantages = np.empty_like(values[:-1])
    next_advantage = np.zeros_like(values[0])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * values[t + 1] * ~terminated[t] - values[t]
        done = terminated[t] | truncated[t]
        next_advantage = advantages[t] = delta + gamma * gae_lambda * next_advantage * ~done
    return advantages


class Learner:
    """Trains a policy in `envs`: call `collect` and `update` in turns until it is good enough.

    `times` has the seconds spent in environments ("env"), copying observations ("copy"), choosing actions
    ("policy") and updating ("update"). `returns` and `lengths` are those of the last 100 episodes.
    """

    def __init__(
        self, envs: Any, seed: int = 0, steps: int = 1_000_000, settings: Settings | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.envs, self._total_steps = envs, steps
        self._rng = np.random.default_rng(seed)
        inputs, head = make_distribution(envs)
        self.model = Model(inputs, head, self.settings.hidden, self._rng)
        self._adam = Adam(len(self.model.weights))
        min_length = math.ceil(max(self.settings.rows, self.settings.minibatch) / envs.num_envs)
        self.length = max(self.settings.length, min_length)
        self._is_transition = np.ones((self.length + 1, envs.num_envs), np.bool_)
        self._return_scale = 0.0
        self._running_returns = np.zeros(envs.num_envs)
        self._running_lengths = np.zeros(envs.num_envs, np.int64)
        self.returns, self.lengths = deque[float](maxlen=100), deque[int](maxlen=100)
        self.steps = self.episodes = 0
        self.times = dict.fromkeys(("env", "copy", "policy", "update"), 0.0)
        self._start(seed)

    def _start(self, seed: int) -> None:
        """Creates the rollout and resets the environments."""
        self.rollout: Any = self.envs.rollout(self.length)
        # Discrete actions are sampled into the rollout; Box samples are kept apart from the clipped actions.
        actions = self.rollout.actions
        is_discrete = isinstance(self.model.head, Categorical)
        self._samples = actions if is_discrete else np.zeros(actions.shape, np.float32)
        self._last_observations = self.envs.reset(seed=seed)[0]

    def collect(self) -> None:
        """Fills the rollout; the environments write observations where `update` reads them."""
        rollout = self.rollout
        lap = _Stopwatch(self.times)
        rollout.start(self._last_observations)  # the only row that is copied if observations are float32
        lap("copy")
        for t in range(rollout.length):
            observations = rollout.observations[t].astype(np.float32, copy=False)
            lap("copy")
            outputs = self.model.actor.forward(observations)
            actions = self.model.head.sample(outputs, self._rng, self._samples[t])
            lap("policy")
            rollout.step(actions)
            lap("env")
        self._last_observations = rollout.observations[-1]
        self._record_episodes(rollout.terminated | rollout.truncated)
        lap("policy")

    def _record_episodes(self, done: Array) -> None:
        """Marks the rows that are transitions, and records the return and length of finished episodes."""
        self._is_transition[0] = self._is_transition[-1]
        np.logical_not(done, out=self._is_transition[1:])
        self.steps += int(self._is_transition[:-1].sum())
        for t in range(len(done)):
            self._running_returns += self.rollout.rewards[t]
            self._running_lengths += self._is_transition[t]
            ended = np.flatnonzero(done[t])
            self.returns.extend(self._running_returns[ended].tolist())
            self.lengths.extend(self._running_lengths[ended].tolist())
            self.episodes += len(ended)
            self._running_returns[ended] = self._running_lengths[ended] = 0

    def update(self) -> None:
        """Updates the policy and the critic from the rollout: `epochs` passes of minibatches."""
        lap = _Stopwatch(self.times)
        observations = self.rollout.observations.reshape(-1, self.rollout.observations.shape[-1])
        observations = observations.astype(np.float32, copy=False)
        lap("copy")
        batch = self._build_batch(observations)
        settings, size = self.settings, self.settings.minibatch
        rate = settings.rate * max(0.0, 1 - self.steps / self._total_steps)
        count, leftover = divmod(len(batch.weights), size)
        for _ in range(settings.epochs):
            first = int(self._rng.integers(leftover + 1))  # the rows left out change from epoch to epoch
            for start in first + self._rng.permutation(count) * size:
                differentiate(self.model, batch.select_rows(slice(start, start + size)), settings)
                self._adam.step(self.model.weights, self.model.gradient, rate, settings.norm)
        lap("update")

    def _build_batch(self, observations: Array) -> Batch:
        """Returns the whole rollout with its log-probabilities, advantages and returns."""
        settings, rollout, head = self.settings, self.rollout, self.model.head
        count = rollout.rewards.size
        samples = self._samples.reshape(count, *self._samples.shape[2:])
        log_probs, _ = head.evaluate(self.model.actor.forward(observations[:count]), samples)
        values = self.model.critic.forward(observations).reshape(rollout.length + 1, -1)
        scale = self._return_scale or 1.0
        flags = rollout.terminated, rollout.truncated
        advantages = compute_advantages(
            rollout.rewards / scale, values, *flags, settings.gamma, settings.decay
        )
        returns, valid = advantages + values[:-1], self._is_transition[:-1]
        # The critic learns returns divided by their moving root mean square, so the rewards need no scaling.
        rms = math.sqrt(np.square(returns[valid]).mean()) * scale
        if self._return_scale:
            self._return_scale += 0.05 * (rms - self._return_scale)
        else:
            self._return_scale = max(rms, 1e-6)
        advantages = (advantages - advantages[valid].mean()) / (advantages[valid].std() + 1e-8)
        weights = valid.astype(np.float32)
        columns = advantages.reshape(-1), returns.reshape(-1), weights.reshape(-1)
        return Batch(observations[:count], samples, log_probs, *columns)

    def play(self) -> None:
        """Makes one step with the current policy, without learning from it."""
        observations = self._last_observations.astype(np.float32, copy=False)
        outputs = self.model.actor.forward(observations)
        actions = self.model.head.sample(outputs, self._rng, np.empty_like(self._samples[0]))
        self._last_observations = self.envs.step(actions)[0]


class _Stopwatch:
    """Adds the time since its last call to one of several sums."""

    def __init__(self, times: dict[str, float]) -> None:
        self._times, self._last = times, time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self._times[name] += now - self._last
        self._last = now


def make_distribution(envs: Any) -> tuple[int, Categorical | Gaussian]:
    """Returns the length of an observation of `envs`, and a distribution for its action space."""
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    if envs.autoreset_mode != AutoresetMode.NEXT_STEP:
        raise ShoalError(
            f"this learner needs autoreset_mode NEXT_STEP, found {envs.autoreset_mode.name}; "
            "make the environments with the default mode"
        )
    if envs.agents_per_env != 1:
        raise ShoalError(
            f"this learner needs environments with one agent, found {envs.agents_per_env} agents; "
            "choose another environment"
        )
    if not isinstance(obs_space, Box) or len(obs_space.shape) != 1 or obs_space.shape[0] == 0:
        raise ShoalError(
            f"this learner needs observations in a Box of shape (n,), found {obs_space}; "
            "wrap the environment (gymnasium.wrappers.FlattenObservation) or choose another"
        )
    size = obs_space.shape[0]
    if isinstance(action_space, Discrete):
        return size, Categorical(int(action_space.n), int(action_space.start))
    if isinstance(action_space, Box) and len(action_space.shape) == 1 and action_space.shape[0] > 0:
        if action_space.dtype.kind == "f":
            return size, Gaussian(action_space.low, action_space.high)
    raise ShoalError(
        "this learner needs actions in Discrete(n) or in a Box of floats of shape (n,), "
        f"found {action_space}; choose another environment"
    )
