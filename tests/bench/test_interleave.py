"""Turns: who is timed how often, in the same rounds, and which rounds count."""

import pytest

from shoal_lab.bench.interleave import Timing, estimate_calls, interleave, interleave_bursts


class Guard:
    """Rounds lose these, one after the other; more than nothing is done again while there are tries."""

    def __init__(self, losses, tries=10):
        self.losses, self.tries, self.begun = iter(losses), tries, 0

    def begin(self):
        self.begun += 1

    def measure_loss(self):
        return next(self.losses)

    def should_repeat(self, lost):
        self.tries -= 1
        return lost > 0 and self.tries > 0


def counted(seconds):
    """A rival whose bursts take these seconds, one after the other."""
    times = iter(seconds)
    return lambda calls: next(times) * calls


def test_a_round_is_one_burst_of_each_rival():
    order = []
    rivals = {name: lambda calls, name=name: order.append(name) or 1.0 for name in "abc"}
    interleave_bursts(rivals, bursts=4, burst_s=None)
    assert [sorted(order[i : i + 3]) for i in range(0, 12, 3)] == [["a", "b", "c"]] * 4
    assert len({tuple(order[i : i + 3]) for i in range(0, 12, 3)}) > 1, "the order must change"


def test_a_disturbed_round_is_repeated_by_all_rivals():
    rivals = {"a": counted([1, 9, 2]), "b": counted([10, 90, 20])}
    guard = Guard([0, 0.8, 0])
    times = interleave_bursts(rivals, bursts=2, burst_s=None, guard=guard)
    assert times["a"].turns_s == (1, 2)
    assert times["b"].turns_s == (10, 20)
    assert guard.begun == 3


def test_if_all_tries_were_disturbed_the_least_disturbed_counts():
    guard = Guard([0.9, 0.3, 0.7], tries=3)
    times = interleave_bursts({"a": counted([5, 6, 7])}, bursts=1, burst_s=None, guard=guard)
    assert times["a"].turns_s == (6,)


def test_a_ratio_compares_bursts_of_the_same_round():
    ours, theirs = Timing.of([1, 2, 4]), Timing.of([3, 6, 12])
    assert ours.speedup(theirs) == 3
    with pytest.raises(ValueError):
        ours.speedup(Timing.of([1]))


def test_estimate_calls_returns_enough_calls_for_a_burst():
    assert estimate_calls(lambda calls: calls * 0.001, 0.02) == 20
    assert estimate_calls(lambda calls: calls * 5.0, 0.02) == 1


def test_plain_calls_can_be_timed():
    calls = []
    times = interleave({"a": lambda: calls.append(1)}, bursts=3, burst_s=0.0001)
    assert len(times["a"].turns_s) == 3
    assert calls
