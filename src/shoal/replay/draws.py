"""Streams of draws: each process has its own, forked or not."""

from __future__ import annotations

import os
import secrets
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.native.plugin import rng_words

__all__ = ["Draws"]


class Draws:
    """The state of a generator, `words`, which C code advances in place."""

    def __init__(self, seed: Any) -> None:
        self.words: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.seed(seed)
        _all.add(self)

    def seed(self, seed: Any) -> None:
        """Begins the stream anew; None: at a place nobody knows."""
        if seed is None:
            seed = secrets.randbits(64)
        elif isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise TypeError(f"seed must be None or an int of at least 0, got {seed!r}")
        self.words = np.array(rng_words(int(seed)), np.uint64)

    def state(self) -> list[int]:
        """The words, to go on from with `restore`."""
        return [int(word) for word in self.words]

    def restore(self, words: list[int]) -> None:
        """Goes on from a state."""
        self.words = np.array(words, np.uint64)


_all: weakref.WeakSet[Draws] = weakref.WeakSet()


def _after_fork() -> None:
    for draws in list(_all):  # a seed is of the process that gave it: else all children draw the same
        draws.seed(None)


os.register_at_fork(after_in_child=_after_fork)
