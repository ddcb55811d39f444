"""Workers that die: WorkerDied names the worker and the cause, and reset() restarts it."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from shoal.errors import WorkerDied, WorkerTimeout
from shoal.process import pool
from tests.crash.fragile import (
    ABORT,
    BIG,
    BIG_BYTES,
    EXIT,
    KILL,
    RAISE,
    SAY,
    SEGFAULT,
    SLOW,
    SOON_S,
    Broken,
    Wide,
    actions,
    at_most,
    died,
    is_running,
    make_fragile,
    wait_gone,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")


# -- what is said of a death --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        (KILL, signal.SIGKILL, None),
        (SEGFAULT, signal.SIGSEGV, None),
        (ABORT, signal.SIGABRT, None),
        (EXIT, None, 7),
    ],
    ids=["SIGKILL", "SIGSEGV", "SIGABRT", "_exit"],
)
def test_a_worker_that_dies_in_a_step_is_raised_with_its_environments_and_cause(make, how, number, code):
    envs = make(5, 2)
    envs.reset(seed=0)
    victim = envs.worker_pids[1]
    error = died(envs, actions(3, how, count=5))
    assert (error.env_ids, error.pid, error.signal, error.exitcode) == ([2, 3, 4], victim, number, code)
    assert f"worker 1 (process {victim}) with environments 2-4" in str(error)
    wait_gone([victim], SOON_S)  # the kernel may still take its memory apart


@pytest.mark.parametrize("how", [SEGFAULT, ABORT], ids=["SIGSEGV", "SIGABRT"])
def test_a_crash_in_C_leaves_its_python_stack(make, capfd, how):
    envs = make()
    envs.reset(seed=0)
    error = died(envs, actions(0, how))
    assert "Fatal Python error" in error.stderr and "fragile.py" in error.stderr and " in do" in error.stderr
    assert "fragile.py" in str(error)
    assert "Fatal Python error" in capfd.readouterr().err  # and the user has seen it, too


def test_error_holds_the_last_stderr_of_the_worker(make):
    envs = make()
    envs.reset(seed=0)
    envs.step(actions(1, SAY))
    error = died(envs, actions(0, KILL))
    assert error.stderr == "environment 1 speaks\n" and "| environment 1 speaks" in str(error)


def test_out_of_memory_kill_is_named_in_the_error(make, monkeypatch):
    envs = make()
    envs.reset(seed=0)
    kills = pool.oom_kills(pool.oom_counters())
    monkeypatch.setattr(pool, "oom_kills", lambda counters: kills + 1)
    assert "likely out of memory" in str(died(envs, actions(0, KILL)))
    envs.reset()
    assert "out of memory" not in str(died(envs, actions(0, KILL)))  # it rose before that one


def test_a_worker_killed_by_a_signal_without_a_name_is_raised(make):
    envs = make()
    envs.reset(seed=0)
    os.kill(envs.worker_pids[0], signal.SIGRTMIN + 3)
    error = died(envs, actions())
    assert error.signal == signal.SIGRTMIN + 3 and f"signal {signal.SIGRTMIN + 3}" in str(error)


def test_two_workers_that_die_in_one_step_are_both_brought_back_by_reset(make):
    envs = make(6, 3)
    envs.reset(seed=0)
    died(envs, actions(0, KILL, 5, EXIT, count=6))
    observation, _ = envs.reset(seed=1)
    assert observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert envs.step(actions(count=6))[1].tolist() == [1.0] * 6


def test_a_worker_that_dies_between_steps_is_found_by_the_next_one(make):
    envs = make()
    held = [envs.reset(seed=0)]  # so that the next step needs a new slot, and all workers are told of it
    os.kill(envs.worker_pids[1], signal.SIGKILL)
    wait_until(lambda: not is_running(envs.worker_pids[1]), SOON_S)
    assert died(envs, actions()).env_ids == [2, 3]
    assert len(held) == 1


def test_every_call_raises_the_death_again_until_reset_brings_the_worker_back(make):
    envs = make()
    before, _ = envs.reset(seed=0)
    error = died(envs, actions(0, KILL))
    for call in (
        lambda: envs.step(actions()),
        lambda: envs.step_async(actions()),
        lambda: envs.call("echo", 1),
        lambda: envs.set_attr("note", "x"),
        lambda: envs.rollout(4),
    ):
        with pytest.raises(WorkerDied) as again:
            call()
        assert (str(again.value), vars(again.value)) == (str(error), vars(error))
    observation, _ = envs.reset(seed=0)
    assert observation[:, 1].tolist()[2:] == before[:, 1].tolist()[2:]  # the others are who they were
    assert observation[:, 1].tolist()[:2] != before[:, 1].tolist()[:2]
    assert observation[:, 3].tolist() == before[:, 3].tolist()  # and all drew from the same seeds
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_death_in_reset_or_call_is_raised(make):
    envs = make()
    with at_most(SOON_S), pytest.raises(WorkerDied) as caught:
        envs.reset(seed=0, options={2: SEGFAULT})
    assert caught.value.env_ids == [2, 3] and caught.value.signal == signal.SIGSEGV
    envs.reset(seed=0)
    with at_most(SOON_S), pytest.raises(WorkerDied) as caught:
        envs.call("do_if", 1, EXIT)
    assert caught.value.env_ids == [0, 1] and caught.value.exitcode == 7
    envs.reset(seed=0)
    assert envs.call("echo", "here") == ("here",) * 4


def test_a_worker_that_dies_in_asynchronous_stepping_is_raised_and_async_reset_brings_it_back(make):
    envs = make(batch_size=2)
    envs.async_reset(seed=0)
    for _ in range(2):
        envs.recv()
    envs.send(actions(1, KILL), range(4))
    with at_most(SOON_S), pytest.raises(WorkerDied) as caught:
        envs.recv([0, 1])
    assert caught.value.env_ids == [0, 1]
    with pytest.raises(WorkerDied):
        envs.send([0], [0])
    envs.async_reset(seed=0)
    for _ in range(2):
        observation, reward, terminated, truncated, info = envs.recv()
        assert observation[:, 0].tolist() == info["env_id"].tolist()
        assert not observation[:, 2].any() and not reward.any() and not (terminated | truncated).any()
    envs.send(actions(), range(4))
    assert sorted(np.concatenate([envs.recv()[1] for _ in range(2)]).tolist()) == [1.0] * 4


def test_a_worker_that_dies_while_its_environments_are_made_is_raised_by_the_constructor(tmp_path):
    deaths = tmp_path / "deaths"
    deaths.write_text("1")
    with at_most(SOON_S * 3), pytest.raises(WorkerDied) as caught:
        make_fragile(deaths=deaths)
    assert caught.value.signal == signal.SIGKILL


# -- environments that raise --------------------------------------------------------------------------------


def test_environment_that_raises_keeps_its_worker_and_other_results(make):
    envs = make()
    envs.reset(seed=0)
    pids = envs.worker_pids
    with pytest.raises(Broken, match="environment 1 was told to") as caught:
        envs.step(actions(1, RAISE))
    error = caught.value
    assert error.env_id == 1 and "fragile.py" in str(error.__cause__)
    observation, reward, _, truncated, _ = error.results
    assert reward.tolist() == [1, 0, 1, 1] and truncated.tolist() == [False, True, False, False]
    assert observation[[0, 2, 3], 2].tolist() == [1, 1, 1]
    assert envs.step(actions())[1].tolist() == [2, 0, 2, 2]  # it was reset
    assert envs.worker_pids == pids


def test_unpickling_error_in_a_worker_does_not_kill_it(make):
    envs = make()
    envs.reset(seed=0)
    pids = envs.worker_pids
    with pytest.raises(ZeroDivisionError):
        envs.call("echo", Unloadable())
    assert envs.call("echo", 3) == (3,) * 4
    assert envs.worker_pids == pids


class Unloadable:
    """Fails where it arrives."""

    def __reduce__(self):
        return divmod, (1, 0)


# -- large messages ---------------------------------------------------------------------------------------


def test_infos_and_answers_and_arguments_of_ten_megabytes_arrive(make):
    envs = make()
    envs.reset(seed=0)
    for turn in range(2):
        _, reward, _, _, info = envs.step(actions(0, BIG, 3, BIG))
        assert reward.tolist() == [turn + 1.0] * 4
        assert info["_big"].tolist() == [True, False, False, True]
        assert (info["big"][3] == 3).all() and info["big"].shape == (4, BIG_BYTES)
    value = os.urandom(BIG_BYTES)
    assert envs.call("echo", value) == (value,) * 4


def test_actions_of_megabytes_that_travel_as_messages_arrive(make):
    envs = make(kind=Wide)
    envs.reset(seed=0)
    pushes = np.random.default_rng(0).integers(0, 100, (4, *Wide.action_space.shape)).astype(np.float64)
    for turn in range(3):  # not the dtype of the space: the environment gets what was given
        assert envs.step(pushes * turn)[1].tolist() == (pushes * turn).sum(axis=1).tolist()
    envs.step_async(pushes)
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    with at_most(SOON_S), pytest.raises(WorkerDied):
        envs.step_wait()  # it may have been done just before
        envs.step(pushes)


@pytest.mark.parametrize("limit_s", [None, 0.6])
def test_a_worker_killed_or_stopped_while_it_sends_a_large_info_is_raised(make, limit_s):
    envs = make(step_timeout_s=limit_s)
    envs.reset(seed=0)
    envs.step_async(actions(0, BIG, 3, SLOW if limit_s is None else 0))  # slow would be over the limit too
    gates = envs._backend.workers.pool.gates
    wait_until(lambda: gates.idle(0), SOON_S)  # it has finished, and can send no more: nobody reads yet
    os.kill(envs.worker_pids[0], signal.SIGKILL if limit_s is None else signal.SIGSTOP)
    with at_most(SOON_S + 1), pytest.raises(WorkerDied) as caught:
        envs.step_wait()
    assert isinstance(caught.value, WorkerTimeout) == (limit_s is not None)
    assert caught.value.env_ids == [0, 1]
    envs.reset(seed=0)
    assert (envs.step(actions(0, BIG))[4]["big"][0] == 0).all()


def test_a_worker_killed_while_a_large_message_is_sent_to_it_is_raised(make):
    envs = make()
    envs.reset(seed=0)
    os.kill(envs.worker_pids[1], signal.SIGSTOP)
    pid = envs.worker_pids[1]
    killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with at_most(SOON_S + 1), pytest.raises(WorkerDied) as caught:
        envs.call("echo", os.urandom(BIG_BYTES))
    killer.join()
    assert caught.value.env_ids == [2, 3]


def test_a_large_info_of_one_worker_is_read_once_when_another_one_dies(make):
    envs = make()
    envs.reset(seed=0)
    died(envs, actions(0, BIG, 3, KILL))
    with at_most(5):
        envs.reset(seed=0)
    assert envs.step(actions())[1].tolist() == [1.0] * 4
