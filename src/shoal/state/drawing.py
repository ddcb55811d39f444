"""Draws a snapshot as a picture without a screen, with the same colours and marks as the viewer's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.draw import HEIGHT, PITCH, Pixels, rgb
from shoal.state.bars import draw_bars, write
from shoal.state.painting import columns_of, draw_entities, paint
from shoal.state.snapshot import Field, Snapshot

__all__ = ["render"]

_STAGE, _BAR, _FOOT = rgb("#080c0e", "#12191d", "#081018")
_LINE = 2 * HEIGHT + 10  # pixels of a line of text at twice its size
_MOST_ERROR_LINES = 3
_WIDTH = 960


def render(
    snapshot: Snapshot,
    width: int | None = None,
    height: int | None = None,
    *,
    layers: Sequence[str] | None = None,
    legend: bool = True,
    caption: bool = True,
) -> Pixels:
    """Draws a snapshot as [height, width, 3] of uint8.

    `layers` names the fields of the world to draw, all by default. If the world has nothing to draw, it draws
    the environment's own picture, else its observation: a picture, or each number with its name. By default
    the width is 960, or for the environment's own picture a multiple of its width, and the height follows
    from the width and the shape of what is drawn.

    >>> from shoal.state import Field, Snapshot, render
    >>> ground = Field("ground", np.eye(4, dtype=np.int8), role="grid")
    >>> render(Snapshot(0, 0, 0, 0, {"ground": ground}), width=64, legend=False, caption=False).shape
    (64, 64, 3)
    """
    if not isinstance(snapshot, Snapshot):
        raise TypeError(
            f"render draws a Snapshot, such as shoal.attach(name).snapshot(0), got {type(snapshot).__name__}"
        )
    if (width is not None and width < 16) or (height is not None and height < 16):
        raise ValueError(f"a picture is at least 16 by 16 pixels, not {width} by {height}")
    unknown = set(layers or ()) - set(snapshot.world)
    if unknown:
        raise ValueError(f"layers has {sorted(unknown)}, but the world has {sorted(snapshot.world)}")
    world = [one for name, one in snapshot.world.items() if layers is None or name in layers]
    ground = [one for role in ("image", "grid") for one in world if one.role == role and _is_flat(one)]
    marks = [one for one in world if one.role == "entities" and columns_of(one) is not None]
    has_world = any(one.role in ("image", "grid", "entities") for one in snapshot.world.values())
    own = [] if has_world else _own_picture(snapshot)
    ground += own
    if width is None:
        width = _WIDTH if not own else own[0].data.shape[1] * max(1, _WIDTH // own[0].data.shape[1])

    top, left, rows, cols = _extent(ground, marks)
    key = _legend([*ground, *marks], width) if legend else np.empty((0, width, 3), np.uint8)
    foot = _caption(snapshot, width) if caption else np.empty((0, width, 3), np.uint8)
    if height is None:
        room = max(16, round(width * rows / cols)) if ground or marks else max(120, width // 2)
    else:
        room = max(16, height - len(key) - len(foot))
    stage = np.empty((room, width, 3), np.uint8)
    stage[:] = _STAGE
    scale = min(width / cols, room / rows)
    x0, y0 = (width - cols * scale) / 2 - left * scale, (room - rows * scale) / 2 - top * scale
    grids = 0
    for one in ground:
        across = (scale, scale)
        if one.role == "image" and _has_grid(ground):  # it covers the same area as the grid
            across = (scale * rows / one.data.shape[0], scale * cols / one.data.shape[1])
        _draw_ground(stage, one, across, x0, y0, above=grids > 0)
        grids += one.role == "grid"
    for one in marks:
        draw_entities(stage, one, scale, x0, y0)
    if not ground and not marks:
        draw_bars(stage, _list_numbers(snapshot))
    whole = np.concatenate([stage, key, foot])
    return whole if height is None else whole[:height]


def _is_flat(one: Field) -> bool:
    shape = one.data.shape
    return 0 not in shape and (
        len(shape) == 2 or (one.role == "image" and len(shape) == 3 and shape[2] in (1, 3, 4))
    )


def _has_grid(ground: list[Field]) -> bool:
    return any(one.role == "grid" for one in ground)


def _own_picture(snapshot: Snapshot) -> list[Field]:
    """Returns `frame`, or an observation that looks like a picture, as a field with the role "image"."""
    for name, one in snapshot.step.items():
        data = one.data if name == "frame" else _first_agent(snapshot, one.data)
        seen = Field(name, data, "image")
        if (
            (name == "frame" or name.startswith("observation"))
            and _is_flat(seen)
            and min(data.shape[:2]) >= 8
        ):
            return [seen]
    return []


def _list_numbers(snapshot: Snapshot) -> list[Field]:
    """Returns the first agent's observation, or without one the numbers that the environment exports."""
    seen = [
        replace(one, data=_first_agent(snapshot, one.data))
        for name, one in snapshot.step.items()
        if name.startswith("observation")
    ]
    return seen or [one for one in snapshot.world.values() if one.role == "scalar" and one.data.size]


def _first_agent(snapshot: Snapshot, data: NDArray[Any]) -> NDArray[Any]:
    """Returns the first agent's data; with several agents, data has one more dimension, as rewards have."""
    reward = snapshot.step.get("reward")
    several = reward is not None and reward.data.ndim == 1 and data.shape[:1] == reward.data.shape
    first: NDArray[Any] = data[0] if several and len(data) else data
    return first


def _extent(ground: list[Field], marks: list[Field]) -> tuple[float, float, float, float]:
    """Returns top, left, rows and columns of everything to draw, in tiles."""
    if ground:
        shapes = [one.data.shape for one in ground if one.role == "grid"] or [
            one.data.shape for one in ground
        ]
        return 0, 0, max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    places = [named for one in marks if (named := columns_of(one)) is not None and len(named["row"])]
    if not places:
        return 0, 0, 1, 1
    low = [min(float(one[axis].min()) for one in places) for axis in ("row", "column")]
    high = [max(float(one[axis].max()) for one in places) for axis in ("row", "column")]
    margin = max(0.5, (high[0] - low[0]) / 20, (high[1] - low[1]) / 20)
    return low[0] - margin, low[1] - margin, high[0] - low[0] + 2 * margin, high[1] - low[1] + 2 * margin


def _draw_ground(
    stage: Pixels, one: Field, across: tuple[float, float], x0: float, y0: float, above: bool
) -> None:
    """Colours each pixel by the tile that contains its centre. `across`: height and width of a tile."""
    tile_rows = np.floor((np.arange(stage.shape[0]) + 0.5 - y0) / across[0]).astype(np.int64)
    tile_cols = np.floor((np.arange(stage.shape[1]) + 0.5 - x0) / across[1]).astype(np.int64)
    down = np.flatnonzero((tile_rows >= 0) & (tile_rows < one.data.shape[0]))
    along = np.flatnonzero((tile_cols >= 0) & (tile_cols < one.data.shape[1]))
    place = np.ix_(down, along)
    values = one.data[np.ix_(tile_rows[down], tile_cols[along])]
    if values.ndim == 2:
        values = values[..., None]
    if one.role == "image" and one.data.dtype == np.uint8:
        stage[place] = values[..., :3] if values.shape[2] > 2 else values[..., :1]
        return
    colors, seen = paint(one, values[..., 0], above)
    stage[place] = np.where(seen[..., None], colors, stage[place])


def _entries(drawn: list[Field]) -> Iterator[tuple[str, Pixels]]:
    for one in drawn:
        if one.role == "image":
            continue
        for category in one.categories:
            yield category.name, rgb(category.color)[0]


def _legend(drawn: list[Field], width: int) -> Pixels:
    """Returns a strip with a coloured square and a name for each category."""
    placed, left, line = [], 12, 0
    for name, color in _entries(drawn):
        long = 22 + len(name) * PITCH * 2 + 16
        if left > 12 and left + long > width:
            left, line = 12, line + 1
        placed.append((name, color, left, line))
        left += long
    strip = np.empty(((line + 1) * _LINE if placed else 0, width, 3), np.uint8)
    strip[:] = _BAR
    for name, color, at, line in placed:
        top = line * _LINE + 5
        strip[top : top + 14, at : at + 14] = color
        write(strip, name, at + 22, top)
    return strip


def _caption(snapshot: Snapshot, width: int) -> Pixels:
    parts = [f"ENV {snapshot.env_id}", f"EPISODE {snapshot.episode}", f"TICK {snapshot.tick}"]
    reward = snapshot.step.get("reward")
    shown = ("tick", "episode")  # the caption has these already
    numbers = [
        one
        for one in snapshot.world.values()
        if one.role == "scalar" and one.data.size == 1 and one.name not in shown
    ]
    for one in [*numbers, *([reward] if reward is not None and reward.data.size == 1 else [])]:
        parts.append(f"{one.name} {float(one.data.reshape(-1)[0]):.4g}")
    lines = ["   ".join(parts)]
    if snapshot.error:  # the viewer must know that parts are missing
        lines += wrap(snapshot.error, max(8, (width - 24) // (2 * PITCH)))[:_MOST_ERROR_LINES]
    bar = np.empty((_LINE * len(lines), width, 3), np.uint8)
    bar[:] = _FOOT
    for at, line in enumerate(lines):
        write(bar, line, 12, at * _LINE + 5)
    return bar
