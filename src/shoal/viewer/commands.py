"""`shoal watch`, `ps`, `top` and `metrics`: each is a function that returns the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from shoal.errors import SessionError, ShoalError
from shoal.memory.limits import format_bytes
from shoal.state.attach import Session, attach, sessions
from shoal.state.names import directory
from shoal.viewer import top as live
from shoal.viewer.feed import between
from shoal.viewer.guard import is_loopback
from shoal.viewer.http import read_assets
from shoal.viewer.metrics import Sample, exposition
from shoal.viewer.processes import tree_bytes
from shoal.viewer.protocol import plain
from shoal.viewer.server import Server

__all__ = ["metrics", "picture", "ps", "top", "watch"]

_INTERVAL_S = 0.3
_COLUMNS = ("NAME", "ENV", "PID", "ENVS", "WORKERS", "STEPS", "STEPS/S", "EPISODES", "MEMORY", "UPTIME")


def watch(name: str | None, host: str, port: int, browser: bool) -> int:
    """Serves the page of a session until Ctrl-C."""
    assets = read_assets(files("shoal.viewer") / "page")
    if "/" not in assets:
        raise ShoalError("the viewer's page is missing from this installation; install Shoal again")
    with attach(name) as session:
        name = str(session.facts["name"])
        names = [str(facts["name"]) for facts in sessions()]
        server = Server(
            session,
            assets,
            host=host,
            port=port,
            sessions=names,
            again=lambda: attach(name),
            changed=lambda facts, alive: print(_title(facts) if alive else _farewell(facts), flush=True),
        )
        asyncio.run(_serve(server, session, host, browser))
    return 0


async def _serve(server: Server, session: Session, host: str, browser: bool) -> None:
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    await server.start()
    print(_title(session.facts))
    print(f"{server.guard.link}\nCtrl-C ends the viewer; the run goes on.", flush=True)
    if not is_loopback(host):
        advice = "what is shown crosses the network unencrypted, and the link is the only key"
        print(f"shoal watch: {host} can be reached by others: {advice}", file=sys.stderr)
    if browser and _has_screen():
        link = server.guard.ticket_link()
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    await end.wait()
    await server.close()


def _title(facts: dict[str, Any]) -> str:
    return f"{_line(facts['name'])}: {facts['num_worlds']} x {_line(facts['env'])}, pid {facts['pid']}"


def _farewell(facts: dict[str, Any]) -> str:
    return f"{_line(facts['name'])}: the run has ended; the next of that name is shown when it begins"


def _has_screen() -> bool:
    """Without one a browser would take over this terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def picture(name: str | None, env: int, path: str, timeout_s: float) -> int:
    """Writes what an environment looks like now as a PNG file; 1 if it failed to tell anything of that."""
    from shoal.state import render, write_png

    with attach(name) as session:
        try:
            snapshot = session.snapshot(env, timeout_s=timeout_s)
        except IndexError as error:
            raise SessionError(str(error)) from None
        except TimeoutError:
            why = f"environment {env} made no step within {timeout_s:g} s, so there is nothing of it to show"
            raise SessionError(f"{why}; if the run only pauses, wait longer with --timeout") from None
    try:
        write_png(path, render(snapshot))
    except OSError as error:
        raise ShoalError(f"cannot write {path}: {error.strerror}") from error
    print(path)
    if not snapshot.error:
        return 0
    print(f"shoal watch: environment {env}: {_line(snapshot.error)}", file=sys.stderr)
    return 0 if snapshot.world or "frame" in snapshot.step else 1


def ps(as_json: bool) -> int:
    """Lists the live sessions, with their rates over a moment."""
    with contextlib.ExitStack() as stack:
        before = [(session, counters) for session in _attached(stack) for counters in _counters(session)]
        if before:
            time.sleep(_INTERVAL_S)
        rows = [
            _row(session, last, now) for session, last in before for now in _counters(session)
        ]  # who ended meanwhile is not there any more
    if as_json:
        print(json.dumps(plain(rows), indent=2, default=str))
    elif not rows:
        print(f"no live sessions in {directory()}")
    else:
        _print_table([_COLUMNS, *map(_cells, rows)])
    return 0


def top(name: str | None, env_ids: Sequence[int], seconds: float | None) -> int:
    """Shows a session's counters until it ends, for `seconds`, or until Ctrl-C."""
    with attach(name) as session, contextlib.suppress(KeyboardInterrupt):
        live.show(session, env_ids, seconds)
    return 0


def metrics(name: str | None) -> int:
    """Prints a session, or all that live, for Prometheus."""
    with contextlib.ExitStack() as stack:
        found = _attached(stack) if name is None else [stack.enter_context(attach(name))]
        samples = [
            Sample(session.facts, counters, tree_bytes(session.facts["pid"]))
            for session in found
            for counters in _counters(session)
        ]
    print(exposition(samples), end="")
    return 0


def _attached(stack: contextlib.ExitStack) -> list[Session]:
    """Every session that lives; one that ends while we ask is none."""
    found = []
    for facts in sessions():
        with contextlib.suppress(SessionError):
            found.append(stack.enter_context(attach(facts["name"])))
    return found


def _counters(session: Session) -> list[dict[str, Any]]:
    """The counters, or nothing where the run has ended."""
    try:
        return [session.counters()]
    except SessionError:
        return []


def _row(session: Session, last: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {
        **session.facts,
        **now,
        "steps_per_s": between(last, now)["steps_per_s"],
        "memory_bytes": tree_bytes(session.facts["pid"]),
        "uptime_s": time.time() - session.facts["started"],
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    memory = row["memory_bytes"]
    return (
        _line(row["name"]),
        _line(row["env"]),
        str(row["pid"]),
        str(row["num_worlds"]),
        str(row["workers"] or "threads"),
        live.short(row["steps"]),
        live.short(row["steps_per_s"]),
        live.short(row["episodes"]),
        "-" if memory is None else format_bytes(memory),
        live.duration(row["uptime_s"]),
    )


def _line(text: object) -> str:
    """Names are others' to choose: nothing in them may move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def _print_table(rows: Iterable[Sequence[str]]) -> None:
    """The first two columns to the left, numbers to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:{'<' if at < 2 else '>'}{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
