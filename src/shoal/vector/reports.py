"""Reports of workers: infos as Gymnasium batches them, exceptions as themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import logger

from shoal.process.chunks import Frozen
from shoal.process.mail import Failure
from shoal.process.worker import ERROR, INFO
from shoal.vector.slots import copied

__all__ = ["raise_errors", "require_no_nan", "sort_reports"]


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
    for failure in errors:
        logger.error(f"Received the following error from Worker-{failure.env_id} - Shutting it down")
        logger.error(failure.text)
    logger.error("Raising the last exception back to the main process.")
    error = errors[-1].exception()
    error.results = copied(results)  # type: ignore[attr-defined]
    raise error


def require_no_nan(value: Any, path: str) -> None:
    """ValueError naming environment and index if a float in `value`, a batch, is NaN."""
    if isinstance(value, dict):
        for key, part in value.items():
            require_no_nan(part, f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            require_no_nan(part, f"{path}[{number}]")
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fc" and not np.isfinite(value.sum()):
        bad = np.argwhere(np.isnan(value))
        if len(bad):
            env, *index = bad[0].tolist()
            where = f" at {tuple(index)}" if index else ""
            raise ValueError(f"{path} of environment {env} is NaN{where} (check='nan' found it)")
