"""A model of opening a ring's file after a machine crash, which checks every interleaving of two openers.

The ring has one slot and starts in every state that the disk may contain. An opener repairs it unless the
mark shows that another did, then pushes a row. A check is modelled as the pair of its inputs: (record, lap).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from tests.model.ring_model import EMPTY, FULL, OPEN, Word
from tests.model.states import Violation, put, replace, visit

Record = tuple[str, int]  # the writer, and the lap
DEAD = 9  # the owner of rows from before the crash
TORN = ("torn", 0)


class Opener(NamedTuple):
    at: str = "open"
    word: Word = (0, 0, EMPTY)
    check: tuple[Record, int] | None = None
    lap: int = 0
    tries: int = 3


class State(NamedTuple):
    openers: tuple[Opener, ...]
    word: Word
    record: Record
    check: tuple[Record, int] | None
    tail: int  # the next ticket; its lap is one more
    used: int  # the lap on disk
    marked: bool = False
    committed: frozenset[int] = frozenset()  # laps committed since then


def first_states() -> Iterator[State]:
    """Yields every mixture of parts of a row of lap 1 and a row of lap 2 that the disk may contain."""
    words = [(0, 0, EMPTY), *((lap, DEAD, state) for lap in (1, 2) for state in (OPEN, FULL))]
    records = [("none", 0), ("old", 1), ("old", 2), TORN]
    checks = [None, (("old", 1), 1), (("old", 2), 2)]
    for word, record, check, tail in product(words, records, checks, range(3)):
        yield State((Opener(), Opener()), word, record, check, tail, word[0])


def agrees(state: State) -> bool:
    return state.word[2] == FULL and state.check == (state.record, state.word[0])


def mend(state: State, number: int, mutant: str) -> Iterator[State]:
    """Yields every next step of an opener that repairs the ring."""
    self = state.openers[number]

    def moved(at: str, *, seen: Opener = self, **changes: object) -> State:
        return replace(state, openers=put(state.openers, number, replace(seen, at=at)), **changes)

    if self.at == "open":
        yield moved("ticket" if state.marked else "word", marked=state.marked or mutant == "mark first")
    elif self.at == "word":
        yield moved("check", seen=replace(self, word=state.word))
    elif self.at == "check":
        yield moved("hash", seen=replace(self, check=state.check))
    elif self.at == "hash":
        whole = self.word[2] == FULL and self.check == (state.record, self.word[0])
        yield moved("tail" if whole else "second")
    elif self.at == "second":
        held = self.word[2] == OPEN and self.word[1] != DEAD and mutant != "touch what is held"
        changed = state.word != self.word and mutant != "no second look"
        changes = ("drop", "clear") if mutant == "drop before the check" else ("clear", "drop")
        yield moved("tail" if held or changed else changes[0])
    elif self.at == "drop":
        word = state.word
        if self.word[2] == FULL and (word == self.word or mutant == "drop without looking"):
            word = (0 if mutant == "forget the lap" else self.word[0], 0, EMPTY)
        yield moved("clear" if mutant == "drop before the check" else "tail", word=word)
    elif self.at == "clear":
        same = state.check == self.check or mutant == "clear without looking"
        found = None if same and mutant != "leave stale checks" else state.check
        yield moved("tail" if mutant == "drop before the check" else "drop", check=found)
    else:
        yield moved("ticket", tail=max(state.tail, state.word[0]), marked=True)


def push(state: State, number: int) -> Iterator[State]:
    """Yields every next step of an opener that pushes: the protocol of ring_model, and the check."""
    self = state.openers[number]

    def moved(after: Opener, **changes: object) -> State:
        return replace(state, openers=put(state.openers, number, after), **changes)

    if self.at == "ticket":
        if self.tries:
            after = replace(self, at="claim", lap=state.tail + 1, tries=self.tries - 1)
            yield moved(after, tail=state.tail + 1)
    elif self.at == "claim":
        if any(other.at in HOLDING and other.lap < self.lap for other in state.openers):
            yield moved(replace(self, at="ticket"))
        else:
            yield moved(replace(self, at="record"), word=(self.lap, number, OPEN))
    elif self.at == "record":
        yield moved(replace(self, at="seal"), record=("new", self.lap))
    elif self.at == "seal":
        yield moved(replace(self, at="commit"), check=(state.record, self.lap))
    elif self.at == "commit":
        committed = state.committed | {self.lap}
        yield moved(replace(self, at="done"), word=(self.lap, number, FULL), committed=committed)


HOLDING = ("claim", "record", "seal", "commit")
PUSHING = ("ticket", *HOLDING, "done")


def check(state: State) -> None:
    """Checks the guarantees of every state that a reader can see."""
    pushing = [opener for opener in state.openers if opener.at in PUSHING]
    if not pushing:
        return
    if state.word[2] == FULL and not agrees(state):
        raise Violation(f"{state.record} with the check {state.check} can be read as lap {state.word[0]}")
    if state.word[2] == FULL and state.word[0] in state.committed and state.record[0] != "new":
        raise Violation(f"the row that was pushed as lap {state.word[0]} is {state.record}")
    if min(state.committed, default=state.used + 1) <= state.used:
        raise Violation(f"an id comes again: lap {min(state.committed)}")
    if max(state.committed, default=0) > state.word[0]:
        raise Violation("a row that was committed is gone")
    if state.check is not None and state.check[1] > state.word[0]:
        raise Violation(f"the check {state.check} is of a row that is lost, and whose id may come again")


def explore(mutant: str = "") -> int:
    """Visits every state; returns their number. Raises Violation if one breaks a guarantee."""

    def steps_of(state: State) -> Iterator[State]:
        check(state)
        for number, opener in enumerate(state.openers):
            steps = push(state, number) if opener.at in PUSHING else mend(state, number, mutant)
            for after in steps:
                if after.tail < 8:
                    yield after

    return visit(first_states(), steps_of)
