"""Server and commands over real runs in processes of their own."""

import json
import os
import re
import signal

import numpy as np
import pytest

from shoal.cli import main
from shoal.state.attach import attach
from tests.viewer.test_commands import read_metrics

RUN = """
import select, sys, time
import numpy as np, shoal
options = {"native": {}, "process": {"backend": "process", "num_workers": 2}}[sys.argv[2]]
envs = shoal.make_vec(sys.argv[1], 4, session="live", **options)
envs.reset(seed=0)
print("ready", flush=True)
actions = np.zeros(4, np.int64)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    envs.step(actions)
envs.close()
"""


@pytest.fixture
def run(start_python, tmp_path, monkeypatch):
    """Starts a run called "live", the only one this test can see."""
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))

    def start(env="CartPole-v1", backend="native"):
        child = start_python(RUN, env, backend)
        assert child.read() == "ready"
        return child

    return start


@pytest.mark.parametrize("backend", ["native", "process"])
def test_a_page_sees_a_run_step_and_end(run, backend, serve):
    child = run(backend=backend)
    with attach() as session, serve(session).page() as page:
        assert page.message()["facts"]["num_worlds"] == 4
        page.watch(0, 3, rate=60)
        told = [page.until("frame", lambda told: told["env"] == 3) for _ in range(3)]
        times = [one["time"] for one in told]
        assert times == sorted(set(times))
        fields = {one["name"]: one for one in told[0]["fields"]}
        assert (
            fields["observation"]["data"].shape == (4,) and fields["observation"]["data"].dtype == np.float32
        )
        counters = page.until("counters", lambda one: one["episodes"] > 0)
        assert counters["run"] == "stepping" and counters["steps_per_s"] > 0
        assert 5 < counters["mean_length"] < 20  # always pushed to one side
        child.end() if backend == "native" else child.kill()
        ended = page.until("counters", lambda one: one["run"] == "ended")
        assert ended["steps"] >= counters["steps"]


def test_a_stopped_run_is_idle_and_can_continue(run, serve):
    child = run()
    with attach() as session, serve(session).page() as page:
        page.until("counters", lambda one: one["run"] == "stepping")
        os.kill(child.pid, signal.SIGSTOP)
        try:
            assert page.until("counters", lambda one: one["run"] == "idle")
        finally:
            os.kill(child.pid, signal.SIGCONT)
        assert page.until("counters", lambda one: one["run"] == "stepping")


def test_the_commands_show_a_run(run, capsys):
    child = run(backend="process")
    assert main(["ps", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["pid"], row["num_worlds"], row["workers"]) == ("live", child.pid, 4, 1)
    assert row["steps_per_s"] > 10 and row["memory_bytes"] > 10 << 20 and 0 <= row["uptime_s"] < 100
    assert main(["ps"]) == 0
    assert re.match(r"live +CartPole-v1 +\d+ +4 +1 ", capsys.readouterr().out.splitlines()[1])
    assert main(["metrics"]) == 0
    values, _ = read_metrics(capsys.readouterr().out)
    assert values["shoal_steps_total", 'session="live",env="CartPole-v1"'] >= row["steps"]
    assert main(["top", "--seconds", "0.8", "--env", "2"]) == 0
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("live: 4 x CartPole-v1") and re.search(r"\d+:\d+$", lines[-1])
    assert main(["top", "other"]) == 1
    assert "is called 'other'; live sessions: live" in capsys.readouterr().err


def test_without_a_run_the_commands_report_it(run, capsys):
    assert main(["top"]) == 1
    none = f"no live sessions in {os.environ['SHOAL_SESSION_DIR']}"
    assert capsys.readouterr().err.startswith(f"shoal top: there are {none}; ")
    assert main(["watch"]) == 1 and capsys.readouterr().err.startswith(f"shoal watch: there are {none}; ")
    assert main(["metrics"]) == 0 and main(["ps"]) == 0
    assert capsys.readouterr().out == f"{none}\n"
