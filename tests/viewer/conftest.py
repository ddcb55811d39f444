"""A server for each test that wants one, and the check that no client made it say anything on the console."""

import logging

import pytest

from tests.viewer.fakes import FakeSession
from tests.viewer.raw import Running


@pytest.fixture
def serve(caplog, capfd):
    """Starts servers; at the end each must stop, having printed and logged nothing."""
    started = []

    def start(session=None, **options):
        started.append(Running(session or FakeSession(), **options))
        return started[-1]

    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        yield start
        for running in started:
            running.stop()
            assert running.noise == []
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
