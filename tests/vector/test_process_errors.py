"""Exceptions of environments keep their type, and other environments continue; failing env_fns are named."""

import functools
import os
import threading
import traceback

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import shoal.process.pool
from shoal.errors import WorkerError
from shoal.process.mail import RemoteTraceback
from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import RAISE, Broken, Counter, Words, assert_same, counters, logged


def raised(error):
    """Two Counters, one of which raises `error()` when told to."""

    class Own(Counter):
        def step(self, action):
            if action == RAISE:
                raise error()
            return super().step(action)

    return [Own] * 2


@pytest.mark.parametrize("caller_steps", [False, True])
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_exception_arrives_with_the_results_of_other_environments(mode, caller_steps):
    with ProcessVectorEnv(counters(3), num_workers=2, autoreset_mode=mode, caller_steps=caller_steps) as envs:
        envs.reset(seed=0)
        for who in range(3):
            actions = [RAISE if one == who else 0 for one in range(3)]
            with logged() as lines, pytest.raises(Broken, match="broke: it was told to") as caught:
                envs.step(actions)
            error = caught.value
            assert (error.who, error.reason, error.env_id) == (who, "it was told to", who)
            assert isinstance(error.__cause__, RemoteTraceback)
            assert 'raise Broken(self.who, reason="it was told to")' in str(error.__cause__)
            assert lines == []  # nothing else is printed
            observations, rewards, terminated, truncated, info = error.results
            others = [one for one in range(3) if one != who]
            assert truncated.tolist() == [one == who for one in range(3)] and not terminated.any()
            assert rewards[who] == 0 and (rewards[others] > 0).all()
            assert_same(observations[others, 2].astype(float), rewards[others])
            assert info["_count"].tolist() == [one != who for one in range(3)]
            observations, rewards, terminated, truncated, info = envs.step([0, 0, 0])
            assert observations[who, 2] == rewards[who] == 0
            assert info["_begun"].tolist() == [one == who for one in range(3)]
            assert (rewards[others] > 1).all() and not truncated.any()
            assert envs.step([0, 0, 0])[1][who] == 1


def test_percent_sign_in_an_exception_is_kept():
    class Tired(Counter):
        def step(self, action):
            raise RuntimeError("battery at 5% now, %s")

    with ProcessVectorEnv([Tired] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        with logged() as lines, pytest.raises(RuntimeError, match="5% now, %s") as caught:
            envs.step([0, 0])
    assert caught.value.env_id == 1 and any("battery at 5% now, %s" in line for line in lines)


def test_the_traceback_of_the_worker_is_printed_with_the_exception():
    with ProcessVectorEnv(counters(2), num_workers=2) as envs:
        envs.reset()
        with logged(), pytest.raises(Broken) as caught:
            envs.step([0, RAISE])
        printed = "".join(traceback.format_exception(caught.value))
        assert "test_process_envs.py" in printed and "direct cause of the following exception" in printed


def test_last_of_several_exceptions_is_raised_and_the_others_are_logged():
    with ProcessVectorEnv(counters(4), num_workers=2) as envs:
        envs.reset()
        with logged() as lines, pytest.raises(Broken) as caught:
            envs.step([RAISE, 0, RAISE, 0])
        assert caught.value.env_id == 2
        assert caught.value.results[3].tolist() == [True, False, True, False]
        assert len(lines) == 1 and "environment 0 raised, too:\nTraceback" in lines[0]
        assert 'raise Broken(self.who, reason="it was told to")' in lines[0]
        assert envs.step([0] * 4)[1].tolist() == [0, 2, 0, 2]


def test_an_exception_of_a_reset_arrives_too_and_the_others_are_reset():
    with ProcessVectorEnv(counters(3), num_workers=2) as envs:
        with logged(), pytest.raises(LookupError, match="no such level in 1") as caught:
            envs.reset(seed=0, options={"fail": 1})
        observations, info = caught.value.results
        assert caught.value.env_id == 1
        assert observations[[0, 2]].tolist() == [[0, 1, 0], [2, 1, 0]]
        assert info["_begun"].tolist() == [True, False, True]
        assert envs.reset(seed=0)[0][:, 1].tolist() == [2, 1, 2]


def test_masked_reset_after_an_exception_returns_current_observations_of_others():
    with ProcessVectorEnv(counters(3), num_workers=2) as envs:
        kept = [envs.reset(seed=0), envs.step([0, 0, 0])]
        with logged(), pytest.raises(Broken):
            envs.step([0, RAISE, 0])
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
        assert observations.tolist() == [[0, 1, 2], [1, 2, 0], [2, 1, 2]]
        assert kept[1][0][:, 2].tolist() == [1, 1, 1]


def test_an_exception_before_the_first_observation_by_message_is_not_hidden():
    from gymnasium.spaces import Dict, Discrete

    class Late(Counter):
        observation_space = Dict(words=Words(), count=Discrete(9))

        def reset(self, *, seed=None, options=None):
            raise KeyError("mine")

    with ProcessVectorEnv([Late] * 2, shared_memory=False) as envs:
        with logged(), pytest.raises(KeyError, match="mine"):
            envs.reset()


class Unpicklable(Exception):
    def __init__(self, where):
        super().__init__(f"broke at {where}")
        self.lock = threading.Lock()


class Stubborn(Exception):
    def __reduce__(self):
        raise TypeError("not me")


def test_exceptions_that_are_hard_to_pickle_arrive():
    class Local(Exception):
        def __init__(self, one, two):
            super().__init__()
            self.sum = one + two

    for kind, make in {
        Unpicklable: lambda: Unpicklable("home"),
        Stubborn: lambda: Stubborn("text", 2),
        Local: lambda: Local(1, two=2),
        UnicodeDecodeError: lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        KeyError: lambda: KeyError(("a", 1)),
    }.items():
        with ProcessVectorEnv(raised(make), num_workers=2) as envs:
            envs.reset()
            with logged(), pytest.raises(kind) as caught:
                envs.step([0, RAISE])
            assert type(caught.value) is kind and caught.value.env_id == 1
            assert str(caught.value) == str(make())
            assert not hasattr(make(), "sum") or caught.value.sum == 3
            assert envs.step([0, 0])[1].tolist() == [2, 0]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_system_exit_of_an_environment_is_a_WorkerError(kind):
    with ProcessVectorEnv(raised(kind), num_workers=2) as envs:
        envs.reset()
        with logged(), pytest.raises(WorkerError, match=f"environment 1 raised {kind.__name__}") as caught:
            envs.step([0, RAISE])
        assert caught.value.env_id == 1
        assert envs.step([0, 0])[1].tolist() == [2, 0]


def test_an_info_or_a_result_that_cannot_be_pickled_is_an_error_of_its_environment():
    class Locked(Counter):
        def step(self, action):
            *rest, info = super().step(0)
            return *rest, {"lock": threading.Lock()} if action else info

        def lock(self):
            return threading.Lock() if self.who else None

    with ProcessVectorEnv([lambda who=who: Locked(who) for who in range(2)], num_workers=1) as envs:
        envs.reset()
        with logged(), pytest.raises(TypeError, match="cannot pickle '_thread.lock'") as caught:
            envs.step([0, 1])
        assert caught.value.env_id == 1 and caught.value.results[4]["_count"].tolist() == [True, False]
        with logged(), pytest.raises(TypeError, match="cannot pickle") as caught:
            envs.call("lock")
        assert caught.value.env_id == 1
        assert envs.step([0, 0])[1].tolist() == [2, 0]


# -- functions that fail ------------------------------------------------------------------------------


def noted(directory, who, fails):
    (directory / str(os.getpid())).touch()
    if fails:
        raise Broken(who, reason="no licence")
    return Counter(who)


def assert_all_gone(directory):
    pids = [int(path.name) for path in directory.iterdir()]
    assert pids
    for pid in pids:
        if pid != os.getpid():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize("caller_steps", [False, True])
def test_a_function_that_fails_says_why_and_leaves_no_process(tmp_path, failing, caller_steps):
    makers = [functools.partial(noted, tmp_path, who, who == failing) for who in range(3)]
    with pytest.raises(Broken, match="no licence") as caught:
        ProcessVectorEnv(makers, num_workers=2, caller_steps=caller_steps)
    assert (caught.value.env_id, caught.value.reason) == (failing, "no licence")
    if not (caller_steps and failing == 2):
        assert "no licence" in str(caught.value.__cause__)
    assert_all_gone(tmp_path)


@pytest.mark.parametrize("made", [None, 3, Counter], ids=["None", "an int", "a class"])
def test_a_function_that_returns_no_environment_is_named(made):
    with pytest.raises(TypeError, match=r"env_fns\[1\] must return an environment, found"):
        ProcessVectorEnv([Counter, lambda: made], num_workers=1)


def test_a_function_that_cannot_be_pickled_is_named_before_any_process_starts(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a process was started")

    monkeypatch.setattr(shoal.process.pool, "start", refuse)
    lock = threading.Lock()

    def locked():
        with lock:
            return Counter()

    with pytest.raises(
        WorkerError, match=r"env_fns\[2\], .*locked.* cannot be sent .*_thread.lock"
    ) as caught:
        ProcessVectorEnv([Counter, Counter, locked], num_workers=2)
    assert 'context="fork"' in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_needs_no_pickling():
    lock = threading.Lock()

    def locked():
        with lock:
            return Counter()

    with ProcessVectorEnv([locked] * 2, context="fork", num_workers=2) as envs:
        assert envs.reset(seed=0)[0].shape == (2, 3)
