"""Formats cases, sweeps and advice as text, within 80 columns."""

from __future__ import annotations

import textwrap

from shoal_lab.bench.results import Case, Sweep

__all__ = ["case_text", "number", "sweep_text", "times"]

_WIDTH = 80


def number(value: float) -> str:
    """Formats a number in a few characters: 291M, 3.51, 0.021."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if scaled >= 99.95 else f"{scaled:.3g}{unit}"
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def times(ratio: float | None) -> str:
    """Formats a ratio; "-" if it is not known."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:.1f}x" if ratio < 99.95 else f"{ratio:,.0f}x"


def case_text(case: Case, said: set[str] | None = None) -> str:
    """Formats a case as a table: median, quartiles, part of the limit, and Shoal's factor.

    `said` collects the parameters that were printed, so that they are not repeated.
    """
    said = set() if said is None else said
    better = "more" if case.more_is_better else "less"
    lines = [f"\n{case.suite}: {case.title}"]
    lines.append(_cells(f"{case.unit}, {better} is better", "median", "quartiles", "of limit", "Shoal is"))
    best = case.limit
    for row in sorted(case.rows, key=lambda row: row.median, reverse=case.more_is_better):
        name = f"{row.name[:23]} (limit)" if row is best else row.name
        span = f"{number(row.low)} .. {number(row.high)}"
        share = case.of_limit(row)
        part = "-" if share is None else f"{share:.2f}" if share >= 0.0095 else f"{share:.0e}"
        lines.append(_cells(name, number(row.median), span, part, times(case.behind_shoal(row))))
    told = [f"{row.name}: {row.parameters}" for row in case.rows if row.parameters]
    for text in (*told, f"each: {case.parameters}"):
        if text not in said:
            lines += _wrap(text)
            said.add(text)
    if case.rounds_repeated or case.rounds_disturbed:
        lines += _wrap(_format_disturbance(case))
    return "\n".join(lines)


def _cells(name: str, median: str, span: str, part: str, ratio: str) -> str:
    return f"  {name[:31]:31} {median:>7}  {span:17} {part:>8} {ratio:>9}"


def _format_disturbance(case: Case) -> str:
    said = f"others used {case.lost_cores:.2f} cores; disturbed rounds repeated: {case.rounds_repeated}"
    if case.rounds_disturbed:
        said += f", kept: {case.rounds_disturbed}; trust ratios, not times"
    return said


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False
    )


def sweep_text(sweep: Sweep) -> str:
    """Formats a sweep: columns of medians along x, and its conclusions."""
    lines = sweep.lines()
    case = sweep.points[0].case if sweep.points else None
    unit = "" if case is None else case.unit
    out = [f"\nsweep {sweep.name}: {sweep.title}", f"  medians in {unit}, by {sweep.x_label}"]
    names = list(lines)
    width = max(9, (_WIDTH - 12) // max(1, len(names)) - 1)
    heads = [textwrap.wrap(name, width) for name in names]
    for depth in range(max(map(len, heads), default=0)):
        cells = (head[depth] if depth < len(head) else "" for head in heads)
        out.append(" " * 12 + " ".join(f"{cell:>{width}}" for cell in cells))
    for point in sweep.points:
        found = {row.name: row.median for row in point.case.rows}
        cells = (number(found[name]) if name in found else "-" for name in names)
        out.append(f"  {point.x:>10,.0f}" + "".join(f" {cell:>{width}}" for cell in cells))
    if case is not None:
        out += _wrap(f"each: {case.parameters}")
        disturbed = sum(point.case.rounds_repeated + point.case.rounds_disturbed for point in sweep.points)
        if disturbed:
            out += _wrap(f"other processes disturbed {disturbed} rounds")
    for sentence in sweep.words:
        out += textwrap.wrap(sentence, _WIDTH, initial_indent="  -> ", subsequent_indent="     ")
    return "\n".join(out)
