"""Prints the result of a run as a table or as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal_lab.chaos.rounds import INVARIANTS, Outcome, Round

__all__ = ["percentiles", "show", "table"]

TARGETS = {
    "death to exception": ("p99", 5.0),
    "step with a repair": ("p50", 50.0),
    "step with a repair, C environments": ("p50", 10.0),
    "trainer killed, all its workers gone": ("max", 1000.0),
}
_ENOUGH = {"p50": 10, "p99": 100, "max": 1}
"""The samples needed to judge a target.

Targets (in ms) depend on the machine; a missed one does not fail a run.
"""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return {
        "n": len(values),
        "p50": round(float(p50), 2),
        "p99": round(float(p99), 2),
        "max": round(max(values), 2),
    }


def show(found: Sequence[tuple[Round, Outcome]], rounds: Sequence[Round], seed: int, *, as_json: bool) -> int:
    """Prints the result; returns the exit status."""
    parts: dict[str, Outcome] = {}
    for round_, outcome in found:
        parts.setdefault(round_.part, Outcome(round_.part)).add(outcome)
    times = {
        what: percentiles(values) for one in parts.values() for what, values in one.times.items() if values
    }
    broken = [(round_, violation, one) for round_, one in found for violation in one.violations]
    if as_json:
        print(json.dumps(_summary(parts, times, broken, seed, len(found), len(rounds))))
        return 1 if broken else 0
    lines = [["part", "kills", "rows checked", *(f"({n})" for n in INVARIANTS), "hangs", "time"]]
    for part, one in parts.items():
        counts = [str(sum(number == n for number, _ in one.violations)) for n in INVARIANTS]
        lines.append(
            [part, f"{one.kills:,}", f"{one.rows:,}", *counts, str(one.hangs), f"{one.seconds:.0f} s"]
        )
    print("\n" + table(lines))
    print("\nviolations of: " + "\n               ".join(f"({n}) {text}" for n, text in INVARIANTS.items()))
    for part, one in parts.items():
        faults = ", ".join(f"{name} {number:,}" for name, number in sorted(one.faults.items()))
        print(f"\n{part}: {faults}")
    if times:
        print("\n" + table([["milliseconds", "p50", "p99", "max", "number", "target"], *_measures(times)]))
    loads = [one.facts["load"] for _, one in found if "load" in one.facts]
    if loads:
        print(f"\n{_machine()}; load average {min(loads):.1f} to {max(loads):.1f} while it ran")
    for round_, (number, message), one in broken[:10]:
        print(f"\nVIOLATION of ({number}): {message}\n  again: {_command(round_)}")
        if one.facts.get("output"):
            print(
                "  its last output:\n"
                + "\n".join(f"    {line}" for line in one.facts["output"].splitlines()[-25:])
            )
    left = len(rounds) - len(found)
    print(f"\n{'every invariant held' if not broken else f'{len(broken)} violations'}, seed {seed}", end="")
    print(f"; {left} of {len(rounds)} rounds were not started" if left else "")
    return 1 if broken else 0


def _command(round_: Round) -> str:
    return f"shoal chaos --only {round_.part} --kills {round_.kills} --seed {round_.seed}"


def _measures(times: dict[str, dict[str, float]]) -> list[list[str]]:
    lines = []
    for what, one in times.items():
        target = ""
        if what in TARGETS:
            which, limit = TARGETS[what]
            verdict = "met" if one[which] < limit else "MISSED"
            target = (
                f"{which} under {limit:g}: {verdict if one['n'] >= _ENOUGH[which] else 'too few samples'}"
            )
        lines.append([what, *(f"{one[key]:.2f}" for key in ("p50", "p99", "max")), f"{one['n']:,}", target])
    return lines


def _summary(
    parts: dict[str, Outcome], times: Any, broken: Any, seed: int, begun: int, rounds: int
) -> dict[str, Any]:
    return {
        "held": not broken,
        "seed": seed,
        "rounds": {"begun": begun, "planned": rounds},
        "parts": {
            part: {
                "kills": one.kills,
                "rows": one.rows,
                "hangs": one.hangs,
                "seconds": one.seconds,
                "faults": one.faults,
            }
            for part, one in parts.items()
        },
        "milliseconds": times,
        "violations": [
            {"invariant": number, "message": message, "again": _command(round_)}
            for round_, (number, message), _ in broken
        ],
        "machine": _machine(),
    }


def _machine() -> str:
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Formats aligned columns: the first to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for line in lines:
        _, *rest = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        text.append("  ".join([line[0].ljust(widths[0]), *rest]).rstrip())
    return "\n".join(text)
