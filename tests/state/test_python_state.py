"""envs.state of environments in Python, in worker processes and in the caller's own."""

from functools import partial

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.vector import ProcessVectorEnv
from tests.state.worlds import Pond, Silent, is_whole


def ponds(count=4, **arguments):
    return ProcessVectorEnv([partial(Pond, tag) for tag in range(count)], session=None, **arguments)


@pytest.mark.parametrize("caller_steps", [False, True])
def test_exported_fields_arrive_complete(caller_steps):
    with ponds(num_workers=2, caller_steps=caller_steps) as envs:
        envs.reset(seed=0)
        for tick in range(1, 5):
            envs.step(np.zeros(4, np.int64))
            for env in range(4):
                arrays = envs.state_arrays(env)
                assert int(arrays["tick"]) == tick and is_whole(arrays)
                assert arrays["grid"].dtype == np.int8 and arrays["grid"].shape == (4, 5)
                assert not arrays["grid"].flags.writeable
        assert isinstance(envs.state()["grid"]["data"], bytes)
        assert envs.states()["grid"].shape == (4, 4, 5)
        assert envs.state_schema()["grid"]["categories"] == [[0, "water", "#2060a0"], [1, "reed", "#208040"]]
        assert envs.state_schema()["fish"]["columns"] == ["r", "c"]
        assert envs.call("tag") == (0, 1, 2, 3)


def test_an_environment_inside_wrappers_is_found():
    def wrapped():
        return gymnasium.wrappers.TimeLimit(Pond(), 10)

    with ProcessVectorEnv([wrapped], session=None) as envs:
        envs.reset(seed=0)
        assert "grid" in envs.state()


def test_without_the_hook_there_is_nothing():
    with ProcessVectorEnv([Silent], session=None) as envs:
        envs.reset(seed=0)
        assert envs.state() == {} and envs.states() == {}


WRONG = {
    "raises": (ZeroDivisionError, "the pond is dry"),
    "not a dict": (TypeError, "must return a dict of names and arrays, it returned list"),
    "objects": (TypeError, r"export_state\(\)\['grid'\] must be an array of numbers or bools, got object"),
    "schema": (ValueError, "describes \\['whale'\\], which export_state\\(\\) does not return"),
    "role": (ValueError, "role must be one of .*'grid'.*, got 'painting'"),
    "columns": (ValueError, "1 columns must name the last dimension of \\(1, 2\\)"),
    "drawn": (ValueError, "role 'grid' is for .height, width. of integers, found int64 of shape"),
    "ragged": (ValueError, r"export_state\(\)\['grid'\] cannot be converted to an array"),
    "category": (ValueError, "a category is \\(value, name, '#rrggbb'\\)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_hook_that_is_wrong_is_an_error_that_says_what_to_do(wrong):
    kind, message = WRONG[wrong]
    with ProcessVectorEnv([partial(Pond, wrong=wrong)], session=None) as envs:
        envs.reset(seed=0)
        with pytest.raises(kind, match=message):
            envs.state()
        envs.step(np.zeros(1, np.int64))  # and the run goes on


def test_state_can_be_read_while_environments_are_under_way():
    makers = [partial(Pond, tag, slow_s=0.002 * tag) for tag in range(4)]
    with ProcessVectorEnv(makers, num_workers=2, batch_size=2, session=None) as envs:
        envs.async_reset(seed=0)
        received = 0
        for turn in range(60):
            observations, *_, info = envs.recv()
            received += len(info["env_id"])
            envs.send(np.zeros(2, np.int64), info["env_id"])
            arrays = envs.state_arrays(turn % 4)
            assert is_whole(arrays)
        assert received == 120
        with pytest.raises(IndexError):
            envs.state(4)


def test_reading_state_of_a_dead_worker_raises_worker_died():
    with ponds(num_workers=2) as envs:
        envs.reset(seed=0)
        import os
        import signal

        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(shoal.errors.WorkerDied):
            envs.state(0)
        envs.reset(seed=0)
        assert is_whole(envs.state_arrays(0))
