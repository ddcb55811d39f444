"""Growing until memory or time is spent, and where it saturates."""

import pytest

from shoal_lab.bench.sweep import SWEEPS, grow, knee
from tests.bench.found import case


def test_the_knee_is_where_more_adds_less_than_a_tenth():
    assert knee([(1, 10), (4, 40), (16, 95), (64, 100), (256, 92)]) == 16
    assert knee([(1, 95), (4, 40), (16, 100), (64, 98)]) == 16, "a dip after it is not saturation"
    assert knee([(1, 10), (4, 40), (16, 100)]) is None, "still growing"
    assert knee([(1, 100), (2, 100)]) == 1
    assert knee([(1, 100)]) is None, "one point does not saturate"


def grown(**changes):
    clock = iter(range(0, 1000, 10))
    notes, parts = [], []
    facts = {"need_bytes": lambda size: size * 100, "limit_s": 1000, "now": lambda: next(clock)}
    facts |= {"free_bytes": lambda: 10**9, "note": notes.append, "done": parts.append, **changes}
    points = grow([1, 10, 100, 1000], lambda size: case(title=str(size)), **facts)
    return [point.x for point in points], notes, parts


def test_grow_measures_all_sizes_if_nothing_stops_it():
    assert grown() == ([1, 10, 100, 1000], [], [0.25, 0.5, 0.75, 1.0])


def test_grow_stops_before_memory_is_exhausted():
    sizes, (note,), _ = grown(free_bytes=lambda: 50_000)
    assert sizes == [1, 10, 100]
    assert note.startswith("stopped before 1,000: it needs 195.3 KB")


def test_grow_stops_when_time_is_over_but_not_before_the_first_size():
    sizes, (note,), _ = grown(limit_s=15)
    assert sizes == [1, 10]
    assert "time limit of 15 s" in note and "--seconds" in note
    assert grown(limit_s=0)[0] == [1]


@pytest.mark.parametrize("name", SWEEPS)
def test_the_command_lists_every_sweep(name, capsys):
    from shoal.cli import main

    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert name in capsys.readouterr().out
