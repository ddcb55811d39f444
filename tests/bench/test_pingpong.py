"""The round trips that `shoal bench process` times."""

import pytest

from shoal.bench.load import cores
from shoal.bench.pingpong import BARE, BOUND, SLEEP, PingPong


@pytest.fixture
def pingpong():
    made = PingPong()
    yield made
    made.close()


def test_every_partner_answers_every_round(pingpong):
    places = cores()
    bursts = pingpong.bursts(places[0], places[-1])
    assert set(bursts) == {BOUND, BARE, SLEEP}
    for burst in bursts.values():
        assert burst(8) > 0
