"""`shoal watch`, `ps`, `top` and `metrics`, as a user types them, over sessions without a run."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import shoal
from shoal.cli import main
from shoal.errors import SessionError
from shoal.state.names import directory
from shoal.viewer import commands
from shoal.viewer.metrics import Sample, format_metrics
from shoal.viewer.processes import tree_bytes
from shoal.viewer.top import format_count, format_duration, sparkline
from tests.viewer.fakes import FakeSession, plain


@pytest.fixture
def live(monkeypatch):
    """Makes these sessions the ones that live."""

    def use(*fakes):
        by_name = {fake.facts["name"]: fake for fake in fakes}

        def attach(name=None):
            if name is None and len(by_name) != 1:
                raise SessionError(f"{len(by_name)} sessions live: {', '.join(by_name)}; name one")
            if name is not None and name not in by_name:
                raise SessionError(f"no session {name!r}")
            return by_name[name or next(iter(by_name))]

        monkeypatch.setattr(commands, "attach", attach)
        monkeypatch.setattr(commands, "sessions", lambda: [fake.facts for fake in fakes])
        return fakes

    return use


# -- ps ----------------------------------------------------------------------------------------------


def test_ps_lists_every_session_with_its_rate(live, capsys):
    one = FakeSession(auto=True, pid=os.getpid())
    two = FakeSession(
        name="cart", env="Cart\x1b[2JPole", workers=0, started=time.time() - 7500, pid=2**22 + 1
    )
    live(one, two)
    assert main(["ps"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == list(commands._COLUMNS)
    cells = re.split(r"  +", first)
    assert cells[:5] == ["reef-1", "Reef-v0", str(os.getpid()), "32", "3"]
    assert int(cells[5]) >= 64 and 10 < float(cells[6]) < 110  # 32 steps in 0.3 s at least
    assert cells[8].endswith("MB") and cells[9] == "1m40s"
    cells = re.split(r"  +", second)
    assert cells == ["cart", "Cart?[2JPole", str(2**22 + 1), "32", "threads", "0", "0", "0", "-", "2h05m"]
    assert one.closed and two.closed


def test_ps_as_json_has_all_facts_and_counters(live, capsys):
    live(FakeSession(pid=os.getpid(), odd=float("inf")))
    assert main(["ps", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert row["name"] == "reef-1" and row["num_envs"] == 64 and row["odd"] is None
    assert row["steps_per_s"] == 0 and row["memory_bytes"] > 1 << 20 and 100 <= row["uptime_s"] < 130


def test_ps_without_sessions_prints_that_there_are_none(live, capsys):
    live()
    assert main(["ps"]) == 0
    assert capsys.readouterr().out == f"no live sessions in {directory()}\n"
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_ps_skips_a_session_that_ends_in_the_meantime(live, capsys):
    class Short(FakeSession):
        def counters(self):
            found = super().counters()
            self.end()
            return found

    live(Short(name="short"), FakeSession(name="long"))
    assert main(["ps"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NAME", "long"]


def test_memory_is_summed_over_the_process_tree_with_shared_pages_once(tmp_path):
    page = os.sysconf("SC_PAGE_SIZE")
    for pid, parent, pages in ((10, 1, "9 5 2"), (11, 10, "9 7 4"), (12, 11, "9 3 1"), (13, 1, "9 99 0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) 7 (b) S {parent} 0 0")
        (tmp_path / str(pid) / "statm").write_text(f"{pages} 1 0 1 0")
    assert tree_bytes(10, tmp_path) == (3 + 3 + 2 + 4) * page
    assert tree_bytes(99, tmp_path) is None


# -- metrics -----------------------------------------------------------------------------------------


def test_metrics_are_in_the_prometheus_format(live, capsys):
    one, two = live(
        FakeSession(pid=os.getpid()), FakeSession(name="cart", env="Cart", workers=0, pid=2**22 + 1)
    )
    one.step(10)
    one.finish(-2.5, 7)
    assert main(["metrics"]) == 0
    text = capsys.readouterr().out
    values, families = read_metrics(text)
    reef, cart = 'session="reef-1",env="Reef-v0"', 'session="cart",env="Cart"'
    assert values["shoal_steps_total", reef] == 320 and values["shoal_steps_total", cart] == 0
    assert values["shoal_episodes_total", reef] == 1
    assert (
        values["shoal_episode_return_sum", reef] == -2.5 and values["shoal_episode_return_count", reef] == 1
    )
    assert values["shoal_episode_length_sum", reef] == 7
    assert values["shoal_environments", reef] == 32 and values["shoal_rows", reef] == 64
    assert values["shoal_workers", reef] == 3 and values["shoal_workers", cart] == 0
    assert values["shoal_memory_bytes", reef] > 1 << 20 and ("shoal_memory_bytes", cart) not in values
    assert values["shoal_start_time_seconds", reef] == one.facts["started"]
    assert families["shoal_steps_total"] == "counter" and families["shoal_episode_return"] == "summary"
    assert main(["metrics", "cart"]) == 0
    logged = f'{cart},name="loss"'
    assert {labels for _, labels in read_metrics(capsys.readouterr().out)[0]} == {cart, logged}


def read_metrics(text):
    """Reads the format line by line: a family's HELP and TYPE first, each once, then its samples together."""
    values, families = {}, {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            kind = re.fullmatch(rf"# TYPE {family} (counter|gauge|summary)", next(lines))[1]
            assert family not in families
            families[family] = kind
            continue
        name, labels, value = re.fullmatch(
            r"([a-z_]+)\{((?:[a-z]+=\"(?:[^\"\\\n]|\\.)*\",?)+)\} (\S+)", line
        ).groups()
        assert name in ((family,) if kind != "summary" else (f"{family}_sum", f"{family}_count"))
        assert (name, labels) not in values
        values[name, labels] = float(value)
    assert text.endswith("\n")
    return values, families


def test_labels_are_escaped_and_nan_and_infinity_are_written_as_prometheus_does():
    facts = FakeSession(env='a"b\\c\nd').facts
    for number, word in ((float("nan"), "NaN"), (float("inf"), "+Inf"), (float("-inf"), "-Inf")):
        counters = {"steps": 1, "episodes": 2, "return_sum": number, "length_sum": 3, "odd_returns": 0}
        text = format_metrics([Sample(facts, counters, None)])
        assert 'env="a\\"b\\\\c\\nd"' in text
        assert f'"}} {word}\n' in text and "memory" not in text


def test_an_episode_whose_return_is_nan_counts_for_the_mean_length_and_not_for_the_mean_return():
    counters = {"steps": 60, "episodes": 3, "return_sum": 40.0, "length_sum": 60, "odd_returns": 1}
    values, _ = read_metrics(format_metrics([Sample(FakeSession().facts, counters, None)]))
    numbers = {name: value for (name, _), value in values.items()}
    assert numbers["shoal_episode_return_sum"] / numbers["shoal_episode_return_count"] == 20
    assert numbers["shoal_episode_length_sum"] / numbers["shoal_episode_length_count"] == 20


def test_metrics_without_sessions_are_empty_and_a_wrong_name_raises(live, capsys):
    live()
    assert main(["metrics"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["metrics", "none"]) == 1
    assert capsys.readouterr().err == "shoal metrics: no session 'none'\n"


# -- top ---------------------------------------------------------------------------------------------


@pytest.fixture
def sleeping_clock(monkeypatch):
    """The clock of `shoal top` goes only while it sleeps, so that a busy machine changes nothing."""
    clock = SimpleNamespace(now=time.monotonic())
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: (time.sleep(0.01), setattr(clock, "now", clock.now + seconds))
    monkeypatch.setattr("shoal.viewer.top.time", clock)


@pytest.mark.usefixtures("sleeping_clock")
def test_top_prints_lines_without_a_terminal(live, capsys):
    (fake,) = live(FakeSession(auto=True))
    assert main(["top", "--seconds", "1.2", "--env", "3", "--env", "4", "--env", "3"]) == 0
    title, header, *lines = capsys.readouterr().out.splitlines()
    assert title == "reef-1: 32 x Reef-v0, pid 1"
    assert header.split()[:3] == ["time", "env", "steps"] and header.endswith(
        " env 3 episode:tick env 4 episode:tick        loss"
    )
    assert len(lines) == 3  # after 0.5, 1 and 1.2 seconds
    for line in lines:
        cells = re.split(r"  +", line.strip())
        assert cells[2] != "0" and re.fullmatch(r"0:\d+", cells[-2]) and cells[-1] == "nan"
    assert fake.watched == [3, 4] and fake.rate_hz >= 4 and fake.closed


@pytest.mark.parametrize("last_question", ["counters", "latest"])
def test_top_ends_with_the_run(last_question, live, capsys):
    class Short(FakeSession):
        asked = 0

        def counters(self):
            self.asked += 1
            if self.asked == 2 and last_question == "counters":
                self.end()
            return super().counters()

        def latest(self, env_id, after=0):
            self.end()
            return super().latest(env_id, after)

    live(Short())
    assert main(["top"]) == 0
    assert capsys.readouterr().out.endswith("the run has ended\n")


def test_top_of_an_unknown_environment_raises(live, capsys):
    live(FakeSession())
    assert main(["top", "--env", "32"]) == 1
    assert capsys.readouterr().err == "shoal top: no environment among [32]\n"


def test_short_formats_of_counts_and_durations():
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█" and sparkline([0, 0]) == "▁▁" and sparkline([]) == ""
    assert [format_count(x) for x in (None, 0, 999, 1500, -2e6, 3e9)] == [
        "-",
        "0",
        "999",
        "1.5 k",
        "-2.0 M",
        "3.0 G",
    ]
    assert [format_duration(x) for x in (-1, 59.9, 61, 7500)] == ["0s", "59s", "1m01s", "2h05m"]


# -- as processes ------------------------------------------------------------------------------------

SCRIPT = """
import sys
from shoal.cli import main
from shoal.viewer import commands
from tests.viewer.fakes import FakeSession
fake = FakeSession(auto=True)
commands.attach = lambda name=None: fake
commands.sessions = lambda: [fake.facts]
commands.read_assets = lambda page: {"/": b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\npage"}
commands.webbrowser.open = lambda link: print("opened", link, flush=True)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def start():
    """Starts `shoal ARGUMENTS` over a fake session; ends it with the test."""
    started = []

    def run(*arguments, stdout=subprocess.PIPE, **environment):
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", SCRIPT, *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "DISPLAY": ":0", **environment},
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_serves_the_page_until_a_signal(start, number):
    process = start("watch", "--no-browser")
    assert process.stdout.readline() == "reef-1: 32 x Reef-v0, pid 1\n"
    link = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", link)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(link.partition("?")[0], timeout=10)
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with pytest.raises(urllib.error.HTTPError, match="403"):
        opener.open(link[:-1], timeout=10)
    with opener.open(link, timeout=10) as page:
        assert page.read() == b"page" and "token" not in page.url
    process.send_signal(number)
    out, errors = process.stdout.read(), process.stderr.read()
    assert (process.wait(20), errors) == (0, "")
    assert out == "Ctrl-C ends the viewer; the run continues.\n"  # no browser, and the token is printed once


def test_a_browser_is_given_a_link_that_works_once(start):
    process = start("watch")
    printed = [process.stdout.readline() for _ in range(4)]
    link, opened = printed[1].strip(), printed[3].split()
    assert opened[0] == "opened" and opened[1] != link
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(opened[1], timeout=10) as page:
        assert page.read() == b"page"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(opened[1], timeout=10)


def test_without_a_screen_no_browser_opens(start):
    process = start("watch", DISPLAY="", WAYLAND_DISPLAY="")
    for _ in range(3):
        process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == ""


def test_another_address_prints_a_warning_and_still_needs_the_token(start):
    process = start("watch", "--no-browser", "--host", "0.0.0.0")
    printed = [process.stdout.readline() for _ in range(3)]
    assert "unencrypted" in process.stderr.readline()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(printed[1].partition("?")[0], timeout=10)


def test_ctrl_c_ends_top_quietly(start):
    process = start("top")
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert (process.wait(20), process.stderr.read()) == (0, "")


def test_top_draws_in_a_terminal(start):
    master, terminal = pty.openpty()
    process = start("top", "--seconds", "1.2", stdout=terminal, TERM="xterm", COLUMNS="150", LANG="C.UTF-8")
    os.close(terminal)
    drawn = b""
    try:
        while chunk := os.read(master, 65536):
            drawn += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(master)
    assert process.wait(20) == 0
    text = drawn.decode()
    assert "reef-1: 32 x Reef-v0" in text and "mean length" in text
    assert re.search("steps/s [▁▂▃▄▅▆▇█]{2}", text)


@pytest.mark.parametrize(
    "arguments", [["--port", "65536"], ["--port", "-1"], ["--env", "x", "--png", "a.png"], ["--png", "a.jpg"]]
)
def test_bad_arguments_raise_and_are_named(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["watch", *arguments])
    assert stopped.value.code == 2 and arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize("command", ["watch", "top"])
def test_several_sessions_need_a_name(command, live, capsys, monkeypatch):
    monkeypatch.setattr(commands, "read_assets", lambda page: {"/": b""})
    live(FakeSession(), FakeSession(name="cart"))
    assert main([command]) == 1
    assert capsys.readouterr().err == f"shoal {command}: 2 sessions live: reef-1, cart; name one\n"


# -- pictures ----------------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """What was rendered and where it was written."""
    found = []
    monkeypatch.setattr(shoal.state, "render", lambda snapshot: np.full((2, 3, 3), snapshot.env_id, np.uint8))

    def write(path, pixels):
        with open(path, "wb"):
            found.append((path, int(pixels[0, 0, 0])))

    monkeypatch.setattr(shoal.state, "write_png", write)
    return found


def test_watch_png_writes_a_picture_of_one_environment(live, drawn, tmp_path, capsys):
    (fake,) = live(FakeSession())
    path = str(tmp_path / "out.png")
    assert main(["watch", "--png", path, "--env", "5", "reef-1"]) == 0
    assert drawn == [(path, 5)] and capsys.readouterr().out == f"{path}\n" and fake.closed


def test_a_picture_that_cannot_be_made_prints_one_line_of_error(live, drawn, tmp_path, capsys):
    (fake,) = live(FakeSession())
    assert main(["watch", "--png", str(tmp_path / "none" / "out.png")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["watch", "--png", "out.png", "--env", "99"]) == 1
    assert "no environment" in capsys.readouterr().err
    waited = []

    def snapshot(env, timeout_s):
        waited.append(timeout_s)
        raise TimeoutError("no step")

    fake.snapshot = snapshot
    assert main(["watch", "--png", "out.png"]) == 1
    error = capsys.readouterr().err
    assert "made no step within 5 s" in error and "--timeout" in error and error.count("\n") == 1
    assert main(["watch", "--png", "out.png", "--timeout", "0.5"]) == 1
    assert "made no step within 0.5 s" in capsys.readouterr().err and waited == [5, 0.5]


def test_a_picture_of_a_failed_environment_prints_its_error(live, drawn, tmp_path, capsys):
    path = str(tmp_path / "out.png")
    live(FakeSession(plain))  # it has a frame, so there is something to see
    assert main(["watch", "--png", path]) == 0
    assert capsys.readouterr().err == "shoal watch: environment 0: export_state() is not there\n"
    live(FakeSession(lambda *at: replace(plain(*at), step={})))
    assert main(["watch", "--png", path]) == 1
    assert "export_state() is not there" in capsys.readouterr().err and len(drawn) == 2


def test_an_installation_without_the_page_raises(live, monkeypatch, capsys):
    live(FakeSession())
    monkeypatch.setattr(commands, "read_assets", lambda page: {})
    assert main(["watch"]) == 1
    assert "page is missing from this installation" in capsys.readouterr().err
