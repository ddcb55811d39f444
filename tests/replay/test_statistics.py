"""Frequencies of draws: chi-square tests at one in a million; a wider limit while others push."""

import multiprocessing

import numpy as np
import pytest

from shoal import ReplayBuffer
from shoal.replay import PrioritizedSampler

CAPACITY, DRAWS = 101, 200_000


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def limit(degrees):
    """Returns the value that chi-square exceeds once in a million (Wilson and Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + 4.75 * (2 / (9 * degrees)) ** 0.5) ** 3


def push_on(buffer, stop):
    number = 0
    while not stop.is_set():
        buffer.extend({"slot": np.arange(number, number + 7) % CAPACITY})
        number += 7


def fill_buffer():
    buffer = ReplayBuffer(CAPACITY, {"slot": (np.int64, ())}, seed=1)
    buffer.extend({"slot": np.arange(CAPACITY)})
    return buffer


def count_draws(sample, times=1):
    counts = np.zeros(CAPACITY)
    for _ in range(times * DRAWS // 500):
        np.add.at(counts, sample(500).ids % CAPACITY, 1)
    return counts


def assert_about_even(counts):
    """Allows more deviation: while others push, an interrupted writer keeps a few slots from being drawn."""
    assert 0.5 < counts.min() / counts.mean() and counts.max() / counts.mean() < 1.5


def test_chi_square_limit_has_the_known_value():
    assert 180.0 < limit(100) < 182.5  # 181.1 in tables of the 1e-6 quantile


@pytest.mark.parametrize("writers", [0, 2])
def test_every_slot_is_drawn_equally_often(writers):
    context = multiprocessing.get_context("fork")
    with fill_buffer() as buffer:
        stop = context.Event()
        children = [context.Process(target=push_on, args=(buffer, stop)) for _ in range(writers)]
        for child in children:
            child.start()
        counts = count_draws(buffer.sample, 1 + 4 * writers)
        stop.set()
        for child in children:
            child.join()
    if writers == 0:
        assert chi_square(counts, np.full(CAPACITY, DRAWS / CAPACITY)) < limit(CAPACITY - 1)
    else:
        assert_about_even(counts)


def test_prioritized_draws_are_in_proportion_and_weights_correct_the_bias():
    with fill_buffer() as buffer:
        sampler = PrioritizedSampler(buffer, alpha=1, beta=1, seed=2)
        sampler.sample(1)
        priorities = np.linspace(1, 9, CAPACITY)
        assert sampler.update_priorities(np.arange(CAPACITY), priorities) == CAPACITY
        counts = count_draws(sampler.sample)
        # One from each part of the sum: more even than independent draws, so the bound holds the more.
        assert chi_square(counts, DRAWS * priorities / priorities.sum()) < limit(CAPACITY - 1)
        batch = sampler.sample(1000)
        assert np.allclose(batch.weights * priorities[batch.ids], (batch.weights * priorities[batch.ids])[0])


def test_prioritized_draws_while_others_push_give_new_rows_the_highest_priority():
    context = multiprocessing.get_context("fork")
    with fill_buffer() as buffer:
        sampler = PrioritizedSampler(buffer, alpha=1, seed=3)
        stop = context.Event()
        child = context.Process(target=push_on, args=(buffer, stop))
        child.start()
        counts = count_draws(sampler.sample, 5)  # all are new, again and again: as uniform draws
        stop.set()
        child.join()
        assert_about_even(counts)
