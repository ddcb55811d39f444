"""`shoal top`: a run's counters as a live table, or as plain lines if there is no terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shoal.errors import SessionError
from shoal.viewer.feed import compare_counters

if TYPE_CHECKING:
    from shoal.state.attach import Session

__all__ = ["format_count", "format_duration", "show", "sparkline"]

_REFRESH_S = 0.5
_WATCH_HZ = 10.0  # so that the shown ticks are not much older than the counters beside them
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def show(session: Session, env_ids: Sequence[int], seconds: float | None) -> None:
    """Shows the session until it ends, or for `seconds`."""
    try:
        session.watch(env_ids, _WATCH_HZ)
    except IndexError as error:
        raise SessionError(str(error)) from None
    until = float("inf") if seconds is None else time.monotonic() + seconds
    start, rates = time.monotonic(), deque[float](maxlen=_WIDTH)
    last, ticks = session.counters(), dict.fromkeys(env_ids, "")
    columns = ["time", "env steps", "steps/s", "episodes", "mean return", "mean length"]
    columns += [f"env {env} episode:tick" for env in env_ids]
    logged = _read_logged(session)
    columns += logged  # names that are logged later are in the web page
    with _table(session.facts, columns) as draw:
        while session.alive and (left := until - time.monotonic()) > 0:
            time.sleep(min(_REFRESH_S, left))
            try:
                now = session.counters()
                for env in env_ids:
                    found = session.latest(env)
                    if found is not None:
                        ticks[env] = f"{found[1].episode}:{found[1].tick}"
                logged |= {name: value for name, value in _read_logged(session).items() if name in logged}
            except SessionError:  # the run ended in the meantime
                break
            change, last = compare_counters(last, now), now
            rates.append(change["steps_per_s"])
            cells = _cells(time.monotonic() - start, change, ticks.values())
            draw([*cells, *(f"{value:.4g}" for value in logged.values())], rates)
    if time.monotonic() < until:
        print("the run has ended")


def _read_logged(session: Session) -> dict[str, float]:
    """Returns the last value of each name that the run logs."""
    return session.history().last


def sparkline(values: Sequence[float]) -> str:
    """Returns bars from 0 to the largest value."""
    most = max(values, default=0.0)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(7, int(8 * value / most))] for value in values)


def format_count(count: float | None) -> str:
    """Formats a number in a few characters."""
    if count is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def format_duration(seconds: float) -> str:
    """Formats a duration in a few characters.

    >>> duration(7500)
    '2h05m'
    """
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def _cells(elapsed_s: float, change: dict[str, Any], ticks: Iterable[str]) -> list[str]:
    means = (change["mean_return"], change["mean_length"])
    return [
        f"{elapsed_s:.1f} s",
        format_count(change["steps"]),
        format_count(change["steps_per_s"]),
        format_count(change["episodes"]),
        *("-" if mean is None else f"{mean:.1f}" for mean in means),
        *ticks,
    ]


@contextmanager
def _table(
    facts: dict[str, Any], columns: Sequence[str]
) -> Iterator[Callable[[Sequence[str], Sequence[float]], None]]:
    title = f"{facts['name']}: {facts['num_worlds']} x {facts['env']}, pid {facts['pid']}"
    try:
        from rich.console import Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        Live = None  # type: ignore[assignment, misc]
    if Live is None or not sys.stdout.isatty():
        widths = [max(11, len(column)) for column in columns]

        def plain(row: Sequence[str], rates: Sequence[float]) -> None:
            print(" ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)), flush=True)

        print(title)
        plain(columns, ())
        yield plain
        return
    with Live(refresh_per_second=4) as live:

        def redraw(row: Sequence[str], rates: Sequence[float]) -> None:
            table = Table(title=Text(title), title_justify="left")
            for column in columns:
                table.add_column(column, justify="right", no_wrap=True)
            table.add_row(*row)
            live.update(
                Group(table, Text(f"steps/s {sparkline(rates)} of {format_count(max(rates, default=0))}"))
            )

        yield redraw
