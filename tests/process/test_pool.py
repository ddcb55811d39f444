"""The worker pool: commands and messages reach workers, deaths are reported, and all workers end."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
from functools import partial

import pytest

from shoal.errors import WorkerDied, WorkerError, WorkerTimeout
from shoal.process.mail import BOX_BYTES, Failure
from shoal.process.pool import DIED, IDLE, TIMEOUT, Plan, WorkerPool, pickle_makers, read_surroundings
from shoal.process.requests import CallMethod, UseStepper
from shoal.spaces import Bounds
from tests.crash.fragile import (
    ABORT,
    BECOME,
    BIG_BYTES,
    C_LOOP,
    EXIT,
    HEAVY,
    KILL,
    LOOP,
    SAY,
    SOON_S,
    Fragile,
    at_most,
    is_running,
    wait_until,
)


def plan_of(worker, workers=2):
    maker = pickle_makers([partial(Fragile, worker)], worker)
    return Plan(
        worker=worker,
        first=worker,
        count=1,
        num_envs=workers,
        autoreset=0,
        makers=maker,
        plugin=None,
        bounds=Bounds(None, None, None),
        all_spaces=False,
        restarts=False,
        daemon=True,
        crowded=True,
        seeds=[None],
    )


@pytest.fixture
def pool():
    made = WorkerPool([plan_of(0), plan_of(1)], 2, None)
    made.start()
    assert made.wait(4 * SOON_S) == IDLE
    for w in range(2):
        assert made.answer(w, None)["action_space"] == Fragile.action_space
    yield made
    made.stop(0.5)


def ask(pool, w, what):
    pool.request(w, CallMethod("do", (what,)))


def test_answer_comes_once_and_only_from_the_requested_worker(pool):
    pool.request(1, CallMethod("echo", ("value",)))
    assert pool.wait(SOON_S) == IDLE
    assert pool.answer(0, None) is None
    assert pool.answer(1, None)[0].load() == "value"
    assert pool.answer(1, None) is None


@pytest.mark.parametrize("size", [10, BOX_BYTES, BOX_BYTES + 1, BIG_BYTES])
def test_messages_of_any_size_arrive_both_ways(pool, size):
    value = os.urandom(size)
    pool.request_all(CallMethod("echo", (value,)))
    assert pool.wait(4 * SOON_S) == IDLE
    for w in range(2):
        assert pool.answer(w, None)[0].load() == value


def test_request_that_the_chunk_lacks_is_answered_with_an_error(pool):
    pool.request(0, UseStepper("save", 0))  # which a chunk of Python environments does not have
    assert pool.wait(SOON_S) == IDLE
    answer = pool.answer(0, None)
    assert isinstance(answer, Failure) and isinstance(answer.exception(), AttributeError)


def test_one_worker_can_be_waited_for_alone(pool):
    ask(pool, 0, LOOP)
    ask(pool, 1, SAY)
    assert pool.wait(SOON_S, 1) == IDLE
    assert pool.busy() == [0] and pool.busy(1) == []
    assert pool.wait(0.01) == TIMEOUT


def test_death_ends_a_wait_and_is_reported_once(pool):
    ask(pool, 0, KILL)
    with at_most(SOON_S):
        assert pool.wait(None) == DIED
    victim = pool.pid(0)
    error = pool.reap_worker(0)
    assert type(error) is WorkerDied
    assert (error.pid, error.env_ids, error.signal, error.exitcode) == (victim, [0], signal.SIGKILL, None)
    assert not pool.has_process(0) and pool.pid(0) is None and not pool.is_alive(0)
    assert pool.wait(None) == IDLE
    pool.request(0, CallMethod("echo", (1,)))  # nobody is there to answer
    assert pool.wait(None) == IDLE and pool.answer(0, None) is None
    pool.start([0])
    assert pool.gates.dead() == []  # whatever the one before has left in the gate
    assert pool.wait(4 * SOON_S) == IDLE and pool.answer(0, None)["render_mode"] is None


def died(pool, what):
    """Makes a heavy worker die; returns its signal, exit code, and whether it was reported while exiting."""
    ask(pool, 0, HEAVY)
    assert pool.wait(4 * SOON_S) == IDLE and pool.answer(0, None) is not None
    victim = pool.pid(0)
    ask(pool, 0, what)
    with at_most(SOON_S):
        assert pool.wait(None) == DIED
    error = pool.reap_worker(0)
    assert error.pid == victim and not pool.has_process(0)
    early = bool(pool._exiting)
    pool.start([0])
    assert not pool._exiting and not is_running(victim)  # nobody takes its place before
    assert pool.wait(4 * SOON_S) == IDLE and pool.answer(0, None)["render_mode"] is None
    return error.signal, error.exitcode, early


@pytest.mark.parametrize(
    ("what", "number", "code"), [(KILL, signal.SIGKILL, None), (ABORT, signal.SIGABRT, None), (EXIT, None, 7)]
)
def test_death_is_reported_while_the_kernel_frees_memory(pool, monkeypatch, what, number, code):
    early = False
    for _ in range(10):  # a busy machine may run us too late
        *facts, soon = died(pool, what)
        assert facts == [number, code]
        early = early or soon
        if early:
            break
    release = [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]]
    assert early or not hasattr(os, "pidfd_open") or release < [5, 16]
    monkeypatch.setattr("shoal.process.start.Running.exit_status", lambda self: None)  # as where nobody says
    assert died(pool, what) == (number, code, False)


def test_stopping_the_pool_while_a_worker_is_exiting_leaves_no_process(pool):
    before = len(os.listdir("/proc/self/fd"))
    ask(pool, 0, HEAVY)
    assert pool.wait(4 * SOON_S) == IDLE
    pids = [pool.pid(0), pool.pid(1)]
    os.kill(pids[0], signal.SIGKILL)
    ask(pool, 0, SAY)
    assert pool.wait(SOON_S) == DIED
    pool.reap_worker(0)
    pool.stop(0.5)
    assert not pool._exiting and not any(map(is_running, pids))
    assert len(os.listdir("/proc/self/fd")) < before


def modesty_of(thread):
    return os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)


def test_watch_threads_run_at_low_priority(pool):
    pid = pool.pid(0)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert modesty_of(pid) == (os.SCHED_OTHER, nice)  # whoever steps does not
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
    assert len(threads) == 2
    found = {(os.SCHED_BATCH, min(19, nice + 10))}
    wait_until(lambda: {modesty_of(thread) for thread in threads} == found, SOON_S)


def test_worker_that_calls_exec_counts_as_dead(pool):
    ask(pool, 0, BECOME)
    victim = pool.pid(0)
    with at_most(SOON_S):
        assert pool.wait(None) == DIED
    error = pool.reap_worker(0)
    assert (error.pid, error.signal) == (victim, signal.SIGKILL) and "another program (exec)" in str(error)
    wait_until(lambda: not is_running(victim), SOON_S)
    assert pool.wait(None) == IDLE


def test_worker_that_exits_is_not_reported_as_exec(pool):
    for _ in range(5):
        pool.request(0, CallMethod("leave_from_a_thread"))
        with at_most(SOON_S):
            assert pool.wait(None) == DIED
        error = pool.reap_worker(0)
        assert (error.signal, error.exitcode) == (None, 0) and "ended with exit code 0" in str(error)
        pool.start([0])
        assert pool.wait(4 * SOON_S) == IDLE and pool.answer(0, None) is not None


def test_worker_without_exit_status_yet_is_not_reported_as_exec(pool, monkeypatch):
    monkeypatch.setattr("shoal.process.start._EXIT_DECIDED_S", 60.0)  # a busy machine may need long to end it
    pool.request(0, CallMethod("leave_from_a_thread", (), {"delay_s": 0.02}))
    assert pool._running[0].exit_status() is None
    assert pool.reap_worker(0).exitcode == 0


def test_wait_with_any_death_reports_idle_workers_that_died(pool):
    ask(pool, 1, LOOP)
    victim = pool.pid(0)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_running(victim), SOON_S)
    assert pool.gates.dead() == [0]
    assert pool.wait(0.05) == TIMEOUT  # it had nothing to do
    with at_most(SOON_S):
        assert pool.wait(None, any_death=True) == DIED
    pool.reap_worker(0)
    assert pool.wait(0.05, any_death=True) == TIMEOUT


def test_late_worker_is_killed(pool):
    ask(pool, 1, C_LOOP)
    assert pool.wait(0.05) == TIMEOUT
    victim = pool.pid(1)
    with at_most(SOON_S):
        error = pool.reap_worker(1, 0.05)
    assert isinstance(error, WorkerTimeout) and "did not answer within 0.05 s" in str(error)
    assert not is_running(victim)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is WorkerTimeout and again.env_ids == [1] and again.summary == error.summary


def test_show_stack_of_a_looping_worker_does_not_stop_it(pool):
    ask(pool, 0, LOOP)
    wait_until(lambda: "in do" in pool.show_stack(0), 4 * SOON_S)
    assert "fragile.py" in pool.show_stack(0)
    assert pool.is_alive(0) and pool.busy() == [0]


def test_stop_ends_looping_and_stopped_workers_in_time(pool):
    pids = [pool.pid(0), pool.pid(1)]
    ask(pool, 0, C_LOOP)
    os.kill(pids[1], signal.SIGSTOP)
    with at_most(0.5 + SOON_S):
        pool.stop(0.5)
    assert not any(map(is_running, pids))
    pool.stop(0.5)


def test_failed_environment_names_its_worker():
    plans = [plan_of(0), plan_of(1)]
    plans[1].makers = pickle_makers([partial(Fragile, 1, "/no/such/file")], 1)
    pool = WorkerPool(plans, 2, None)
    try:
        pool.start()
        assert pool.wait(4 * SOON_S) == IDLE
        answer = pool.answer(1, None)
        assert isinstance(answer, Failure) and answer.env_id == 1
        assert isinstance(answer.exception(), FileNotFoundError)
    finally:
        pool.stop(0.5)


def test_functions_that_cannot_be_pickled_are_named_before_any_start():
    lock = threading.Lock()
    with pytest.raises(WorkerError, match=r"env_fns\[6\].*cannot be sent"):
        pickle_makers([Fragile, lambda: lock], 5)


def test_surroundings_hold_directory_and_environment_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("OMPI_RANK", "1")
    monkeypatch.setenv("SHOAL_TEST", "here")
    monkeypatch.chdir(tmp_path)
    found = read_surroundings()
    assert found.directory == str(tmp_path) and found.environment["SHOAL_TEST"] == "here"
    assert "OMPI_RANK" not in found.environment
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert read_surroundings().directory == "/"
