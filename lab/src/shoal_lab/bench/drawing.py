"""A picture as a list of shapes, written as SVG or PNG from the same layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import numpy as np

from shoal.draw import HEIGHT, Pixels, mask_of, rgb
from shoal.state import write_png

__all__ = ["LETTER", "Box", "Dot", "Line", "Picture", "Text", "write"]

LETTER = 7.0
"""The approximate width of a letter, in both formats."""
_FONT = 12
_SCALE = 2  # pixels of a PNG for each unit


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True)
class Line:
    points: tuple[tuple[float, float], ...]
    color: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    color: str


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # of the middle of its letters
    text: str
    color: str
    anchor: Literal["start", "middle", "end"] = "start"
    bold: bool = False


Shape = Box | Line | Dot | Text


@dataclass(frozen=True)
class Picture:
    width: float
    height: float
    shapes: Sequence[Shape]
    title: str


def write(path: str | Path, picture: Picture) -> None:
    """Writes the picture as SVG or PNG, depending on the suffix of the path."""
    path = Path(path)
    if path.suffix.lower() == ".png":
        write_png(path, _paint(picture))
    elif path.suffix.lower() == ".svg":
        path.write_text(_to_svg(picture))
    else:
        raise ValueError(f"the name of a plot must end with .svg or .png, got {str(path)!r}")


# ---- SVG


def _to_svg(picture: Picture) -> str:
    across, down = f"{picture.width:g}", f"{picture.height:g}"
    size = f'viewBox="0 0 {across} {down}" width="{across}" height="{down}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'font-family="system-ui, sans-serif" font-size="{_FONT}">',
        f"<title>{escape(picture.title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *map(_to_svg_element, picture.shapes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _to_svg_element(shape: Shape) -> str:
    if isinstance(shape, Box):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect {place} fill="{shape.color}"/>'
    if isinstance(shape, Dot):
        return f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="2.5" fill="{shape.color}"/>'
    if isinstance(shape, Line):
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in shape.points)
        dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
        return f'<path d="{path}" fill="none" stroke="{shape.color}" stroke-width="{shape.width:g}"{dashes}/>'
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    weight = ' font-weight="600"' if shape.bold else ""
    place = f'x="{shape.x:.1f}" y="{shape.y + 0.35 * _FONT:.1f}"'
    return f'<text {place} fill="{shape.color}"{anchor}{weight}>{escape(shape.text)}</text>'


# ---- PNG


def _paint(picture: Picture) -> Pixels:
    ground = np.full((round(picture.height * _SCALE), round(picture.width * _SCALE), 3), 255, np.uint8)
    for shape in picture.shapes:
        color = rgb(shape.color)[0]
        if isinstance(shape, Box):
            _fill(ground, shape.x, shape.y, shape.x + shape.width, shape.y + shape.height, color)
        elif isinstance(shape, Dot):
            _fill(ground, shape.x - 2, shape.y - 2, shape.x + 2, shape.y + 2, color)
        elif isinstance(shape, Line):
            _stroke(ground, shape, color)
        else:
            _write_text(ground, shape, color)
    return ground


def _fill(ground: Pixels, left: float, top: float, right: float, bottom: float, color: Pixels) -> None:
    rows, columns = (
        slice(max(0, round(low * _SCALE)), max(0, round(high * _SCALE), round(low * _SCALE) + 1))
        for low, high in ((top, bottom), (left, right))
    )
    ground[rows, columns] = color


def _stroke(ground: Pixels, line: Line, color: Pixels) -> None:
    """Paints small squares along the line, half a pixel apart."""
    half = max(1, round(line.width * _SCALE / 2)) / _SCALE / 2
    walked = 0.0
    for (x, y), (to_x, to_y) in zip(line.points, line.points[1:], strict=False):
        length = float(np.hypot(to_x - x, to_y - y))
        for at in np.arange(0, length + 0.25, 0.25):
            if not line.dashed or (walked + at) % 7 < 4:
                px, py = x + (to_x - x) * at / max(length, 1e-9), y + (to_y - y) * at / max(length, 1e-9)
                _fill(ground, px - half, py - half, px + half, py + half, color)
        walked += length


def _write_text(ground: Pixels, text: Text, color: Pixels) -> None:
    ink = mask_of(text.text, _SCALE)
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
    left = max(0, round(text.x * _SCALE - shift * ink.shape[1]))
    top = max(0, round(text.y * _SCALE - HEIGHT * _SCALE / 2))
    ink = ink[: ground.shape[0] - top, : ground.shape[1] - left]
    ground[top : top + ink.shape[0], left : left + ink.shape[1]][ink] = color
