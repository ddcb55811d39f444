"""Writers of a replay ring that are killed in a push: nothing acknowledged is lost, nothing torn is read."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from shoal.chaos.faults import crash, forbid, trapped
from shoal.chaos.held import LENIENCE, Held
from shoal.chaos.marked import Violation
from shoal.chaos.rounds import Outcome, Round, Tell
from shoal.replay import ReplayBuffer

__all__ = ["POINTS", "stage"]

WORDS = 1024
"""Long rows: a kill often falls into the copy. Each word of a row is its writer's number and its own."""
FIELDS = {"words": (np.uint64, (WORDS,))}
MOST = 3
"""Rows of a push."""
BURST = 24
"""Pushes that a writer makes each time it is told to go on: most kills fall into one."""
GROUP = 16
"""How many rows of a large push are claimed, written and committed together."""
WRITERS = 4
CALL_S = 10.0
ACKNOWLEDGED = struct.Struct("=QQ")

POINTS = ("ticket", "claimed", "torn", "written", "group")
"""Where a writer dies by itself: it has a ticket; its slot is claimed; half the row is copied; all but the
last bytes are; the first rows of a large push are committed and the rest are not."""

RINGS: tuple[tuple[int, bool], ...] = ((3, False), (8, False), (200, False), (40, True))
"""Capacity, and whether it is a file's."""


def rows_of(name: int, first: int, count: int) -> Any:
    numbers = name << 32 | np.arange(first, first + count, dtype=np.uint64)
    return np.repeat(numbers[:, None], WORDS, axis=1)


def rows_in(pushes: int) -> int:
    """How many rows so many pushes are."""
    number = 0
    for _ in range(pushes):
        number += 1 + number % MOST
    return number


# -- the writers' side ------------------------------------------------------------------------------------


def _write(buffer: ReplayBuffer, name: int, go: int, pipe: int, point: str | None, pushes: int) -> None:
    """Pushes a burst each time it is told; or `pushes` times, and then up to the point, where it dies."""
    number = 0
    while point is None or pushes > 0:
        if point is None and not os.read(go, 1):
            return
        for _ in range(BURST if point is None else pushes):
            rows = rows_of(name, number, 1 + number % MOST)
            ids = buffer.extend({"words": rows})
            os.write(pipe, b"".join(map(ACKNOWLEDGED.pack, ids, rows[:, 0].tolist())))
            number += len(rows)
        pushes = 0
    if point == "ticket":
        records = buffer._records.segment["rows"]
        forbid(records.ctypes.data, records.nbytes, may_read=True)
        buffer.extend({"words": rows_of(name, number, 2)})
    elif point in ("claimed", "torn", "written"):
        rows = rows_of(name, number, 1)
        at = {"claimed": 0, "torn": rows.nbytes // 4, "written": rows.nbytes - 64}[point]
        buffer.extend({"words": trapped(rows, at)})
    elif point == "group":
        rows = rows_of(name, number, 2 * GROUP)
        buffer.extend({"words": trapped(rows, rows[0].nbytes * (GROUP + 2))})
    else:
        crash(str(point))


@dataclass
class Writer:
    """A writer as its parent sees it."""

    name: int
    pid: int
    go: int
    pipe: int
    due: int = 0
    """Pushes it was told to make; how many rows those are follows."""
    last: int = -1
    """The number of the row it acknowledged last."""
    ids: list[int] = field(default_factory=list)
    data: bytes = b""

    @staticmethod
    def start(buffer: ReplayBuffer, name: int, point: str | None = None, pushes: int = 0) -> Writer:
        (reads, writes), (orders, gives) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            os.close(gives)
            _be_writer(buffer, name, orders, writes, point, pushes)
        os.close(writes)
        os.close(orders)
        os.set_blocking(reads, False)
        return Writer(name, pid, gives, reads)

    def go_on(self) -> None:
        self.due += BURST
        os.write(self.go, b"!")

    @property
    def finished(self) -> bool:
        """Whether it made all the pushes it was told to."""
        return self.last + 1 >= rows_in(self.due)

    def acknowledged(self) -> list[tuple[int, int]]:
        """What it has acknowledged since it was asked last."""
        while True:
            try:
                part = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                break
            self.data += part
        whole = len(self.data) // ACKNOWLEDGED.size * ACKNOWLEDGED.size
        found, self.data = list(ACKNOWLEDGED.iter_unpack(self.data[:whole])), self.data[whole:]
        return found

    def end(self, number: int | None = signal.SIGKILL) -> int:
        """Kills it, or waits until it has died by itself; its status."""
        if number is not None:
            os.kill(self.pid, number)
        fd = os.pidfd_open(self.pid)
        ended = select.select([fd], [], [], CALL_S * LENIENCE)[0]
        os.close(fd)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        if not ended:
            raise Violation(4, f"a writer that was to die still ran after {CALL_S:g} s")
        return status


def _be_writer(
    buffer: ReplayBuffer, name: int, go: int, pipe: int, point: str | None, pushes: int
) -> NoReturn:
    try:
        for number in (signal.SIGSEGV, signal.SIGABRT):
            signal.signal(number, signal.SIG_DFL)  # many die so, and need not say where
        _write(buffer, name, go, pipe, point, pushes)
    finally:
        os._exit(1)


# -- the checker ------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What writers acknowledged, and what must therefore be in the ring."""

    buffer: ReplayBuffer
    writers: dict[int, Writer] = field(default_factory=dict)
    """The living, by name."""
    ends: dict[int, int] = field(default_factory=dict)
    """The last number that each of the dead acknowledged."""
    rows: dict[int, int] = field(default_factory=dict)
    """Value by id."""
    checked: int = 0
    started: int = 0

    def start(self, point: str | None = None, pushes: int = 0) -> Writer:
        self.started += 1
        writer = Writer.start(self.buffer, self.started, point, pushes)
        self.writers[writer.name] = writer
        return writer

    def hear(self, writer: Writer) -> list[int]:
        """Notes new acknowledgements; their ids."""
        new = []
        for id_, value in writer.acknowledged():
            if value != writer.name << 32 | (writer.last + 1):
                raise Violation(6, f"writer {writer.name} acknowledged {value:#x} after row {writer.last}")
            if id_ in self.rows or (writer.ids and id_ <= writer.ids[-1]):
                raise Violation(6, f"id {id_} was given to writer {writer.name}, and before")
            self.rows[id_] = value
            writer.last += 1
            new.append(id_)
        writer.ids = (writer.ids + new)[-64:]
        return new

    def look(self, batch: Any) -> None:
        """Every row is whole, and what was pushed under its id or is being pushed."""
        words = batch["words"]
        torn = (words != words[:, :1]).any(axis=1)
        if torn.any():
            raise Violation(2, f"torn rows {batch.ids[torn].tolist()}: {words[torn][:, [0, WORDS // 2, -1]]}")
        for writer in self.writers.values():
            self.hear(writer)
        for id_, value in zip(batch.ids.tolist(), words[:, 0].tolist(), strict=True):
            self.checked += 1
            if id_ in self.rows:
                if self.rows[id_] != value:
                    raise Violation(1, f"row {id_} is {value:#x}; {self.rows[id_]:#x} was acknowledged")
                continue
            name, number = value >> 32, value & 0xFFFFFFFF
            known = self.writers[name].last if name in self.writers else self.ends.get(name)
            if known is None or not known < number <= known + 2 * GROUP:
                raise Violation(2, f"row {id_} is {value:#x}, which nobody was pushing (last: {known})")

    def require(self, ids: list[int]) -> None:
        """Those are there, as they were pushed, or were overwritten: the ticket for their slot was taken."""
        wanted = ids[-self.buffer.capacity :]
        found = self.buffer.fetch(wanted)
        taken = int(self.buffer._records.segment["tail"][0])
        self.look(found)
        missing = set(wanted) - set(found.ids.tolist())
        lost = [id_ for id_ in missing if taken <= id_ + self.buffer.capacity]
        if lost:
            raise Violation(1, f"rows {sorted(lost)} were acknowledged and are lost (tickets: {taken})")
        self.checked += len(wanted)

    def bury(self, writer: Writer) -> None:
        """Checks all that a dead writer had acknowledged."""
        self.hear(writer)
        os.close(writer.pipe)
        os.close(writer.go)
        self.ends[writer.name] = writer.last
        del self.writers[writer.name]
        self.require(writer.ids)

    def forget(self) -> None:
        """What is far behind is gone for good."""
        if len(self.rows) > 8 * self.buffer.capacity + 4096:
            least = max(self.rows) - 4 * self.buffer.capacity - 1024
            self.rows = {id_: value for id_, value in self.rows.items() if id_ > least}


# -- the stage --------------------------------------------------------------------------------------------


def stage(round_: Round, outcome: Outcome, tell: Tell) -> None:
    """One round: rings of several sizes, in memory and in a file, each with its share of the kills."""
    rings = round_.options.get("rings") or RINGS
    held = Held()
    for number, (capacity, in_file) in enumerate(rings):
        kills = round_.kills // len(rings) + (number < round_.kills % len(rings))
        path = os.path.join(os.environ["SHOAL_CHAOS_DIR"], f"ring{number}") if in_file else None
        _run(round_.random(), capacity, path, kills, outcome, tell)
    held.require_same("the rings")


def _run(
    chooser: random.Random, capacity: int, path: str | None, kills: int, outcome: Outcome, tell: Tell
) -> None:
    buffer = ReplayBuffer(capacity, FIELDS, path=path, seed=chooser.randrange(2**32))
    ledger = Ledger(buffer)
    ledger.ends[0] = -1
    ledger.rows[int(buffer.push({"words": np.zeros(WORDS, np.uint64)}))] = 0
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
        large = ledger.buffer.capacity * WORDS * 8 > 1 << 18  # whole pages of records that can be forbidden
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


def _require_sample(ledger: Ledger) -> None:
    """The living are idle now; each of the dead may hold half of a ring, or one slot of it."""
    if ledger.buffer.capacity > 2 * GROUP * WRITERS or ledger.buffer._records.ring.readable:
        ledger.look(ledger.buffer.sample(8))


def _require_exact(buffer: ReplayBuffer, newest: int) -> None:
    """Nobody else writes: what the dead left unfinished is taken over, and ids go on one by one."""
    first = None
    for number in range(buffer.capacity):
        id_ = int(buffer.push({"words": np.full(WORDS, number, np.uint64)}))
        first = id_ if first is None else first
        if id_ != first + number or id_ <= newest:
            raise Violation(6, f"push {number} got id {id_} after {newest}, the first of them {first}")
    words = buffer.latest(buffer.capacity)["words"]
    if not np.array_equal(words, np.repeat(np.arange(buffer.capacity, dtype=np.uint64)[:, None], WORDS, 1)):
        raise Violation(1, "rows that were pushed after all writers had died are not all there")
