"""Workers are killed and stopped at random: every row that is returned is exact or marked as truncated."""

from __future__ import annotations

import pytest

from shoal_lab.chaos.rounds import Outcome, Round, run_round


def run_kills(kills: int, seed: int, **options: object) -> Outcome:
    """The stage checks everything itself: rows, deadlines, and that nothing is left behind."""
    outcome = run_round(Round("workers", seed, kills, dict(options)), 60, lambda done: None)
    assert outcome.violations == [], outcome.facts
    assert outcome.kills >= kills and outcome.rows > 0
    return outcome


@pytest.mark.parametrize("autoreset", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_no_row_is_wrong_while_workers_are_killed_at_random(autoreset):
    run_kills(20, 1, scene="restart", autoreset=autoreset)


def test_no_row_is_wrong_while_workers_are_killed_in_asynchronous_stepping():
    run_kills(25, 2, scene="asynchronous")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_row_is_wrong_while_workers_are_stopped_or_hang_and_are_killed_for_it(asynchronous):
    run_kills(4, 3, scene="timed", asynchronous=asynchronous)


def test_rows_of_C_environments_are_those_of_one_process_while_workers_are_killed():
    run_kills(8, 4, scene="native")


def test_death_is_detected_and_worker_replaced_in_milliseconds():
    times = run_kills(20, 5, scene="raising").times
    known, revived = times["death to exception"], times["reset() that brings a worker back"]
    assert len(revived) == 20
    assert sorted(known)[len(known) // 2] < 100  # the promise is p99; this machine may be busy
    assert sorted(revived)[10] < 1000
