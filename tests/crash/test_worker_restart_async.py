"""on_fault="restart" with send and recv: steps under way are truncated, finished results are kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import threading

import numpy as np
import pytest

from tests.crash.fragile import (
    BIG,
    EXIT,
    KILL,
    LOOP,
    SLOW,
    SOON_S,
    Fragile,
    actions,
    at_most,
    is_running,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR")

RESTART_S = SOON_S + 2.0


@pytest.fixture
def flight(make):
    """Four environments over two workers, in flight; `take(envs, n)` gives n rows by environment."""
    envs = make(batch_size=1, on_fault="restart")
    envs.async_reset(seed=0)
    first = take(envs, 4)
    return envs, first


def take(envs, count):
    """`count` results by environment: observation, reward, truncated, fault."""
    found = {}
    for _ in range(count):
        observation, reward, _, truncated, info = envs.recv()
        env = int(info["env_id"][0])
        assert env not in found and observation[0, 0] == env
        fault = info["fault"][0] if "fault" in info else None
        found[env] = observation[0].copy(), float(reward[0]), bool(truncated[0]), fault
    return found


def test_environments_under_way_in_a_dead_worker_are_truncated(flight):
    envs, first = flight
    envs.send(actions(0, KILL), range(4))
    with at_most(RESTART_S):
        back = take(envs, 4)
    for env in (0, 1):
        observation, reward, truncated, fault = back[env]
        assert observation[1] != first[env][0][1] and observation[2] == 0
        assert reward == 0 and truncated and "SIGKILL" in fault
    for env in (2, 3):
        observation, reward, truncated, fault = back[env]
        assert observation[1] == first[env][0][1]
        assert (observation[2], reward, truncated, fault) == (1, 1.0, False, None)


def test_idle_environments_of_a_dead_worker_are_truncated_after_the_next_send(flight):
    envs, first = flight
    envs.send([KILL], [0])
    assert take(envs, 1)[0][2]
    envs.send([0, 0], [1, 2])
    back = take(envs, 2)
    assert back[1][2] and "SIGKILL" in back[1][3] and back[1][0][1] != first[1][0][1]
    assert not back[2][2] and back[2][0][1] == first[2][0][1]
    envs.send([0, 0], [0, 1])
    after = take(envs, 2)
    assert [after[env][0][1] for env in (0, 1)] == [after[0][0][1], back[1][0][1]]
    assert not after[0][2] and not after[1][2]


def test_results_finished_before_a_death_are_kept_and_the_next_are_truncated(flight):
    envs, first = flight
    envs.send([0, KILL], [0, 1])  # one after the other, in this order
    board = envs._backend.workers.pool.board
    wait_until(lambda: board["finished"][0] == board["ticket"][0], SOON_S)
    wait_until(lambda: not is_running(envs.worker_pids[0]), SOON_S)
    back = take(envs, 2)
    observation, reward, truncated, fault = back[0]
    assert observation[1] == first[0][0][1]
    assert (observation[2], reward, truncated, fault) == (1, 1.0, False, None)
    assert back[1][2] and "SIGKILL" in back[1][3]
    envs.send([0], [0])
    observation, reward, truncated, fault = take(envs, 1)[0]
    assert observation[1] != first[0][0][1] and observation[2] == 0
    assert reward == 0 and truncated and "SIGKILL" in fault


def test_result_taken_for_a_batch_is_kept_if_its_worker_dies(make):
    envs = make(2, 1, batch_size=2, on_fault="restart")
    envs.async_reset(seed=0)
    first = envs.recv()[0].copy()
    for _ in range(3):
        envs.send([0, KILL], [0, 1])
        observation, reward, _, truncated, info = envs.recv([0, 1])
        assert observation[0].tolist() == [0, first[0, 1], 1, first[0, 3]]
        assert (reward.tolist(), truncated.tolist()) == ([1.0, 0.0], [False, True])
        assert info["_fault"].tolist() == [False, True] and observation[1, 1] != first[1, 1]
        envs.send([0, 0], [0, 1])  # of the first, its end; of the second, NEXT_STEP's reset
        observation, reward, _, truncated, info = envs.recv([0, 1])
        assert truncated.tolist() == info["_fault"].tolist() == [True, False]
        assert observation[0, 1] != first[0, 1] and not observation[:, 2].any() and not reward.any()
        envs.async_reset(seed=0)
        first = envs.recv([0, 1])[0].copy()


def test_a_replacement_does_not_wait_for_workers_that_are_busy(flight):
    envs, _ = flight
    envs.send([LOOP, KILL], [0, 2])
    with at_most(RESTART_S):
        assert take(envs, 1)[2][2]


def test_two_workers_that_die_together_in_asynchronous_stepping_are_both_replaced(make):
    envs = make(6, 3, batch_size=6, on_fault="restart")
    envs.async_reset(seed=0)
    first = envs.recv()[0].copy()
    envs.send(actions(0, KILL, 2, SLOW, 4, EXIT, count=6), range(6))
    observation, reward, _, truncated, info = envs.recv()
    order = np.argsort(info["env_id"])
    assert truncated[order].tolist() == [True, True, False, False, True, True]
    assert info["_fault"][order].tolist() == truncated[order].tolist()
    assert (observation[order][2:4, 1] == first[np.argsort(first[:, 0])][2:4, 1]).all()
    assert reward[order].tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("how", [LOOP, KILL], ids=["hangs", "is dead"])
def test_dead_worker_is_found_while_others_are_always_ready(make, how):
    envs = make(batch_size=1, on_fault="restart", step_timeout_s=0.3)
    envs.async_reset(seed=0)
    take(envs, 4)
    envs.send(actions(0, how), range(4))
    found = set()
    with at_most(0.3 + RESTART_S):
        while found != {0, 1}:
            _, _, _, truncated, info = envs.recv()
            env = int(info["env_id"][0])
            if env > 1:
                envs.send([0], [env])
            elif truncated[0]:
                found.add(env)


class StopsWithin(Fragile):
    """On BIG it is stopped when the first bytes of its report are on their way."""

    def do(self, what):
        if what == BIG:
            threading.Thread(target=self._stop_within, daemon=True).start()
        return super().do(what)

    def _stop_within(self):
        while True:
            for entry in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if struct.unpack("i", fcntl.ioctl(int(entry), termios.TIOCOUTQ, bytes(4)))[0] > 0:
                        os.kill(os.getpid(), signal.SIGSTOP)


def test_worker_stopped_within_a_report_does_not_block_recv(make):
    envs = make(batch_size=1, on_fault="restart", step_timeout_s=0.3, kind=StopsWithin)
    envs.async_reset(seed=0)
    take(envs, 4)
    envs.send(actions(0, BIG), range(4))
    found = set()
    with at_most(1.0 + RESTART_S):
        while found != {0, 1}:
            _, _, _, truncated, info = envs.recv()
            env = int(info["env_id"][0])
            if env > 1:
                envs.send([0], [env])
            elif truncated[0]:
                found.add(env)
            elif env == 1:  # it was first
                found.add(1)
            else:  # its thread came too late to stop it within the report
                envs.send([BIG], [env])
