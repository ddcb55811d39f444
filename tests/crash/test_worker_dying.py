"""Between the report of its death and its end, a worker's other threads may still run for a moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from shoal import _core
from shoal.process.launcher import Launcher
from shoal.process.pool import TIMEOUT
from shoal.process.start import Running
from tests.crash.fragile import KILL, SLOW, SLOW_S, SOON_S, actions, at_most, died, make_fragile, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR")

OWNER_DIED, WAITERS = 0x40000000, 0x80000000  # of <linux/futex.h>


@pytest.fixture
def envs():
    with make_fragile(step_timeout_s=4 * SOON_S) as made:
        made.reset(seed=0)
        yield made


class SpiedGates:
    """Gates that note how many of the dead were not reaped when somebody is waited for."""

    def __init__(self, pool):
        self._crew, self._gates, self.dying = pool, pool.gates, []

    def __getattr__(self, name):
        return getattr(self._gates, name)

    def wait(self, *args):
        self.dying.append(len(self._crew._exiting))
        return self._gates.wait(*args)


def test_exiting_worker_that_may_claim_the_wakeup_is_reaped_before_a_wait(envs, monkeypatch):
    monkeypatch.setattr(
        Running, "exit_status", lambda self: int(signal.SIGKILL)
    )  # found while it is still dying
    pool = envs._backend.workers.pool
    pool.gates = spied = SpiedGates(pool)
    assert died(envs, actions(0, KILL, 2, SLOW)).env_ids == [0, 1]
    assert len(pool._exiting) == 1
    spied.dying.clear()
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4
    assert spied.dying and not any(spied.dying)


def test_worker_that_is_exiting_at_ctrl_c_is_reaped_later(envs, monkeypatch):
    monkeypatch.setattr(Running, "exit_status", lambda self: int(signal.SIGKILL))
    before = len(os.listdir("/proc/self/fd"))
    assert died(envs, actions(0, KILL)).env_ids == [0, 1]
    dying = list(envs._backend.workers.pool._exiting)

    def interrupted(self, timeout_s):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Running, "wait", interrupted)
        envs.reset(seed=0)
    assert envs._backend.workers.pool._exiting == dying
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4
    assert dying[0]._reaped and len(os.listdir("/proc/self/fd")) == before


def test_slowly_exiting_worker_does_not_prolong_a_timeout(envs, monkeypatch):
    monkeypatch.setattr(Running, "exit_status", lambda self: int(signal.SIGKILL))
    assert died(envs, actions(0, KILL)).env_ids == [0, 1]
    pool = envs._backend.workers.pool
    with monkeypatch.context() as patched, at_most(0.2 + SOON_S):
        patched.setattr(Running, "wait", lambda self, timeout_s: time.sleep(max(0, timeout_s)))
        assert pool.wait(0.2) == TIMEOUT
    assert len(pool._exiting) == 1
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4 and not pool._exiting


def test_ctrl_c_while_reaping_keeps_the_worker_for_later(envs, monkeypatch):
    monkeypatch.setattr(Running, "exit_status", lambda self: int(signal.SIGKILL))
    before = len(os.listdir("/proc/self/fd"))
    assert died(envs, actions(0, KILL)).env_ids == [0, 1]

    def interrupted(self, pid, timeout_s):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Launcher, "exit_status", interrupted)
        envs.reset(seed=0)
    assert len(envs._backend.workers.pool._exiting) == 1
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4
    assert len(os.listdir("/proc/self/fd")) == before


def word_of_the_kernel(pool, worker, at):
    """The robust futex in the sign of life that is `at` so many bytes of the worker's gate."""
    line = pool.board["gates"][worker][at : at + _core.LIVENESS_BYTES]
    place = int(line[:4].view(np.uint32)[0])
    assert place != 0, "nobody holds it"
    return line[_core.LIVENESS_ROOM_AT + place - 1 :][:4].view(np.uint32)


@pytest.mark.skipif(sys.platform != "linux", reason="machine: liveness words need Linux")
def test_waiting_for_one_worker_watches_all_that_may_claim_the_wakeup(envs):
    pool = envs._backend.workers.pool
    liveness = word_of_the_kernel(pool, 1, _core.GATE_LIVENESS_AT)
    envs.step_async(actions(0, SLOW))
    wait_until(lambda: pool.gates.idle(1), SOON_S)
    pool.wait(0.01)
    if not liveness[0] & WAITERS:
        pytest.skip("machine: deaths are heard of by descriptors here: no futex_waitv")
    liveness[0] &= ~np.uint32(WAITERS)
    assert pool.wait(0.01, 0) == TIMEOUT
    assert liveness[0] & WAITERS
    envs.step_wait()


@pytest.mark.skipif(sys.platform != "linux", reason="machine: liveness words need Linux")
def test_worker_whose_guard_ended_is_watched_while_it_may_claim_the_wakeup():
    with make_fragile(on_fault="restart") as envs:
        envs.reset(seed=0)
        pool, found = envs._backend.workers.pool, []
        liveness = word_of_the_kernel(pool, 0, _core.GATE_LIVENESS_AT)
        guard = word_of_the_kernel(pool, 0, _core.GATE_GUARD_LIVENESS_AT)
        assert liveness[0] and guard[0]

        def look():
            wait_until(lambda: pool.gates.idle(0), SOON_S)
            begin = time.monotonic()
            while not liveness[0] & WAITERS and time.monotonic() - begin < SLOW_S / 4:
                time.sleep(0.001)
            found.append(bool(liveness[0] & WAITERS))
            guard[0] |= OWNER_DIED
            liveness[0] &= ~np.uint32(WAITERS)
            begin = time.monotonic()
            while not liveness[0] & WAITERS and time.monotonic() - begin < SLOW_S / 2:  # some slices
                time.sleep(0.001)
            found.append(bool(liveness[0] & WAITERS))

        watcher = threading.Thread(target=look)
        envs.step_async(actions(2, SLOW))
        watcher.start()
        envs.step_wait()
        watcher.join()
        if not found[0]:
            pytest.skip("machine: deaths are heard of by descriptors here: no futex_waitv")
        assert found == [True, True]
