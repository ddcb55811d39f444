"""The limit of `shoal bench sweep --only threads`: processes that start together."""

from contextlib import ExitStack

import pytest

from shoal.errors import ShoalError
from shoal.vector import make_vec
from shoal_lab.bench import scaling
from shoal_lab.bench.measure import SMOKE, Bench


@pytest.fixture(scope="module")
def crew():
    with scaling.open_crew(2) as made:
        yield made


def test_the_time_of_a_crew_is_that_of_the_sum_of_the_rates(crew, monkeypatch):
    run = crew.burst(2, "CartPole-v1", 64)
    assert run(10) > 0
    monkeypatch.setattr(crew, "_ask", lambda *_: [1.0, 3.0])
    assert run(10) == pytest.approx(1.5)  # rates 1 and 1/3 of half of the work each, so 2/3 of all of it


def test_an_error_in_a_process_of_the_crew_is_raised(crew):
    with pytest.raises(ShoalError, match="a process of the benchmark failed: TypeError: num_threads"):
        crew.burst(2, "NoSuch-v0", 64)


def test_a_case_compares_threads_with_the_processes(crew):
    case = scaling.measure(Bench({}, smoke=True), crew, "CartPole-v1", 64, 2, SMOKE)
    assert [row.name for row in case.rows] == ["Shoal, 2 threads", "Shoal, 1 thread", "2 processes"]
    assert case.limit is case.rows[2] and case.of_limit(case.rows[0]) > 0


def test_send_and_recv_and_workers_take_turns_with_the_others(crew):
    case = scaling.measure(Bench({}, smoke=True), crew, "CartPole-v1", 64, 2, SMOKE, every_way=True)
    names = ["2 threads", "1 thread", "send and recv", "worker processes"]
    assert [row.name for row in case.rows] == [*(f"Shoal, {name}" for name in names), "2 processes"]
    assert case.limit is case.rows[4] and case.of_limit(case.rows[2]) > 0 and case.of_limit(case.rows[3]) > 0


def test_samples_of_a_replay_buffer_are_compared_with_processes(crew):
    case = scaling.measure_samples(Bench({}, smoke=True), crew, 8, 2, SMOKE)
    assert [row.name for row in case.rows] == ["Shoal", "2 processes"]
    assert case.limit is case.rows[1] and case.of_limit(case.rows[0]) > 0


def test_a_burst_of_send_and_recv_is_a_number_of_whole_steps(monkeypatch):
    made = []
    monkeypatch.setattr(
        scaling, "make_vec", lambda *given, **named: made.append(make_vec(*given, **named)) or made[0]
    )
    with ExitStack() as stack:
        burst = scaling._open_parts(stack, "CartPole-v1", 64, 2)
        assert burst(5) > 0 and burst(1) > 0
        assert made[0].stats["steps"] == 6 * 64  # no episode is so short


def test_a_crew_ends_with_its_pipes():
    made = scaling.Crew(1)
    made.close()
    assert not made._processes[0].is_alive() and made._processes[0].exitcode == 0
