"""The round trips that `shoal bench process` times."""

import os

import pytest

from shoal_lab.bench.load import cores
from shoal_lab.bench.pingpong import BARE, BOUND, SLEEP, PingPong


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


def test_partners_end_if_one_cannot_be_made(monkeypatch):
    partners = []

    def fails(self):
        partners.extend(pid for pid, _ in self._made.values())
        raise ValueError("no gate")

    monkeypatch.setattr(PingPong, "_make_in_python", fails)
    with pytest.raises(ValueError, match="no gate"):
        PingPong()
    assert len(partners) == 2
    for pid in partners:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
