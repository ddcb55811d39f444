"""Turns values into colours and entities into marks; the viewer's page uses the same rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.draw import Pixels, rgb, stamp
from shoal.state.snapshot import Field

__all__ = ["columns_of", "draw_entities", "paint"]

# viewer/page/colors.js has the same palette.
_PALETTE = rgb(
    *("#3d7ea6", "#e9a23b", "#4f9d69", "#c8553d", "#7a6fb0", "#59b3b8"),
    *("#b8627d", "#a3a847", "#8a6d55", "#5a6b7b", "#d98cb3", "#2f5d50"),
)
_RAMP = rgb("#14213d", "#1f4e79", "#1f7a8c", "#4aa96c", "#b5c334", "#ffe680")
_HEALTH = rgb("#e5484d", "#f0a33a", "#46a758")
_UNKNOWN, _DARK = rgb("#8a8f98", "#081018")
_AHEAD = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])


def columns_of(one: Field) -> dict[str, NDArray[Any]] | None:
    """Returns the columns by name, with `row` and `column` in tiles, of the entities that are on the map.

    Returns None if the columns contain no position.
    """
    if one.data.ndim != 2 or one.data.shape[1] != len(one.columns):
        return None
    named = {name: one.data[:, at] for at, name in enumerate(one.columns)}
    by_tile = "r" in named and "c" in named
    if not by_tile and not ("x" in named and "y" in named):
        return None
    row, column = (named["r"], named["c"]) if by_tile else (named["y"], named["x"])
    middle = 0.5 if by_tile or one.data.dtype.kind in "iub" else 0.0
    named |= {"row": row.astype(np.float64) + middle, "column": column.astype(np.float64) + middle}
    there = np.isfinite(named["row"]) & np.isfinite(named["column"])
    if by_tile:
        there &= row >= 0
    return {name: values[there] for name, values in named.items()}


def _is_qualitative(one: Field) -> bool:
    data = one.data
    return bool(one.categories) or (
        data.dtype.kind in "iub" and data.size > 0 and data.min() >= 0 and data.max() < len(_PALETTE)
    )


def paint(one: Field, values: NDArray[Any], above: bool = False) -> tuple[Pixels, NDArray[np.bool_]]:
    """Returns the colours of a field's values, and which of them are opaque.

    In a grid `above` another, values without a category are transparent (0, if there are no categories).
    """
    seen = np.ones(values.shape, np.bool_)
    if one.categories:
        known = sorted(one.categories, key=lambda category: category.value)
        at = np.searchsorted([category.value for category in known], values).clip(0, len(known) - 1)
        named = np.array([category.value for category in known])[at] == values
        colors = np.where(named[..., None], rgb(*(category.color for category in known))[at], _UNKNOWN)
        return colors, named if above else seen
    if above:
        seen = values != 0
    if _is_qualitative(one) or one.data.size == 0:
        return _PALETTE[values.astype(np.int64) % len(_PALETTE)], seen
    all_of_it = one.data.astype(np.float64)
    finite = all_of_it[np.isfinite(all_of_it)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    part = (values.astype(np.float64) - low) / (high - low or 1.0)
    known_part = np.isfinite(part)
    along = np.where(known_part, part, 0).clip(0, 1) * (len(_RAMP) - 1)
    below = along.astype(np.int64).clip(0, len(_RAMP) - 2)
    mixed = _RAMP[below] + (_RAMP[below + 1].astype(np.float64) - _RAMP[below]) * (along - below)[..., None]
    return np.where(known_part[..., None], mixed.round().astype(np.uint8), _UNKNOWN), seen


def _body(radius: float, facing: int, edge: float) -> NDArray[Any]:
    """Returns the pixel offsets of a mark: a disc, or a drop that points in a direction; `edge` widens it."""
    reach = int(radius * 1.6 + edge) + 1
    down, along = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    inside = np.hypot(down, along) <= radius + edge
    if facing >= 0:
        ahead = _AHEAD[facing % 4]
        forward, aside = down * ahead[0] + along * ahead[1], np.abs(down * ahead[1] - along * ahead[0])
        inside |= (
            (forward > 0)
            & (forward <= radius * 1.5 + edge)
            & (aside <= (radius * 1.5 + edge - forward) * 0.9)
        )
        inside &= (forward <= 0) | (aside <= (radius * 1.5 + edge - forward) * 1.1)
    return np.argwhere(inside) - reach


def _whole(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.where(np.isfinite(values), values, 0).astype(np.int64)


def draw_entities(stage: Pixels, one: Field, scale: float, x0: float, y0: float) -> None:
    """Draws a mark for each entity; `scale` is the size of a tile, and tile (0, 0) begins at (x0, y0)."""
    named = columns_of(one)
    if named is None or not len(named["row"]):
        return
    rows = np.floor(named["row"] * scale + y0).astype(np.int64)
    cols = np.floor(named["column"] * scale + x0).astype(np.int64)
    radius = min(28.0, max(min(2.8, 60 / len(rows) ** 0.5), 1.7, scale * 0.36))
    kinds = _whole(named["kind"]) if "kind" in named else np.zeros(len(rows), np.int64)
    colors = paint(one, kinds)[0] if one.categories else _PALETTE[kinds % len(_PALETTE)]
    pointed = "dir" in named and scale >= 7
    facing = _whole(named["dir"]) % 4 if pointed else np.full(len(rows), -1)
    for ahead in np.unique(facing):
        chosen = np.flatnonzero(facing == ahead)
        stamp(stage, rows[chosen], cols[chosen], _body(radius, int(ahead), 1.0), _DARK)
        stamp(stage, rows[chosen], cols[chosen], _body(radius, int(ahead), 0.0), colors[chosen][:, None])
    if "hp" in named and "hp_max" in named and scale >= 12:
        hp, most = named["hp"].astype(np.float64), named["hp_max"].astype(np.float64)
        known = np.isfinite(hp) & np.isfinite(most) & (most > 0)
        _draw_health(stage, rows[known], cols[known], (hp[known] / most[known]).clip(0, 1), scale, radius)


def _draw_health(
    stage: Pixels, rows: NDArray[Any], cols: NDArray[Any], part: NDArray[Any], scale: float, radius: float
) -> None:
    long, thick = round(scale * 0.86), round(max(2, min(5, scale * 0.13)))
    down, along = np.mgrid[0:thick, 0:long].reshape(2, -1)
    shape = np.stack([down + round(radius * 1.2), along - long // 2], 1)
    full = along[None, :] < (part * long)[:, None]
    level = _HEALTH[(part * 3).astype(np.int64).clip(0, 2)]
    stamp(stage, rows, cols, shape, np.where(full[..., None], level[:, None], _DARK))
