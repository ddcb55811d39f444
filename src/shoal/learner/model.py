"""A policy in plain NumPy: two small networks, what draws actions, and the gradients of both.

observations -> actor -> logits or means -> Categorical or Gaussian -> actions, their scores
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
    """Layers with tanh between them; weights and gradient are parts of vectors that somebody else holds."""

    def __init__(self, sizes: list[int], last_gain: float, rng: np.random.Generator) -> None:
        self._shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        self._gains = [math.sqrt(2)] * (len(self._shapes) - 1) + [last_gain]
        self.size = sum((rows + 1) * columns for rows, columns in self._shapes)
        self._rng = rng

    def bind(self, weights: Array, gradient: Array) -> None:
        """Uses these vectors, and begins with orthogonal weights."""
        self._layers, at = [], 0
        for (rows, columns), gain in zip(self._shapes, self._gains, strict=True):
            cut, end = at + rows * columns, at + (rows + 1) * columns
            pairs = [(part[at:cut].reshape(rows, columns), part[cut:end]) for part in (weights, gradient)]
            q, r = np.linalg.qr(self._rng.standard_normal((max(rows, columns), min(rows, columns))))
            q *= gain * np.sign(np.diag(r))
            pairs[0][0][:] = q if rows >= columns else q.T
            self._layers.append(pairs)
            at = end

    def forward(self, x: Array) -> Array:
        x, self._inputs = _blocks(x), list[Array]()
        for (weight, bias), _ in self._layers:
            if self._inputs:
                np.tanh(x, out=x)
            self._inputs.append(x)
            x = x @ weight
            x += bias
        return x.reshape(-1, x.shape[-1])

    def backward(self, d: Array) -> None:
        """Writes the gradient, given that of what `forward` returned last."""
        d = _blocks(d)
        for (weight, _), (d_weight, d_bias) in reversed(self._layers):
            x = self._inputs.pop()
            (x.transpose(0, 2, 1) @ d).sum(0, out=d_weight)
            d.sum((0, 1), out=d_bias)
            if self._inputs:
                d = d @ weight.T
                d *= 1 - x * x


def _blocks(x: Array) -> Array:
    """Rows in blocks: products of 64 x 64 x 64 are the largest that OpenBLAS does not split over threads.

    Threads would gain a third on idle cores, and cost ten times as much and more where others use the cores.
    """
    rows = next((rows for rows in range(64, 15, -1) if len(x) % rows == 0), len(x))
    return x.reshape(-1, rows, x.shape[-1])


class Categorical:
    """One of `n` actions; the actor's outputs are logits."""

    size = 0

    def __init__(self, n: int, start: int = 0) -> None:
        self.outputs, self.start = n, start

    def bind(self, weights: Array, gradient: Array) -> None:
        """There is nothing to learn here."""

    def draw(self, logits: Array, rng: np.random.Generator, drawn: Array) -> Array:
        """Writes actions into `drawn`; returns them as the environments take them."""
        edges = np.exp(logits - logits.max(1, keepdims=True)).cumsum(1)
        along = rng.random((len(edges), 1), np.float32) * edges[:, -1:]
        np.sum(along >= edges[:, :-1], axis=1, out=drawn)
        drawn += self.start
        return drawn

    def score(self, logits: Array, drawn: Array) -> tuple[Array, Array]:
        """Of each row the logarithm of the action's probability, and the entropy."""
        self._log = logits - logits.max(1, keepdims=True)
        self._log -= np.log(np.exp(self._log).sum(1, keepdims=True))
        self._chosen = np.arange(len(logits)), drawn - self.start
        self._entropy = -(np.exp(self._log) * self._log).sum(1)
        return self._log[self._chosen], self._entropy

    def backward(self, d_score: Array, d_entropy: Array) -> Array:
        """The gradient of the logits, given those of what `score` returned last."""
        d_log = d_score[:, None] + d_entropy[:, None] * (self._log + self._entropy[:, None])
        d: Array = -np.exp(self._log) * d_log
        d[self._chosen] += d_score
        return d


class Gaussian:
    """Numbers around the actor's outputs; -1 to 1 is the Box, if it has bounds, and all is clipped."""

    def __init__(self, low: Array, high: Array) -> None:
        self.size = self.outputs = len(low)
        self._low, self._high = low, high
        bounded = np.isfinite(low) & np.isfinite(high)
        least, most = np.where(bounded, low, -1), np.where(bounded, high, 1)
        self._middle, self._half = (least + most) / 2, (most - least) / 2

    def bind(self, weights: Array, gradient: Array) -> None:
        self._log_std, self._d_log_std = weights, gradient
        weights[:] = -0.5

    def draw(self, mean: Array, rng: np.random.Generator, drawn: Array) -> Array:
        drawn[:] = mean + np.exp(self._log_std) * rng.standard_normal(mean.shape, np.float32)
        actions: Array = (self._middle + self._half * drawn).clip(self._low, self._high)
        return actions.astype(self._low.dtype, copy=False)

    def score(self, mean: Array, drawn: Array) -> tuple[Array, Array]:
        self._z = (drawn - mean) / np.exp(self._log_std)
        spread = self._log_std + 0.5 * math.log(2 * math.pi)
        return -(0.5 * self._z**2 + spread).sum(1), np.full(len(mean), (spread + 0.5).sum())

    def backward(self, d_score: Array, d_entropy: Array) -> Array:
        self._d_log_std[:] = ((self._z**2 - 1) * d_score[:, None]).sum(0) + d_entropy.sum()
        d: Array = d_score[:, None] * self._z / np.exp(self._log_std)
        return d


class Model:
    """An actor, a critic and what draws actions, over one vector of weights and one of their gradient."""

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
