"""Sessions in the text formats of Prometheus, version 0.0.4, and of OpenMetrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Sample", "format_metrics"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A session at one moment."""

    facts: dict[str, Any]
    counters: dict[str, Any]
    memory_bytes: int | None
    logged: dict[str, float] = field(default_factory=dict)
    """The last value of each name that the run logs."""


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
        {
            "_sum": lambda s: s.counters["return_sum"],
            "_count": lambda s: s.counters["episodes"] - s.counters["odd_returns"],
        },
    ),
    (
        "episode_length",
        "summary",
        "Steps of an episode.",
        {
            "_sum": lambda s: s.counters["length_sum"],  # the sum has all episodes, whatever their return is
            "_count": lambda s: s.counters["episodes"],
        },
    ),
    ("environments", "gauge", "Environments of the run.", {"": lambda s: s.facts["num_worlds"]}),
    ("rows", "gauge", "Rows of a batch: environments times agents.", {"": lambda s: s.facts["num_envs"]}),
    ("workers", "gauge", "Worker processes; 0: threads of the trainer.", {"": lambda s: s.facts["workers"]}),
    ("memory_bytes", "gauge", "Memory of all processes, shared pages once.", {"": lambda s: s.memory_bytes}),
    ("start_time_seconds", "gauge", "When the run began, since 1970.", {"": lambda s: s.facts["started"]}),
)


def format_metrics(samples: Sequence[Sample], openmetrics: bool = False) -> str:
    """Formats all samples: each family once, with a line for each session; an empty text without sessions.

    In OpenMetrics 1.0 the names of counters' families are without "_total", a sum in a summary must not be
    negative (so it is a gauge; the count is that of the episodes), and the last line is "# EOF".
    """
    lines: list[str] = []
    for family, kind, text, values in _FAMILIES:
        if openmetrics and kind == "summary":
            family, kind, text = f"{family}_sum", "gauge", f"{text.removesuffix('.')}, over all episodes."
            values = {"": values["_sum"]}
        found = [
            f"shoal_{family}{suffix}{_format_labels(sample)} {_format_number(number)}"
            for sample in samples
            for suffix, value in values.items()
            if (number := value(sample)) is not None
        ]
        if found:
            named = family.removesuffix("_total") if openmetrics else family
            lines += [f"# HELP shoal_{named} {text}", f"# TYPE shoal_{named} {kind}", *found]
    logged = [
        f"shoal_logged{_format_labels(sample, name)} {_format_number(value)}"
        for sample in samples
        for name, value in sample.logged.items()
    ]
    if logged:
        lines += [
            "# HELP shoal_logged The last value that the run logged.",
            "# TYPE shoal_logged gauge",
            *logged,
        ]
    if openmetrics:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines)


def _format_labels(sample: Sample, logged: str | None = None) -> str:
    session, env = (_escape(str(sample.facts[name])) for name in ("name", "env"))
    more = "" if logged is None else f',name="{_escape(logged)}"'
    return f'{{session="{session}",env="{env}"{more}}}'


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
