"""Counts the Python functions that one step calls, which is the overhead of a vector environment."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import shoal
from shoal.vector import ProcessVectorEnv
from shoal_lab.bench.toys import Still


def python_calls_of_a_step(envs):
    """The Python functions that one step calls in this thread, after some steps before it."""
    actions = np.zeros(envs.num_envs, np.int64)
    envs.reset(seed=0)
    for _ in range(5):
        results = envs.step(actions)
    found = []

    def note(frame, event, argument):
        if event == "call":
            found.append(frame.f_code.co_name)

    step = envs.step
    sys.setprofile(note)
    try:
        results = step(actions)  # the old results are let go only now, as in a training loop
    finally:
        sys.setprofile(None)
    del results
    return found


@pytest.mark.parametrize("buffers", ["leased", "live"])
def test_a_native_step_calls_no_python_function(buffers):
    with shoal.make_vec("CartPole-v1", 8, buffers=buffers) as envs:
        assert python_calls_of_a_step(envs) == []


def test_a_step_in_processes_calls_at_most_eight_python_functions():
    with ProcessVectorEnv([Still] * 4, num_workers=2) as envs:
        # A step that takes over a millisecond, because a worker has no core, also checks its limits.
        assert min(len(python_calls_of_a_step(envs)) for _ in range(5)) <= 8
