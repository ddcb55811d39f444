"""Reports of workers: infos as Gymnasium batches them, exceptions as themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import logger
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Space
from gymnasium.spaces import Tuple as TupleSpace

from shoal.process.chunks import Frozen
from shoal.process.mail import Failure
from shoal.process.worker import ERROR, INFO
from shoal.vector.slots import copied

__all__ = ["raise_errors", "require_no_nan", "sort_reports"]

_SHOWN = 4  # a mistake in a call is every environment's


def sort_reports(
    reports: Iterable[tuple[int, int, Any]],
    values: list[Any],
    add_info: Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]],
) -> tuple[dict[str, Any], list[Failure]]:
    """The infos and the errors among reports; observations that came as messages go into `values`."""
    infos: dict[str, Any] = {}
    errors: list[Failure] = []
    for env, kind, what in reports:
        if kind == ERROR:
            errors.append(what)
            continue
        value = what.thaw() if type(what) is Frozen else what
        if kind == INFO:
            infos = add_info(infos, value, env)
        else:
            values[env] = value
    return infos, errors


def raise_errors(errors: list[Failure], results: Any) -> None:
    """Raises the last environment's own exception, with the other results of the step beside it."""
    if not errors:
        return
    for failure in errors[:_SHOWN]:
        logger.error(f"Received the following error from Worker-{failure.env_id} - Shutting it down")
        logger.error("%s", failure.text)  # which may have a % of its own
    logger.error("Raising the last exception back to the main process.")
    error = errors[-1].exception()
    error.results = copied(results)  # type: ignore[attr-defined]
    raise error


def require_no_nan(
    space: Space[Any], observation: Any, reward: Any, env_ids: Sequence[int] | None = None
) -> None:
    """ValueError naming environment and index if an observation of `space` or a reward is NaN."""
    found = _nan(space, observation, "observation") or _nan(None, reward, "reward")
    if found is not None:
        row, path, where = found
        env = row if env_ids is None else env_ids[row]
        raise ValueError(f"{path} of environment {env} is NaN{where} (check='nan' found it)")


def _nan(space: Space[Any] | None, batch: Any, path: str) -> tuple[int, str, str] | None:
    """The first row of a batch that has a NaN, where in the space, and where in the array."""
    if isinstance(space, (DictSpace, TupleSpace)):
        keys = list(space.spaces) if isinstance(space, DictSpace) else range(len(space.spaces))
        parts = (_nan(space.spaces[key], batch[key], f"{path}[{key!r}]") for key in keys)  # type: ignore
        return next((part for part in parts if part is not None), None)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "fc":
        with np.errstate(over="ignore", invalid="ignore"):  # infinities may cancel
            if np.isfinite(batch.sum()):
                return None
        bad = np.argwhere(np.isnan(batch))
        if len(bad):
            row, *index = bad[0].tolist()
            return row, path, f" at {tuple(index)}" if index else ""
    elif isinstance(batch, tuple):  # a value for each environment: of Sequence, Graph, OneOf
        return next(((row, path, "") for row, value in enumerate(batch) if _has_nan(value)), None)
    return None


def _has_nan(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_nan, value))
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    array = np.asarray(value)
    return array.dtype.kind in "fc" and bool(np.isnan(array).any())
