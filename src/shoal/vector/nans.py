"""check="nan": raises an error that names the first NaN among the results of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Space
from gymnasium.spaces import Tuple as TupleSpace

from shoal.vector.lending import copy_arrays

__all__ = ["require_no_nan"]


def require_no_nan(space: Space[Any], results: tuple[Any, ...], env_ids: Sequence[int] | None = None) -> None:
    """Raises ValueError if an observation or a reward of a step is NaN.

    The message names environment and index; the error has the attributes `env_id` and `results`.
    """
    found = _find_nan(space, results[0], "observation") or _find_nan(None, results[1], "reward")
    if found is None:
        return
    row, path, where = found
    env = int(row if env_ids is None else env_ids[row])
    error: Any = ValueError(
        f"{path} of environment {env} is NaN{where} (check='nan' found it). All environments have stepped: "
        "error.results are the results; fix the environment, or reset it"
    )
    error.env_id, error.results = env, copy_arrays(results)
    raise error


def _find_nan(space: Space[Any] | None, batch: Any, path: str) -> tuple[int, str, str] | None:
    """Returns the first row of a batch with a NaN, the path in the space, and the index in the array."""
    if isinstance(space, (DictSpace, TupleSpace)):
        keys = list(space.spaces) if isinstance(space, DictSpace) else range(len(space.spaces))
        parts = (_find_nan(space.spaces[key], batch[key], f"{path}[{key!r}]") for key in keys)  # type: ignore
        return next((part for part in parts if part is not None), None)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "fc":
        with np.errstate(over="ignore", invalid="ignore"):  # infinities may cancel
            if np.isfinite(batch.sum()):
                return None
        bad = np.argwhere(np.isnan(batch))
        if len(bad):
            row, *index = bad[0].tolist()
            return row, path, f" at {tuple(index)}" if index else ""
    elif isinstance(batch, tuple):  # one value per environment: Sequence, Graph or OneOf spaces
        return next(((row, path, "") for row, value in enumerate(batch) if _has_nan(value)), None)
    return None


def _has_nan(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_nan, value))
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    array = np.asarray(value)
    return array.dtype.kind in "fc" and bool(np.isnan(array).any())
