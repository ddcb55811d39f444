"""C environments in worker processes: a crash in C ends a worker, not the trainer."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import WorkerDied, WorkerTimeout
from tests.crash.fragile import SOON_S, actions, at_most, is_running

SOURCE = Path(__file__).parents[1] / "native" / "plugins" / "crashing.c"
CRASH, HANG = 1, 2

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def make(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "crashing"))
    made = []

    def start(**options):
        made.append(shoal.make_vec(SOURCE, 4, backend="process", num_workers=2, **options))
        return made[-1]

    yield start
    for envs in made:
        pids = [pid for pid in envs.worker_pids if pid is not None]
        envs.close()
        assert not any(map(is_running, pids))


def test_a_segfault_of_a_C_environment_is_raised_with_its_rows_and_the_others_go_on(make):
    envs = make()
    envs.reset(seed=0)
    with at_most(SOON_S), pytest.raises(WorkerDied) as caught:
        envs.step(actions(2, CRASH))
    assert caught.value.env_ids == [2, 3] and caught.value.signal == signal.SIGSEGV
    assert "native_chunk.py" in caught.value.stderr
    envs.reset(seed=0)
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_C_environment_that_hangs_is_killed_in_time(make):
    envs = make(step_timeout_s=0.3)
    envs.reset(seed=0)
    with at_most(0.3 + 0.5 + SOON_S), pytest.raises(WorkerTimeout) as caught:
        envs.step(actions(0, HANG))
    assert caught.value.env_ids == [0, 1]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_C_environments_of_a_worker_that_crashed_are_replaced(make, mode):
    envs = make(on_fault="restart", autoreset_mode=mode)
    envs.reset(seed=0)
    envs.step(actions())
    observation, reward, terminated, truncated, info = envs.step(actions(3, CRASH))
    assert truncated.tolist() == info["_fault"].tolist() == [False, False, True, True]
    assert reward.tolist() == [2, 2, 0, 0] and not terminated.any()
    assert observation[:, 0].tolist() == [2, 2, 0, 0] and "SIGSEGV" in info["fault"][2]
    if mode == "Disabled":
        envs.reset(options={"reset_mask": truncated.copy()})
    first = 0 if mode == "NextStep" else 1  # that step resets
    assert envs.step(actions())[1].tolist() == [3, 3, first, first]
    assert envs.step(actions())[1].tolist() == [4, 4, first + 1, first + 1]


def test_reset_after_a_restart_is_not_repeated_by_the_next_step(make):
    envs = make(on_fault="restart")
    envs.reset(seed=0)
    envs.step(actions(0, CRASH))
    envs.reset(options={"reset_mask": np.array([True, False, True, False])})
    assert envs.step(actions())[1].tolist() == [1, 0, 1, 2]
    envs.step(actions(2, CRASH))
    envs.reset(seed=1)
    assert envs.step(actions())[1].tolist() == [1, 1, 1, 1]


def test_a_killed_worker_of_a_bundled_environment_is_replaced():
    options = {"backend": "process", "num_workers": 2, "on_fault": "restart"}
    with shoal.make_vec("shoal/CartPole-v1", 128, **options) as envs:
        envs.reset(seed=3)
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        observation, reward, terminated, truncated, info = envs.step(np.zeros(128, np.int64))
        assert truncated.tolist() == [False] * 64 + [True] * 64 and not terminated.any()
        assert reward.tolist() == [1.0] * 64 + [0.0] * 64 and info["_fault"].tolist() == truncated.tolist()
        assert (np.abs(observation[64:]) <= 0.05).all()  # where an episode begins
        assert envs.stats["restarts"] == 1
        for _ in range(3):
            envs.step(np.zeros(128, np.int64))
