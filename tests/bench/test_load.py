"""What others take from a round, from counters like those of /proc/stat."""

import os

import pytest

from shoal_lab.bench.load import Others, Ticks, Watch, pss_bytes

SECOND = os.sysconf("SC_CLK_TCK")


def clock(*moments):
    """Counters at one moment after the other: seconds, everybody's, ours, stolen."""
    ticks = iter(
        [
            Ticks(at, int(all_ * SECOND), int(ours * SECOND), int(stolen * SECOND))
            for at, all_, ours, stolen in moments
        ]
    )
    return lambda: next(ticks)


def lost(*moments, repeats=1):
    watch = Watch(repeats, clock(*moments))
    watch.begin()
    return watch.measure_loss()


def test_our_own_work_is_not_a_disturbance():
    assert lost((0, 10, 5, 0), (1, 12, 7, 0)) == 0


def test_cores_used_by_other_processes_are_lost():
    assert lost((0, 10, 5, 0), (1, 11.5, 5.5, 0)) == pytest.approx(1.0, abs=0.03)


def test_stolen_time_is_lost_too():
    assert lost((0, 10, 5, 0), (1, 11, 6, 0.5)) == pytest.approx(0.5, abs=0.03)


def test_two_ticks_are_not_a_disturbance():
    assert lost((0, 10, 5, 0), (0.1, 10.02, 5, 0)) == 0


def test_a_round_too_short_to_be_judged_counts():
    assert lost((0, 10, 5, 0), (0.01, 20, 5, 0)) == 0


def test_without_counters_every_round_counts():
    watch = Watch(3, lambda: None)
    watch.begin()
    assert watch.measure_loss() == 0
    assert str(Others(lambda: None)) == "others unknown"


def test_disturbed_rounds_are_repeated_until_the_repeats_are_used_up():
    watch = Watch(2, lambda: None)
    assert [watch.should_repeat(loss) for loss in (0.0, 0.5, 0.5, 0.5, 0.1)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert (watch.repeated, watch.disturbed) == (2, 1)
    assert watch.lost_cores == pytest.approx(1.6 / 5)


def test_others_print_used_and_stolen_cores():
    others = Others(clock((0, 0, 0, 0), (2, 3, 1, 0.5)))
    others.begin()
    others.end()
    assert str(others) == "others 1.00 cores, 0.25 stolen"


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="machine: no /proc")
def test_pss_bytes_counts_the_memory_of_a_process():
    before = pss_bytes(os.getpid())
    held = bytearray(os.urandom(32 << 20))
    assert 24e6 < pss_bytes(os.getpid()) - before < 64e6
    del held
    with pytest.raises(OSError):
        pss_bytes(2**22 + 1)
