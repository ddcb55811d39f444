"""Shows the progress of a run and the time left: a bar in a terminal, a line per case elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Progress", "clock_text"]


def clock_text(seconds: float) -> str:
    """Formats minutes and seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02}"


class Progress:
    """Counts estimated seconds done and planned; the time used so far corrects the estimate of the rest.

    It writes to stderr, so that tables can be piped.
    """

    def __init__(
        self,
        planned_s: float,
        out: Any = None,
        now: Callable[[], float] = time.monotonic,
        enabled: bool = True,
    ) -> None:
        self._planned_s, self._now = max(planned_s, 1e-9), now
        self._out = sys.stderr if out is None else out
        self._began = now()
        self._done_s = self._ahead_s = 0.0
        self._title = ""
        self._enabled = enabled
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._enabled and self._out.isatty():
            try:
                from rich.console import Console
                from rich.live import Live
            except ImportError:
                return self
            console = Console(file=self._out)
            self._bar = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def left_s(self) -> float:
        """The estimated seconds left, corrected by the time used so far."""
        done = self._done_s + self._ahead_s
        elapsed = self._now() - self._began
        pace = elapsed / done if done > 0 else 1.0
        return max(0.0, self._planned_s - done) * pace

    @property
    def part(self) -> float:
        return min(1.0, (self._done_s + self._ahead_s) / self._planned_s)

    def begin(self, title: str) -> None:
        self._title, self._ahead_s = title, 0.0
        if self._bar is not None:
            self._draw()
        elif self._enabled:
            print(f"[{self.part:4.0%}, {clock_text(self.left_s)} left] {title}", file=self._out, flush=True)

    def advance(self, part: float, of_s: float) -> None:
        """Sets the done part of the current case, which was estimated to take `of_s` seconds."""
        self._ahead_s = min(part, 1.0) * of_s
        if self._bar is not None:
            self._draw()

    def end(self, took_s: float) -> None:
        """Ends the current case."""
        self._done_s, self._ahead_s = self._done_s + took_s, 0.0

    def say(self, text: str) -> None:
        """Prints a result; the bar is hidden while it prints."""
        if self._bar is not None:
            self._bar.stop()
        print(text, flush=True)
        if self._bar is not None:
            self._bar.start()

    def _draw(self) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 1))
        left = f"{self.part:4.0%}  {clock_text(self.left_s)} left"
        line.add_row(ProgressBar(1.0, self.part, width=24), left, Text(self._title, "dim", no_wrap=True))
        self._bar.update(line, refresh=True)
