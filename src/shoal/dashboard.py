"""How learning looks: a live panel in a terminal, lines elsewhere; the curve in letters or as a picture."""

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

__all__ = ["Progress", "curve", "live", "percent", "short", "write_curve"]

_FRAME_S, _LINE_S = 0.15, 0.5
_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*%#"
_GROUND, _GRID, _TEXT, _LEARNT, _GOAL = rgb("#080c0e", "#1b262b", "#e6edf0", "#3fbfc6", "#e9a23b")
_STYLES = {"env": "cyan", "copy": "red", "policy": "green", "update": "blue", "other": "dim"}


@dataclass
class Progress:
    """All there is to show of a run, as of its last update."""

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
    """Steps made, and the mean return then."""

    @property
    def rate(self) -> float:
        return self.steps / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """What part of the time went where."""
        other = max(0.0, self.elapsed_s - sum(self.times.values()))
        return {name: s / (self.elapsed_s or 1.0) for name, s in {**self.times, "other": other}.items()}


def short(count: float) -> str:
    """A number in a few letters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def percent(share: float) -> str:
    """A part of a whole, to the tenth where it is small."""
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


# -- the curve ---------------------------------------------------------------------------------------------


def _range(history: Sequence[tuple[int, float]], goal: float | None) -> tuple[float, float]:
    """The lowest and the highest value to draw."""
    values = [value for _, value in history] + ([] if goal is None else [goal])
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(low, 0.0) if high > 0 else low
    return (low, high) if high > low else (low - 1, high + 1)


def curve(
    history: Sequence[tuple[int, float]], goal: float | None, width: int = 60, height: int = 8
) -> list[str]:
    """The mean return along the steps, as lines of letters; dashes where the goal is."""
    letters = _BLOCKS if _prints(_BLOCKS) else _ASCII
    dash = "┄" if _prints("┄") else "-"
    low, high = _range(history, goal)
    labels = [f"{value:,.0f}" for value in np.linspace(high, low, height)]
    room = max(map(len, labels))
    columns = max(1, width - room - 1)
    steps = np.array([at for at, _ in history] or [0])
    along = np.linspace(0, steps[-1], columns)
    values = np.interp(along, steps, [value for _, value in history] or [low])
    eighths = np.round((values - low) / (high - low) * height * 8).astype(int)
    goal_row = -1 if goal is None else min(height - 1, int((high - goal) / (high - low) * height))
    lines = []
    for row in range(height):
        filled = (eighths - 8 * (height - 1 - row)).clip(0, 8)
        drawn = "".join(dash if row == goal_row and not part else letters[part] for part in filled)
        label = labels[row] if row in (0, height - 1) else f"{goal:,.0f}" if row == goal_row else ""
        lines.append(f"{label:>{room}} {drawn}")
    end = f"{short(int(steps[-1]))} steps"
    lines.append(" " * (room + 1) + "0" + f"{end:>{columns - 1}}")
    return lines


def _prints(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write_curve(path: str, progress: Progress, width: int = 960, height: int = 480) -> None:
    """The same as a picture."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = _GROUND
    left, right, top, bottom = 110, width - 30, 80, height - 50
    low, high = _range(progress.history, progress.goal)
    history = progress.history or [(0, low)]
    steps = np.array([at for at, _ in history])

    def row(value: Any) -> Any:
        return np.round(bottom - (value - low) / (high - low) * (bottom - top)).astype(int)

    for value in np.linspace(low, high, 5):
        picture[row(value), left:right] = _GRID
        _write(picture, f"{value:,.0f}", left - 12, row(value) - 7, from_right=True)
    if progress.goal is not None:
        dashes = np.arange(left, right)
        picture[row(progress.goal) - 1 : row(progress.goal) + 1, dashes[dashes // 8 % 2 == 0]] = _GOAL
    columns = np.arange(left, right)
    at = (columns - left) / max(1, right - left - 1) * steps[-1]
    rows = row(np.interp(at, steps, [value for _, value in history]))
    before = np.concatenate([rows[:1], rows[:-1]])
    for column, one, last in zip(columns, rows, before, strict=True):
        picture[min(one, last) - 1 : max(one, last) + 2, column] = _LEARNT
    _write(picture, progress.title, 12, 14)
    _write(picture, "mean return of the last 100 episodes", 12, 38)
    _write(picture, "0", left, bottom + 16)
    _write(picture, f"{steps[-1]:,} steps, {progress.elapsed_s:.1f} s", right, bottom + 16, from_right=True)
    write_png(path, picture)


def _write(picture: Pixels, text: str, at: int, top: int, from_right: bool = False) -> None:
    ink = mask_of(text, 2)
    left = max(0, at - ink.shape[1] if from_right else at)
    ink = ink[:, : picture.shape[1] - left]
    picture[top : top + ink.shape[0], left : left + ink.shape[1]][ink] = _TEXT


# -- while it runs -----------------------------------------------------------------------------------------


@contextmanager
def live(progress: Progress) -> Iterator[Callable[[bool], None]]:
    """A function to call after every change; it shows what it has to, now and then, or (True) at once."""
    try:
        from rich.live import Live
    except ImportError:
        Live = None  # type: ignore[assignment, misc]
    if Live is None or not sys.stdout.isatty():
        print(progress.title)
        print(f"viewer: {progress.viewer}")
        columns = ("time", "env steps", "steps/s", "episodes", "mean return", "mean length")
        print(" ".join(f"{column:>11}" for column in columns), flush=True)
        yield _seldom(_LINE_S, lambda: print(_line(progress), flush=True))
        print("\n".join(curve(progress.history, progress.goal)), flush=True)
        return
    if progress.viewer.startswith("http"):
        print(f"viewer: {progress.viewer}")  # whole, on a line of its own, to be clicked or copied
    with Live(auto_refresh=False) as shown:
        yield _seldom(_FRAME_S, lambda: shown.update(_panel(progress, shown.console.width), refresh=True))


def _seldom(interval_s: float, draw: Callable[[], object]) -> Callable[[bool], None]:
    """Draws when the last time is long enough ago, and never for long."""
    due = 0.0

    def show(at_once: bool) -> None:
        nonlocal due
        begin = time.monotonic()
        if at_once or begin >= due:
            draw()
            end = time.monotonic()
            due = end + max(interval_s, 40 * (end - begin))

    return show


def _mean(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _line(now: Progress) -> str:
    cells = (
        f"{now.elapsed_s:.1f} s",
        short(now.steps),
        short(now.rate),
        short(now.episodes),
        _mean(now.mean_return),
        _mean(now.mean_length),
    )
    return " ".join(f"{cell:>11}" for cell in cells)


def _panel(now: Progress, width: int) -> Any:
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
    facts.add_row("steps/s", f"[bold]{short(now.rate)}[/]")
    facts.add_row("episodes", f"{now.episodes:,}")
    facts.add_row("mean return", f"[bold cyan]{_mean(now.mean_return)}[/]")
    facts.add_row("mean length", _mean(now.mean_length))
    drawn = Text("\n".join(curve(now.history, now.goal, max(24, inside - 30))), style="cyan", no_wrap=True)
    shares = Table.grid(padding=(0, 1))
    for name, share in now.shares.items():
        bar = ProgressBar(1.0, share, width=24, complete_style=_STYLES[name], finished_style=_STYLES[name])
        note = "results land in place" if name == "copy" and share < 0.01 else ""
        shares.add_row(Text(name, "dim"), bar, f"{percent(share):>5}", Text(note, "dim"))
    done = Table.grid(padding=(0, 1))
    part = min(1.0, now.steps / now.budget)
    if now.goal is not None and now.history:
        first = now.history[0][1]
        part = max(part, min(1.0, (now.mean_return - first) / max(1e-9, now.goal - first)))
    aim = f"{now.budget:,} steps" if now.goal is None else f"a mean return of {now.goal:g}"
    done.add_row(ProgressBar(1.0, part, width=max(10, inside - len(aim) - 4)), Text(aim, "dim"))
    body = Group(
        Columns([drawn, facts], padding=(0, 2)),
        Text(),
        shares,
        Text(),
        done,
        Text.assemble(("viewer  ", "dim"), now.viewer, no_wrap=True, overflow="ellipsis"),
    )
    return Panel(body, title=Text(now.title, "bold"), title_align="left", width=inside + 4)
