"""Draws a soak as a picture: one small panel for each resource, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["draw_chart"]

PANELS = (
    ("trainer_mb", "trainer, MB", "#1f6feb"),
    ("launcher_mb", "launcher, MB", "#2da44e"),
    ("descriptors", "descriptors", "#bf3989"),
    ("mappings", "mappings", "#6e7781"),
    ("threads", "threads", "#9a6700"),
)
LEFT, TOP, WIDTH, HEIGHT, GAP = 130, 46, 600, 64, 18
MOST = 400


def draw_chart(samples: Sequence[dict[str, Any]], cycles: int) -> str:
    """Returns an SVG. Each panel starts at 0, so that a line that looks flat is flat."""
    every = max(1, len(samples) // MOST)
    shown = list(samples[::every])
    end = max(1.0, float(shown[-1]["seconds"]))
    bottom = TOP + len(PANELS) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {bottom + 34}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="28" font-size="16">Resources after each of {cycles:,} cycles of make, step, '
        "kill, attach, close</text>",
    ]
    for number, (name, label, colour) in enumerate(PANELS):
        top = TOP + number * (HEIGHT + GAP)
        high = 1.25 * max(float(one[name]) for one in shown) or 1.0
        points = [
            f"{LEFT + WIDTH * one['seconds'] / end:.1f} {top + HEIGHT * (1 - one[name] / high):.1f}"
            for one in shown
        ]
        parts.append(f'<path d="M{LEFT} {top + HEIGHT}h{WIDTH}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{LEFT - 10}" y="{top + HEIGHT / 2 + 4:.0f}" text-anchor="end">{label}</text>')
        parts.append(f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        last = f"{shown[-1][name]:g}"
        y = top + HEIGHT * (1 - shown[-1][name] / high) + 4
        parts.append(f'<text x="{LEFT + WIDTH + 8}" y="{y:.1f}" fill="{colour}">{last}</text>')
    for minute in _minutes(end / 60):
        x = LEFT + WIDTH * minute * 60 / end
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{minute:g} min</text>')
    return "\n".join([*parts, "</svg>", ""])


def _minutes(end: float) -> list[float]:
    step = next(step for step in (0.1, 0.5, 1, 2, 5, 10, 20, 60, 240) if end / step <= 8 or step == 240)
    return [step * number for number in range(int(end / step) + 1)]
