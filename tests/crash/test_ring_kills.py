"""Writers of a replay ring are killed and stopped: no row is torn or lost, and no process waits."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from shoal import ReplayBuffer
from shoal_lab.chaos.ledger import FIELDS, WORDS, Ledger, Writer
from shoal_lab.chaos.rounds import Round, run_round


@pytest.mark.parametrize(
    ("capacity", "in_file", "words"),
    [(3, False, WORDS), (8, False, 96), (200, False, WORDS), (200, False, 96), (5000, True, WORDS)],
)
def test_a_killed_writer_costs_at_most_the_rows_it_was_writing(capacity, in_file, words):
    rings = {"rings": [[capacity, in_file, words]]}
    outcome = run_round(Round("ring", capacity, 60, rings), 60, lambda done: None)
    assert outcome.violations == [], outcome.facts
    assert outcome.kills == 60 and outcome.rows > 60


def test_stopped_writer_does_not_block_others_for_more_than_a_lap():
    with ReplayBuffer(4, FIELDS, seed=0) as buffer:
        ledger = Ledger(buffer, ends={0: -1})
        writer = ledger.start()
        try:
            for _ in range(40):
                writer.allow_burst()
                os.read(writer.pipe, 0)
                os.kill(writer.pid, signal.SIGSTOP)
                os.waitpid(writer.pid, os.WUNTRACED)
                for number in range(12):  # three laps
                    buffer.push({"words": np.full(WORDS, number, np.uint64)})
                    words = buffer.sample(4)["words"]
                    assert (words == words[:, :1]).all()
                ledger.read_acknowledgements(writer)
                os.kill(writer.pid, signal.SIGCONT)
        finally:
            writer.end()
            os.close(writer.pipe)
            os.close(writer.go)
        words = buffer.latest(4)["words"]
        assert (words == words[:, :1]).all()


def test_a_writer_that_does_not_die_when_it_should_is_noticed(monkeypatch):
    from shoal_lab.chaos import ledger

    monkeypatch.setattr(ledger, "CALL_S", 0.2)
    with ReplayBuffer(4, FIELDS, seed=0) as buffer:
        writer = Writer.start(buffer, 1)
        with pytest.raises(ledger.Violation, match="still ran"):
            writer.end(None)
        os.close(writer.pipe)
        os.close(writer.go)
