"""Charts of a run: bars with whiskers on a logarithmic axis, and lines on two logarithmic axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from shoal_lab.bench.drawing import LETTER, Box, Dot, Line, Picture, Shape, Text
from shoal_lab.bench.report import number, times
from shoal_lab.bench.results import Case, Row, Sweep

__all__ = ["bars", "lines"]

_INK, _FAINT, _GRID = "#1f2933", "#6b7785", "#e3e7ec"
_ROLES = {"shoal": "#1098ad", "peer": "#b6bfca", "limit": "#4a5563"}
_WORDS = {"shoal": "Shoal", "peer": "peers", "limit": "limit, measured in the same rounds"}
_COLORS = ("#1098ad", "#e8873a", "#5f6fc4", "#4f9d69", "#b8627d", "#8a6d55")
_WIDTH, _LEFT, _RIGHT = 860.0, 216.0, 150.0
_ROW, _BAR = 22.0, 13.0


class _Log:
    """A logarithmic axis from `low` to `high`, drawn from `begin` to `end`."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._high = math.log10(low), math.log10(high)
        if self._high - self._low < 0.1:
            self._low, self._high = self._low - 0.15, self._high + 0.15
        self._begin, self._end = begin, end

    @classmethod
    def decades(cls, low: float, high: float, begin: float, end: float) -> _Log:
        """Returns an axis whose ends are rounded outwards to half powers of ten."""
        first, last = math.floor(2 * math.log10(low)) / 2, math.ceil(2 * math.log10(high)) / 2
        return cls(10**first, 10**last, begin, end)

    def __call__(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._begin + min(1.0, max(0.0, part)) * (self._end - self._begin)

    def ticks(self, room: float) -> list[float]:
        """Returns as many powers of ten as labels of size `room` fit, and values between them if few fit."""
        first, last = math.ceil(self._low - 1e-9), math.floor(self._high + 1e-9)
        if last - first < 2:
            values = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5)]
            return [v for v in values if self._low - 1e-9 <= math.log10(v) <= self._high + 1e-9]
        step = max(1, math.ceil((self._high - self._low) * room / abs(self._end - self._begin)))
        return [10.0**power for power in range(first, last + 1, step)]


def _footer(text: str, y: float, width: float) -> list[Shape]:
    """Wraps a text to the width."""
    wrapped = textwrap.wrap(text, int((width - 40) / LETTER))
    return [Text(20, y + 18 * i, line, _FAINT) for i, line in enumerate(wrapped)]


# ---- Bars


def bars(cases: Sequence[Case], footer: str = "") -> Picture:
    """Draws a panel for each case; beside each bar is Shoal's factor over it, or its part of the limit."""
    shapes: list[Shape] = []
    y = 22.0
    at = 20.0
    for role, color in _ROLES.items():
        shapes += [Box(at, y - 5, 10, 10, color), Text(at + 15, y, _WORDS[role], _INK)]
        at += 40 + len(_WORDS[role]) * LETTER
    y += 24
    for case in cases:
        if case.rows:
            drawn, y = _panel(case, y)
            shapes += drawn
    notes = _footer(footer or "whiskers: quartiles", y, _WIDTH)
    return Picture(_WIDTH, y + 18 * len(notes), [*shapes, *notes], "shoal bench")


def _panel(case: Case, y: float) -> tuple[list[Shape], float]:
    rows = sorted(case.rows, key=lambda row: row.median, reverse=case.more_is_better)
    better = "more is better" if case.more_is_better else "less is better"
    shapes: list[Shape] = [Text(20, y, f"{case.title}", _INK, bold=True)]
    y += 18
    shapes.append(Text(20, y, f"{case.unit}, {better}, logarithmic", _FAINT))
    y += 16
    right = _WIDTH - _RIGHT
    axis = _Log.decades(min(row.low for row in rows) * 0.7, max(row.high for row in rows), _LEFT, right)
    bottom = y + len(rows) * _ROW
    for value in axis.ticks(52):
        shapes.append(Line(((axis(value), y), (axis(value), bottom)), _GRID))
        shapes.append(Text(axis(value), bottom + 9, number(value), _FAINT, "middle"))
    for row in rows:
        middle = y + _ROW / 2
        shapes.append(Text(_LEFT - 8, middle, row.name, _INK, "end", bold=row is case.shoal))
        width = axis(row.median) - _LEFT
        shapes.append(Box(_LEFT, middle - _BAR / 2, max(1.0, width), _BAR, _ROLES[row.role]))
        low, high = axis(row.low), axis(row.high)
        shapes.append(Line(((low, middle), (high, middle)), _INK))
        shapes += [Line(((end, middle - 3), (end, middle + 3)), _INK) for end in (low, high)]
        label = f"{number(row.median)}{_label(case, row)}"
        shapes.append(Text(max(high, axis(row.median)) + 7, middle, label, _INK))
        y += _ROW
    return shapes, y + 38


def _label(case: Case, row: Row) -> str:
    if row.role == "shoal":
        part = case.of_limit(row)
        return "" if part is None else f", {part:.2g} of the limit"
    if row.role == "limit" or case.shoal is None:
        return ""
    return f", Shoal is {times(case.behind_shoal(row))}"


# ---- Lines


_PANEL, _HEIGHT, _LABELS = 560.0, 250.0, 180.0


def lines(sweeps: Sequence[Sweep], footer: str = "") -> Picture:
    """Draws a panel for each sweep, two beside each other, with logarithmic axes."""
    shapes: list[Shape] = []
    drawn = [sweep for sweep in sweeps if sweep.points]
    for index, sweep in enumerate(drawn):
        left, top = 20 + (index % 2) * _PANEL, 24 + (index // 2) * (_HEIGHT + 100)
        shapes += _lines_panel(sweep, left, top)
    rows, columns = -(-len(drawn) // 2), min(2, len(drawn))
    bottom = 24 + rows * (_HEIGHT + 100)
    width = 20 + max(1, columns) * _PANEL
    notes = _footer(f"{footer or 'whiskers: quartiles'}, dashed: saturated from there", bottom - 8, width)
    return Picture(width, bottom - 4 + 18 * len(notes), [*shapes, *notes], "shoal bench sweep")


def _lines_panel(sweep: Sweep, left: float, top: float) -> list[Shape]:
    case = sweep.points[0].case
    shapes: list[Shape] = [
        Text(left, top, sweep.title, _INK, bold=True),
        Text(left, top + 17, f"{case.unit} by {sweep.x_label}", _FAINT),
    ]
    begin, end = left + 44, left + _PANEL - _LABELS - 30
    high, low = top + 34, top + 34 + _HEIGHT
    found = sweep.lines()
    rows = [row for line in found.values() for _, row in line]
    xs = [point.x for point in sweep.points]
    across = _Log(min(xs), max(xs), begin, end)
    up = _Log.decades(min(row.low for row in rows), max(row.high for row in rows), low, high)
    for value in up.ticks(18):
        shapes.append(Line(((begin, up(value)), (end, up(value))), _GRID))
        shapes.append(Text(begin - 6, up(value), number(value), _FAINT, "end"))
    for value in xs if len(xs) <= 6 else across.ticks(46):
        shapes.append(Line(((across(value), high), (across(value), low)), _GRID))
        shapes.append(Text(across(value), low + 12, number(value), _FAINT, "middle"))
    if sweep.saturates_at is not None:
        x = across(sweep.saturates_at)
        shapes.append(Line(((x, high), (x, low)), _FAINT, dashed=True))
    labels: list[tuple[float, str, str]] = []
    for color, (name, line) in zip(_colors(found), found.items(), strict=True):
        points = tuple((across(x), up(row.median)) for x, row in line)
        shapes.append(Line(points, color, 1.8))
        for (x, y), (_, row) in zip(points, line, strict=True):
            shapes += [Line(((x, up(row.low)), (x, up(row.high))), color), Dot(x, y, color)]
        labels.append((points[-1][1], name, color))
    taken = high - 14
    for y, name, color in sorted(labels):
        taken = max(y, taken + 14)
        shapes.append(Text(end + 10, taken, name, color))
    return shapes


def _colors(found: dict[str, list[tuple[float, Row]]]) -> list[str]:
    """Returns grey for limits and a colour of the palette for each other line."""
    free = iter(_COLORS * (1 + len(found) // len(_COLORS)))
    return [_ROLES["limit"] if line[0][1].role == "limit" else next(free) for line in found.values()]
