"""Kills writers of a replay ring in a push: no acknowledged row may be lost, no torn row may be read."""

from __future__ import annotations

import os
import random
import select
import signal
import time

import numpy as np

from shoal.replay import ReplayBuffer
from shoal_lab.chaos.faults import LENIENCE
from shoal_lab.chaos.ledger import CALL_S, GROUP, POINTS, WORDS, Ledger, Writer, count_words, make_fields
from shoal_lab.chaos.marked import Violation
from shoal_lab.chaos.resources import Resources
from shoal_lab.chaos.rounds import Outcome, Reporter, Round

__all__ = ["stage"]

WRITERS = 4
SHORT = 96
RINGS: tuple[tuple[int, bool, int], ...] = (
    (3, False, WORDS),
    (8, False, WORDS),
    (8, False, SHORT),
    (200, False, WORDS),
    (200, False, SHORT),
    (40, True, WORDS),
)
"""Capacity, whether it is in a file, and the words of a row. Several short rows are claimed at once."""


def stage(round_: Round, outcome: Outcome, reporter: Reporter) -> None:
    """Runs one round: rings of several sizes, in memory and in a file, each with its share of the kills."""
    rings = round_.options.get("rings") or RINGS
    resources = Resources()
    for number, (capacity, in_file, words) in enumerate(rings):
        kills = round_.kills // len(rings) + (number < round_.kills % len(rings))
        path = os.path.join(os.environ["SHOAL_CHAOS_DIR"], f"ring{number}") if in_file else None
        _run(round_.random(), (capacity, words), path, kills, outcome, reporter)
    resources.require_same("the rings")


def _run(
    chooser: random.Random,
    shape: tuple[int, int],
    path: str | None,
    kills: int,
    outcome: Outcome,
    reporter: Reporter,
) -> None:
    capacity, words = shape
    buffer = ReplayBuffer(capacity, make_fields(words), path=path, seed=chooser.randrange(2**32))
    ledger = Ledger(buffer)
    ledger.ends[0] = -1
    ledger.rows[int(buffer.push({"words": np.zeros(words, np.uint64)}))] = 0
    end = outcome.kills + kills
    try:
        while outcome.kills < end:
            begin = time.monotonic()
            reporter(outcome.kills, "fetch(), sample(), latest()")
            while len(ledger.writers) < WRITERS:
                ledger.start()
            for writer in ledger.writers.values():
                writer.allow_burst()
            dead = _kill_some(chooser, ledger, min(end - outcome.kills, 1 + chooser.randrange(3)), outcome)
            _require_progress(ledger, dead)
            for writer in dead:
                ledger.check_dead_writer(writer)
            _require_sample(ledger)
            ledger.check_batch(buffer.latest(min(capacity, 16)))
            ledger.forget()
            outcome.kills += len(dead)
            if time.monotonic() - begin > CALL_S * LENIENCE:
                raise Violation(4, f"pushes, samples and reads after a kill took over {CALL_S:g} s")
    finally:
        for writer in list(ledger.writers.values()):
            writer.end()
        outcome.rows += ledger.checked
    for writer in list(ledger.writers.values()):
        ledger.check_dead_writer(writer)
    newest = max(ledger.rows)
    if path is not None:  # no process has it open any more
        buffer.close()
        ledger.buffer = buffer = ReplayBuffer.open(path)
        ledger.check_batch(buffer.latest(capacity))
        ledger.require(sorted(id_ for id_ in ledger.rows if id_ > newest - capacity))
    _require_exact(buffer, newest)
    buffer.close()


def _kill_some(chooser: random.Random, ledger: Ledger, number: int, outcome: Outcome) -> list[Writer]:
    """Kills writers at random or at points, several at a time; at least one writer survives."""
    if chooser.random() < 0.3:
        # Only a large ring has whole pages of records that can be protected.
        large = ledger.buffer.capacity * count_words(ledger.buffer) * 8 > 1 << 18
        points = [chooser.choice([*POINTS[not large :], "abort", "exit"]) for _ in range(number)]
        dead = [ledger.start(point, chooser.randrange(3)) for point in points]
        for point, writer in zip(points, dead, strict=True):
            status = writer.end(None)
            dies = signal.SIGABRT if point == "abort" else signal.SIGSEGV
            if point != "exit" and (not os.WIFSIGNALED(status) or os.WTERMSIG(status) != dies):
                raise Violation(4, f"a writer that should die at {point!r} ended with status {status}")
            outcome.count(f"at point {point}" if point in POINTS else point)
        return dead
    dead = chooser.sample(list(ledger.writers.values()), number)
    time.sleep(chooser.random() * 0.0015)
    for writer in dead:
        if chooser.random() < 0.1:
            os.kill(writer.pid, signal.SIGSTOP)
            time.sleep(chooser.random() * 0.002)  # the other writers skip its slot
            outcome.count("SIGSTOP, then SIGKILL")
        else:
            outcome.count("SIGKILL at random")
        os.kill(writer.pid, signal.SIGKILL)
    for writer in dead:
        writer.end(None)
        ledger.read_acknowledgements(writer)
        outcome.count("of these in a burst of pushes", not writer.finished)
    return dead


def _require_progress(ledger: Ledger, dead: list[Writer]) -> None:
    """Checks that all running writers finish their pushes: a dead writer must not block others."""
    deadline = time.monotonic() + CALL_S * LENIENCE
    while left := [one for one in ledger.writers.values() if one not in dead and not one.finished]:
        if not select.select([one.pipe for one in left], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Violation(4, f"writers still wait {CALL_S:g} s after another writer's death")
        for one in left:
            ledger.read_acknowledgements(one)
            if one.silent and not one.finished:
                raise Violation(4, f"writer {one.name} ended by itself, with status {one.end(None)}")


def _require_sample(ledger: Ledger) -> None:
    """Checks a sample. Running writers are idle now; a dead one may hold up to half of the ring."""
    if ledger.buffer.capacity > 2 * GROUP * WRITERS or ledger.buffer._records.ring.readable:
        ledger.check_batch(ledger.buffer.sample(8))


def _require_exact(buffer: ReplayBuffer, newest: int) -> None:
    """Checks that, without other writers, slots of dead writers are reused and ids continue one by one."""
    first, words = None, count_words(buffer)
    for number in range(buffer.capacity):
        id_ = int(buffer.push({"words": np.full(words, number, np.uint64)}))
        first = id_ if first is None else first
        if id_ != first + number or id_ <= newest:
            raise Violation(6, f"push {number} got id {id_} after {newest}, the first of them {first}")
    rows = buffer.latest(buffer.capacity)["words"]
    if not np.array_equal(rows, np.repeat(np.arange(buffer.capacity, dtype=np.uint64)[:, None], words, 1)):
        raise Violation(1, "rows that were pushed after all writers had died are missing")
