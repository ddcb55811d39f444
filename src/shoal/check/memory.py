"""Checks that reset and step write whole rows, and nothing outside the environment's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.check.guards import guard_trace
from shoal.check.subject import CheckFailed, Subject
from shoal.check.traces import Trace, count_steps, name_row

__all__ = ["memory"]

_ENVS, _STEPS = 37, 200


class _Difference(NamedTuple):
    """A row that one call wrote differently in two runs, as (element, byte) arrays."""

    call: str
    where: str
    one: NDArray[np.uint8]
    other: NDArray[np.uint8]


def memory(subject: Subject) -> None:
    """It writes every byte of its rows and nothing outside its own memory."""
    info = subject.describe()
    steps = count_steps(info, _ENVS, _STEPS)
    (low, resets), (high, _) = (guard_trace(subject, _ENVS, steps, fill) for fill in (0x00, 0xFF))
    found = _find_difference(low, high, resets, info.agents)
    if found is None:
        return
    again, _ = guard_trace(subject, _ENVS, steps, 0x00)
    random = _find_difference(low, again, resets, info.agents)
    if random is not None:
        raise CheckFailed(
            "it is not deterministic, so this check cannot tell whether it writes its whole rows: two runs "
            f"with the same seed and the same bytes in the result arrays differ {random.where}; does it use "
            "rand(), the time, a global variable or uninitialised memory? Random numbers come from envs->rng"
        )
    missing = ((found.one == 0x00) & (found.other == 0xFF)).all(axis=1)
    if missing.any():
        raise CheckFailed(
            f"{found.call} does not write its whole row: {found.where}, element {int(missing.argmax())} of "
            f"{len(missing)} keeps its old value"
        )
    raise CheckFailed(
        f"{found.call} gives different results if the result arrays hold other bytes before the call: "
        f"{found.where}; "
        "write every byte of a row, and never read from it"
    )


def _find_difference(
    one: Trace, other: Trace, resets: Sequence[NDArray[np.bool_]], agents: int
) -> _Difference | None:
    """Returns the first row in which two runs differ; in a reset row only observations are compared."""
    for moment, others, was_reset in zip(one, other, resets, strict=True):
        stepped = ~np.repeat(was_reset, agents)
        for name, array in moment.results.items():
            mine, theirs = _to_bytes(array), _to_bytes(others.results[name])
            differs = (mine != theirs).any(axis=(1, 2))
            if not name.startswith("observation"):
                differs &= stepped
            if differs.any():
                row = int(differs.argmax())
                call = "step" if stepped[row] else "reset"
                where = f"{moment.when}, {name}, {name_row(row, agents)}"
                return _Difference(call, where, mine[row], theirs[row])
    return None


def _to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns the bytes of each element of each row."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.reshape(len(array), -1, array.dtype.itemsize)
