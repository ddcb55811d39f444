"""After deaths: one reset restarts all workers, and a result marks every environment that was replaced."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import weakref
from contextlib import ExitStack
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from shoal import ReplayBuffer
from shoal.errors import ShoalError, WorkerDied
from shoal.vector import ProcessVectorEnv
from tests.crash.fragile import (
    KILL,
    LOOP,
    SOON_S,
    actions,
    at_most,
    died,
    is_running,
    make_fragile,
    wait_until,
)
from tests.vector.test_process_envs import DIE, SLOW, Counter, Words

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")


@pytest.fixture
def envs():
    with make_fragile() as made:
        made.reset(seed=0)
        yield made


def kill(envs, *workers):
    pids = [envs.worker_pids[w] for w in workers]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), SOON_S)


def masked(*chosen):
    mask = np.zeros(4, bool)
    mask[list(chosen)] = True
    return {"reset_mask": mask}


# -- one reset is enough ------------------------------------------------------------------------------------


def test_one_reset_restarts_all_workers_that_died_together(envs):
    for pause_s in (0.0, 0.05):
        for pid in envs.worker_pids:
            os.kill(pid, signal.SIGKILL)
        died(envs, actions())
        time.sleep(pause_s)
        observation, info = envs.reset(seed=0)
        assert observation[:, 2].tolist() == [0] * 4
        assert all("SIGKILL" in fault for fault in info["fault"])  # of the second nothing was raised
        assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_worker_that_dies_while_a_reset_restarts_another_is_restarted(envs, monkeypatch):
    died(envs, actions(0, KILL))
    post = envs._backend.workers.post_reset

    def killing(*args):
        kill(envs, 1)
        post(*args)

    monkeypatch.setattr(envs._backend.workers, "post_reset", killing)
    observation, info = envs.reset(seed=0)
    assert observation[:, 2].tolist() == [0] * 4 and info["_fault"].all()
    monkeypatch.undo()
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_unreported_death_is_raised_by_a_reset(envs):
    kill(envs, 1)
    with pytest.raises(WorkerDied) as caught:
        envs.reset(seed=0)
    assert caught.value.env_ids == [2, 3]
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4


def test_async_reset_restarts_several_workers():
    with make_fragile(batch_size=2) as envs:
        envs.async_reset(seed=0)
        for _ in range(2):
            envs.recv()
        envs.send(actions(0, KILL, 3, KILL), range(4))
        with at_most(SOON_S), pytest.raises(WorkerDied):
            envs.recv([0, 1])
        with at_most(2 * SOON_S):
            envs.async_reset(seed=0)
        assert sorted(np.concatenate([envs.recv()[0][:, 0] for _ in range(2)]).tolist()) == [0, 1, 2, 3]


class Talkative(gymnasium.Env):
    """Its resets have a large info; while a file is there, the first dies in it, the others are slow."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def __init__(self, who, file):
        self.who, self.file = who, file

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if os.path.exists(self.file):
            if self.who == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.2)
        return np.zeros(2, np.float32), {"big": np.full(300_000, self.who, np.uint8)}


def test_large_answer_of_an_abandoned_reset_is_not_taken_as_a_report(tmp_path):
    file = tmp_path / "file"
    makers = [partial(Talkative, who, str(file)) for who in range(2)]
    with ProcessVectorEnv(makers, num_workers=2, batch_size=1) as envs:
        envs.async_reset(seed=0)
        envs.recv(), envs.recv()
        file.touch()
        with pytest.raises(WorkerDied):
            envs.async_reset(seed=1)
        file.unlink()
        time.sleep(0.4)
        with at_most(2 * SOON_S):
            envs.async_reset(seed=2)
        for _ in range(2):
            info = envs.recv()[4]
            assert (info["big"][0] == info["env_id"][0]).all()


# -- who begins anew says so --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_step_after_a_partial_reset_with_a_death_marks_the_other_environments(mode):
    with make_fragile(autoreset_mode=mode, on_fault="restart") as envs:
        envs.reset(seed=0)
        envs.step(actions())
        kill(envs, 0)
        observation, info = envs.reset(options=masked(0, 2))
        assert observation[:, 2].tolist() == [0, 0, 0, 1] and info["_fault"].tolist() == [1, 1, 0, 0]
        observation, reward, _, truncated, info = envs.step(actions())
        assert observation[:, 2].tolist() == [0, 0, 1, 2] and reward.tolist() == [0, 0, 1, 2]
        assert truncated.tolist() == info["_fault"].tolist() == [True, True, False, False]
        kill(envs, 0)
        _, info = envs.reset(options=masked(0, 1))
        assert info["_fault"].tolist() == [1, 1, 0, 0]
        assert not envs.step(actions())[3].any()  # all of them were to begin anew


def test_replay_stores_nothing_across_a_partial_reset_with_a_death():
    with ExitStack() as closing:
        envs = closing.enter_context(make_fragile(autoreset_mode=AutoresetMode.DISABLED, on_fault="restart"))
        buffer = closing.enter_context(ReplayBuffer.for_env(envs, 1000))
        observation, _ = envs.reset(seed=0)
        buffer.begin(observation)
        for turn in range(12):
            results = envs.step(actions())
            buffer.add(actions(), *results)
            done = results[2] | results[3]
            if turn % 4 == 3:
                kill(envs, turn // 4 % 2)
                done[3 - turn // 4] = True
            if done.any():
                observation, _ = envs.reset(options={"reset_mask": done})
                buffer.begin(observation, done)
        batch = buffer.sample(512)
        before, after = batch["obs"], batch["next_obs"]
        assert (before[:, :2] == after[:, :2]).all() and (before[:, 2] + 1 == after[:, 2]).all()


def test_partial_reset_marks_environments_of_a_restarted_worker_that_were_not_reset(envs):
    before = envs.step(actions())[0].copy()
    died(envs, actions(3, KILL))
    observation, _ = envs.reset(options=masked(2))
    assert observation[:, 2].tolist() == [2, 2, 0, 0] and observation[3, 1] != before[3, 1]
    observation, reward, _, truncated, info = envs.step(actions())
    assert truncated.tolist() == info["_fault"].tolist() == [False, False, True, True]
    assert reward.tolist() == [3, 3, 0, 0] and observation[:, 2].tolist() == [3, 3, 0, 0]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_death_in_an_abandoned_step_is_reported_by_the_next_step(mode):
    with make_fragile(autoreset_mode=mode, on_fault="restart") as envs:
        envs.reset(seed=0)
        envs.step_async(actions(0, LOOP))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)
        kill(envs, 0)
        observation, reward, _, truncated, info = envs.step(actions())
        assert truncated.tolist() == info["_fault"].tolist() == [True, True, False, False]
        assert observation[:, 2].tolist() == reward.tolist() == [0, 0, 2, 2]
        assert not envs.step(actions())[3].any() and envs.stats["restarts"] == 1


def test_message_observations_are_not_stale_after_two_deaths(tmp_path):
    class Speaking(Counter):
        observation_space = Words()

        def _seen(self):
            return [f"{self.who}:{self.count}"]

    makers = [lambda who=who: Speaking(who, tmp_path / "gate") for who in range(3)]
    with ProcessVectorEnv(makers, num_workers=3, shared_memory=False) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerDied):
            envs.step([DIE, SLOW, 0])
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        mask = {"reset_mask": np.array([True, True, False])}
        assert list(envs.reset(options=mask)[0]) == [["0:0"], ["1:0"], ["2:1"]]


# -- before anybody steps -----------------------------------------------------------------------------------


def test_no_worker_steps_after_a_death_is_found_while_posting(envs):
    held = [envs.step(actions()), envs.step(actions())]  # the next needs new memory: all are told of it
    kill(envs, 1)
    died(envs, actions())
    assert envs.reset(options=masked(2, 3))[0][:, 2].tolist() == [2, 2, 0, 0] and len(held) == 2


def test_no_actions_are_sent_if_a_worker_is_known_to_be_dead():
    class Told(Counter):
        action_space = Words()

        def step(self, action):
            return super().step(0)

    with ProcessVectorEnv([lambda who=who: Told(who) for who in range(2)], num_workers=2) as envs:
        envs.reset(seed=0)
        kill(envs, 1)
        with pytest.raises(WorkerDied):
            envs.step((["a"], ["b"]))
        mask = {"reset_mask": np.array([False, True])}
        assert envs.reset(options=mask)[0][:, 2].tolist() == [0, 0]


def test_death_after_a_timeout_is_raised_while_others_are_busy(envs):
    envs.step_async(actions(0, LOOP))
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.05)
    kill(envs, 1)
    assert died(envs, actions()).env_ids == [2, 3]
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4


# -- at any moment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [(0,), (0, 1)])
@pytest.mark.parametrize("on_fault", ["raise", "restart"])
def test_ctrl_c_after_reaping_keeps_the_death(on_fault, workers, monkeypatch):
    with make_fragile(on_fault=on_fault) as envs:
        envs.reset(seed=0)
        kill(envs, *workers)
        pool = envs._backend.workers.pool
        reap_worker = pool.reap_worker

        def interrupted(*args):
            reap_worker(*args)
            monkeypatch.setattr(pool, "reap_worker", reap_worker)
            raise KeyboardInterrupt

        monkeypatch.setattr(pool, "reap_worker", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step(actions())
        if on_fault == "raise":
            died(envs, actions())
            envs.reset(seed=0)
        else:
            assert envs.step(actions())[3].tolist() == [w in workers for w in (0, 0, 1, 1)]
        assert None not in envs.worker_pids and not pool.reaped


@pytest.mark.parametrize("mended", [True, False])
def test_environments_with_a_raised_death_are_freed_without_garbage_collection(mended):
    gc.collect()
    gc.disable()
    try:
        envs = make_fragile()
        envs.reset(seed=0)
        with pytest.raises(WorkerDied):
            envs.step(actions(0, KILL))
        if mended:
            envs.reset(seed=0)
        envs.close()
        there = weakref.ref(envs)
        del envs
        assert there() is None
    finally:
        gc.enable()


def test_dropping_a_rollout_while_a_worker_is_replaced_is_safe(envs, monkeypatch):
    held = [envs.rollout(2)]
    died(envs, actions(0, KILL))
    start = envs._backend.workers.pool.start

    def later(*args):
        held.clear()
        gc.collect()
        start(*args)

    monkeypatch.setattr(envs._backend.workers.pool, "start", later)
    assert envs.reset(seed=0)[0][:, 2].tolist() == [0] * 4 and not held
    envs.rollout(2)
    assert envs.step(actions())[1].tolist() == [1.0] * 4


def test_death_in_an_interrupted_rollout_step_keeps_earlier_rows(monkeypatch):
    with make_fragile(on_fault="restart") as envs:
        rollout = envs.rollout(4)
        rollout.start(envs.reset(seed=0)[0])
        rollout.step(actions())
        before = rollout.observations[:2].copy()

        def interrupted(*args, **named):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(envs._backend.workers, "wait", interrupted)
            rollout.step(actions(0, KILL))
        wait_until(lambda: envs._backend.workers.pool.gates.dead() == [0], SOON_S)
        for again in (lambda: rollout.step(actions()), lambda: rollout.start(rollout.observations[1])):
            with pytest.raises(
                ShoalError, match=r"step whose results were not taken.*reset\(\), or step\(\) once"
            ):
                again()
        observation, _, _, truncated, info = envs.step(actions())
        assert truncated.tolist() == info["_fault"].tolist() == [True, True, False, False]
        assert np.array_equal(rollout.observations[:2], before)
        rollout.start(observation)
        rollout.step(actions())
        assert rollout.observations[1, :, 2].tolist() == [0, 0, 4, 4]  # NEXT_STEP: they begin
