"""Pictures as arrays, colours, and marks drawn at many places."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pixels", "rgb", "stamp"]

Pixels = NDArray[np.uint8]


def rgb(*colors: str) -> Pixels:
    """Returns colours of the form "#rrggbb" as rows of three bytes."""
    return np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in colors], np.uint8)


def stamp(
    stage: Pixels, rows: NDArray[Any], cols: NDArray[Any], shape: NDArray[Any], colors: NDArray[Any]
) -> None:
    """Draws the same shape, given as offsets from its centre, at many places."""
    at_rows, at_cols = rows[:, None] + shape[:, 0], cols[:, None] + shape[:, 1]
    inside = (at_rows >= 0) & (at_rows < stage.shape[0]) & (at_cols >= 0) & (at_cols < stage.shape[1])
    whole = np.broadcast_to(colors, (*at_rows.shape, 3))
    stage[at_rows[inside], at_cols[inside]] = whole[inside]
