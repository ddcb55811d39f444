"""The demo really steps environments, shows what it sees, and ends cleanly."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from shoal import demo
from shoal.errors import ShoalError


@pytest.mark.parametrize("backend", ["native", "workers"])
def test_the_demo_steps_environments_and_reports_their_statistics(backend, capsys, monkeypatch):
    if backend == "workers":
        monkeypatch.setattr(demo, "bundled", dict)
    assert demo.run("CartPole-v1", 6, 2, 0.6, 0) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "6 x CartPole-v1" in lines[0]
    assert ("native engine" in lines[0]) == (backend == "native")
    assert "env steps" in lines[1]
    cells = re.split(r"  +", lines[2].strip())
    steps, episodes, length = _number(cells[1]), _number(cells[3]), float(cells[5])
    assert steps > 100 and episodes > 1
    assert 10 < length < 50  # random actions keep the pole up about 22 steps
    assert re.match(r"[\d,]+ environment steps/s", lines[-2])


def _number(text):
    value, _, unit = text.partition(" ")
    return float(value) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]


@pytest.mark.parametrize("env", ["Blackjack-v1", "FrozenLake-v1"])
def test_tuple_and_discrete_observations_work_too(env, capsys):
    assert demo.run(env, 3, 5, 0.2, 1) == 0
    assert "3 worker processes" in capsys.readouterr().out  # never more workers than environments


def test_a_worker_that_dies_ends_the_demo_with_its_exit_code(monkeypatch):
    monkeypatch.setattr(demo, "bundled", dict)
    monkeypatch.setattr(demo, "_worker", _dying_worker)
    with pytest.raises(ShoalError, match=r"worker \d \(process \d+\) ended with exit code 3"):
        demo.run("CartPole-v1", 2, 1, 5, 0)


def _dying_worker(*_):
    sys.exit(3)


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1"])
def test_ctrl_c_ends_the_demo_quietly_and_its_workers_with_it(env):
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "shoal", "demo", "--seconds", "60", "--num-envs", "4", "--env", env],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        if re.match(r" *\d+\.\d s ", line):
            break
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors
    deadline = time.monotonic() + 10
    while _group_alive(process.pid):  # multiprocessing's own tracker ends a moment after its parent
        assert time.monotonic() < deadline, "processes of the demo are still running"
        time.sleep(0.02)


def _group_alive(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False
