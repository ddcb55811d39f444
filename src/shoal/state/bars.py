"""Draws the numbers of an observation as bars with names and values, for environments without a picture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shoal.draw import HEIGHT, PITCH, Pixels, mask_of, rgb
from shoal.state.snapshot import Field

__all__ = ["draw_bars", "write"]

_TEXT, _MUTED, _ACCENT, _TRACK = rgb("#e6edf0", "#8b9aa3", "#3fbfc6", "#1b252a")
_MARGIN = 12
_VALUE = 10  # letters of a number, such as -1.234e-05
_LEAST_ROW = HEIGHT + 4  # pixels of a row that has text


def draw_bars(stage: Pixels, fields: list[Field]) -> None:
    """Draws every number of these fields as a bar from zero, with its name and its value where they fit.

        x velocity            |#####        0.4182
        angle            #####|            -0.3106

    All bars have one scale. With too many numbers for names, only the bars and the names of the fields are
    drawn.
    """
    rows = [row for field in fields for row in _name_numbers(field, alone=len(fields) == 1)]
    if not rows:
        write(stage, "NOTHING TO DRAW", _MARGIN, _MARGIN)
        return
    names, values = [name for name, _ in rows], np.array([value for _, value in rows])
    height, width = stage.shape[:2]
    size = 2 if len(rows) * (2 * HEIGHT + 4) <= height else 1
    longest = max(map(len, names))
    while size > 1 and (longest + _VALUE) * PITCH * size > 0.7 * width:
        size -= 1
    pitch = PITCH * size
    letters = min(longest, (width // 2 - 2 * _MARGIN) // pitch)  # of a name
    labelled = len(rows) * _LEAST_ROW <= height and letters >= min(longest, 4) and width >= 160
    if labelled:
        left, right = 2 * _MARGIN + letters * pitch, width - 2 * _MARGIN - _VALUE * pitch
        top = 0
        if right - left < width // 8:  # there is no room for the values
            right = width - _MARGIN
    else:
        left = min(8, width // 8)
        right = width - left
        top = HEIGHT + 8 if height >= 64 else 0
        title = ", ".join(f"{field.name} {list(field.data.shape)}" for field in fields)
        if top:
            write(stage, title, 8, 4, 1, _MUTED)
    _draw_rows(stage, values, left, right, top, tracks=labelled)
    if not labelled:
        return
    for at, (name, value) in enumerate(rows):
        middle = round((at + 0.5) * height / len(rows)) - HEIGHT * size // 2
        write(stage, name if len(name) <= letters else f"{name[: letters - 1]}.", _MARGIN, middle, size)
        if right < width - _MARGIN:
            write(stage, f"{value:.4g}", right + _MARGIN, middle, size)


def _name_numbers(field: Field, alone: bool) -> Iterator[tuple[str, float]]:
    """Yields name and value of each number: `angle`, `3`, or with several fields `camera` and `joints 3`."""
    values = np.asarray(field.data, np.float64).reshape(-1)
    prefix = "" if alone else field.name.partition("/")[2] or field.name
    columns = field.columns if len(field.columns) == len(values) else tuple(map(str, range(len(values))))
    for column, value in zip(columns, values.tolist(), strict=True):
        if len(values) == 1 and not field.columns:
            yield prefix or field.name, value
        else:
            yield f"{prefix} {column}".strip(), value


def _draw_rows(stage: Pixels, values: np.ndarray, left: int, right: int, top: int, *, tracks: bool) -> None:
    """Draws one bar for each value between the columns `left` and `right`, below `top`."""
    finite = np.where(np.isfinite(values), values, 0.0)
    reach = float(np.abs(finite).max(initial=0.0)) or 1.0
    zero = (left + right) // 2 if (finite < 0).any() else left
    each = (len(stage) - top) / len(values)
    for at, value in enumerate(finite.tolist()):
        begin, end = round(top + at * each), round(top + (at + 1) * each)
        gap = (end - begin) // 4
        rows = slice(begin + gap, max(begin + gap + 1, end - gap))
        if tracks:
            stage[rows, left:right] = _TRACK
        tip = round(zero + value / reach * (right - zero))
        stage[rows, min(zero, tip) : max(zero, tip)] = _ACCENT
    if tracks and zero > left:
        stage[:, zero] = _MUTED


def write(picture: Pixels, text: str, left: int, top: int, size: int = 2, color: Pixels = _TEXT) -> None:
    """Writes text with letters `size` times as large; text that does not fit is cut off."""
    top = max(0, top)
    ink = mask_of(text, size)[: max(0, len(picture) - top), : max(0, picture.shape[1] - left)]
    picture[top : top + ink.shape[0], left : left + ink.shape[1]][ink] = color
