"""Records runs of environments as lists of named arrays, and finds the first difference between two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.check.subject import Watched
from shoal.native.plugin import FieldInfo, PluginInfo

__all__ = [
    "Moment",
    "Moves",
    "Trace",
    "copy_results",
    "count_steps",
    "find_difference",
    "name_array",
    "name_results",
    "name_row",
    "record",
]


class Moment(NamedTuple):
    """The results of one reset or step, by the names of `name_results`."""

    when: str
    results: dict[str, NDArray[Any]]


Trace = list[Moment]

_CHOICES, _STEPS, _ROWS = 64, 512, 256
_FEWEST, _TRACE_BYTES = 30, 1 << 26


def name_array(kind: str, field: FieldInfo) -> str:
    """Returns the name, in messages, of a field of the observation or the action."""
    return kind if field.name is None else f"{kind} field {field.name!r}"


def name_row(row: int, agents: int) -> str:
    """Returns the name, in messages, of a row of a result."""
    return f"environment {row}" if agents == 1 else f"environment {row // agents}, agent {row % agents}"


def name_results(fields: Sequence[FieldInfo], observation: Any, others: Sequence[Any]) -> dict[str, Any]:
    """Returns the results of a reset (no `others`) or a step, by name."""
    parts = list(observation.values()) if isinstance(observation, dict) else [observation]
    names = [name_array("observation", field) for field in fields]
    names += ["reward", "terminated", "truncated"][: len(others)]
    return dict(zip(names, [*parts, *others], strict=True))


class Moves:
    """Random actions that depend on seed, row and step, but not on the number of rows."""

    def __init__(self, fields: Sequence[FieldInfo], seed: int) -> None:
        self._picks = np.random.default_rng(seed).integers(0, _CHOICES, (_STEPS, _ROWS))
        self._names = [field.name for field in fields]
        self._tables = []
        for number, field in enumerate(fields):
            field.space.seed(seed + number)
            samples = [field.space.sample() for _ in range(_CHOICES)]
            self._tables.append(np.array(samples, field.dtype).reshape(_CHOICES, *field.shape))

    def pick(self, rows: NDArray[Any], step: int) -> list[NDArray[Any]]:
        """Returns the actions of these rows, an array per field."""
        picks = self._picks[step % _STEPS, rows % _ROWS]
        return [table[picks] for table in self._tables]

    def get(self, rows: NDArray[Any], step: int) -> Any:
        """Returns the actions of these rows in the form of a vector environment's `step`."""
        parts = self.pick(rows, step)
        return parts[0] if self._names[0] is None else dict(zip(self._names, parts, strict=True))

    def __call__(self, envs: Watched, steps: int) -> Iterator[Any]:
        rows = np.arange(envs.num_envs)
        for step in range(steps):
            yield self.get(rows, step)


def count_steps(info: PluginInfo, num_envs: int, most: int) -> int:
    """Returns the steps of a run: fewer than `most` if observations are large, so that it takes seconds."""
    row = sum(field.dtype.itemsize * math.prod(field.shape) for field in info.observations)
    return max(min(most, _FEWEST), min(most, _TRACE_BYTES // (max(1, row) * info.agents * num_envs)))


def record(envs: Watched, steps: int, seed: int = 1, env_ids: Sequence[int] | None = None) -> Trace:
    """Records a seeded reset and `steps` random steps.

    With `env_ids`, the environments get the seeds and actions that the environments with these ids have in a
    larger run.
    """
    ids = np.arange(envs.num_worlds) if env_ids is None else np.array(env_ids)
    agents = envs.agents_per_env
    rows = (ids[:, None] * agents + np.arange(agents)).reshape(-1)
    fields, moves = envs._info.observations, Moves(envs._info.actions, seed)
    observation, _ = envs.reset(seed=[seed + int(i) for i in ids])
    trace = [copy_results("after reset", fields, observation, ())]
    for step in range(steps):
        observation, *others, _ = envs.step(moves.get(rows, step))
        trace.append(copy_results(f"at step {step + 1}", fields, observation, others))
    return trace


def copy_results(when: str, fields: Sequence[FieldInfo], observation: Any, others: Sequence[Any]) -> Moment:
    """Returns a copy of the results of a reset or a step, which the next step does not change."""
    named = name_results(fields, observation, others)
    return Moment(when, {name: np.array(array) for name, array in named.items()})


def find_difference(
    found: Trace, expected: Trace, agents: int, first_found: int = 0, first_expected: int = 0, rows: int = 0
) -> str | None:
    """Returns a text on the first difference between two runs; None if they are the same.

    Compares `rows` rows of each array (0: all), from row `first_found` and row `first_expected` on; the text
    names the row by its number in `expected`.
    """
    for one, other in zip(found, expected, strict=True):
        for name, whole in one.results.items():
            array = whole[first_found:][: rows or None]
            wanted = other.results[name][first_expected:][: rows or None]
            if np.array_equal(_to_bytes(array), _to_bytes(wanted)):
                continue
            row = _first(array, wanted)
            element = _first(array[row].reshape(-1), wanted[row].reshape(-1))
            at = "" if array.ndim == 1 else f", element {_index(element, array.shape[1:])}"
            values = f"{array[row].reshape(-1)[element]} instead of {wanted[row].reshape(-1)[element]}"
            row += first_expected
            return f"{one.when}, {name}, {name_row(row, agents)}{at}: {values}"
    return None


def _to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    flat: NDArray[Any] = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8)


def _first(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Returns the first index at which two arrays differ, byte by byte (a NaN equals itself)."""
    differs = [a.tobytes() != b.tobytes() for a, b in zip(one, other, strict=True)]
    return differs.index(True)


def _index(element: int, shape: tuple[int, ...]) -> str:
    return str([int(i) for i in np.unravel_index(element, shape)])
