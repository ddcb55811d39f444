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


@pytest.mark.parametrize("num_workers", [None, 2])
def test_the_demo_steps_environments_and_reports_their_statistics(num_workers, capsys):
    assert demo.run("CartPole-v1", 70, num_workers, 0.6, 0) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "70 x CartPole-v1" in lines[0]
    assert ("native engine" in lines[0]) == (num_workers is None)
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


def test_an_environment_that_does_not_exist_is_a_clear_error():
    with pytest.raises(ShoalError, match="no environment 'Nope-v0'"):
        demo.run("Nope-v0", 2, None, 1, 0)


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
