"""The demo learns, shows how, says what came of it, and ends cleanly."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request

import numpy as np
import pytest

from shoal import dashboard, demo
from shoal.cli import main
from shoal.dashboard import Progress, format_curve, format_percent, write_curve
from shoal.errors import ShoalError

LINE = r" *\d+\.\d s "


@pytest.mark.timeout(100)
def test_demo_solves_cartpole_and_reports_it(capsys):
    assert demo.run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PPO on 64 x CartPole-v1, native engine") and lines[0].endswith("seed 0")
    assert re.fullmatch(rf"viewer: shoal watch CartPole-v1-{os.getpid()}(-\d+)?", lines[1])
    shown = [re.split(r"  +", line.strip()) for line in lines if re.match(LINE, line)]
    assert float(shown[0][4]) < 40 and float(shown[-1][4]) >= 475
    (found,) = [line for line in lines if line.startswith("Solved: ")]
    mean, goal, steps = re.search(r"episodes ([\d.]+) \(goal (\d+)\) after ([\d,]+) steps", found).groups()
    assert float(mean) >= 475 and goal == "475" and int(steps.replace(",", "")) < 300_000
    assert re.match(r"Time: env [\d.]+%, copy 0\.\d%, policy [\d.]+%, update \d+%, other", lines[-3])
    assert "the environments alone" in lines[-2] and lines[-1].startswith(
        "Next: `shoal demo --env Pendulum-v1"
    )
    assert sum("█" in line for line in lines) == 8  # the curve


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"steps": 5000}, r"Goal not reached, step limit reached: .* \(goal 475\) after [5-7],\d\d\d steps"),
        ({"seconds": 0.01}, r"Goal not reached, time limit reached: "),
        (
            {"env": "Pendulum-v1", "steps": 5000},
            r"Step limit reached: mean return of the last 100 episodes \S+ after",
        ),
    ],
)
def test_demo_reports_a_missed_goal(given, verdict, capsys):
    assert demo.run(**given) == 0
    assert re.search(f"^{verdict}", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date")
@pytest.mark.parametrize(("env", "num_workers"), [("CartPole-v1", 2), ("CartPole-v0", None)])
def test_demo_uses_worker_processes(env, num_workers, capsys):
    assert demo.run(env, 8, num_workers, steps=3000) == 0
    assert re.search(rf"PPO on 8 x {env}, \d worker processes", capsys.readouterr().out)


def test_unknown_environment_is_an_error():
    with pytest.raises(ShoalError, match="no environment 'Nope-v0'"):
        demo.run("Nope-v0", 2)


@pytest.mark.parametrize(
    ("env", "found"),
    [("Pixels-v0", r"Box\(0, 255, \(84, 84, 4\)"), ("FrozenLake-v1", "Discrete"), ("Snake-v0", "4 agents")],
)
def test_unsupported_spaces_are_rejected_with_a_message(env, found, capsys):
    assert main(["demo", "--env", env, "--num-envs", "2"]) == 1
    error = capsys.readouterr().err
    assert re.match(rf"shoal demo: this learner .*found {found}", error) and error.count("\n") == 1


# -- in a terminal, and interrupted ------------------------------------------------------------------


class Terminal:
    """`shoal demo` in a terminal of its own; `read` what it shows until there is a text."""

    def __init__(self, *arguments, size=(40, 100)):
        self.master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        command = [sys.executable, "-m", "shoal", "demo", *arguments]
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
        )
        os.close(terminal)
        self._seen = b""

    @property
    def text(self):
        """All it showed, without colours and moves of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._seen.decode(errors="replace"))

    def read(self, until=None):
        while until is None or until not in self.text:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # how Linux tells of the end of a terminal
                data = b""
            if not data:
                assert until is None, f"{until!r} never came:\n{self.text}"
                break
            self._seen += data
        return self.text

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)  # as Ctrl-C does

    def end(self):
        self.read()
        return self.process.wait(20)

    def clear(self):
        os.close(self.master)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def in_terminal():
    pytest.importorskip("rich")
    made = []

    def start(*arguments, **options):
        made.append(Terminal(*arguments, **options))
        return made[-1]

    yield start
    for terminal in made:
        terminal.clear()


def test_terminal_shows_a_panel(in_terminal):
    terminal = in_terminal("--steps", "12000")
    text = terminal.read("Next: ")
    assert terminal.end() == 0
    frame = text[text.rindex("╭─") :]
    assert frame.startswith("╭─ PPO on 64 x CartPole-v1")
    for label in ("env steps", "steps/s", "episodes", "mean return", "mean length", "a mean return of 475"):
        assert label in frame, label
    for part in ("env", "copy", "policy", "update"):
        assert re.search(rf"│ {part} +[━╸╺].* [\d.]+%", frame), part
    assert re.search(r"copy .*results are written in place", frame)
    assert re.search(r"viewer +shoal watch CartPole-v1-\d+", frame)
    assert "┄┄┄" in frame and re.search(r"[▁▂▃▄▅▆▇█]{10}", frame)
    assert all(len(line.rstrip("\r")) <= 100 for line in frame.splitlines()[:20])
    assert "Goal not reached" in frame and "Traceback" not in text


def test_ctrl_c_restores_the_terminal(in_terminal):
    terminal = in_terminal("--env", "Pendulum-v1", "--steps", "100000000")
    terminal.read("mean return")
    terminal.interrupt()
    text = terminal.read("Next: ")
    assert terminal.end() == 130
    assert "Interrupted: mean return" in text and "Traceback" not in text
    _wait_for_the_end(terminal.process.pid)


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v0"])
def test_ctrl_c_ends_the_demo_and_its_workers(env):
    steps = ["--steps", "100000000", "--num-workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "shoal", "demo", "--num-envs", "2", "--env", env, *steps],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        if re.match(LINE, line):
            break
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    out, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Interrupted: mean return" in out and "Traceback" not in errors
    _wait_for_the_end(process.pid)


def _wait_for_the_end(group):
    deadline = time.monotonic() + 10
    while _group_alive(group):  # multiprocessing's own tracker ends a moment after its parent
        assert time.monotonic() < deadline, "processes of the demo are still running"
        time.sleep(0.02)


def _group_alive(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


# -- the viewer --------------------------------------------------------------------------------------


def test_watch_prints_the_link_keeps_playing_and_ends_the_viewer(in_terminal):
    terminal = in_terminal("--watch", "--steps", "3000", size=(40, 70))
    text = terminal.read("keeps playing in the viewer")
    link = re.match(r"viewer: (http://127\.0\.0\.1:\d+/\?token=[\w-]+)\r\n", text).group(1)
    assert re.search(r"│ viewer +http://127\.0\.0\.1:\d+/\?token=[\w-]+… │", text)
    visitor = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with visitor.open(link, timeout=10) as page:
        assert b"<html" in page.read()
    terminal.interrupt()
    assert terminal.end() == 0  # it had ended before
    assert "Traceback" not in terminal.text
    _wait_for_the_end(terminal.process.pid)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_demo_ends_the_viewer(how):
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-m",
            "shoal",
            "demo",
            "--watch",
            "--env",
            "Pendulum-v1",
            "--steps",
            "100000000",
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        for line in process.stdout:
            if re.match(LINE, line):
                break
        os.kill(process.pid, how)  # to it alone: the viewer hears nothing of it
        assert "Interrupted" in process.stdout.read()
        assert process.wait(20) == 130
    _wait_for_the_end(process.pid)


def test_viewer_that_does_not_start_is_an_error_with_its_output(monkeypatch):
    with pytest.raises(ShoalError, match="printed no link but: .*no-such-session"):
        with demo._run_viewer("no-such-session"):
            pass
    monkeypatch.setenv("SHOAL_SESSIONS", "off")
    with pytest.raises(ShoalError, match="needs a session, but SHOAL_SESSIONS is off"):
        demo.run(steps=100, watch=True)


# -- the curve ---------------------------------------------------------------------------------------


def test_text_curve_has_the_height_of_the_values():
    lines = format_curve([(0, 0.0), (100, 100.0), (200, 200.0)], 200.0, width=84, height=4)
    heights = [sum(line[4 + at] == "█" for line in lines[:4]) for at in (0, 25, 45, 79)]
    assert heights == [0, 1, 2, 4]
    assert lines[0].startswith("200 ┄┄┄┄") and lines[3].startswith("  0 ")
    assert lines[4].rstrip().endswith("200 steps") and {len(line) for line in lines} == {84}


def test_curve_of_no_value_and_of_one_value():
    assert len(format_curve([], None)) == len(format_curve([(5, -3.0)], None)) == 9
    assert len(format_curve([(5, 3.0)], 3.0)) == 9


def test_curve_is_ascii_if_the_terminal_prints_only_ascii(monkeypatch):
    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr(dashboard.sys, "stdout", Ascii())
    assert "\n".join(format_curve([(0, 0.0), (9, 5.0)], 5.0)).isascii()


def test_curve_picture_has_the_line_and_the_goal(tmp_path, capsys):
    path = tmp_path / "curve.png"
    assert main(["demo", "--steps", "5000", "--png", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    kept = []
    progress = Progress("t", 475.0, 100, "v", history=[(0, 0.0), (50, 250.0), (100, 500.0)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dashboard, "write_png", lambda path, picture: kept.append(picture))
        write_curve("x", progress)
    (picture,) = kept
    rows, columns = np.nonzero((picture == dashboard._CURVE).all(2))
    middle = rows[columns == (110 + 930) // 2].mean()
    assert columns.min() == 110 and columns.max() == 929
    assert abs(middle - (80 + 430) / 2) < 3  # half way along it is half way up
    goal_rows = np.unique(np.nonzero((picture == dashboard._GOAL).all(2))[0])
    assert len(goal_rows) == 2 and abs(goal_rows[0] - (430 - 350 * 0.95)) < 3


def test_unwritable_picture_is_a_one_line_error(tmp_path, capsys):
    assert main(["demo", "--steps", "3000", "--png", str(tmp_path / "no" / "x.png")]) == 1
    error = capsys.readouterr().err
    assert "cannot write" in error and "No such file" in error and error.count("\n") == 1


def test_shares_include_the_remaining_time():
    progress = Progress("t", None, 100, "v", elapsed_s=10.0, times={"env": 1.0, "update": 7.0})
    assert progress.shares == pytest.approx({"env": 0.1, "update": 0.7, "other": 0.2})
    assert [format_percent(share) for share in (0.0, 0.0021, 0.0996, 0.87)] == ["0.0%", "0.2%", "10%", "87%"]
