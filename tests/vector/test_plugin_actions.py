"""Actions of C environments in worker processes: so many that several threads check and copy them."""

import os

import numpy as np
import pytest

import shoal

NUM_ENVS = 70_001  # more than half a megabyte of int64, and not a multiple of anything


def count_threads():
    return len(os.listdir("/proc/self/task"))


@pytest.fixture
def pair():
    """The same environments in worker processes and on one thread of this process."""
    processes = shoal.make_vec("CartPole-v1", NUM_ENVS, backend="process", num_workers=2, session=None)
    native = shoal.make_vec("CartPole-v1", NUM_ENVS, num_threads=1, session=None)
    with processes, native:
        processes.reset(seed=3)
        native.reset(seed=3)
        yield processes, native


def assert_same_step(pair, actions):
    for mine, theirs in zip(*(envs.step(actions)[:4] for envs in pair), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_many_actions_reach_their_environments(pair):
    rng = np.random.default_rng(0)
    for _ in range(30):  # enough to try one thread and several
        assert_same_step(pair, rng.integers(0, 2, NUM_ENVS))


def test_many_actions_of_another_type_or_order_reach_their_environments(pair):
    actions = np.random.default_rng(1).integers(0, 2, (2, NUM_ENVS))
    assert_same_step(pair, actions[0].astype(np.int32))
    assert_same_step(pair, np.asfortranarray(actions.T)[:, 1])
    assert_same_step(pair, np.repeat(actions[0], 2)[::2])
    locked = actions[1].copy()
    locked.flags.writeable = False
    assert_same_step(pair, locked)


@pytest.mark.parametrize("place", [0, 35_000, NUM_ENVS - 1])
def test_the_first_bad_action_of_many_is_named_and_nothing_is_stepped(pair, place):
    actions = np.zeros(NUM_ENVS, np.int64)
    for _ in range(5):
        assert_same_step(pair, actions)
        bad = actions.copy()
        bad[place] = 2
        bad[-1] = 7 if place != NUM_ENVS - 1 else 2
        for envs in pair:
            with pytest.raises(ValueError, match=rf"action 2 of row {place} is not in"):
                envs.step(bad)
    assert_same_step(pair, actions)


def test_the_action_buffer_is_checked_by_the_same_rules(pair):
    processes, native = pair
    processes.actions[:] = 1
    processes.step()
    native.step(np.ones(NUM_ENVS, np.int64))
    processes.actions[60_000] = -1
    with pytest.raises(ValueError, match="action -1 of row 60000 is not in"):
        processes.step()
    assert_same_step(pair, np.zeros(NUM_ENVS, np.int64))


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="counts threads in /proc, which this system lacks"
)
def test_close_ends_the_threads_that_check_actions():
    before = count_threads()
    envs = shoal.make_vec("CartPole-v1", NUM_ENVS, backend="process", num_workers=2, session=None)
    envs.reset(seed=0)
    others = count_threads()
    envs.step(np.zeros(NUM_ENVS, np.int64))
    assert count_threads() == others + min(4, len(os.sched_getaffinity(0))) - 1
    envs.close()
    assert count_threads() == before
