"""Reports of workers: infos as Gymnasium batches them, exceptions as themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gymnasium import logger

from shoal.process.chunks import Frozen
from shoal.process.mail import Failure
from shoal.process.worker import ERROR, INFO
from shoal.vector.infos import InfoRows, batch_infos
from shoal.vector.lending import copied

__all__ = ["raise_errors", "sort_reports"]

_SHOWN = 4  # a mistake in a call is every environment's


def sort_reports(
    reports: Iterable[tuple[int, int, Any]],
    values: list[Any],
    add_info: Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]],
    rows: InfoRows | None = None,
    env_ids: list[int] | None = None,
) -> tuple[dict[str, Any], list[Failure]]:
    """The infos and the errors of a step; observations that came as messages go into `values`.

    `rows` has the infos that are not among the reports; with `env_ids`, of these environments.
    """
    messages: list[tuple[int, dict[str, Any]]] = []
    errors: list[Failure] = []
    for env, kind, what in reports:
        if kind == ERROR:
            errors.append(what)
            continue
        value = what.thaw() if type(what) is Frozen else what
        if kind == INFO:
            messages.append((env, value))
        else:
            values[env] = value
    return batch_infos(messages, rows, env_ids, add_info), errors


def raise_errors(errors: list[Failure], results: Any) -> None:
    """Raises the last environment's own exception, with the other results of the step beside it.

    It has its traceback with it. Exceptions of other environments, which are not raised, are logged.
    """
    if not errors:
        return
    *others, last = errors
    for failure in others[:_SHOWN]:
        logger.error("environment %s raised too:\n%s", failure.env_id, failure.text)
    error = last.exception()
    error.results = copied(results)  # type: ignore[attr-defined]
    raise error
