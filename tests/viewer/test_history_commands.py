"""Histories and logged values in the commands: watch FILE, --history, top, metrics, TensorBoard."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest

import shoal
from shoal.cli import main
from shoal.errors import SessionError
from shoal.state import History, read_history
from shoal.state.history import CURVES
from shoal.viewer.metrics import Sample, format_metrics
from shoal.viewer.protocol import history_message
from shoal.viewer.recorded import Recorded, find_file
from shoal.viewer.tensorboard import Events, _mask
from tests.crash.fragile import wait_until
from tests.viewer.fakes import FakeSession
from tests.viewer.raw import Page


@pytest.fixture
def run(name):
    """A run that has logged, and its history has bins."""
    envs = shoal.make_vec("CartPole-v1", 4, session=name)
    envs.reset(seed=0)
    with shoal.attach(name) as session:
        for _ in range(60):
            envs.step([0] * 4)
            envs.log(loss=0.5, **{'odd "name"': -2})
        wait_until(lambda: session.history()["loss"].weight.any(), 20)
    yield envs
    envs.close()


def test_metrics_have_logged_values(run, capsys):
    assert main(["metrics", run.session]) == 0
    told = capsys.readouterr().out
    assert f'shoal_logged{{session="{run.session}",env="CartPole-v1",name="loss"}} 0.5\n' in told
    assert 'name="odd \\"name\\""} -2.0\n' in told and "# TYPE shoal_logged gauge\n" in told
    assert "# TYPE shoal_steps_total counter\n" in told and "# EOF" not in told
    assert main(["metrics", run.session, "--openmetrics"]) == 0
    told = capsys.readouterr().out
    assert "# TYPE shoal_steps counter\n" in told and "\nshoal_steps_total{" in told
    assert told.endswith("# EOF\n") and told.count("# EOF") == 1


def test_openmetrics_is_what_prometheus_parses():
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus_client is missing: make test-viewer"
    )
    sample = Sample(
        {"name": "a", "env": "b", "num_worlds": 1, "num_envs": 1, "workers": 0, "started": 1.0},
        {"steps": 3, "episodes": 1, "return_sum": -2.0, "length_sum": 3, "odd_returns": 0},
        None,
        {"loss": float("nan"), "kl": 0.25},
    )
    families = {
        one.name: one for one in parser.text_string_to_metric_families(format_metrics([sample], True))
    }
    assert families["shoal_steps"].type == "counter"
    assert [one.labels["name"] for one in families["shoal_logged"].samples] == ["loss", "kl"]


def test_top_shows_logged_values(run, capsys):
    assert main(["top", run.session, "--seconds", "0.7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "loss" in lines[1] and 'odd "name"' in lines[1]
    assert lines[2].split()[-2:] == ["0.5", "-2"]


def watch(*arguments, **variables):
    command = [sys.executable, "-m", "shoal", "watch", "--no-browser", *map(str, arguments)]
    variables = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def test_the_viewer_keeps_a_history_of_a_run_that_is_killed(name, start_python, tmp_path):
    run = start_python(
        "import shoal, sys\n"
        "envs = shoal.make_vec('CartPole-v1', 4, session=sys.argv[1])\n"
        "envs.reset(seed=0)\n"
        "print('there', flush=True)\n"
        "while True:\n"
        "    envs.step([0] * 4)\n",
        name,
    )
    assert run.read() == "there"
    viewer = watch(name, "--history", tmp_path / "h", SSH_CONNECTION="a 1 b 2")
    try:
        title, link = viewer.stdout.readline(), viewer.stdout.readline()
        assert name in title and link.startswith("http://127.0.0.1:")
        assert viewer.stdout.readline() == "Ctrl-C ends the viewer; the run continues.\n"
        port = link.split(":")[2].split("/")[0]
        assert f"ssh -N -L {port}:127.0.0.1:{port}" in viewer.stdout.readline()
        wait_until(lambda: (tmp_path / "h").exists(), 20)
        time.sleep(0.8)
        os.kill(run.pid, signal.SIGKILL)
        assert "has ended" in viewer.stdout.readline()
        wait_until(lambda: len(read_history(tmp_path / "h")) >= 3, 20)
    finally:
        viewer.terminate()
        assert viewer.wait(20) == 0
        viewer.stdout.close()
        viewer.stderr.close()
    assert name not in [facts["name"] for facts in shoal.state.sessions()]


def test_watch_opens_a_history_file(tmp_path):
    envs = shoal.make_vec("CartPole-v1", 4, history=tmp_path / "h")
    envs.log(loss=1)
    envs.close()
    viewer = watch(tmp_path / "h")
    try:
        assert "history of 4 x CartPole-v1, from h" in viewer.stdout.readline()
        link = urlsplit(viewer.stdout.readline().strip())
        away = SimpleNamespace(
            port=link.port,
            token=link.query.removeprefix("token="),
            connect=lambda _: socket.create_connection(("127.0.0.1", link.port), 10),
        )
        with Page(away, None) as page:
            assert page.until("hello")["facts"]["file"] == "h"
            assert page.until("history")["last"] == {"loss": 1.0}
            assert page.until("counters")["run"] == "ended"
    finally:
        viewer.terminate()
        assert viewer.wait(20) == 0
        viewer.stdout.close()
        viewer.stderr.close()


def test_wrong_files_are_errors(tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_text("no")
    assert main(["watch", str(tmp_path / "text")]) == 1
    assert "is not a history of Shoal" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "absent")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["metrics", str(tmp_path / "text"), "--tensorboard", str(tmp_path / "t")]) == 1
    assert "is not a history of Shoal" in capsys.readouterr().err
    envs = shoal.make_vec("CartPole-v1", 2)
    assert main(["watch", envs.session, "--history", str(tmp_path / "no" / "h")]) == 1
    assert "cannot save the history" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / envs.session).touch()
    assert find_file(envs.session) is None  # a running session has priority
    assert find_file("text").name == "text" and find_file("nothing-here") is None and find_file(None) is None
    envs.close()


def test_a_file_with_odd_facts_is_shown(tmp_path):
    history = FakeSession().history()
    odd = {"name": "x", "num_worlds": "many", "pid": None, "env": ["a"], "started": 5.0}
    History(odd, history.bins, history.curves, history.names, {}).save(tmp_path / "h")
    facts = Recorded(tmp_path / "h").facts
    assert (facts["num_worlds"], facts["pid"], facts["env"], facts["file"]) == (1, 0, "unknown", "h")
    assert facts["started"] == 5.0 and Recorded(tmp_path / "h").counters()["steps"] == 10


# -- the page's message ------------------------------------------------------------------------------------


def test_a_page_gets_a_whole_history_and_then_only_new_bins():
    session = FakeSession()
    session.step(95)
    history = session.history()
    whole = history_message(history, session.returns(), None)
    (size,) = struct.unpack("<I", whole[:4])
    start = -(-(4 + size) // 8) * 8
    begin = np.frombuffer(whole, "<f8", 10, start)
    curves = np.frombuffer(whole, "<f4", 10 * 4 * 4, start + 4 * 80).reshape(10, 4, 4)
    assert b'"whole":true' in whole and np.array_equal(begin, np.arange(10) / 4)
    assert np.array_equal(curves, history.curves) and b'"last":{"loss":null}' in whole
    assert history_message(history, None, 2.5) is None
    session.step(10)
    some = history_message(session.history(), None, 2.5)
    assert b'"whole":false' in some and b'"bins":1,' in some
    assert b'"whole":true' in history_message(history, None, 2.4)  # a bin was merged with the next one


def test_the_server_sends_the_history_of_a_session(serve):
    session = FakeSession(auto=True)
    with serve(session).page() as page:
        found = page.until("history")
        assert found["whole"] and found["names"] == [*CURVES, "loss"]
        assert found["returns"] == {"count": 3, "low": -1.0, "high": 5.0, "bins": [1, 0, 2]}
        session.step(20)
        assert not page.until("history")["whole"]
    assert session.history()  # after the end as well
    session.end()
    with serve(session).page() as page:
        assert page.until("history")["whole"]


# -- other sessions, links ---------------------------------------------------------------------------------


def test_a_page_gets_another_session_by_its_name(serve):
    other = FakeSession(name="other", num_worlds=3)

    def open_session(name):
        if name != "other":
            raise SessionError(f"no session is called {name!r}")
        return other

    running = serve(FakeSession(auto=True), open_session=open_session, sessions=lambda: ["reef-1", "other"])
    with running.page(path="/socket?session=other") as page, running.page() as plain:
        assert page.until("hello")["facts"]["name"] == "other"
        assert page.until("history")["whole"]
        page.send(b'{"type": "watch", "envs": [3]}')
        assert "this run has 3" in page.until("error")["message"]
        page.watch(2)
        plain.watch(31)
        wait_until(lambda: other.watched == [2], 10)
        assert plain.until("hello")["sessions"] == ["reef-1", "other"]
    wait_until(lambda: other.closed, 10)  # no page watches it any more
    for query in ("session=x", "session=%00", "session=../../etc", "session=" + "x" * 3000, "session"):
        with running.page(path=f"/socket?{query}") as page:
            if query == "session":  # no name: the viewer's own session
                assert page.until("hello")["facts"]["name"] == "reef-1"
            else:
                assert page.closed() == 4404


def test_a_page_without_other_sessions_is_told_so(serve):
    with serve().page(path="/socket?session=other") as page:
        assert page.closed() == 4404


def test_a_link_for_a_colleague_opens_the_page_once(serve):
    running = serve()
    with running.page() as page:
        page.send(b'{"type": "link"}')
        found = page.until("link")
        assert found["port"] == running.port and running.token not in found["url"]
        path = found["url"].removeprefix(f"http://127.0.0.1:{running.port}")
        assert running.get(path, token=False)[0] == 303
        assert running.get(path, token=False)[0] == 403
        links = []
        for _ in range(20):
            page.send(b'{"type": "link"}')
            links.append(page.until("link")["url"].removeprefix(f"http://127.0.0.1:{running.port}"))
        works = [running.get(path, token=False)[0] for path in links]
        assert works == [403] * 4 + [303] * 16  # only the last ones


# -- TensorBoard -------------------------------------------------------------------------------------------


def test_the_checksum_is_that_of_the_rfc():
    crc = (_mask(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (crc >> 17 | crc << 15) & 0xFFFFFFFF == 0xE3069283


def read_events(path):
    """A reader of event files from their definition: [(wall time, step, {tag: value})]."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == _mask(data[at : at + 8])
        event = data[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == _mask(event)
        at += 16 + size
        fields = dict(read_fields(event))
        values = [dict(read_fields(one)) for key, one in read_fields(fields.get(5, b"")) if key == 1]
        tags = {one[1].decode(): struct.unpack("<f", one[2])[0] for one in values}
        found.append((struct.unpack("<d", fields[1])[0], fields.get(2, 0), tags))
    return found


def read_fields(message):
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[at : at + size]
        at += size


def test_events_have_every_bin_once(tmp_path):
    session = FakeSession(started=1000.0)
    session.step(25)
    with Events(tmp_path / "new" / "logs") as events:
        events.add(session.history())
        session.step(10)
        events.add(session.history())
    found = read_events(events.path)
    assert [step for _, step, _ in found] == [0, 10, 20, 30, 40]
    assert [time for time, _, _ in found[1:]] == [1000.25, 1000.5, 1000.75, 1001.0]
    tags = {f"episode/{name}{part}" for name in ("return", "length") for part in ("", "_low", "_high")}
    assert set(found[2][2]) == tags | {"time/steps_per_s", "loss"} and found[4][2]["loss"] == 3.0


def test_the_command_writes_events_until_the_run_ends(run, tmp_path, capsys):
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "metrics", run.session, "--tensorboard", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: any(tmp_path.iterdir()), 20)
    run.log(loss=0.5)
    run.close()
    out, _ = process.communicate(timeout=20)
    (path,) = tmp_path.iterdir()
    assert process.returncode == 0 and out.strip() == str(path) and "tfevents" in path.name
    assert any(tags.get("loss") == 0.5 for _, _, tags in read_events(path))
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is missing: make test-viewer",
    )
    loaded = accumulator.EventAccumulator(str(path))
    loaded.Reload()
    assert {"episode/return", "loss", 'odd "name"'} <= set(loaded.Tags()["scalars"])
    assert all(one.value == 0.5 for one in loaded.Scalars("loss"))


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(shoal.errors.ShoalError, match="choose another directory"):
        Events(tmp_path / "file")
