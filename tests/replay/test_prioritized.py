"""Prioritized draws are in proportion to the priorities of the stored rows."""

import numpy as np
import pytest

from shoal.replay import PrioritizedSampler, ReplayBuffer

FIELDS = {"x": (np.int64, ())}


def make_sampler(capacity, pushes, **keywords):
    buffer = ReplayBuffer(capacity, FIELDS)
    sampler = PrioritizedSampler(buffer, **keywords)
    buffer.extend({"x": np.arange(pushes)})
    return buffer, sampler


@pytest.mark.parametrize(("capacity", "pushes"), [(40, 40), (40, 73), (1000, 1000), (5000, 7000)])
def test_draws_are_in_proportion_to_the_priorities(capacity, pushes):
    buffer, sampler = make_sampler(capacity, pushes, alpha=1.0, seed=2)
    ids = buffer.latest(capacity).ids
    priorities = np.random.default_rng(3).random(capacity) + 0.05
    assert sampler.update_priorities(ids, priorities) == capacity
    draws = 200 * capacity
    counts = np.zeros(capacity)
    for _ in range(draws // 500):
        np.add.at(counts, sampler.sample(500)["x"] - (pushes - capacity), 1)
    expected = priorities / priorities.sum() * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < capacity + 6 * np.sqrt(2 * capacity)  # far in the tail of chi-square
    buffer.close()


def test_alpha_and_beta_have_their_documented_effect():
    buffer, sampler = make_sampler(4, 4, alpha=0.5, seed=0)
    sampler.update_priorities(buffer.latest(4).ids, [1, 4, 9, 16])
    drawn = np.concatenate([sampler.sample(100)["x"] for _ in range(300)])
    shares = np.bincount(drawn) / len(drawn)
    assert np.allclose(shares, np.array([1, 2, 3, 4]) / 10, atol=0.02)
    batch = sampler.sample(200, beta=1.0)
    assert np.allclose(batch.weights * (batch["x"] + 1), batch.weights.max() * (batch["x"] + 1).min())
    assert batch.weights.max() == 1
    assert (sampler.sample(50, beta=0.0).weights == 1).all()
    buffer.close()


def test_new_rows_get_the_highest_priority_so_far():
    buffer, sampler = make_sampler(1000, 100, alpha=1.0, seed=0)
    sampler.update_priorities(buffer.latest(100).ids, np.full(100, 0.001))
    sampler.update_priorities(buffer.latest(1).ids, [50.0])
    buffer.extend({"x": np.arange(100, 110)})
    drawn = np.concatenate([sampler.sample(100)["x"] for _ in range(50)])
    assert (drawn >= 99).mean() > 0.99 and set(range(99, 110)) <= set(drawn.tolist())
    buffer.close()


def test_update_for_an_overwritten_row_does_not_change_the_new_row():
    buffer, sampler = make_sampler(10, 10, alpha=1.0, seed=0)
    old = sampler.sample(10).ids
    stale = buffer.latest(10).ids
    buffer.extend({"x": np.arange(10, 16)})  # slots 0 to 5 hold other rows now
    assert sampler.update_priorities(stale, np.full(10, 1000.0)) == 4
    assert len(old) == 10
    sampler.update_priorities(stale[6:], np.full(4, 1e-6))
    drawn = np.concatenate([sampler.sample(100)["x"] for _ in range(30)])
    counts = np.bincount(drawn, minlength=16)
    assert (counts[10:16] > 350).all() and counts[:10].sum() < 10  # six rows of equal weight
    buffer.close()


def test_two_samplers_of_the_same_rows_are_independent():
    buffer, one = make_sampler(10, 10, alpha=1.0, seed=0)
    other = PrioritizedSampler(buffer, alpha=1.0, seed=1)
    one.sample(1), other.sample(1)
    ids = buffer.latest(10).ids
    one.update_priorities(ids, [1000] + [1e-3] * 9)
    assert (one.sample(100)["x"] == 0).mean() > 0.9
    assert (other.sample(1000)["x"] == 0).mean() < 0.2
    buffer.close()


def test_an_update_that_raises_changes_nothing():
    buffer, sampler = make_sampler(10, 10, alpha=1.0, seed=0)
    ids = sampler.sample(1).ids  # the rows have been weighed
    total = sampler._weights.total
    for bad in (0.0, np.nan, 1e30):
        with pytest.raises(ValueError, match="priorit"):
            sampler.update_priorities(np.repeat(ids, 2), [1e6, bad])
    buffer.push({"x": 10})
    sampler.sample(1)
    assert sampler._weights.total == total == 10  # nor is a new row as heavy as what was refused
    buffer.close()


def test_a_skipped_update_changes_nothing():
    buffer, sampler = make_sampler(8, 8, alpha=1.0, seed=0)
    sampler.update_priorities(buffer.latest(8).ids, np.ones(8))
    buffer.push({"x": 8})
    assert sampler.update_priorities([0, 10**6], [1000.0, 1e6]) == 0  # overwritten, and never there
    buffer.push({"x": 9})
    sampler.sample(1)
    assert sampler._weights.total == 8
    buffer.close()


def test_limits_of_priorities_are_accepted_and_other_types_raise():
    buffer, sampler = make_sampler(2, 2, alpha=1.0, seed=0)
    ids = buffer.latest(2).ids
    assert sampler.update_priorities(ids, [1e-25, 1e25]) == 2
    for bad in (np.array([1 + 5j, 2]), ["2.5", "1"], None, [None, 1], [[1], [2, 3]]):
        with pytest.raises(TypeError, match="priorities must be numbers"):
            sampler.update_priorities(ids, bad)
    sampler.alpha = -2.0
    with pytest.raises(ValueError, match="alpha must be from 0"):
        sampler.update_priorities(ids, [1, 1])
    buffer.close()


def test_priorities_may_be_of_any_type_and_layout():
    buffer, sampler = make_sampler(8, 8, alpha=1.0, seed=0)
    ids = buffer.latest(8).ids
    many = np.arange(1, 17)
    for given in (many[::2], many[::2].astype(np.float32), many.astype(">f8")[::2], many[::2].tolist()):
        sampler.update_priorities(ids, np.ones(8))
        assert sampler.update_priorities(ids, given) == 8
        assert sampler._weights.total == many[::2].sum()
    buffer.close()


def test_bad_priorities_are_refused():
    buffer, sampler = make_sampler(10, 5)
    ids = buffer.latest(5).ids
    for bad in (np.zeros(5), np.full(5, -1.0), np.full(5, np.nan), np.full(5, np.inf)):
        with pytest.raises(ValueError, match="finite and more than 0"):
            sampler.update_priorities(ids, bad)
    with pytest.raises(ValueError, match="as many priorities as ids"):
        sampler.update_priorities(ids, np.ones(4))
    with pytest.raises(ValueError, match="beta"):
        sampler.sample(1, beta=1.5)
    with pytest.raises(ValueError, match="alpha"):
        PrioritizedSampler(buffer, alpha=-1)
    with pytest.raises(TypeError, match="ReplayBuffer"):
        PrioritizedSampler([1])
    empty = ReplayBuffer(5, FIELDS)
    with pytest.raises(ValueError, match="empty"):
        PrioritizedSampler(empty).sample(1)
    buffer.close(), empty.close()
