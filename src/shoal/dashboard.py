"""Shows the progress of learning: a live panel in a terminal, lines of text elsewhere, and a curve."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.draw import Pixels, mask_of, rgb
from shoal.state import write_png

__all__ = ["Progress", "format_count", "format_curve", "format_percent", "show_live", "write_curve"]

_FRAME_S, _LINE_S = 0.15, 0.5
_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*%#"
_GROUND, _GRID, _TEXT, _CURVE, _GOAL = rgb("#080c0e", "#1b262b", "#e6edf0", "#3fbfc6", "#e9a23b")
_STYLES = {"env": "cyan", "copy": "red", "policy": "green", "update": "blue", "other": "dim"}


@dataclass
class Progress:
    """The state of a run after its last update."""

    title: str
    goal: float | None
    budget: int
    viewer: str
    steps: int = 0
    episodes: int = 0
    mean_return: float = float("nan")
    mean_length: float = float("nan")
    elapsed_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    history: list[tuple[int, float]] = field(default_factory=list)
    """(steps so far, mean return) after each update."""

    @property
    def rate(self) -> float:
        return self.steps / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The share of the elapsed time for each entry of `times`, and for the rest."""
        other = max(0.0, self.elapsed_s - sum(self.times.values()))
        return {name: s / (self.elapsed_s or 1.0) for name, s in {**self.times, "other": other}.items()}


def format_count(count: float) -> str:
    """Returns a number with a unit: 1.5 k, 2.0 M, 3.1 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def format_percent(share: float) -> str:
    """Returns a share as a percentage, with one decimal below 10 %."""
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


# -- the curve ---------------------------------------------------------------------------------------------


def _find_range(history: Sequence[tuple[int, float]], goal: float | None) -> tuple[float, float]:
    """Returns the lowest and the highest value of the vertical axis."""
    values = [value for _, value in history] + ([] if goal is None else [goal])
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(low, 0.0) if high > 0 else low
    return (low, high) if high > low else (low - 1, high + 1)


def format_curve(
    history: Sequence[tuple[int, float]], goal: float | None, width: int = 60, height: int = 8
) -> list[str]:
    """Returns lines of text that draw the mean return against steps, with dashes at the goal."""
    letters = _BLOCKS if _can_print(_BLOCKS) else _ASCII
    dash = "┄" if _can_print("┄") else "-"
    low, high = _find_range(history, goal)
    labels = [f"{value:,.0f}" for value in np.linspace(high, low, height)]
    room = max(map(len, labels))
    columns = max(1, width - room - 1)
    steps = np.array([step for step, _ in history] or [0])
    column_steps = np.linspace(0, steps[-1], columns)
    values = np.interp(column_steps, steps, [value for _, value in history] or [low])
    eighths = np.round((values - low) / (high - low) * height * 8).astype(int)
    goal_row = -1 if goal is None else min(height - 1, int((high - goal) / (high - low) * height))
    lines = []
    for row in range(height):
        filled = (eighths - 8 * (height - 1 - row)).clip(0, 8)
        line = "".join(dash if row == goal_row and not part else letters[part] for part in filled)
        label = labels[row] if row in (0, height - 1) else f"{goal:,.0f}" if row == goal_row else ""
        lines.append(f"{label:>{room}} {line}")
    end = f"{format_count(int(steps[-1]))} steps"
    lines.append(" " * (room + 1) + "0" + f"{end:>{columns - 1}}")
    return lines


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write_curve(path: str, progress: Progress, width: int = 960, height: int = 480) -> None:
    """Writes the learning curve as a PNG file."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = _GROUND
    left, right, top, bottom = 110, width - 30, 80, height - 50
    low, high = _find_range(progress.history, progress.goal)
    history = progress.history or [(0, low)]
    steps = np.array([step for step, _ in history])

    def row(value: Any) -> Any:
        return np.round(bottom - (value - low) / (high - low) * (bottom - top)).astype(int)

    for value in np.linspace(low, high, 5):
        picture[row(value), left:right] = _GRID
        _write_text(picture, f"{value:,.0f}", left - 12, row(value) - 7, from_right=True)
    if progress.goal is not None:
        dashes = np.arange(left, right)
        picture[row(progress.goal) - 1 : row(progress.goal) + 1, dashes[dashes // 8 % 2 == 0]] = _GOAL
    columns = np.arange(left, right)
    column_steps = (columns - left) / max(1, right - left - 1) * steps[-1]
    rows = row(np.interp(column_steps, steps, [value for _, value in history]))
    previous_rows = np.concatenate([rows[:1], rows[:-1]])
    for column, here, before in zip(columns, rows, previous_rows, strict=True):
        picture[min(here, before) - 1 : max(here, before) + 2, column] = _CURVE
    _write_text(picture, progress.title, 12, 14)
    _write_text(picture, "mean return of the last 100 episodes", 12, 38)
    _write_text(picture, "0", left, bottom + 16)
    _write_text(
        picture, f"{steps[-1]:,} steps, {progress.elapsed_s:.1f} s", right, bottom + 16, from_right=True
    )
    write_png(path, picture)


def _write_text(picture: Pixels, text: str, at: int, top: int, from_right: bool = False) -> None:
    ink = mask_of(text, 2)
    left = max(0, at - ink.shape[1] if from_right else at)
    ink = ink[:, : picture.shape[1] - left]
    picture[top : top + ink.shape[0], left : left + ink.shape[1]][ink] = _TEXT


# -- while it runs -----------------------------------------------------------------------------------------


@contextmanager
def show_live(progress: Progress) -> Iterator[Callable[[bool], None]]:
    """Yields a function to call after every change; it redraws now and then, or at once if passed True."""
    try:
        from rich.live import Live
    except ImportError:
        Live = None  # type: ignore[assignment, misc]
    if Live is None or not sys.stdout.isatty():
        print(progress.title)
        print(f"viewer: {progress.viewer}")
        columns = ("time", "env steps", "steps/s", "episodes", "mean return", "mean length")
        print(" ".join(f"{column:>11}" for column in columns), flush=True)
        yield _throttle(_LINE_S, lambda: print(_format_line(progress), flush=True))
        print("\n".join(format_curve(progress.history, progress.goal)), flush=True)
        return
    if progress.viewer.startswith("http"):
        print(f"viewer: {progress.viewer}")  # on its own line, so that the link can be clicked or copied
    with Live(auto_refresh=False) as screen:
        yield _throttle(
            _FRAME_S, lambda: screen.update(_make_panel(progress, screen.console.width), refresh=True)
        )


def _throttle(interval_s: float, draw: Callable[[], object]) -> Callable[[bool], None]:
    """Returns a function that calls `draw` at most every `interval_s`, and for at most 1/40 of the time."""
    next_draw = 0.0

    def show(at_once: bool) -> None:
        nonlocal next_draw
        start = time.monotonic()
        if at_once or start >= next_draw:
            draw()
            end = time.monotonic()
            next_draw = end + max(interval_s, 40 * (end - start))

    return show


def _format_mean(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _format_line(now: Progress) -> str:
    cells = (
        f"{now.elapsed_s:.1f} s",
        format_count(now.steps),
        format_count(now.rate),
        format_count(now.episodes),
        _format_mean(now.mean_return),
        _format_mean(now.mean_length),
    )
    return " ".join(f"{cell:>11}" for cell in cells)


def _make_panel(now: Progress, width: int) -> Any:
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    inside = min(width, 100) - 4
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(justify="right")
    facts.add_row("time", f"{now.elapsed_s:.1f} s")
    facts.add_row("env steps", f"{now.steps:,}")
    facts.add_row("steps/s", f"[bold]{format_count(now.rate)}[/]")
    facts.add_row("episodes", f"{now.episodes:,}")
    facts.add_row("mean return", f"[bold cyan]{_format_mean(now.mean_return)}[/]")
    facts.add_row("mean length", _format_mean(now.mean_length))
    plot = Text(
        "\n".join(format_curve(now.history, now.goal, max(24, inside - 30))), style="cyan", no_wrap=True
    )
    shares = Table.grid(padding=(0, 1))
    for name, share in now.shares.items():
        bar = ProgressBar(1.0, share, width=24, complete_style=_STYLES[name], finished_style=_STYLES[name])
        note = "results are written in place" if name == "copy" and share < 0.01 else ""
        shares.add_row(Text(name, "dim"), bar, f"{format_percent(share):>5}", Text(note, "dim"))
    done = Table.grid(padding=(0, 1))
    part = min(1.0, now.steps / now.budget)
    if now.goal is not None and now.history:
        first = now.history[0][1]
        part = max(part, min(1.0, (now.mean_return - first) / max(1e-9, now.goal - first)))
    target = f"{now.budget:,} steps" if now.goal is None else f"a mean return of {now.goal:g}"
    done.add_row(ProgressBar(1.0, part, width=max(10, inside - len(target) - 4)), Text(target, "dim"))
    body = Group(
        Columns([plot, facts], padding=(0, 2)),
        Text(),
        shares,
        Text(),
        done,
        Text.assemble(("viewer  ", "dim"), now.viewer, no_wrap=True, overflow="ellipsis"),
    )
    return Panel(body, title=Text(now.title, "bold"), title_align="left", width=inside + 4)
