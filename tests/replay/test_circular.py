"""SharedCircularBuffer: every process can read the newest transitions."""

import multiprocessing

import numpy as np
import pytest

import shoal
from shoal import SharedCircularBuffer


def fill_buffer(capacity, state_dim, pushes):
    buffer = SharedCircularBuffer(capacity, state_dim)
    for i in range(pushes):
        buffer.push(np.full(state_dim, i), i, i / 2, np.full(state_dim, i + 1), i % 3 == 0)
    return buffer


@pytest.mark.parametrize("pushes", [0, 1, 4, 5, 6, 13])
def test_it_holds_the_last_transitions_oldest_first(pushes):
    buffer = fill_buffer(5, 3, pushes)
    kept = list(range(max(0, pushes - 5), pushes))
    assert len(buffer) == len(kept)
    latest = buffer.latest(5)
    assert latest["actions"] == kept
    assert latest["states"] == [[float(i)] * 3 for i in kept]
    assert latest["rewards"] == [i / 2 for i in kept]
    assert latest["next_states"] == [[float(i + 1)] * 3 for i in kept]
    assert latest["dones"] == [i % 3 == 0 for i in kept]
    assert buffer.latest(2)["actions"] == kept[-2:]
    assert buffer.latest(100)["actions"] == kept
    assert buffer.latest(0)["actions"] == []
    buffer.close()


def test_sample_draws_the_slots_of_numpy_random_state():
    buffer = fill_buffer(7, 2, 10)
    slots = np.random.RandomState(3).randint(0, 7, size=50)
    drawn = buffer.sample(50, seed=3)
    assert drawn["actions"] == buffer.actions[slots].tolist()
    assert drawn["states"] == buffer.states[slots].tolist()
    assert set(drawn) == {"states", "actions", "rewards", "next_states", "dones"}
    assert all(type(value) is list for value in drawn.values())
    assert buffer.sample(50, seed=3) == drawn
    few = fill_buffer(7, 2, 3)
    assert few.sample(20, seed=1)["actions"] == np.random.RandomState(1).randint(0, 3, size=20).tolist()
    buffer.close(), few.close()


def test_arrays_are_views_of_the_shared_memory():
    buffer = fill_buffer(4, 2, 6)
    assert buffer.states.shape == buffer.next_states.shape == (4, 2)
    assert (buffer.states.dtype, buffer.actions.dtype) == (np.float64, np.int64)
    assert (buffer.rewards.dtype, buffer.dones.dtype) == (np.float64, np.bool_)
    assert buffer.actions.tolist() == [4, 5, 2, 3]  # slot = push % capacity
    buffer.rewards[1] = 99
    assert buffer.latest(1)["rewards"] == [99]
    states = buffer.states
    buffer.close()
    assert states[0].tolist() == [4.0, 4.0]  # a view outlives close


def push_many(buffer, first, count):
    for i in range(first, first + count):
        buffer.push([i, -i], i, i, [i + 1, -i - 1], False)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_several_processes_push_and_each_transition_arrives_whole_and_once(method):
    buffer = SharedCircularBuffer(400, 2)
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=push_many, args=(buffer, 1000 * p, 100)) for p in range(3)]
    for process in processes:
        process.start()
    push_many(buffer, 5000, 100)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    latest = buffer.latest(400)
    expected = sorted([1000 * p + i for p in (0, 1, 2, 5) for i in range(100)])
    assert sorted(latest["actions"]) == expected
    for state, action, reward, next_state in zip(
        latest["states"], latest["actions"], latest["rewards"], latest["next_states"], strict=True
    ):
        assert state == [action, -action] and reward == action and next_state == [action + 1, -action - 1]
    for p in (0, 1, 2, 5):  # each process's own in order
        own = [action for action in latest["actions"] if action // 1000 == p]
        assert own == sorted(own)
    buffer.close()


def test_nan_is_stored_like_any_number():
    buffer = SharedCircularBuffer(2, 1)
    buffer.push([np.nan], 0, float("nan"), [np.inf], True)
    assert np.isnan(buffer.latest(1)["states"][0][0]) and np.isnan(buffer.rewards[0])
    buffer.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 1), ValueError),
        ((-3, 1), ValueError),
        ((1, 0), ValueError),
        ((1.5, 1), TypeError),
        ((1, "2"), TypeError),
        ((True, 1), TypeError),
        ((None, 1), TypeError),
    ],
)
def test_bad_size_raises(arguments, error):
    with pytest.raises(error, match="capacity|state_dim"):
        SharedCircularBuffer(*arguments)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (([1], 0, 0, [1, 2], False), ValueError),
        (([1, 2, 3], 0, 0, [1, 2], False), ValueError),
        (([1, 2], 0, 0, 5, False), ValueError),
        (([1, "a"], 0, 0, [1, 2], False), TypeError),
        (([1, 2], 0.5, 0, [1, 2], False), TypeError),
        (([1, 2], 2**63, 0, [1, 2], False), ValueError),
        (([1, 2], True, 0, [1, 2], False), TypeError),
        (([1, 2], 0, "x", [1, 2], False), TypeError),
        (([1, 2], 0, None, [1, 2], False), TypeError),
        (([1, 2], 0, 0, [1, 2], "no"), TypeError),
        (([1, 2], 0, 0, [1, 2], 2), TypeError),
    ],
)
def test_bad_transition_raises_and_stores_nothing(row, error):
    buffer = SharedCircularBuffer(3, 2)
    buffer.push([7, 7], 7, 7, [7, 7], True)
    with pytest.raises(error):
        buffer.push(*row)
    assert len(buffer) == 1 and buffer.latest(3)["actions"] == [7]
    buffer.close()


def test_bad_questions_are_refused():
    buffer = SharedCircularBuffer(3, 1)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    buffer.push([1], 1, 1, [1], False)
    for bad, error in ((0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="batch_size"):
            buffer.sample(bad)
    with pytest.raises(ValueError, match="n must be"):
        buffer.latest(-1)
    with pytest.raises(TypeError, match="n must be"):
        buffer.latest("2")
    buffer.close()
    for use in (lambda: len(buffer), lambda: buffer.push([1], 1, 1, [1], False), lambda: buffer.latest(1)):
        with pytest.raises(shoal.errors.ClosedError):
            use()


def test_too_large_a_size_raises_before_memory_is_allocated():
    with pytest.raises(MemoryError, match="bytes"):
        SharedCircularBuffer(2**30, 2**20)


def test_transitions_far_behind_the_tail_are_sampled():
    buffer = SharedCircularBuffer(3, 1)
    for number in range(4):
        buffer.push([number], number, 0.0, [0.0], False)
    buffer._records.segment["tail"][0] = 100  # as tickets that were taken and lost
    assert set(buffer.sample(50, seed=0)["actions"]) == {1, 2, 3}
    assert buffer.latest(3)["actions"] == [1, 2, 3]
    buffer.close()
