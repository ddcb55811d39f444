"""Ratios, limits and what --json says."""

import json

import pytest

from shoal_lab.bench.results import SCHEMA, Row, compute_quartiles, document
from tests.bench.found import case, sweep


def row_of(found, name):
    return next(row for row in found.rows if row.name == name)


def test_a_ratio_is_how_many_times_better_a_row_is():
    more = case()
    peer = row_of(more, "Peer & <sons>")
    assert more.behind_shoal(peer) == 80  # of 80, 45 and 100
    less = case(more_is_better=False)
    assert less.behind_shoal(peer) == pytest.approx(1 / 80)


def test_the_limit_is_the_best_one_and_shoal_the_first():
    assert case().limit.name == "a plain loop"
    assert case(more_is_better=False).limit.name == "a slow loop"
    assert case().shoal.name == "Shoal"
    assert case().of_limit(case().shoal) == 0.9


def test_without_a_limit_or_a_peer_there_is_no_ratio():
    alone = case(rows=(Row("Shoal", "shoal", (1.0,)),))
    assert alone.limit is None
    assert alone.of_limit(alone.shoal) is None
    assert alone.behind_shoal(alone.shoal) is None


def test_a_computed_limit_has_one_value():
    payload = Row("bytes", "limit", (50.0,))
    found = case(rows=(Row("Shoal", "shoal", (100.0, 200.0, 100.0)), payload), more_is_better=False)
    assert found.of_limit(found.shoal) == 0.5


def test_median_and_quartiles():
    assert compute_quartiles([7.0]) == (7.0, 7.0, 7.0)
    assert compute_quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (3.0, 2.0, 4.0)


def test_the_document_has_the_command_the_machine_and_all_values():
    text = json.dumps(document("shoal bench native", {"cores": 2}, {"shoal": "0.1.0"}, [case()], [sweep()]))
    found = json.loads(text)
    assert set(found) == {"schema", "command", "machine", "versions", "cases", "sweeps", "advice", "failures"}
    assert found["schema"] == SCHEMA
    one = found["cases"][0]
    expected = {
        "suite",
        "title",
        "unit",
        "more_is_better",
        "parameters",
        "rounds_repeated",
        "rounds_disturbed",
    }
    assert set(one) == expected | {"lost_cores", "limit", "rows"}
    row = one["rows"][0]
    expected = {
        "name",
        "role",
        "parameters",
        "median",
        "low",
        "high",
        "turns",
        "of_limit",
        "shoal_is_times_better",
    }
    assert set(row) == expected
    assert row["median"] == 90 and row["turns"] == [80, 90, 100]
    assert found["sweeps"][0]["saturates_at"] == 16
    assert [point["x"] for point in found["sweeps"][0]["points"]] == [1, 4, 16, 64]
