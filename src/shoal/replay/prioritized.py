"""Prioritized draws over a replay buffer's rows: any number of samplers, each with weights of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.replay.arguments import checked_fraction, checked_ids
from shoal.replay.batches import PrioritizedBatch
from shoal.replay.buffer import ReplayBuffer
from shoal.replay.draws import Draws

__all__ = ["PrioritizedSampler"]


class PrioritizedSampler:
    """Draws rows in proportion to priority ** alpha. New rows have the highest priority seen.

    >>> buffer = ReplayBuffer(100, {"x": (np.float32, ())})
    >>> sampler = PrioritizedSampler(buffer, seed=0)
    >>> _ = buffer.extend({"x": np.arange(10, dtype=np.float32)})
    >>> batch = sampler.sample(4, beta=0.4)
    >>> sampler.update_priorities(batch.ids, np.abs(batch["x"]) + 0.1)
    4
    >>> buffer.close()

    Args:
        buffer: Whose rows; other processes may push into it.
        alpha: 0: uniform; 1: in proportion to the priorities.
        beta: How far the bias is undone by `batch.weights`, unless `sample` says otherwise.
        seed: Of the draws in this process; None, and in forked children: their own.
    """

    def __init__(
        self, buffer: ReplayBuffer, *, alpha: float = 0.6, beta: float = 0.4, seed: int | None = None
    ) -> None:
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"expected a ReplayBuffer, got {type(buffer).__name__}")
        self.buffer = buffer
        self.alpha, self.beta = checked_fraction("alpha", alpha, 100), checked_fraction("beta", beta)
        self._weights = _core.Weights(buffer._records.ring)
        self._draws = Draws(seed)

    def sample(
        self,
        n: int,
        beta: float | None = None,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        device: Any = None,
    ) -> PrioritizedBatch:
        """`n` rows, with replacement, one from each of `n` equal parts of the priorities' sum.

        `out` and `device` are those of the buffer's own `sample`; the ids stay an array.
        """
        strength = checked_fraction("beta", self.beta if beta is None else beta)
        self._weights.weigh_new()

        def fill(batch: PrioritizedBatch) -> None:
            self.buffer._fill(batch, self._draw)
            self._weights.unbias(batch.weights, strength)

        return self.buffer._outputs.filled(PrioritizedBatch, n, self.buffer._sampled, out, device, fill)

    def _draw(self, batch: PrioritizedBatch, columns: tuple[NDArray[Any] | None, ...]) -> None:
        n = len(batch.ids)
        if self._weights.sample(self._draws.words, n, columns, batch.ids, batch.weights) < n:
            raise ValueError("cannot sample from an empty buffer; push something first")

    def update_priorities(self, ids: Any, priorities: Any) -> int:
        """Sets the priorities of rows that are still there; how many were."""
        wanted = checked_ids(ids)
        try:
            given = np.asarray(priorities)
        except (TypeError, ValueError) as error:
            raise TypeError(f"priorities must be numbers, got {priorities!r:.80}") from error
        if given.dtype.kind not in "fiub":
            raise TypeError(f"priorities must be numbers, got {priorities!r:.80}")
        given = np.ascontiguousarray(given, np.float64) if given.ndim else given
        if given.shape != wanted.shape:
            raise ValueError(f"expected as many priorities as ids, found {given.shape} and {wanted.shape}")
        return self._weights.update(wanted, given, checked_fraction("alpha", self.alpha, 100))
