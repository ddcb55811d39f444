"""Handles reports of workers: batches infos as Gymnasium does, and raises exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gymnasium import logger

from shoal.process.chunks import Pickled
from shoal.process.mail import Failure
from shoal.process.worker import ERROR, INFO
from shoal.vector.infos import InfoRows, batch_infos
from shoal.vector.lending import copy_arrays

__all__ = ["raise_errors", "sort_reports"]

_SHOWN = 4  # a mistake in a call raises in every environment


def sort_reports(
    reports: Iterable[tuple[int, int, Any]],
    values: list[Any],
    add_info: Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]],
    rows: InfoRows | None = None,
    env_ids: list[int] | None = None,
) -> tuple[dict[str, Any], list[Failure]]:
    """Returns the infos and the errors of a step; stores observations that came as messages in `values`.

    `rows` has the infos that are not among the reports; with `env_ids`, only those of these environments.
    """
    messages: list[tuple[int, dict[str, Any]]] = []
    errors: list[Failure] = []
    for env, kind, what in reports:
        if kind == ERROR:
            errors.append(what)
            continue
        value = what.load() if type(what) is Pickled else what
        if kind == INFO:
            messages.append((env, value))
        else:
            values[env] = value
    return batch_infos(messages, rows, env_ids, add_info), errors


def raise_errors(errors: list[Failure], results: Any) -> None:
    """Raises the exception of the last environment, with the step's results as `error.results`.

    Its cause is the remote traceback. Exceptions of other environments are logged.
    """
    if not errors:
        return
    *others, last = errors
    for failure in others[:_SHOWN]:
        logger.error("environment %s raised, too:\n%s", failure.env_id, failure.text)
    error = last.exception()
    error.results = copy_arrays(results)  # type: ignore[attr-defined]
    raise error
