"""Workers that take too long or are stopped: they are killed if there is a limit, else waited for."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from shoal.errors import WorkerTimeout
from shoal.vector import workers
from tests.crash.fragile import (
    BIG,
    C_LOOP,
    DEAF_LOOP,
    LOOP,
    SAY,
    SLOW,
    STOP,
    actions,
    at_most,
    died,
    is_running,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")


LIMIT_S = 0.3
KILLED_S = LIMIT_S + 0.5 + 1.0


@pytest.mark.parametrize(
    "how", [LOOP, C_LOOP, DEAF_LOOP, STOP, SLOW], ids=["loop", "C loop", "signals blocked", "SIGSTOP", "slow"]
)
def test_worker_whose_step_takes_too_long_is_killed(make, how):
    envs = make(step_timeout_s=LIMIT_S)
    envs.reset(seed=0)
    victim = envs.worker_pids[1]
    with at_most(KILLED_S), pytest.raises(WorkerTimeout, match="did not answer within 0.3 s") as caught:
        envs.step(actions(2, how))
    assert caught.value.env_ids == [2, 3] and caught.value.pid == victim
    assert not is_running(victim)
    envs.reset(seed=0)
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_worker_whose_reset_takes_too_long_is_killed_but_not_for_a_slow_step(make):
    envs = make(reset_timeout_s=LIMIT_S)
    envs.reset(seed=0)
    envs.step(actions(0, SLOW))
    with at_most(KILLED_S), pytest.raises(WorkerTimeout):
        envs.reset(seed=0, options={0: C_LOOP})
    envs.reset(seed=0)


def test_stopped_worker_is_killed_in_time_when_a_slot_is_added(make):
    envs = make(step_timeout_s=LIMIT_S)
    held = [envs.reset(seed=0)]
    os.kill(envs.worker_pids[0], signal.SIGSTOP)
    with at_most(KILLED_S), pytest.raises(WorkerTimeout):
        envs.step(actions())
    assert len(held) == 1


def test_recv_kills_a_worker_that_takes_too_long(make):
    envs = make(batch_size=2, step_timeout_s=LIMIT_S)
    envs.async_reset(seed=0)
    for _ in range(2):
        envs.recv()
    envs.send(actions(3, C_LOOP), range(4))
    envs.recv([0, 1])
    with at_most(KILLED_S), pytest.raises(WorkerTimeout) as caught:
        envs.recv([2, 3])
    assert caught.value.env_ids == [2, 3]
    envs.async_reset(seed=0)
    envs.recv()


def test_stopped_worker_without_a_limit_is_not_killed(make):
    envs = make()
    envs.reset(seed=0)
    stopped = envs.worker_pids[0]
    os.kill(stopped, signal.SIGSTOP)
    envs.step_async(actions())
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.1)
    assert is_running(stopped)
    os.kill(stopped, signal.SIGCONT)
    assert envs.step(actions())[1].tolist() == [2.0] * 4
    assert envs.worker_pids[0] == stopped


@pytest.mark.parametrize("buffers", ["leased", "live", "copy"])
def test_nothing_of_an_abandoned_step_is_ever_delivered(make, buffers):
    envs = make(buffers=buffers)
    envs.reset(seed=0)
    for turn in range(2):
        envs.step_async(actions(0, SLOW, 3, SAY))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.01)
        observation, reward, _, _, info = envs.step(actions(2, BIG))
        expected = [2.0 * (turn + 1)] * 4
        assert reward.tolist() == expected and observation[:, 2].tolist() == expected
        assert info["_big"].tolist() == [False, False, True, False]


def test_a_worker_that_dies_in_an_abandoned_step_is_not_forgotten(make):
    envs = make()
    envs.reset(seed=0)
    envs.step_async(actions(0, SLOW))
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    assert died(envs, actions()).env_ids == [0, 1]
    envs.reset(seed=0)
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_worker_busy_for_a_minute_is_warned_about_once_with_its_stack(make, monkeypatch):
    envs = make()
    envs.reset(seed=0)
    monkeypatch.setattr(workers, "_SLOW_S", 0.1)
    with pytest.warns(UserWarning, match=r"worker 1 .*environments 2-3.* busy for") as warned:
        envs.step(actions(2, SLOW))
        envs.step(actions(2, SLOW))
    assert len(warned) == 1
    assert "fragile.py" in str(warned[0].message) and "in do" in str(warned[0].message)
