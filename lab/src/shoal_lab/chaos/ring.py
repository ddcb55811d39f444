"""Writers of a replay ring that are killed in a push: nothing acknowledged is lost, nothing torn is read."""

from __future__ import annotations

import os
import random
import select
import signal
import time

import numpy as np

from shoal.replay import ReplayBuffer
from shoal_lab.chaos.faults import LENIENCE
from shoal_lab.chaos.held import Held
from shoal_lab.chaos.ledger import CALL_S, GROUP, POINTS, WORDS, Ledger, Writer, fields_of, words_in
from shoal_lab.chaos.marked import Violation
from shoal_lab.chaos.rounds import Outcome, Round, Tell

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
"""Capacity, whether it is a file's, and the words of a row: of short ones several are claimed at once."""


def stage(round_: Round, outcome: Outcome, tell: Tell) -> None:
    """One round: rings of several sizes, in memory and in a file, each with its share of the kills."""
    rings = round_.options.get("rings") or RINGS
    held = Held()
    for number, (capacity, in_file, words) in enumerate(rings):
        kills = round_.kills // len(rings) + (number < round_.kills % len(rings))
        path = os.path.join(os.environ["SHOAL_CHAOS_DIR"], f"ring{number}") if in_file else None
        _run(round_.random(), (capacity, words), path, kills, outcome, tell)
    held.require_same("the rings")


def _run(
    chooser: random.Random,
    shape: tuple[int, int],
    path: str | None,
    kills: int,
    outcome: Outcome,
    tell: Tell,
) -> None:
    capacity, words = shape
    buffer = ReplayBuffer(capacity, fields_of(words), path=path, seed=chooser.randrange(2**32))
    ledger = Ledger(buffer)
    ledger.ends[0] = -1
    ledger.rows[int(buffer.push({"words": np.zeros(words, np.uint64)}))] = 0
    end = outcome.kills + kills
    try:
        while outcome.kills < end:
            begin = time.monotonic()
            tell(outcome.kills, "fetch(), sample(), latest()")
            while len(ledger.writers) < WRITERS:
                ledger.start()
            for writer in ledger.writers.values():
                writer.go_on()
            dead = _kill_some(chooser, ledger, min(end - outcome.kills, 1 + chooser.randrange(3)), outcome)
            _require_progress(ledger, dead)
            for writer in dead:
                ledger.bury(writer)
            _require_sample(ledger)
            ledger.look(buffer.latest(min(capacity, 16)))
            ledger.forget()
            outcome.kills += len(dead)
            if time.monotonic() - begin > CALL_S * LENIENCE:
                raise Violation(4, f"pushes, draws and reads after a kill took over {CALL_S:g} s")
    finally:
        for writer in list(ledger.writers.values()):
            writer.end()
        outcome.rows += ledger.checked
    for writer in list(ledger.writers.values()):
        ledger.bury(writer)
    newest = max(ledger.rows)
    if path is not None:  # nobody holds it any more
        buffer.close()
        ledger.buffer = buffer = ReplayBuffer.open(path)
        ledger.look(buffer.latest(capacity))
        ledger.require(sorted(id_ for id_ in ledger.rows if id_ > newest - capacity))
    _require_exact(buffer, newest)
    buffer.close()


def _kill_some(chooser: random.Random, ledger: Ledger, number: int, outcome: Outcome) -> list[Writer]:
    """Deaths at random and at points, several at a time; one writer at least goes on."""
    if chooser.random() < 0.3:
        large = (
            ledger.buffer.capacity * words_in(ledger.buffer) * 8 > 1 << 18
        )  # whole pages of records that can be forbidden
        points = [chooser.choice([*POINTS[not large :], "abort", "exit"]) for _ in range(number)]
        dead = [ledger.start(point, chooser.randrange(3)) for point in points]
        for point, writer in zip(points, dead, strict=True):
            status = writer.end(None)
            dies = signal.SIGABRT if point == "abort" else signal.SIGSEGV
            if point != "exit" and (not os.WIFSIGNALED(status) or os.WTERMSIG(status) != dies):
                raise Violation(4, f"a writer that was to die at {point!r} ended with status {status}")
            outcome.count(f"at point {point}" if point in POINTS else point)
        return dead
    dead = chooser.sample(list(ledger.writers.values()), number)
    time.sleep(chooser.random() * 0.0015)
    for writer in dead:
        if chooser.random() < 0.1:
            os.kill(writer.pid, signal.SIGSTOP)
            time.sleep(chooser.random() * 0.002)  # the others pass it by
            outcome.count("SIGSTOP, then SIGKILL")
        else:
            outcome.count("SIGKILL at random")
        os.kill(writer.pid, signal.SIGKILL)
    for writer in dead:
        writer.end(None)
        ledger.hear(writer)
        outcome.count("of these in a burst of pushes", not writer.finished)
    return dead


def _require_progress(ledger: Ledger, dead: list[Writer]) -> None:
    """All the living make the pushes they were told to: the dead hold up nobody."""
    deadline = time.monotonic() + CALL_S * LENIENCE
    while left := [one for one in ledger.writers.values() if one not in dead and not one.finished]:
        if not select.select([one.pipe for one in left], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Violation(4, f"writers wait for {CALL_S:g} s and more after another one's death")
        for one in left:
            ledger.hear(one)
            if one.silent and not one.finished:
                raise Violation(4, f"writer {one.name} ended by itself, with status {one.end(None)}")


def _require_sample(ledger: Ledger) -> None:
    """The living are idle now; each of the dead may hold half of a ring, or one slot of it."""
    if ledger.buffer.capacity > 2 * GROUP * WRITERS or ledger.buffer._records.ring.readable:
        ledger.look(ledger.buffer.sample(8))


def _require_exact(buffer: ReplayBuffer, newest: int) -> None:
    """Nobody else writes: what the dead left unfinished is taken over, and ids go on one by one."""
    first, words = None, words_in(buffer)
    for number in range(buffer.capacity):
        id_ = int(buffer.push({"words": np.full(words, number, np.uint64)}))
        first = id_ if first is None else first
        if id_ != first + number or id_ <= newest:
            raise Violation(6, f"push {number} got id {id_} after {newest}, the first of them {first}")
    rows = buffer.latest(buffer.capacity)["words"]
    if not np.array_equal(rows, np.repeat(np.arange(buffer.capacity, dtype=np.uint64)[:, None], words, 1)):
        raise Violation(1, "rows that were pushed after all writers had died are not all there")
