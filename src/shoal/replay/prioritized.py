"""Prioritized sampling of a replay buffer: any number of samplers, each with its own priorities."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import CorruptFileError
from shoal.replay.arguments import convert_ids, require_count, require_fraction
from shoal.replay.batches import PrioritizedBatch
from shoal.replay.buffer import ReplayBuffer
from shoal.replay.draws import Draws
from shoal.replay.resume import SamplerState
from shoal.replay.sampling import SamplingCache

__all__ = ["PrioritizedSampler"]


class PrioritizedSampler:
    """Draws rows in proportion to priority ** alpha. New rows get the highest priority so far.

    >>> buffer = ReplayBuffer(100, {"x": (np.float32, ())})
    >>> sampler = PrioritizedSampler(buffer, seed=0)
    >>> _ = buffer.extend({"x": np.arange(10, dtype=np.float32)})
    >>> batch = sampler.sample(4, beta=0.4)
    >>> sampler.update_priorities(batch.ids, np.abs(batch["x"]) + 0.1)
    4
    >>> buffer.close()

    Args:
        buffer: The buffer to sample. Other processes may push into it.
        alpha: 0 draws uniformly, 1 in proportion to the priorities.
        beta: How much of the bias `batch.weights` corrects: 0 none, 1 all. An argument of `sample` overrides
            it.
        seed: The seed of the draws in this process. With None, and in forked children, the seed is random.
        name: The name under which the sampler is saved with its buffer, for `resume`. By default "sampler",
            for the second sampler of a buffer "sampler-2", and so on.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"expected a ReplayBuffer, got {type(buffer).__name__}")
        self.buffer = buffer
        self.name = _unused_name(buffer, name)
        self.alpha, self.beta = require_fraction("alpha", alpha, 100), require_fraction("beta", beta)
        self._weights = _core.Weights(buffer._records.ring)
        self._draws = Draws(seed)
        self._samplings = SamplingCache(buffer, PrioritizedBatch, self._draws, self._weights)
        self._plan = self._samplings.rows().plan  # kept here because `sample` is called often
        buffer._samplers.append(weakref.ref(self))

    @classmethod
    def resume(cls, buffer: ReplayBuffer, name: str = "sampler") -> PrioritizedSampler:
        """Returns the sampler that was saved with the buffer under that name, with its priorities."""
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"expected a ReplayBuffer, got {type(buffer).__name__}")
        if name not in buffer._saved:
            found = ", ".join(map(repr, buffer._saved)) or "none"
            raise ValueError(
                f"the buffer was not saved with a sampler of the name {name!r}; saved samplers: {found}; "
                "make a new one with PrioritizedSampler(buffer)"
            )
        state = buffer._saved[name]
        self = cls(buffer, alpha=state.alpha, beta=state.beta, name=name)
        try:
            self._weights.restore(state.weights, state.seen, state.highest)
        except ValueError as error:
            raise CorruptFileError(f"the sampler {name!r} cannot be restored: {error}") from None
        self._draws.restore(state.draws)
        del buffer._saved[name]
        return self

    def _state(self) -> SamplerState:
        weights, seen, highest = self._weights.state()
        alpha, beta = float(self.alpha), float(self.beta)
        return SamplerState(
            alpha, beta, self._draws.state(), seen, highest, np.frombuffer(weights, np.float32)
        )

    def sample(
        self,
        n: int,
        beta: float | None = None,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        stack: int = 1,
        device: Any = None,
    ) -> PrioritizedBatch:
        """Returns a batch of `n` rows, drawn with replacement by stratified sampling.

        The sum of the priorities is divided into `n` equal parts, and one row is drawn from each. `out`,
        `stack` and `device` are those of the buffer's `sample`. The ids are always an array.
        """
        strength = self._resolve_beta(beta)
        if type(stack) is not int or stack != 1:
            self._require_links("sample with a stack")
            sampling = self._samplings.transitions(require_count("stack", stack))
            return sampling.sample(n, out, device, 1, 1.0, False, strength)
        if out is None and device is None:
            batch: PrioritizedBatch | None = self._plan.lease(self._draws.words, n, 1, 1.0, False, strength)
            if batch is not None:
                return batch
        return self._samplings.rows().sample(n, out, device, 1, 1.0, False, strength)

    def sample_n_step(
        self,
        n: int,
        steps: int,
        gamma: float,
        beta: float | None = None,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        stack: int = 1,
        device: Any = None,
    ) -> PrioritizedBatch:
        """Like the buffer's `sample_n_step`; transitions are drawn by the priority of their first row."""
        self._require_links("sample_n_step")
        sampling = self._samplings.n_step(require_count("stack", stack))
        discount, taken = require_fraction("gamma", gamma), require_count("steps", steps)
        return sampling.sample(n, out, device, taken, discount, False, self._resolve_beta(beta))

    def sample_sequences(
        self,
        n: int,
        length: int,
        beta: float | None = None,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        across_episodes: bool = False,
        device: Any = None,
    ) -> PrioritizedBatch:
        """Like the buffer's `sample_sequences`; sequences are drawn by the priority of their first row."""
        self._require_links("sample_sequences")
        sampling = self._samplings.sequences(require_count("length", length))
        return sampling.sample(n, out, device, 1, 1.0, bool(across_episodes), self._resolve_beta(beta))

    def _resolve_beta(self, beta: float | None) -> float:
        return require_fraction("beta", self.beta if beta is None else beta)

    def _require_links(self, call: str) -> None:
        if self.buffer._links is None:
            raise TypeError(
                f"{call} needs a buffer that records which row follows which, and this is a plain "
                "ReplayBuffer; make the buffer with ReplayBuffer.for_env(envs, capacity)"
            )

    def update_priorities(self, ids: Any, priorities: Any) -> int:
        """Sets the priorities of the rows that are still stored, and returns how many those were."""
        wanted = convert_ids(ids)
        try:
            given = np.asarray(priorities)
        except (TypeError, ValueError) as error:
            raise TypeError(f"priorities must be numbers, got {priorities!r:.80}") from error
        if given.dtype.kind not in "fiub":
            raise TypeError(f"priorities must be numbers, got {priorities!r:.80}")
        given = np.ascontiguousarray(given, np.float64) if given.ndim else given
        if given.shape != wanted.shape:
            raise ValueError(f"expected as many priorities as ids, found {given.shape} and {wanted.shape}")
        return self._weights.update(wanted, given, require_fraction("alpha", self.alpha, 100))


def _unused_name(buffer: ReplayBuffer, name: str | None) -> str:
    taken = [sampler.name for reference in buffer._samplers if (sampler := reference()) is not None]
    if name is None:
        number = len(buffer._samplers) + 1
        return "sampler" if number == 1 else f"sampler-{number}"
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a str that is not empty, got {name!r}")
    if name in taken:
        raise ValueError(f"the buffer has a sampler of the name {name!r} already; give this one another name")
    return name
