"""PPO in plain NumPy on rollouts in place: environments write their results where the learner reads them.

    rollout.observations[t] -> actor -> rollout.actions[t] -> rollout.step -> observations[t + 1], rewards[t]
    then `epochs` times: minibatches, which are stretches of the rollout and so views of it, in random order

Environments begin anew in the step after the one that ended an episode (NEXT_STEP). Row t + 1 then holds the
episode's last observation, so where it was only cut off, its value is there to go on from; and the row of the
step that began anew, in which no action counted, has no weight.
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

__all__ = ["Adam", "Batch", "Learner", "Settings", "advantages", "differentiate", "fitting"]


@dataclass(frozen=True)
class Settings:
    """What there is to tune. These solve CartPole, and learn in the other small environments too."""

    rows: int = 2048
    """Of a rollout at least: environments times steps."""
    length: int = 8
    """Steps of a rollout at least."""
    minibatch: int = 256
    epochs: int = 8
    rate: float = 1e-3
    """Of Adam; it falls to 0 along the steps to be made."""
    gamma: float = 0.98
    decay: float = 0.95
    """Lambda of the advantages."""
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5
    norm: float = 0.5
    """Longer gradients are cut to this length."""
    hidden: int = 64


@dataclass
class Batch:
    """Rows of a rollout. Those with a weight of 0 are no transitions."""

    observations: Array
    drawn: Array
    scores: Array
    advantages: Array
    targets: Array
    weights: Array

    def part(self, rows: slice) -> Batch:
        """Some of the rows, as views; their weights sum to 1."""
        weights = self.weights[rows] / max(1.0, self.weights[rows].sum())
        seen, drawn, scores = self.observations[rows], self.drawn[rows], self.scores[rows]
        return Batch(seen, drawn, scores, self.advantages[rows], self.targets[rows], weights)


def differentiate(model: Model, batch: Batch, settings: Settings) -> float:
    """PPO's loss over these rows; `model.gradient` becomes its gradient."""
    scores, entropy = model.head.score(model.actor.forward(batch.observations), batch.drawn)
    ratio = np.exp(scores - batch.scores)
    gain = ratio * batch.advantages
    bounded = ratio.clip(1 - settings.clip, 1 + settings.clip) * batch.advantages
    error = model.critic.forward(batch.observations)[:, 0] - batch.targets
    worth = np.minimum(gain, bounded) + settings.entropy * entropy - settings.value * error**2

    d_scores = np.where(gain <= bounded, -gain, 0) * batch.weights
    model.actor.backward(model.head.backward(d_scores, -settings.entropy * batch.weights))
    model.critic.backward((2 * settings.value * error * batch.weights)[:, None])
    return -float(worth @ batch.weights)


class Adam:
    """Goes down gradients by steps of a like length in every direction."""

    def __init__(self, size: int) -> None:
        self._mean, self._square = np.zeros((2, size), np.float32)
        self._count = 0

    def step(self, weights: Array, gradient: Array, rate: float, norm: float) -> None:
        gradient *= min(1.0, norm / (math.sqrt(gradient @ gradient) + 1e-8))
        self._count += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient * gradient - self._square)
        rate *= math.sqrt(1 - 0.999**self._count) / (1 - 0.9**self._count)
        weights -= rate * self._mean / (np.sqrt(self._square) + 1e-7)


def advantages(
    rewards: Array, values: Array, terminated: Array, truncated: Array, gamma: float, decay: float
) -> Array:
    """How much better each action was than expected. `values` has a row more: what comes after the last."""
    found = np.empty_like(values[:-1])
    ahead = np.zeros_like(values[0])
    for t in reversed(range(len(rewards))):
        surprise = rewards[t] + gamma * values[t + 1] * ~terminated[t] - values[t]
        ahead = found[t] = surprise + gamma * decay * ahead * ~(terminated[t] | truncated[t])
    return found


class Learner:
    """Learns to act in `envs`: `collect`, `update`, and so on until it is good enough.

    `times` has the seconds that went into environments, copies of what they returned, the policy that chose
    actions, and updates of it; `returns` and `lengths` are those of the last 100 episodes.
    """

    def __init__(
        self, envs: Any, seed: int = 0, steps: int = 1_000_000, settings: Settings | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.envs, self._all_steps = envs, steps
        self._rng = np.random.default_rng(seed)
        inputs, head = fitting(envs)
        self.model = Model(inputs, head, self.settings.hidden, self._rng)
        self._adam = Adam(len(self.model.weights))
        least = math.ceil(max(self.settings.rows, self.settings.minibatch) / envs.num_envs)
        self.length = max(self.settings.length, least)
        self._counts = np.ones((self.length + 1, envs.num_envs), np.bool_)
        self._scale = 0.0
        self._return, self._length = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        self.returns, self.lengths = deque[float](maxlen=100), deque[int](maxlen=100)
        self.steps = self.episodes = 0
        self.times = dict.fromkeys(("env", "copy", "policy", "update"), 0.0)
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        """Where the environments write, and their first observations."""
        self.rollout: Any = self.envs.rollout(self.length)
        actions = self.rollout.actions  # drawn where they are read; those of a Box must be clipped elsewhere
        categorical = isinstance(self.model.head, Categorical)
        self._drawn = actions if categorical else np.zeros(actions.shape, np.float32)
        self._now = self.envs.reset(seed=seed)[0]

    def collect(self) -> None:
        """Fills the rollout: every observation lands where `update` reads it."""
        rollout = self.rollout
        lap = _Stopwatch(self.times)
        rollout.start(self._now)  # the one row that is copied, if the environments speak float32
        lap("copy")
        for t in range(rollout.length):
            seen = rollout.observations[t].astype(np.float32, copy=False)
            lap("copy")
            out = self.model.actor.forward(seen)
            actions = self.model.head.draw(out, self._rng, self._drawn[t])
            lap("policy")
            rollout.step(actions)
            lap("env")
        self._now = rollout.observations[-1]
        self._follow(rollout.terminated | rollout.truncated)
        lap("policy")

    def _follow(self, done: Array) -> None:
        """Which rows are transitions, and what the episodes that ended came to."""
        self._counts[0] = self._counts[-1]
        np.logical_not(done, out=self._counts[1:])
        self.steps += int(self._counts[:-1].sum())
        for t in range(len(done)):
            self._return += self.rollout.rewards[t]
            self._length += self._counts[t]
            ended = np.flatnonzero(done[t])
            self.returns.extend(self._return[ended].tolist())
            self.lengths.extend(self._length[ended].tolist())
            self.episodes += len(ended)
            self._return[ended] = self._length[ended] = 0

    def update(self) -> None:
        """Makes what turned out well more likely."""
        lap = _Stopwatch(self.times)
        seen = self.rollout.observations.reshape(-1, self.rollout.observations.shape[-1])
        seen = seen.astype(np.float32, copy=False)
        lap("copy")
        batch = self._judged(seen)
        settings, size = self.settings, self.settings.minibatch
        rate = settings.rate * max(0.0, 1 - self.steps / self._all_steps)
        count, spare = divmod(len(batch.weights), size)
        for _ in range(settings.epochs):
            first = int(self._rng.integers(spare + 1))  # so that no row is always left over
            for at in first + self._rng.permutation(count) * size:
                differentiate(self.model, batch.part(slice(at, at + size)), settings)
                self._adam.step(self.model.weights, self.model.gradient, rate, settings.norm)
        lap("update")

    def _judged(self, seen: Array) -> Batch:
        """The whole rollout, with what its actions were worth."""
        settings, rollout, head = self.settings, self.rollout, self.model.head
        count = rollout.rewards.size
        drawn = self._drawn.reshape(count, *self._drawn.shape[2:])
        scores, _ = head.score(self.model.actor.forward(seen[:count]), drawn)
        values = self.model.critic.forward(seen).reshape(rollout.length + 1, -1)
        scale = self._scale or 1.0
        flags = rollout.terminated, rollout.truncated
        found = advantages(rollout.rewards / scale, values, *flags, settings.gamma, settings.decay)
        targets, counts = found + values[:-1], self._counts[:-1]
        # The critic's unit is the size of what it has to say, so that rewards of any size will do.
        size = math.sqrt(np.square(targets[counts]).mean()) * scale
        self._scale = self._scale + 0.05 * (size - self._scale) if self._scale else max(size, 1e-6)
        found = (found - found[counts].mean()) / (found[counts].std() + 1e-8)
        weights = counts.astype(np.float32)
        return Batch(seen[:count], drawn, scores, found.reshape(-1), targets.reshape(-1), weights.reshape(-1))

    def play(self) -> None:
        """One step of what it has learned so far, of which it learns nothing."""
        seen = self._now.astype(np.float32, copy=False)
        actions = self.model.head.draw(
            self.model.actor.forward(seen), self._rng, np.empty_like(self._drawn[0])
        )
        self._now = self.envs.step(actions)[0]


class _Stopwatch:
    """Adds the time since it was asked last to one of several sums."""

    def __init__(self, times: dict[str, float]) -> None:
        self._times, self._last = times, time.perf_counter()

    def __call__(self, what: str) -> None:
        now = time.perf_counter()
        self._times[what] += now - self._last
        self._last = now


def fitting(envs: Any) -> tuple[int, Categorical | Gaussian]:
    """The length of an observation, and what draws actions, for the spaces of `envs`."""
    seen, acted = envs.single_observation_space, envs.single_action_space
    if envs.autoreset_mode != AutoresetMode.NEXT_STEP:
        raise ShoalError(f"this learner goes by autoreset_mode NEXT_STEP, found {envs.autoreset_mode.name}")
    if envs.agents_per_env != 1:
        raise ShoalError(f"this learner is for environments of one agent, found {envs.agents_per_env} agents")
    if not isinstance(seen, Box) or len(seen.shape) != 1 or seen.shape[0] == 0:
        raise ShoalError(
            f"this learner reads observations that are a row of numbers, a Box of shape (n,), found {seen}; "
            "wrap the environment (gymnasium.wrappers.FlattenObservation) or choose another"
        )
    if isinstance(acted, Discrete):
        return seen.shape[0], Categorical(int(acted.n), int(acted.start))
    if isinstance(acted, Box) and len(acted.shape) == 1 and acted.dtype.kind == "f" and acted.shape[0] > 0:
        return seen.shape[0], Gaussian(acted.low, acted.high)
    raise ShoalError(f"this learner acts in Discrete(n) or in a Box of floats of shape (n,), found {acted}")
