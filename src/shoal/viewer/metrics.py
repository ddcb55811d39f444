"""Sessions in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Sample", "format_metrics"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A session at one moment."""

    facts: dict[str, Any]
    counters: dict[str, Any]
    memory_bytes: int | None


_Values: TypeAlias = dict[str, Callable[[Sample], float | None]]
"""By suffix of the family's name, a function that returns the number."""

# Returns can be negative, so their sum cannot be a counter; the sum of a summary may decrease.
_FAMILIES: tuple[tuple[str, str, str, _Values], ...] = (
    ("steps_total", "counter", "Environment steps since the run began.", {"": lambda s: s.counters["steps"]}),
    ("episodes_total", "counter", "Episodes that ended.", {"": lambda s: s.counters["episodes"]}),
    (
        "episode_return",
        "summary",
        "Sum of the rewards of an episode.",
        {"_sum": lambda s: s.counters["return_sum"], "_count": lambda s: s.counters["episodes"]},
    ),
    (
        "episode_length",
        "summary",
        "Steps of an episode.",
        {"_sum": lambda s: s.counters["length_sum"], "_count": lambda s: s.counters["episodes"]},
    ),
    ("environments", "gauge", "Environments of the run.", {"": lambda s: s.facts["num_worlds"]}),
    ("rows", "gauge", "Rows of a batch: environments times agents.", {"": lambda s: s.facts["num_envs"]}),
    ("workers", "gauge", "Worker processes; 0: threads of the trainer.", {"": lambda s: s.facts["workers"]}),
    ("memory_bytes", "gauge", "Memory of all processes, shared pages once.", {"": lambda s: s.memory_bytes}),
    ("start_time_seconds", "gauge", "When the run began, since 1970.", {"": lambda s: s.facts["started"]}),
)


def format_metrics(samples: Sequence[Sample]) -> str:
    """Formats all samples: each family once, with a line for each session; an empty text without sessions."""
    lines: list[str] = []
    for family, kind, text, values in _FAMILIES:
        found = [
            f"shoal_{family}{suffix}{_format_labels(sample)} {_format_number(number)}"
            for sample in samples
            for suffix, value in values.items()
            if (number := value(sample)) is not None
        ]
        if found:
            lines += [f"# HELP shoal_{family} {text}", f"# TYPE shoal_{family} {kind}", *found]
    return "".join(f"{line}\n" for line in lines)


def _format_labels(sample: Sample) -> str:
    session, env = (_escape(str(sample.facts[name])) for name in ("name", "env"))
    return f'{{session="{session}",env="{env}"}}'


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
