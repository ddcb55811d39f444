"""A policy in plain NumPy: two small networks, an action distribution, and their gradients.

observations -> actor -> logits or means -> Categorical or Gaussian -> actions, log-probabilities
observations -> critic -> values
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Categorical", "Gaussian", "Model", "Network"]

Array = NDArray[Any]


class Network:
    """A multilayer perceptron with tanh; its weights and gradient are slices of vectors that a Model owns."""

    def __init__(self, sizes: list[int], last_gain: float, rng: np.random.Generator) -> None:
        self._shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        self._gains = [math.sqrt(2)] * (len(self._shapes) - 1) + [last_gain]
        self.size = sum((rows + 1) * columns for rows, columns in self._shapes)
        self._rng = rng

    def bind(self, weights: Array, gradient: Array) -> None:
        """Stores weights and gradient in these vectors, and initialises the weights orthogonally."""
        self._layers, start = [], 0
        for (rows, columns), gain in zip(self._shapes, self._gains, strict=True):
            middle, end = start + rows * columns, start + (rows + 1) * columns
            pairs = [(v[start:middle].reshape(rows, columns), v[middle:end]) for v in (weights, gradient)]
            q, r = np.linalg.qr(self._rng.standard_normal((max(rows, columns), min(rows, columns))))
            q *= gain * np.sign(np.diag(r))
            pairs[0][0][:] = q if rows >= columns else q.T
            self._layers.append(pairs)
            start = end

    def forward(self, x: Array) -> Array:
        x, self._inputs = _split_into_blocks(x), list[Array]()
        for (weight, bias), _ in self._layers:
            if self._inputs:
                np.tanh(x, out=x)
            self._inputs.append(x)
            x = x @ weight
            x += bias
        return x.reshape(-1, x.shape[-1])

    def backward(self, d: Array) -> None:
        """Writes the gradient of the weights, given the gradient `d` of the last output of `forward`."""
        d = _split_into_blocks(d)
        for (weight, _), (d_weight, d_bias) in reversed(self._layers):
            x = self._inputs.pop()
            (x.transpose(0, 2, 1) @ d).sum(0, out=d_weight)
            d.sum((0, 1), out=d_bias)
            if self._inputs:
                d = d @ weight.T
                d *= 1 - x * x


def _split_into_blocks(x: Array) -> Array:
    """Returns the rows in blocks of at most 64, so that OpenBLAS uses one thread.

    64 x 64 x 64 is the largest product that OpenBLAS does not split over threads. On idle cores threads are a
    third faster; on busy cores they are more than ten times slower.
    """
    rows = next((rows for rows in range(64, 15, -1) if len(x) % rows == 0), len(x))
    return x.reshape(-1, rows, x.shape[-1])


class Categorical:
    """The distribution over `n` discrete actions; the actor's outputs are logits."""

    size = 0

    def __init__(self, n: int, start: int = 0) -> None:
        self.outputs, self.start = n, start

    def bind(self, weights: Array, gradient: Array) -> None:
        """Does nothing: this distribution has no weights of its own."""

    def sample(self, logits: Array, rng: np.random.Generator, samples: Array) -> Array:
        """Writes sampled actions into `samples`; returns the actions for the environments."""
        cumulative = np.exp(logits - logits.max(1, keepdims=True)).cumsum(1)
        threshold = rng.random((len(cumulative), 1), np.float32) * cumulative[:, -1:]
        np.sum(threshold >= cumulative[:, :-1], axis=1, out=samples)
        samples += self.start
        return samples

    def evaluate(self, logits: Array, samples: Array) -> tuple[Array, Array]:
        """Returns the log-probability of each row's sample, and each row's entropy."""
        self._log_probs = logits - logits.max(1, keepdims=True)
        self._log_probs -= np.log(np.exp(self._log_probs).sum(1, keepdims=True))
        self._chosen = np.arange(len(logits)), samples - self.start
        self._entropy = -(np.exp(self._log_probs) * self._log_probs).sum(1)
        return self._log_probs[self._chosen], self._entropy

    def backward(self, d_log_prob: Array, d_entropy: Array) -> Array:
        """Returns the gradient of the logits, given the gradients of the last output of `evaluate`."""
        d_rows = d_log_prob[:, None] + d_entropy[:, None] * (self._log_probs + self._entropy[:, None])
        d: Array = -np.exp(self._log_probs) * d_rows
        d[self._chosen] += d_log_prob
        return d


class Gaussian:
    """Independent normal distributions whose means are the actor's outputs.

    A bounded Box is rescaled so that samples from -1 to 1 cover it; actions are clipped to the Box.
    """

    def __init__(self, low: Array, high: Array) -> None:
        self.size = self.outputs = len(low)
        self._low, self._high = low, high
        bounded = np.isfinite(low) & np.isfinite(high)
        least, most = np.where(bounded, low, -1), np.where(bounded, high, 1)
        self._middle, self._half = (least + most) / 2, (most - least) / 2

    def bind(self, weights: Array, gradient: Array) -> None:
        self._log_std, self._d_log_std = weights, gradient
        weights[:] = -0.5

    def sample(self, mean: Array, rng: np.random.Generator, samples: Array) -> Array:
        samples[:] = mean + np.exp(self._log_std) * rng.standard_normal(mean.shape, np.float32)
        actions: Array = (self._middle + self._half * samples).clip(self._low, self._high)
        return actions.astype(self._low.dtype, copy=False)

    def evaluate(self, mean: Array, samples: Array) -> tuple[Array, Array]:
        self._z = (samples - mean) / np.exp(self._log_std)
        log_scale = self._log_std + 0.5 * math.log(2 * math.pi)
        return -(0.5 * self._z**2 + log_scale).sum(1), np.full(len(mean), (log_scale + 0.5).sum())

    def backward(self, d_log_prob: Array, d_entropy: Array) -> Array:
        self._d_log_std[:] = ((self._z**2 - 1) * d_log_prob[:, None]).sum(0) + d_entropy.sum()
        d: Array = d_log_prob[:, None] * self._z / np.exp(self._log_std)
        return d


class Model:
    """An actor, a critic and an action distribution that share one vector of weights and one of gradients."""

    def __init__(
        self,
        inputs: int,
        head: Categorical | Gaussian,
        hidden: int,
        rng: np.random.Generator,
        dtype: type = np.float32,
    ) -> None:
        self.head = head
        self.actor = Network([inputs, hidden, hidden, head.outputs], 0.01, rng)
        self.critic = Network([inputs, hidden, hidden, 1], 1.0, rng)
        parts = self.actor, self.critic, head
        ends = np.cumsum([part.size for part in parts])
        self.weights, self.gradient = np.zeros((2, ends[-1]), dtype)
        for part, end in zip(parts, ends, strict=True):
            part.bind(self.weights[end - part.size : end], self.gradient[end - part.size : end])
