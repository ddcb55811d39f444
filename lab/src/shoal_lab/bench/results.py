"""The results of a run: cases of rows with a number per round, ratios, and their JSON form."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["SCHEMA", "Case", "Point", "Role", "Row", "Sweep", "compute_quartiles", "document"]

SCHEMA = 1
"""The version of the JSON format; it increases when a reader would have to change."""

Role = Literal["shoal", "peer", "limit"]


def compute_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median and the quartiles."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


@dataclass(frozen=True)
class Row:
    """One rival: a value for each round, in the unit of its case."""

    name: str
    role: Role
    turns: tuple[float, ...]
    parameters: str = ""
    median: float = field(init=False)
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        for name, value in zip(("median", "low", "high"), compute_quartiles(self.turns), strict=True):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Case:
    """Rivals measured in the same rounds. Peers are compared with the first row of Shoal."""

    suite: str
    title: str
    unit: str
    rows: tuple[Row, ...]
    parameters: str = ""
    more_is_better: bool = True
    rounds_repeated: int = 0
    rounds_disturbed: int = 0
    lost_cores: float = 0.0

    def ratio(self, one: Row, other: Row) -> float:
        """Returns how many times better `one` is: the median of the ratios in the same rounds."""
        better, worse = (one, other) if self.more_is_better else (other, one)
        if len(better.turns) != len(worse.turns):
            return better.median / worse.median
        return statistics.median(b / w for b, w in zip(better.turns, worse.turns, strict=True))

    @property
    def shoal(self) -> Row | None:
        return next((row for row in self.rows if row.role == "shoal"), None)

    @property
    def limit(self) -> Row | None:
        """The best of the limits."""
        limits = [row for row in self.rows if row.role == "limit"]
        best = max if self.more_is_better else min
        return best(limits, key=lambda row: row.median) if limits else None

    def of_limit(self, row: Row) -> float | None:
        """Returns the part of the limit that a row reaches."""
        limit = self.limit
        return None if limit is None else self.ratio(row, limit)

    def behind_shoal(self, row: Row) -> float | None:
        """Returns how many times better Shoal is than a row."""
        return None if self.shoal is None or row.role == "shoal" else self.ratio(self.shoal, row)

    def facts(self) -> dict[str, Any]:
        limit = self.limit
        return {
            "suite": self.suite,
            "title": self.title,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            "parameters": self.parameters,
            "rounds_repeated": self.rounds_repeated,
            "rounds_disturbed": self.rounds_disturbed,
            "lost_cores": round(self.lost_cores, 3),
            "limit": None if limit is None else limit.name,
            "rows": [
                {
                    "name": row.name,
                    "role": row.role,
                    "parameters": row.parameters,
                    "median": row.median,
                    "low": row.low,
                    "high": row.high,
                    "turns": list(row.turns),
                    "of_limit": self.of_limit(row),
                    "shoal_is_times_better": self.behind_shoal(row),
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True)
class Point:
    """One point of a sweep."""

    x: float
    case: Case


@dataclass(frozen=True)
class Sweep:
    """The same case at many sizes."""

    name: str
    title: str
    x_label: str
    points: tuple[Point, ...]
    words: tuple[str, ...] = ()
    """The conclusions: where it saturates and what limits it there."""
    saturates_at: float | None = None

    def lines(self) -> dict[str, list[tuple[float, Row]]]:
        """Returns each rival's rows along x."""
        found: dict[str, list[tuple[float, Row]]] = {}
        for point in self.points:
            for row in point.case.rows:
                found.setdefault(row.name, []).append((point.x, row))
        return found

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "x_label": self.x_label,
            "words": list(self.words),
            "saturates_at": self.saturates_at,
            "points": [{"x": point.x, **point.case.facts()} for point in self.points],
        }


def document(
    command: str,
    machine: dict[str, Any],
    versions: dict[str, str],
    cases: Sequence[Case] = (),
    sweeps: Sequence[Sweep] = (),
    advice: dict[str, Any] | None = None,
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns everything, in the form that `--json` writes."""
    return {
        "schema": SCHEMA,
        "command": command,
        "machine": machine,
        "versions": versions,
        "cases": [case.facts() for case in cases],
        "sweeps": [sweep.facts() for sweep in sweeps],
        "advice": advice,
        "failures": list(failures),
    }
