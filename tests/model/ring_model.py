"""The ring's protocol as a small machine, explored through every interleaving and every crash.

Two writers and a reader over a ring of two slots; a record is two words, so that a torn one can be seen.
Memory is sequentially consistent here: weak memory is what the fences of core/ring.c are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

EMPTY, OPEN, FULL = range(3)
SLOTS = 2

Word = tuple[int, int, int]  # lap, owner, state


@dataclass(frozen=True)
class Writer:
    at: str = "ticket"
    rows: int = 2
    ticket: int = -1
    seen: Word = (0, 0, EMPTY)
    alive: bool = True


@dataclass(frozen=True)
class Reader:
    at: str = "look"
    reads: int = 2
    slot: int = 0
    word: Word = (0, 0, EMPTY)
    first: int = -1
    second: int = -1


@dataclass(frozen=True)
class State:
    writers: tuple[Writer, ...]
    reader: Reader
    tail: int = 0
    words: tuple[Word, ...] = ((0, 0, EMPTY),) * SLOTS
    firsts: tuple[int, ...] = (-1,) * SLOTS
    seconds: tuple[int, ...] = (-1,) * SLOTS
    committed: frozenset[int] = frozenset()
    crashes: int = 1


class Violation(Exception):
    """The protocol broke a promise."""


def put(values: tuple, place: int, value: object) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


def lap_of(ticket: int) -> int:
    return ticket // SLOTS + 1


def write(state: State, number: int, mutant: str) -> Iterator[State]:
    """What a writer may do next."""
    writer = state.writers[number]
    slot, lap = writer.ticket % SLOTS, lap_of(writer.ticket)

    def moved(after: Writer, **changes: object) -> State:
        return replace(state, writers=put(state.writers, number, after), **changes)

    if writer.at == "ticket":
        if writer.rows:
            yield moved(replace(writer, at="load", ticket=state.tail), tail=state.tail + 1)
    elif writer.at == "load":
        word = state.words[slot]
        taken = word[2] == OPEN and state.writers[word[1]].alive and word[1] != number
        if word[0] >= lap or (taken and mutant != "steal from the living"):
            yield moved(replace(writer, at="ticket"))
        else:
            yield moved(replace(writer, at="claim", seen=word))
    elif writer.at == "claim":
        if state.words[slot] != writer.seen:
            yield moved(replace(writer, at="load"))
        else:
            state_of = FULL if mutant == "commit before the record" else OPEN
            words = put(state.words, slot, (lap, number, state_of))
            yield moved(replace(writer, at="first"), words=words)
    elif writer.at == "first":
        yield moved(replace(writer, at="second"), firsts=put(state.firsts, slot, writer.ticket))
    elif writer.at == "second":
        yield moved(replace(writer, at="commit"), seconds=put(state.seconds, slot, writer.ticket))
    else:
        yield moved(
            replace(writer, at="ticket", rows=writer.rows - 1),
            words=put(state.words, slot, (lap, number, FULL)),
            committed=state.committed | {writer.ticket},
        )


def read(state: State, mutant: str) -> Iterator[State]:
    """What the reader may do next."""
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
    for number, writer in enumerate(state.writers):
        if state.crashes and writer.alive:
            gone = put(state.writers, number, replace(writer, alive=False))
            yield replace(state, writers=gone, crashes=state.crashes - 1)


def check_end(state: State) -> None:
    """Nobody has anything left to do: what was committed is there, or something later has its slot."""
    for ticket in state.committed:
        word = state.words[ticket % SLOTS]
        if word[0] < lap_of(ticket) or (word[0] == lap_of(ticket) and word[2] != FULL):
            raise Violation(f"row {ticket} was committed and is lost")
    for writer in state.writers:
        if writer.alive and writer.rows:
            raise Violation("a living writer cannot go on")


def explore(mutant: str = "", rows: int = 2) -> int:
    """Goes through every state; how many there are. Violation if one breaks a promise."""
    first = State((Writer(rows=rows), Writer(rows=rows)), Reader())
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        steps: list[State] = []
        for number, writer in enumerate(state.writers):
            if writer.alive:
                steps += write(state, number, mutant)
        if not steps:
            check_end(state)
        steps += read(state, mutant)
        steps += crash(state)
        for after in steps:
            if after.tail <= 12 and after not in seen:  # a bound on tickets that are skipped
                seen.add(after)
                todo.append(after)
    return len(seen)
