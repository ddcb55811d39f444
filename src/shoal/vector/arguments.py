"""What users pass to a vector environment, checked whole before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

__all__ = ["autoreset_mode", "batched", "count", "reset_mask", "rng_words", "seeds"]


def seeds(seed: int | Sequence[int | None] | None, number: int) -> list[int | None]:
    """One seed per environment, as Gymnasium reads `reset(seed=)`; None keeps the generator there is."""
    if seed is None:
        return [None] * number
    if isinstance(seed, (int, np.integer)):
        values: list[Any] = list(range(int(seed), int(seed) + number))
    elif isinstance(seed, (str, bytes)) or not isinstance(seed, Iterable):
        raise TypeError(f"seed must be an int, a list of ints or None, got {seed!r}")
    else:
        values = list(seed)
    if len(values) != number:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={number} "
            f"but got length={len(values)}."
        )
    for env, value in enumerate(values):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
            raise ValueError(f"a seed must be an int of at least 0, got {value!r} for environment {env}")
    return [None if value is None else int(value) for value in values]


def reset_mask(options: Any, rows: int, worlds: int) -> NDArray[np.bool_] | None:
    """Which environments `reset(options=)` is for; None: all. Errors are Gymnasium's."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict, got {type(options).__name__}: {options!r}")
    given = dict(options or {})
    mask = given.pop("reset_mask", None)
    if given:
        raise ValueError(f"reset takes the option 'reset_mask', got {sorted(given)}")
    if mask is None:
        return None
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (rows,):
        raise ValueError(f"`options['reset_mask']` must have shape `({rows},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            "`options['reset_mask']` must contain a boolean array with at least one True value, "
            f"got reset_mask={mask}"
        )
    return np.asarray(mask.reshape(worlds, -1).any(axis=1))


def batched(space: Space[Any], rows: int) -> Space[Any]:
    """Gymnasium's space of `rows` values."""
    try:
        return batch_space(space, rows)
    except MemoryError as error:  # Gymnasium keeps the bounds of every element of every row
        raise MemoryError(
            f"Gymnasium's batched space of {rows} x {space} does not fit into memory ({error}); use fewer "
            "environments"
        ) from error


def autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Gymnasium's modes by value ("SameStep") or by name ("SAME_STEP")."""
    if isinstance(mode, str) and mode.upper() in AutoresetMode.__members__:
        return AutoresetMode[mode.upper()]
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = ", ".join(AutoresetMode.__members__)
        raise ValueError(f"autoreset_mode must be one of {names}, got {mode!r}") from None


def count(name: str, value: Any, most: int) -> int:
    """`value` if it is an int from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be from 1 to {most}, got {value}")
    return int(value)


def rng_words(seed: int) -> list[int]:
    """The generator of a seed beyond 64 bits, as NumPy makes it."""
    state = np.random.PCG64(np.random.SeedSequence(seed)).state["state"]
    word = 2**64 - 1
    return [state["state"] >> 64, state["state"] & word, state["inc"] >> 64, state["inc"] & word, 0]
