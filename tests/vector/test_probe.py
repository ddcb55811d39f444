"""caller_steps="auto": the caller steps a chunk only if its environments are light."""

from __future__ import annotations

import math
import os
import time

import numpy as np
import pytest

from shoal.vector import ProcessVectorEnv
from shoal.vector.probe import measure_step_s
from shoal_lab.bench.toys import Still
from tests.native.conftest import REAL
from tests.vector.latched import make


class Slow(Still):
    """A step takes a millisecond."""

    def step(self, action):
        time.sleep(0.001)
        return super().step(action)


class Counting(Still):
    """Ends at once; `closed` and `steps` are of the last one made in this process."""

    made: list[Counting] = []

    def __init__(self):
        super().__init__()
        self.steps = self.closes = 0
        Counting.made.append(self)

    def step(self, action):
        self.steps += 1
        return self.observation, 0.0, True, False, {}

    def close(self):
        self.closes += 1


class Failing(Still):
    def step(self, action):
        raise RuntimeError("no step")


def pids(envs):
    return envs.call("getpid")


class Located(Still):
    def getpid(self):
        return os.getpid()


class SlowAndLocated(Slow, Located):
    pass


def test_light_environments_are_stepped_by_the_caller_too():
    with ProcessVectorEnv([Located] * 4, num_workers=1, caller_steps="auto") as envs:
        assert len(set(pids(envs))) == 2 and os.getpid() in pids(envs)
        envs.reset(seed=0)
        assert envs.step(np.zeros(4, np.int64))[0].shape == (4, 4)


def test_environments_that_take_long_are_left_to_the_workers():
    with ProcessVectorEnv([SlowAndLocated] * 4, num_workers=1, caller_steps="auto") as envs:
        assert os.getpid() not in pids(envs)


def test_a_measured_environment_is_closed_and_reset_at_the_end_of_each_episode():
    Counting.made.clear()
    assert measure_step_s(Counting) < 0.001
    (env,) = Counting.made
    assert env.closes == 1 and 1 <= env.steps <= 50


def test_measuring_ends_within_milliseconds():
    begin = time.perf_counter()
    assert measure_step_s(Slow) >= 0.001
    assert time.perf_counter() - begin < 1


def test_an_environment_that_raises_is_left_to_the_workers_which_report_it():
    assert measure_step_s(Failing) == math.inf
    assert measure_step_s(lambda: 1 / 0) == math.inf
    with pytest.raises(ZeroDivisionError):
        ProcessVectorEnv([lambda: 1 / 0] * 2, caller_steps="auto")


def test_auto_is_off_with_batch_size():
    with ProcessVectorEnv([Still] * 4, num_workers=2, batch_size=2, caller_steps="auto") as envs:
        envs.async_reset(seed=0)
        assert envs.recv()[0].shape == (2, 4)


@pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")
def test_auto_is_off_for_environments_in_c():
    with make("C in workers", 4, caller_steps="auto") as envs:
        assert len(envs.worker_pids) == 2


def test_other_values_of_caller_steps_raise():
    with pytest.raises(TypeError, match="caller_steps must be one of True, False, 'auto', got str: 'yes'"):
        ProcessVectorEnv([Still] * 2, caller_steps="yes")
