"""Calls that raise, are abandoned or interrupted leave no results that a later call would return."""

from __future__ import annotations

import gc
import os
import signal
import weakref

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.errors import ShoalError, WorkerDied
from shoal.process import mail
from shoal.process.pool import WorkerPool
from shoal.vector import ProcessVectorEnv
from shoal_lab.bench.toys import Still
from tests.crash.fragile import wait_until

ACTIONS = np.zeros(2, np.int64)


class Counting(gymnasium.Env):
    """Its observation, reward and info are the number of its steps; the info is a message."""

    observation_space, action_space = Box(0, 1e9, (1,), np.float64), Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1), {"text": "0"}

    def step(self, action):
        self.steps += 1
        return np.full(1, float(self.steps)), float(self.steps), False, False, {"text": "x" * self.steps}


class Long(Counting):
    """Its infos do not fit the box of a worker."""

    def step(self, action):
        results = super().step(action)
        return *results[:4], {"text": "x" * 200_000, "number": str(self.steps)}


@pytest.fixture
def native():
    with shoal.make_vec("CartPole-v1", 2) as envs:
        envs.reset(seed=0)
        yield envs


def interrupt_once(monkeypatch, owner, name, *, after):
    """KeyboardInterrupt as a function is entered, or as it returns; once."""
    original, state = getattr(owner, name), {"done": False}

    def interrupted(*args, **kwargs):
        if state["done"]:
            return original(*args, **kwargs)
        state["done"] = True
        if after:
            original(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)
    return state


def test_a_native_step_is_refused_while_another_is_pending(native):
    step, rollout = native.step, native.rollout(2)
    native.step_async(ACTIONS)
    for call in (step, native.step):
        with pytest.raises(AlreadyPendingCallError):
            call(ACTIONS)
    with pytest.raises(AlreadyPendingCallError):
        rollout.start(native.single_observation_space.sample()[None].repeat(2, 0))
    found = native.step_wait()
    kept = found[0].copy()
    later = native.step(ACTIONS)
    assert not np.shares_memory(found[0], later[0]) and np.array_equal(found[0], kept)
    native.reset_async(seed=1)
    with pytest.raises(AlreadyPendingCallError):
        native.step(ACTIONS)
    assert np.array_equal(native.reset_wait()[0], native.reset(seed=1)[0])


def test_rejected_native_call_leaves_nothing_to_wait_for(native):
    with pytest.raises(ValueError):
        native.step_async(np.array([7, 1]))
    with pytest.raises(NoAsyncCallError):
        native.step_wait()
    with pytest.raises(AttributeError):
        native.call_async("nothing")
    with pytest.raises(NoAsyncCallError):
        native.call_wait()
    with shoal.make_vec("CartPole-v1", 2) as envs:
        with pytest.raises(ResetNeeded):
            envs.step_async(ACTIONS)
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()


def test_step_wait_does_not_take_the_step_of_a_rollout(monkeypatch):
    with ProcessVectorEnv([Counting] * 2, num_workers=1) as envs:
        observation = envs.reset(seed=0)[0]
        rollout = envs.rollout(3)
        rollout.start(observation)
        workers = envs._backend.workers
        interrupt_once(monkeypatch, workers, "wait", after=False)
        with pytest.raises(KeyboardInterrupt):
            rollout.step(ACTIONS)
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()
        assert envs.step(ACTIONS)[0].tolist() == [[2.0], [2.0]], "the interrupted step counts"


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_recv_of_messages_is_never_silently_wrong(monkeypatch, after):
    with ProcessVectorEnv([Counting] * 4, num_workers=2, batch_size=2) as envs:
        envs.async_reset(seed=0)
        for _ in range(4):
            info = envs.recv()[4]
            envs.send(ACTIONS, info["env_id"])
        interrupt_once(monkeypatch, mail, "_exchange", after=after)
        with pytest.raises((KeyboardInterrupt, WorkerDied)):
            for _ in range(8):
                info = envs.recv()[4]
                envs.send(ACTIONS, info["env_id"])
        try:
            for _ in range(4):
                observations, rewards, _, _, info = envs.recv()
                assert np.array_equal(observations[:, 0], rewards)
                assert [len(text) for text in info["text"]] == rewards.tolist()
                envs.send(ACTIONS, info["env_id"])
        except ShoalError:
            pass  # a worker was ended
        envs.async_reset(seed=0)
        observations, _, _, _, info = envs.recv()
        assert not observations.any() and list(info["text"]) == ["0", "0"]


def test_results_of_an_interrupted_recv_come_with_the_next(monkeypatch):
    with ProcessVectorEnv([Counting] * 2, num_workers=1, batch_size=2) as envs:
        envs.async_reset(seed=0)
        envs.send(ACTIONS, envs.recv()[4]["env_id"])
        flight = envs._backend._flight
        interrupt_once(monkeypatch, flight, "_take_messages", after=True)
        with pytest.raises(KeyboardInterrupt):
            envs.recv()
        observations, rewards, _, _, info = envs.recv()
        assert observations[:, 0].tolist() == rewards.tolist() == [1, 1]
        assert list(info["text"]) == ["x", "x"]


@pytest.mark.parametrize("kind", [Counting, Long])
def test_interrupted_answer_is_not_returned_by_the_next_call(monkeypatch, kind):
    with ProcessVectorEnv([kind] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        envs.step(ACTIONS)
        interrupt_once(monkeypatch, WorkerPool, "answer", after=False)
        with pytest.raises(KeyboardInterrupt):
            envs.step(ACTIONS)
        infos = envs.step(ACTIONS)[4]
        number = infos["number"] if kind is Long else [str(len(text)) for text in infos["text"]]
        assert list(number) == ["3", "3"]


def interrupt_an_answer(monkeypatch, envs):
    envs.step_async(ACTIONS)
    interrupt_once(monkeypatch, mail, "_exchange", after=False)
    with pytest.raises(KeyboardInterrupt):
        envs.step_wait()


def interrupt_a_question(monkeypatch, envs):
    interrupt_once(monkeypatch, mail, "_exchange", after=False)
    with pytest.raises(KeyboardInterrupt):
        envs.set_attr("text", "x" * 100_000)


CUT_OFF = "(SIGKILL|exit code 1), since Ctrl-C had interrupted a message to or from it"


@pytest.mark.parametrize("interrupt", [interrupt_an_answer, interrupt_a_question])
def test_a_worker_that_ctrl_c_cut_off_is_reported_with_the_reason(monkeypatch, interrupt):
    with ProcessVectorEnv([Long] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        interrupt(monkeypatch, envs)
        with pytest.raises(WorkerDied, match=CUT_OFF):
            envs.step(ACTIONS)
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)  # another reason is not taken for that one
        with pytest.raises(WorkerDied, match="was killed by SIGKILL; call reset"):
            envs.step(ACTIONS)


def test_a_worker_that_ctrl_c_cut_off_in_recv_is_reported_with_the_reason(monkeypatch):
    with ProcessVectorEnv([Counting] * 2, num_workers=1, batch_size=2) as envs:
        envs.async_reset(seed=0)
        envs.send(ACTIONS, envs.recv()[4]["env_id"])
        interrupt_once(monkeypatch, mail, "_exchange", after=False)
        with pytest.raises(KeyboardInterrupt):
            envs.recv()
        with pytest.raises(WorkerDied, match=CUT_OFF):
            envs.recv()


def test_environments_with_a_dead_worker_are_garbage_collected():
    envs = ProcessVectorEnv([Still] * 2, num_workers=2, session=None)
    envs.reset(seed=0)
    other = envs.worker_pids[1]
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        for _ in range(1000):
            envs.step(ACTIONS)
    gone = weakref.ref(envs)
    del envs
    gc.collect()
    assert gone() is None
    wait_until(lambda: not os.path.exists(f"/proc/{other}"), 10)


def test_an_interrupted_rollout_keeps_no_memory(monkeypatch):
    with ProcessVectorEnv([Still] * 2, num_workers=1) as envs:
        observation = envs.reset(seed=0)[0]
        blocks = envs._backend.workers._blocks
        envs.rollout(2)
        before = len(blocks)
        interrupt_once(monkeypatch, envs._backend.workers, "_request_all", after=True)
        with pytest.raises(KeyboardInterrupt):
            envs.rollout(100)
        gc.collect()
        assert len(blocks) <= before
        rollout = envs.rollout(2)
        rollout.start(observation)
        rollout.step(ACTIONS)
