"""Sessions in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Sample", "exposition"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A session at one moment."""

    facts: dict[str, Any]
    counters: dict[str, Any]
    memory_bytes: int | None


_Values: TypeAlias = dict[str, Callable[[Sample], float | None]]
"""What is added to a family's name, and the number that then follows."""

# Returns may be negative, so their sum is no counter; a summary's may go down.
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


def exposition(samples: Sequence[Sample]) -> str:
    """All of them, each family once with a line for each session; nothing without sessions."""
    lines: list[str] = []
    for family, kind, text, values in _FAMILIES:
        found = [
            f"shoal_{family}{suffix}{_labels(sample)} {_number(number)}"
            for sample in samples
            for suffix, value in values.items()
            if (number := value(sample)) is not None
        ]
        if found:
            lines += [f"# HELP shoal_{family} {text}", f"# TYPE shoal_{family} {kind}", *found]
    return "".join(f"{line}\n" for line in lines)


def _labels(sample: Sample) -> str:
    session, env = (_escape(str(sample.facts[name])) for name in ("name", "env"))
    return f'{{session="{session}",env="{env}"}}'


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
