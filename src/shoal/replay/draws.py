"""Random number generators of draws. Each process has its own, also after a fork."""

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
    """A random number generator. C code advances its state, `words`, in place."""

    def __init__(self, seed: Any) -> None:
        self.words: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.seed(seed)
        _all.add(self)

    def seed(self, seed: Any) -> None:
        """Restarts the generator from a seed, or from a random one if `seed` is None."""
        if seed is None:
            seed = secrets.randbits(64)
        elif isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise TypeError(f"seed must be None or an int of at least 0, got {seed!r}")
        self.words = np.array(rng_words(int(seed)), np.uint64)

    def state(self) -> list[int]:
        """Returns the state, for `restore`."""
        return [int(word) for word in self.words]

    def restore(self, words: list[int]) -> None:
        """Continues from a state that `state` returned."""
        self.words = np.array(words, np.uint64)


_all: weakref.WeakSet[Draws] = weakref.WeakSet()


def _after_fork() -> None:
    for draws in list(_all):  # otherwise all children would draw the same rows
        draws.seed(None)


os.register_at_fork(after_in_child=_after_fork)
