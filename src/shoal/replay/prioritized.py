"""Prioritized draws over a replay buffer's rows: any number of samplers, each with weights of its own."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import CorruptFileError
from shoal.replay.arguments import checked_count, checked_fraction, checked_ids
from shoal.replay.batches import PrioritizedBatch
from shoal.replay.buffer import ReplayBuffer
from shoal.replay.draws import Draws
from shoal.replay.resume import SamplerState
from shoal.replay.sampling import Ways

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
        name: Under which the sampler is saved with its buffer, for `resume`; None: "sampler", of the second
            sampler of a buffer "sampler-2", and so on.
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
        self.alpha, self.beta = checked_fraction("alpha", alpha, 100), checked_fraction("beta", beta)
        self._weights = _core.Weights(buffer._records.ring)
        self._draws = Draws(seed)
        self._ways = Ways(buffer, PrioritizedBatch, self._draws, self._weights)
        self._plan = self._ways.rows().plan  # of `sample`, at hand
        buffer._samplers.append(weakref.ref(self))

    @classmethod
    def resume(cls, buffer: ReplayBuffer, name: str = "sampler") -> PrioritizedSampler:
        """The sampler that was saved with the buffer under that name: its priorities, and its draws go on."""
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"expected a ReplayBuffer, got {type(buffer).__name__}")
        if name not in buffer._saved:
            found = ", ".join(map(repr, buffer._saved)) or "none"
            raise ValueError(
                f"the buffer was not loaded or opened with a sampler of the name {name!r}; those saved with "
                f"it: {found}; make a new one with PrioritizedSampler(buffer)"
            )
        state = buffer._saved[name]
        self = cls(buffer, alpha=state.alpha, beta=state.beta, name=name)
        try:
            self._weights.restore(state.weights, state.seen, state.highest)
        except ValueError as error:
            raise CorruptFileError(f"the sampler {name!r} was saved with {error}") from None
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
        """`n` rows, with replacement, one from each of `n` equal parts of the priorities' sum.

        `out`, `stack` and `device` are those of the buffer's own `sample`; the ids stay an array.
        """
        strength = self._strength(beta)
        if type(stack) is not int or stack != 1:
            self._require_links("sample with a stack")
            way = self._ways.transitions(checked_count("stack", stack))
            return way.sample(n, out, device, 1, 1.0, False, strength)
        if out is None and device is None:
            batch: PrioritizedBatch | None = self._plan.lease(self._draws.words, n, 1, 1.0, False, strength)
            if batch is not None:
                return batch
        return self._ways.rows().sample(n, out, device, 1, 1.0, False, strength)

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
        """`n` transitions over up to `steps` steps, as the buffer's, drawn by the priority of the first."""
        self._require_links("sample_n_step")
        way, discount = self._ways.n_step(checked_count("stack", stack)), checked_fraction("gamma", gamma)
        taken = checked_count("steps", steps)
        return way.sample(n, out, device, taken, discount, False, self._strength(beta))

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
        """`n` stretches of up to `length` rows, as the buffer's, drawn by the priority of the first."""
        self._require_links("sample_sequences")
        way = self._ways.sequences(checked_count("length", length))
        return way.sample(n, out, device, 1, 1.0, bool(across_episodes), self._strength(beta))

    def _strength(self, beta: float | None) -> float:
        return checked_fraction("beta", self.beta if beta is None else beta)

    def _require_links(self, call: str) -> None:
        if self.buffer._links is None:
            raise TypeError(
                f"{call} needs a buffer that knows which row follows which; this sampler is of a plain "
                "ReplayBuffer: make the buffer with ReplayBuffer.for_env(envs, capacity)"
            )

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
