"""close() works from any state, within two seconds, and leaves no process."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from shoal.errors import WorkerError
from tests.crash.fragile import (
    BIG,
    C_LOOP,
    KILL,
    LOOP,
    RAISE,
    SLOW,
    SOON_S,
    STOP,
    Broken,
    actions,
    at_most,
    died,
    is_running,
    make_fragile,
    wait_gone,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")


def _pending(how):
    return lambda envs: envs.step_async(actions(0, how))


def _stop(envs):
    os.kill(envs.worker_pids[0], signal.SIGSTOP)


def _kill(envs):
    os.kill(envs.worker_pids[0], signal.SIGKILL)


def _die(envs):
    died(envs, actions(0, KILL))


def _raise(envs):
    with pytest.raises(Broken):
        envs.step(actions(0, RAISE))


def _time_out(envs):
    envs.step_async(actions(0, LOOP))
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)


def _kill_launcher(envs):
    os.kill(envs._backend.workers.pool._running[0]._launcher._process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(lambda envs: None, id="at rest"),
        pytest.param(_pending(SLOW), id="a step pending"),
        pytest.param(_pending(LOOP), id="an endless loop"),
        pytest.param(_pending(C_LOOP), id="an endless C loop"),
        pytest.param(_pending(STOP), id="stopped in a step"),
        pytest.param(_pending(BIG), id="a large info that nobody reads"),
        pytest.param(_stop, id="stopped at rest"),
        pytest.param(_kill, id="a worker just killed"),
        pytest.param(_die, id="a death raised"),
        pytest.param(_raise, id="an exception raised"),
        pytest.param(_time_out, id="timed out"),
        pytest.param(_kill_launcher, id="the launcher killed"),
    ],
)
def test_close_takes_at_most_two_seconds_and_leaves_no_worker(state):
    envs = make_fragile()
    envs.reset(seed=0)
    pids = envs.worker_pids
    state(envs)
    with at_most(2.0 + 1.0):
        envs.close()
    assert not any(map(is_running, pids))
    with at_most(0.1):
        envs.close()


def test_terminate_does_not_wait():
    envs = make_fragile()
    envs.reset(seed=0)
    pids = envs.worker_pids
    envs.step_async(actions(0, LOOP))
    with at_most(0.7):
        envs.close(terminate=True)
    assert not any(map(is_running, pids))


def test_garbage_collected_environments_end_their_workers():
    envs = make_fragile()
    envs.reset(seed=0)
    pids = envs.worker_pids
    del envs
    wait_gone(pids, SOON_S)


def test_too_many_processes_is_an_error_that_says_so(monkeypatch):
    def refuse(*args):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("shoal.process.launcher.Launcher.start", refuse)
    with pytest.raises(WorkerError, match="ulimit -u"):
        make_fragile()
