"""The commands `shoal watch`, `ps`, `top` and `metrics`; each function returns the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import SessionError, ShoalError
from shoal.memory.limits import format_bytes
from shoal.state.attach import Session, attach, sessions
from shoal.state.history import History
from shoal.state.names import directory, list_paths
from shoal.state.recording import Recording
from shoal.viewer import top as live
from shoal.viewer.feed import compare_counters
from shoal.viewer.guard import is_loopback
from shoal.viewer.http import read_assets
from shoal.viewer.metrics import Sample, format_metrics
from shoal.viewer.movies import check_movie, write_movie
from shoal.viewer.processes import tree_bytes
from shoal.viewer.protocol import plain
from shoal.viewer.recorded import Recorded, find_file
from shoal.viewer.server import Server
from shoal.viewer.shelf import Shelf
from shoal.viewer.tensorboard import write_events

__all__ = ["metrics", "picture", "ps", "record", "top", "watch"]

_INTERVAL_S = 0.3
_COLUMNS = ("NAME", "ENV", "PID", "ENVS", "WORKERS", "STEPS", "STEPS/S", "EPISODES", "MEMORY", "UPTIME")


def watch(name: str | None, host: str, port: int, browser: bool, history: str | None = None) -> int:
    """Serves the page of a session, or of a history file, until Ctrl-C; saves the history to a file."""
    assets = read_assets(files("shoal.viewer") / "page")
    if "/" not in assets:
        raise ShoalError("the viewer's page is missing from this installation; install Shoal again")
    with _open(name) as session:
        name = str(session.facts["name"])
        if history is not None:
            if isinstance(session, Recorded):
                raise ShoalError("--history saves the history of a running session; copy the file instead")
            session.history().save(history)  # raises now if it cannot be written
        server = Server(
            session,  # type: ignore[arg-type]  # a Recorded has what the server uses
            assets,
            host=host,
            port=port,
            sessions=_list_names,
            open_session=attach,
            reattach=None if isinstance(session, Recorded) else lambda: attach(name),
            keep=None if history is None else lambda found: _keep_history(found, history),
            on_change=lambda facts, alive: print(
                _format_title(facts) if alive else _format_end(facts), flush=True
            ),
        )
        asyncio.run(_serve_until_signal(server, session, host, browser))
    return 0


def _list_names() -> list[str]:
    try:
        return [path.name for path in list_paths()]
    except SessionError:
        return []


def _open(name: str | None) -> Session | Recorded:
    file = find_file(name)
    return attach(name) if file is None else Recorded(file)


def _keep_history(history: History, path: str) -> None:
    try:
        history.save(path)
    except SessionError as error:
        print(f"shoal watch: {error}", file=sys.stderr, flush=True)


async def _serve_until_signal(server: Server, session: Session | Recorded, host: str, browser: bool) -> None:
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    await server.start()
    print(_format_title(session.facts))
    print(f"{server.guard.link}\nCtrl-C ends the viewer; the run continues.", flush=True)
    if os.environ.get("SSH_CONNECTION"):  # whoever reads this sits at another machine
        print(_format_tunnel(server.guard.link), flush=True)
    if not is_loopback(host):
        advice = "the data is sent unencrypted, and anyone who has the link can see it"
        print(f"shoal watch: other machines can reach {host}: {advice}", file=sys.stderr)
    if browser and _has_screen():
        link = server.guard.ticket_link()
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    await end.wait()
    await server.close()


def _format_tunnel(link: str) -> str:
    port = urlsplit(link).port
    return (
        f"To open it on your own machine, run `ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}` "
        "there, and then open the link."
    )


def _format_title(facts: dict[str, Any]) -> str:
    name, env = _to_printable(facts["name"]), _to_printable(facts["env"])
    if "file" in facts:
        return f"{name}: history of {facts['num_worlds']} x {env}, from {_to_printable(facts['file'])}"
    return f"{name}: {facts['num_worlds']} x {env}, pid {facts['pid']}"


def _format_end(facts: dict[str, Any]) -> str:
    if "file" in facts:
        return "The file has the curves of the run, and no environments."
    return f"{_to_printable(facts['name'])}: the run has ended; the viewer shows the next run of this name"


def _has_screen() -> bool:
    """Whether there is a screen; without one, a text browser would take over this terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def picture(name: str | None, env: int, path: str, timeout_s: float) -> int:
    """Writes a picture of an environment as a PNG file; returns 1 if there was nothing to draw."""
    from shoal.state import render, write_png

    with attach(name) as session:
        try:
            snapshot = session.snapshot(env, timeout_s=timeout_s)
        except IndexError as error:
            raise SessionError(str(error)) from None
        except TimeoutError:
            why = f"environment {env} made no step within {timeout_s:g} s, so there is no picture of it"
            raise SessionError(f"{why}; if the run is only paused, wait longer with --timeout") from None
    try:
        write_png(path, render(snapshot))
    except OSError as error:
        raise ShoalError(f"cannot write {path}: {error.strerror}") from error
    print(path)
    if not snapshot.error:
        return 0
    print(f"shoal watch: environment {env}: {_to_printable(snapshot.error)}", file=sys.stderr)
    return 0 if snapshot.world or "frame" in snapshot.step else 1


def record(name: str | None, env: int | None, path: str, keep: str | None, timeout_s: float) -> int:
    """Writes a whole episode as a movie: the next one, or the best or worst of those of `timeout_s`."""
    check_movie(path)
    with attach(name) as session:
        try:
            if keep is None:
                found, count = session.record(env or 0, timeout_s), 1
            else:
                found, count = _record_some(session, env, keep, timeout_s)
        except IndexError as error:
            raise SessionError(str(error)) from None
        except TimeoutError:
            which = "no environment" if keep is not None and env is None else f"environment {env or 0}"
            why = f"{which} has begun and ended an episode within {timeout_s:g} s"
            why = why if which.startswith("no") else why.replace("has begun", "has not begun")
            raise SessionError(f"{why}; wait longer with --timeout") from None
    write_movie(path, found)
    which = "" if keep is None else f", the {keep} of {count} recorded"
    print(
        f"{path}: environment {found.env_id}, episode {found.episode}{which}: return "
        f"{found.episode_return:g}, {found.length} steps"
    )
    return 0


def _record_some(session: Session, env: int | None, keep: str, timeout_s: float) -> tuple[Recording, int]:
    """Records one episode after the other; returns the best or the worst, and how many there were."""
    shelf, end = Shelf(), time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        chosen = random.randrange(session.facts["num_worlds"]) if env is None else env
        try:
            shelf.add(session.record(chosen, left), time.time())
        except TimeoutError:
            break
        except SessionError:
            if shelf.kept:  # the run has ended
                break
            raise
    if keep not in shelf.kept:
        raise TimeoutError
    return shelf.kept[keep].recording, len(shelf.times)


def ps(as_json: bool) -> int:
    """Lists the running sessions, with their rates over a short interval."""
    with contextlib.ExitStack() as stack:
        before = [
            (session, counters) for session in _attach_all(stack) for counters in _read_counters(session)
        ]
        if before:
            time.sleep(_INTERVAL_S)
        rows = [
            _row(session, last, now) for session, last in before for now in _read_counters(session)
        ]  # without sessions that ended in the meantime
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


def metrics(name: str | None, openmetrics: bool = False, tensorboard: str | None = None) -> int:
    """Prints the metrics of one session, or of all running sessions, for Prometheus.

    With `tensorboard`, writes the history of one session or file there instead, until the run ends.
    """
    if tensorboard is not None:
        with _open(name) as session, contextlib.suppress(KeyboardInterrupt):
            print(write_events(session, tensorboard))
        return 0
    with contextlib.ExitStack() as stack:
        found = _attach_all(stack) if name is None else [stack.enter_context(attach(name))]
        samples = [
            Sample(session.facts, counters, tree_bytes(session.facts["pid"]), _read_logged(session))
            for session in found
            for counters in _read_counters(session)
        ]
    print(format_metrics(samples, openmetrics), end="")
    return 0


def _attach_all(stack: contextlib.ExitStack) -> list[Session]:
    """Attaches to every running session; skips sessions that end in the meantime."""
    found = []
    for facts in sessions():
        with contextlib.suppress(SessionError):
            found.append(stack.enter_context(attach(facts["name"])))
    return found


def _read_counters(session: Session) -> list[dict[str, Any]]:
    """Returns a list with the counters, or an empty list if the run has ended."""
    try:
        return [session.counters()]
    except SessionError:
        return []


def _read_logged(session: Session) -> dict[str, float]:
    try:
        return session.history().last
    except SessionError:  # it ended in the meantime
        return {}


def _row(session: Session, last: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {
        **session.facts,
        **now,
        "steps_per_s": compare_counters(last, now)["steps_per_s"],
        "memory_bytes": tree_bytes(session.facts["pid"]),
        "uptime_s": time.time() - session.facts["started"],
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    memory = row["memory_bytes"]
    return (
        _to_printable(row["name"]),
        _to_printable(row["env"]),
        str(row["pid"]),
        str(row["num_worlds"]),
        str(row["workers"] or "threads"),
        live.format_count(row["steps"]),
        live.format_count(row["steps_per_s"]),
        live.format_count(row["episodes"]),
        "-" if memory is None else format_bytes(memory),
        live.format_duration(row["uptime_s"]),
    )


def _to_printable(text: object) -> str:
    """Replaces unprintable characters: other users choose names, and escape codes can move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def _print_table(rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; the first two columns are aligned left, the others right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:{'<' if at < 2 else '>'}{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
