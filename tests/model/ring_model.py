"""A model of the ring's protocol, which checks every interleaving and every crash.

The model has writers and a reader over a ring of two slots. A record is two words, so that torn records can
be detected. A new writer may get the number of one that died. Memory is sequentially consistent here: the
fences of core/ring.h handle weaker memory models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.states import Violation, put, replace, visit

EMPTY, OPEN, FULL = range(3)
SLOTS = 2
FOR_EVER = 1000
TICKETS = 9
"""The most tickets, which bounds how many are skipped."""

Word = tuple[int, int, int]  # lap, owner, state
Line = tuple[int, int]  # held from, how many


class Writer(NamedTuple):
    at: str = "tail"
    rows: int = 2
    ticket: int = -1
    clear: int = 0
    lost: int = 0
    other: int = 0
    """The writer whose line it reads."""
    seen: Line = (0, 0)
    found: int = 0
    """How far its slots are known to be free."""
    alive: bool = True


class Reader(NamedTuple):
    at: str = "look"
    reads: int = 2
    slot: int = 0
    word: Word = (0, 0, EMPTY)
    first: int = -1
    second: int = -1


class State(NamedTuple):
    writers: tuple[Writer, ...]
    lines: tuple[Line, ...]
    reader: Reader
    tail: int = 0
    words: tuple[Word, ...] = ((0, 0, EMPTY),) * SLOTS
    firsts: tuple[int, ...] = (-1,) * SLOTS
    seconds: tuple[int, ...] = (-1,) * SLOTS
    committed: frozenset[int] = frozenset()
    crashes: int = 1


def lap_of(ticket: int) -> int:
    return ticket // SLOTS + 1


def write(state: State, number: int, mutant: str) -> Iterator[State]:
    """Yields every next step of a writer."""
    writer, line = state.writers[number], state.lines[number]
    ticket, slot, lap = writer.ticket, writer.ticket % SLOTS, lap_of(writer.ticket)
    late = mutant == "say it after the swap"

    def moved(after: Writer, **changes: object) -> State:
        return replace(state, writers=put(state.writers, number, after), **changes)

    def said(after: Writer, line: Line, **changes: object) -> State:
        return moved(after, lines=put(state.lines, number, line), **changes)

    def look_on(after: Writer, other: int, found: int) -> Writer:
        """On to the next line from `other` on that is another's; or, after the last, to the slot."""
        other += other == number
        if other < len(state.lines):
            return replace(after, at="held", other=other, found=found, seen=(0, 0))
        clear = FOR_EVER if mutant == "believe an old look" and found else found
        lost = 0 if found else after.lost + 1
        at = "claim" if found else "tail" if lost < SLOTS else "give up"
        after = replace(after, at=at, clear=after.ticket + clear, lost=lost % SLOTS)
        return replace(after, other=0, found=0, seen=(0, 0))

    def look(after: Writer) -> Writer:
        return replace(after, at="claim") if after.ticket < after.clear else look_on(after, 0, SLOTS)

    if writer.at == "drop":  # under a number whose last owner died
        last = line[0] % SLOTS
        words = state.words
        if line[1] and (
            words[last] == (lap_of(line[0]), number, OPEN) or mutant == "drop what is another's by now"
        ):
            words = put(words, last, (lap_of(line[0]), 0, EMPTY))
        yield moved(replace(writer, at="begin"), words=words)
    elif writer.at == "begin":
        yield said(replace(writer, at="tail"), (0, 0))
    elif writer.at == "tail":
        if writer.rows:
            yield moved(replace(writer, at="swap" if late else "say from", ticket=state.tail))
    elif writer.at == "say from":
        yield said(replace(writer, at="say held"), (ticket, line[1]))
    elif writer.at == "say held":
        yield said(look(writer) if late else replace(writer, at="swap"), (line[0], 1))
    elif writer.at == "swap":
        if state.tail != ticket:
            yield moved(replace(writer, at="tail"))
        else:
            after = replace(writer, at="say from") if late else look(writer)
            yield moved(after, tail=ticket + 1)
    elif writer.at == "held":
        held = state.lines[writer.other][1]
        if held:
            yield moved(replace(writer, at="from", seen=(0, held)))
        else:
            yield moved(look_on(writer, writer.other + 1, writer.found))
    elif writer.at == "from":
        seen = state.lines[writer.other][0], writer.seen[1]
        behind = (ticket - seen[0]) % SLOTS
        until = 0 if behind < seen[1] else SLOTS - behind
        if seen[0] < ticket and until == 0:
            yield moved(replace(writer, at="alive", seen=seen))
        else:  # whose tickets are later looks out for us
            found = min(writer.found, until) if seen[0] < ticket else writer.found
            yield moved(look_on(writer, writer.other + 1, found))
    elif writer.at == "alive":
        liveness_words = state.writers[writer.other].alive and mutant != "steal from the living"
        yield moved(look_on(writer, writer.other + 1, 0 if liveness_words else writer.found))
    elif writer.at == "give up":
        yield said(replace(writer, at="nap"), line if mutant == "nap with the line said" else (line[0], 0))
    elif writer.at == "nap":
        yield moved(replace(writer, at="tail"))
    elif writer.at == "claim":
        state_of = FULL if mutant == "commit before the record" else OPEN
        words = put(state.words, slot, (lap, number, state_of))
        yield moved(replace(writer, at="first"), words=words)
    elif writer.at == "first":
        yield moved(replace(writer, at="second"), firsts=put(state.firsts, slot, ticket))
    elif writer.at == "second":
        early = mutant == "empty the line before the commit"
        yield said(
            replace(writer, at="commit"),
            (line[0], 0) if early else line,
            seconds=put(state.seconds, slot, ticket),
        )
    elif writer.at == "commit":
        yield moved(
            replace(writer, at="end", rows=writer.rows - 1),
            words=put(state.words, slot, (lap, number, FULL)),
            committed=state.committed | {ticket},
        )
    else:  # the end of a push; a longer one says the next tickets at once
        yield said(replace(writer, at="tail"), (line[0], 0))
        if writer.rows:
            yield moved(replace(writer, at="tail"))


def read(state: State, mutant: str) -> Iterator[State]:
    """Yields every next step of the reader."""
    reader = state.reader
    if reader.at == "look":
        for slot in range(SLOTS) if reader.reads else ():
            word = state.words[slot]
            if word[2] == FULL:
                yield replace(state, reader=replace(reader, at="first", slot=slot, word=word))
    elif reader.at == "first":
        yield replace(state, reader=replace(reader, at="second", first=state.firsts[reader.slot]))
    elif reader.at == "second":
        yield replace(state, reader=replace(reader, at="check", second=state.seconds[reader.slot]))
    else:
        now = state.words[reader.slot]
        same = now == reader.word
        if mutant == "no second look":
            same = True
        elif mutant == "lap apart from state":
            same = now[2] == FULL
        if same:
            ticket = (reader.word[0] - 1) * SLOTS + reader.slot
            if (reader.first, reader.second) != (ticket, ticket):
                raise Violation(f"read {reader.first}, {reader.second} for row {ticket}")
        yield replace(state, reader=Reader(reads=reader.reads - 1))


def crash(state: State) -> Iterator[State]:
    """A writer dies, or a new writer gets the number of one that died."""
    for number, writer in enumerate(state.writers):
        if writer.alive and state.crashes:
            gone = put(state.writers, number, Writer(at="gone", rows=writer.rows, alive=False))
            yield replace(state, writers=gone, crashes=state.crashes - 1)
        elif writer.at == "gone":
            come = put(state.writers, number, Writer(at="drop", rows=min(writer.rows, 1)))
            yield replace(state, writers=come)


WRITING = ("first", "second", "commit")


def check(state: State) -> None:
    """Checks the guarantees of every state."""
    slots = [writer.ticket % SLOTS for writer in state.writers if writer.at in WRITING]
    if len(slots) != len(set(slots)):
        raise Violation("two writers are at one slot")
    for writer, line in zip(state.writers, state.lines, strict=True):
        if writer.at == "nap" and line[1]:
            raise Violation("one that waits for room keeps others from theirs")


def check_end(state: State) -> None:
    """At the end, every committed record is in its slot, or a later record is."""
    for ticket in state.committed:
        word = state.words[ticket % SLOTS]
        if word[0] < lap_of(ticket) or (word[0] == lap_of(ticket) and word[2] != FULL):
            raise Violation(f"row {ticket} was committed and is lost")
    for writer in state.writers:
        if writer.alive and writer.rows:
            raise Violation("a living writer cannot go on")


def explore(mutant: str = "", rows: tuple[int, ...] = (2, 1), reads: int = 1) -> int:
    """Visits every state; returns their number. Raises Violation if one breaks a guarantee."""
    writers = tuple(Writer(rows=count) for count in rows)
    first = State(writers, ((0, 0),) * len(rows), Reader(reads=reads))

    def steps_of(state: State) -> list[State]:
        check(state)
        steps: list[State] = []
        for number, writer in enumerate(state.writers):
            if writer.alive:
                steps += write(state, number, mutant)
        if not steps:
            check_end(state)
        steps += read(state, mutant)
        steps += crash(state)
        return [after for after in steps if after.tail <= TICKETS]

    return visit([first], steps_of)
