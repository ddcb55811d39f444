"""Reports of workers: infos as Gymnasium batches them, exceptions as themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gymnasium import logger

from shoal.process.chunks import Frozen
from shoal.process.mail import Failure
from shoal.process.worker import ERROR, INFO
from shoal.vector.lending import copied

__all__ = ["raise_errors", "sort_reports"]

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
