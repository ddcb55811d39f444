"""on_fault="restart": a dead worker is replaced, and only its rows are truncated and have info["fault"]."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import shoal
from shoal.errors import WorkerDied, WorkerError
from shoal.process import launcher
from tests.crash.fragile import (
    BIG,
    C_LOOP,
    EXIT,
    KILL,
    LOOP,
    RAISE,
    SEGFAULT,
    SLOW,
    SOON_S,
    STOP,
    Broken,
    Fragile,
    actions,
    at_most,
    is_running,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR")

MODES = list(AutoresetMode)
RESTART_S = SOON_S + 2.0


@pytest.fixture
def start(make):
    """Environments that restart, reset already; and their first observation."""

    def begin(*args, seed=0, **kwargs):
        envs = make(*args, on_fault="restart", **kwargs)
        return envs, envs.reset(seed=seed)[0].copy()

    return begin


def check_replaced(results, before, rows, others):
    """`rows` begin anew and say so; `others` went on as if nothing had been."""
    observation, reward, terminated, truncated, info = results
    rows, others = list(rows), list(others)
    assert observation[:, 0].tolist() == list(range(len(observation)))
    assert truncated.tolist() == [row in rows for row in range(len(truncated))]
    assert not terminated.any() and not reward[rows].any()
    assert info["_fault"].tolist() == truncated.tolist()
    assert all(info["fault"][row] is None for row in others)
    assert not observation[rows, 2].any() and (observation[rows, 1] != before[rows, 1]).all()
    assert (observation[others, 1] == before[others, 1]).all()
    assert (observation[others, 2] == before[others, 2] + 1).all()
    assert (reward[others] == observation[others, 2]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", [KILL, SEGFAULT, EXIT], ids=["SIGKILL", "SIGSEGV", "_exit"])
def test_the_rows_of_a_worker_that_died_are_truncated_and_no_others(start, mode, how):
    envs, before = start(5, 2, autoreset_mode=mode)
    before = envs.step(actions(count=5))[0].copy()
    with at_most(RESTART_S):
        results = envs.step(actions(3, how, count=5))
    check_replaced(results, before, [2, 3, 4], [0, 1])
    fault = results[4]["fault"][3]
    assert {KILL: "SIGKILL", SEGFAULT: "SIGSEGV", EXIT: "exit code 7"}[how] in fault
    assert envs.stats["restarts"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_replaced_environment_continues_as_after_any_truncation(start, mode):
    envs, _ = start(autoreset_mode=mode)
    replaced, _, _, truncated, info = envs.step(actions(0, KILL))
    replaced = replaced.copy()
    if mode == AutoresetMode.SAME_STEP:
        assert info["_final_obs"].tolist() == [True, True, False, False]
        assert "fault" in info["final_info"]
    if mode == AutoresetMode.DISABLED:
        replaced[:2] = envs.reset(options={"reset_mask": truncated.copy()})[0][:2]
    observation, reward, terminated, truncated, info = envs.step(actions())
    assert not (terminated | truncated).any() and "fault" not in info
    assert (observation[:, 1] == replaced[:, 1]).all()
    expected = [0, 0] if mode == AutoresetMode.NEXT_STEP else [1, 1]  # that step resets
    assert observation[:, 2].tolist() == [*expected, 2, 2] and reward.tolist() == [*expected, 2, 2]
    assert envs.step(actions())[1].tolist() == [expected[0] + 1] * 2 + [3, 3]


def test_seeds_of_replacements_follow_from_the_seed_and_differ_each_time(start):
    def run(seed):
        envs, first = start(seed=seed)
        drawn = [first[:, 3].tolist()]
        for _ in range(3):
            observation, *_, info = envs.step(actions(0, KILL, 2, RAISE))
            drawn += [observation[:, 3].tolist(), info["seed"].tolist()]
        return drawn

    once = run(7)
    assert once == run(7) and once != run(8)
    seen = [row[env] for row in once[1::2] for env in range(3)]
    assert len(set(seen)) == len(seen)


def test_a_worker_that_takes_too_long_is_replaced_in_time(start):
    envs, before = start(step_timeout_s=0.3)
    for how in (C_LOOP, STOP, LOOP):
        before = envs.step(actions())[0].copy()
        with at_most(0.3 + 0.5 + RESTART_S):
            results = envs.step(actions(1, how))
        check_replaced(results, before, [0, 1], [2, 3])
        assert "did not answer within 0.3 s" in results[4]["fault"][0]


def test_two_workers_of_three_are_replaced_in_one_step_and_a_large_info_of_the_third_arrives(start):
    envs, before = start(6, 3)
    results = envs.step(actions(0, KILL, 2, BIG, 5, EXIT, count=6))
    check_replaced(results, before, [0, 1, 4, 5], [2, 3])
    assert (results[4]["big"][2] == 2).all() and np.flatnonzero(results[4]["_big"]).tolist() == [2]


def test_a_worker_that_died_between_steps_is_replaced_whether_or_not_a_slot_is_needed(start):
    envs, before = start()
    held = []
    for turn in range(4):
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        results = envs.step(actions())
        check_replaced(results, before, [2, 3], [0, 1])
        held += [results] if turn % 2 else []
        before = envs.step(actions())[0].copy()
    assert envs.stats["restarts"] == 4 and len(held) == 2


@pytest.mark.parametrize("mode", MODES)
def test_worker_that_dies_in_a_reset_is_replaced_reset_and_marked(start, mode):
    envs, before = start(autoreset_mode=mode)
    seeded, _ = envs.reset(seed=5)
    drawn = seeded[:, 3].tolist()
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    observation, info = envs.reset(seed=5)
    assert observation[:, 3].tolist() == drawn and info["seed"].tolist() == [5, 6, 7, 8]
    assert info["_fault"].tolist() == [True, True, False, False]
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_environment_outside_the_mask_is_marked_if_its_worker_died(start):
    envs, before = start()
    envs.step(actions())
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    observation, info = envs.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert info["_fault"].tolist() == [True, True, False, False]
    assert observation[:, 2].tolist() == [0, 0, 1, 1]
    assert observation[1, 1] != before[1, 1] and (observation[2:, 1] == before[2:, 1]).all()


def test_a_reset_that_always_kills_its_worker_is_given_up(start):
    envs, _ = start()
    with at_most(4 * RESTART_S), pytest.raises(WorkerDied):
        envs.reset(options={3: KILL})
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_a_worker_that_dies_in_a_call_is_replaced_and_the_death_raised(start):
    envs, before = start()
    with at_most(RESTART_S), pytest.raises(WorkerDied) as caught:
        envs.call("do_if", 2, KILL)
    assert caught.value.env_ids == [2, 3] and "it was replaced" in str(caught.value)
    assert envs.call("echo", 5) == (5,) * 4
    observation, reward, *_ = envs.step(actions())
    assert (observation[:2, 1] == before[:2, 1]).all() and reward[:2].tolist() == [1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_death_in_a_call_truncates_rows_of_the_next_step(start, mode):
    """Nobody may take the first observation of another life for the next of the old one."""
    found = []
    for by_call in (False, True):
        envs, before = start(autoreset_mode=mode)
        envs.step(actions())
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        if by_call:
            with pytest.raises(WorkerDied):
                envs.get_attr("tag")
            envs.call("echo", 1)
        seen = []
        for _ in range(3):
            observation, reward, terminated, truncated, infos = envs.step(actions())
            faults = infos.get("fault", [None] * 4)
            seen.append(
                [observation[:, 2].tolist(), reward.tolist(), terminated.tolist(), truncated.tolist()]
            )
            seen[-1] += [[fault is not None for fault in faults], sorted(infos)]
            if mode == AutoresetMode.DISABLED and truncated.any():
                envs.reset(options={"reset_mask": truncated})
        found.append(seen)
        envs.close()
    assert found[0] == found[1]
    assert found[1][0][3] == found[1][0][4] == [False, False, True, True]
    assert found[1][0][1] == [2.0, 2.0, 0.0, 0.0] and not any(found[1][1][4])


def test_reset_after_a_death_in_a_call_leaves_nothing_to_report(start):
    envs, _ = start()
    with pytest.raises(WorkerDied):
        envs.call("do_if", 2, KILL)
    envs.reset(seed=1)
    _, reward, _, truncated, infos = envs.step(actions())
    assert reward.tolist() == [1.0] * 4 and not truncated.any() and "fault" not in infos


@pytest.mark.parametrize("on_fault", ["raise", "restart"])
def test_an_environment_whose_reset_raises_is_reset_by_the_next_step(make, on_fault):
    envs = make(on_fault=on_fault)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(actions())
    with pytest.raises(Broken):
        envs.reset(options={1: RAISE})
    observation, reward, *_ = envs.step(actions())
    assert observation[:, 2].tolist() == [1, 0, 1, 1] and reward.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_death_in_a_rollout_truncates_only_rows_of_that_step(start, mode):
    envs, before = start(autoreset_mode=mode)
    rollout = envs.rollout(4)
    rollout.start(before)
    rollout.step(actions())
    info = rollout.step(actions(0, KILL))
    assert info["_fault"].tolist() == [True, True, False, False]
    rollout.step(actions())
    assert rollout.truncated[:3].tolist() == [[False] * 4, [True, True, False, False], [False] * 4]
    assert rollout.rewards[:2].tolist() == [[1.0] * 4, [0, 0, 2, 2]]
    assert rollout.observations[:3, :, 2].tolist() == [[0] * 4, [1] * 4, [0, 0, 2, 2]]
    assert (rollout.observations[2, :2, 1] != before[:2, 1]).all()


def test_message_observations_of_a_replaced_worker_are_new(make):
    envs = make(on_fault="restart", shared_memory=False, observation_space=None)
    before = envs.reset(seed=0)[0].copy()
    check_replaced(envs.step(actions(3, KILL)), before, [2, 3], [0, 1])


# -- environments that raise ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_environment_that_raises_is_made_again_in_its_worker(start, mode):
    envs, before = start(autoreset_mode=mode)
    pids = envs.worker_pids
    results = envs.step(actions(1, RAISE))
    check_replaced(results, before, [1], [0, 2, 3])
    assert "Broken: environment 1 was told to" in results[4]["fault"][1]
    assert envs.worker_pids == pids and envs.stats["restarts"] == 0
    if mode == AutoresetMode.SAME_STEP:
        assert results[4]["_final_obs"].tolist() == [False, True, False, False]


# -- replacements that fail -------------------------------------------------------------------------------


def test_a_replacement_that_dies_is_replaced_in_turn(start, tmp_path):
    deaths = tmp_path / "deaths"
    deaths.write_text("0")
    envs, before = start(deaths=deaths)
    deaths.write_text("2")
    check_replaced(envs.step(actions(0, KILL)), before, [0, 1], [2, 3])
    assert envs.stats["restarts"] == 3 and deaths.read_text() == "0"


def test_restart_gives_up_after_repeated_deaths_and_reset_retries(start, tmp_path):
    deaths = tmp_path / "deaths"
    deaths.write_text("0")
    envs, _ = start(6, 3, deaths=deaths)
    deaths.write_text("1000")
    with at_most(4 * RESTART_S), pytest.raises(WorkerDied):
        envs.step(actions(0, KILL, 4, KILL, count=6))
    assert 990 <= int(deaths.read_text()) < 1000
    with pytest.raises(WorkerDied):  # no result is made of what nobody stepped
        envs.step(actions(count=6))
    with pytest.raises(WorkerDied):
        envs.reset(seed=0)
    deaths.write_text("0")
    observation, _ = envs.reset(seed=0)
    assert observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert envs.step(actions(count=6))[1].tolist() == [1.0] * 6


class Moody(Fragile):
    """Raises when made, or in its first reset, as a file says."""

    def __init__(self, tag, mood):
        super().__init__(tag)
        self.mood = mood
        if open(mood).read() == "making":
            raise Broken("no mood to be made")

    def reset(self, *, seed=None, options=None):
        if open(self.mood).read() == "resetting":
            raise Broken("no mood to begin")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("when", ["making", "resetting"])
def test_exception_in_a_replacement_is_raised_and_leaves_no_process(tmp_path, when):
    mood = tmp_path / "mood"
    mood.write_text("fine")
    makers = [partial(Moody, tag, str(mood)) for tag in range(4)]
    with shoal.vector.ProcessVectorEnv(makers, num_workers=2, on_fault="restart") as envs:
        envs.reset(seed=0)
        envs.step(actions())
        before = len(os.listdir("/proc/self/fd"))
        mood.write_text(when)
        for call in (lambda: envs.step(actions(0, KILL)), lambda: envs.reset(seed=0)):
            with pytest.raises((Broken, WorkerError)):
                call()
        mood.write_text("fine")
        pids = envs.worker_pids
        assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4
        assert envs.step(actions())[1].tolist() == [1.0] * 4
        assert pids[0] is None or not is_running(pids[0])
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_is_replaced_though_the_launcher_was_killed_with_it(start):
    envs, before = start()
    os.kill(launcher._current._process.pid, signal.SIGKILL)
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    check_replaced(envs.step(actions()), before, [0, 1], [2, 3])


def test_an_abandoned_step_whose_worker_dies_leaves_the_environments_usable(start):
    envs, before = start()
    envs.step_async(actions(0, SLOW))
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    observation, reward, *_ = envs.step(actions())
    assert (observation[:2, 1] != before[:2, 1]).all()
    assert reward.tolist() == [0, 0, 2, 2]
