"""on_fault="raise": a death is raised as soon as it is known, even while other workers are busy."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from shoal.errors import ShoalError, WorkerDied, WorkerTimeout
from tests.crash.fragile import (
    EXIT,
    KILL,
    LOOP,
    SLOW,
    SLOW_S,
    SOON_S,
    actions,
    at_most,
    died,
    is_running,
    make_fragile,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")


@pytest.fixture
def envs():
    with make_fragile(step_timeout_s=4 * SOON_S) as made:
        made.reset(seed=0)
        yield made


def kill_idle(envs, w):
    """Kills a worker that has done its part, and waits until that is so."""
    gates, pid = envs._backend.workers.pool.gates, envs.worker_pids[w]
    wait_until(lambda: gates.idle(w), SOON_S)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), SOON_S)


def counts_after_reset_of(envs, *chosen):
    mask = np.zeros(4, bool)
    mask[list(chosen)] = True
    return envs.reset(options={"reset_mask": mask})[0][:, 2].tolist()


def test_a_worker_that_hangs_does_not_hide_the_death_of_another(envs):
    error = died(envs, actions(0, KILL, 3, LOOP))  # in far less than the limit of a step
    assert error.env_ids == [0, 1] and error.signal == signal.SIGKILL
    with at_most(SOON_S):
        envs.close()


def test_death_of_a_finished_worker_is_raised_while_others_are_busy(envs):
    envs.step_async(actions(0, LOOP))
    kill_idle(envs, 1)
    with at_most(SOON_S), pytest.raises(WorkerDied) as caught:
        envs.step_wait()
    assert caught.value.env_ids == [2, 3]


def test_complete_results_are_returned_and_the_next_step_raises_the_death(envs):
    envs.step_async(actions())
    wait_until(lambda: envs._backend.workers.pool.gates.idle(0), SOON_S)
    kill_idle(envs, 1)
    assert envs.step_wait()[1].tolist() == [1.0] * 4
    assert died(envs, actions()).env_ids == [2, 3]


def test_no_worker_steps_if_one_is_known_to_be_dead(envs):
    envs.step(actions())
    kill_idle(envs, 1)
    assert died(envs, actions()).env_ids == [2, 3]
    assert counts_after_reset_of(envs, 2, 3) == [1, 1, 0, 0]
    assert envs.step(actions())[1].tolist() == [2.0, 2.0, 1.0, 1.0]


def test_reset_waits_for_the_step_that_other_workers_continue(envs):
    envs.step(actions())
    assert died(envs, actions(2, EXIT)).exitcode == 7
    assert counts_after_reset_of(envs, 2, 3) == [2, 2, 0, 0]
    for count in range(3, 6):
        observations, rewards, *_ = envs.step(actions())
        assert observations[:, 2].tolist() == rewards.tolist() == [count, count, count - 2, count - 2]
    assert envs.stats["steps"] == 4 + 2 + 3 * 4  # of the two that died, one step is nobody's


def test_reset_kills_workers_that_hang_after_a_raised_death():
    with make_fragile(step_timeout_s=0.5) as envs:
        envs.reset(seed=0)
        pids = envs.worker_pids
        assert not isinstance(died(envs, actions(0, KILL, 3, LOOP)), WorkerTimeout)
        with at_most(2 * SOON_S):
            observation, _ = envs.reset(seed=0)
        assert observation[:, 2].tolist() == [0] * 4 and not {*pids} & {*envs.worker_pids}
        assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_second_death_during_a_restart_is_repaired_without_disturbing_busy_workers(monkeypatch):
    with make_fragile(6, 3) as envs:
        envs.reset(seed=0)
        workers = envs._backend.workers
        post, busy = workers.post_reset, []
        monkeypatch.setattr(workers, "post_reset", lambda *a: busy.extend(workers.pool.busy()) or post(*a))
        assert died(envs, actions(0, KILL, 2, LOOP, 4, SLOW, count=6)).env_ids == [0, 1]
        assert workers.pool.busy() == [1, 2]
        later = threading.Timer(SLOW_S / 4, os.kill, (envs.worker_pids[1], signal.SIGKILL))
        later.start()
        assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 6 and busy == []
        later.join()
        assert envs.step(actions(count=6))[1].tolist() == [1.0] * 6


def test_death_in_a_call_or_rollout_is_raised_without_waiting(envs):
    envs.call_async("do_if", 3, LOOP)
    kill_idle(envs, 0)
    with at_most(SOON_S), pytest.raises(WorkerDied) as caught:
        envs.call_wait()
    assert caught.value.env_ids == [0, 1]
    os.kill(envs.worker_pids[1], signal.SIGKILL)
    envs.reset(seed=0)
    rollout = envs.rollout(4)
    rollout.start(envs.reset(seed=0)[0])
    rollout.step(actions())
    with at_most(SOON_S), pytest.raises(WorkerDied) as caught:
        rollout.step(actions(0, LOOP, 2, KILL))
    assert caught.value.env_ids == [2, 3]
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    first, _ = envs.reset(seed=0)
    with pytest.raises(ShoalError, match="no longer at step 1 of this rollout"):
        rollout.step(actions())
    rollout = envs.rollout(2)
    rollout.start(first)
    for _ in range(2):
        rollout.step(actions())
    assert rollout.rewards.tolist() == [[1.0] * 4, [2.0] * 4]
