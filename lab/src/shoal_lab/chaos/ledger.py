"""Writers of a replay ring that say what they pushed, and the ledger of what must therefore be in it."""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from shoal.replay import ReplayBuffer
from shoal_lab.chaos.faults import LENIENCE, crash, forbid, trapped
from shoal_lab.chaos.marked import Violation

__all__ = [
    "ACKNOWLEDGED",
    "CALL_S",
    "FIELDS",
    "GROUP",
    "POINTS",
    "WORDS",
    "Ledger",
    "Writer",
    "fields_of",
    "words_in",
]

WORDS = 1024
"""Long rows: a kill often falls into the copy. Each word of a row is its writer's number and its own."""


def fields_of(words: int) -> dict[str, tuple[type[np.uint64], tuple[int]]]:
    return {"words": (np.uint64, (words,))}


FIELDS = fields_of(WORDS)
MOST = 3
"""Rows of a push."""
BURST = 24
"""Pushes that a writer makes each time it is told to go on: most kills fall into one."""
GROUP = 16
"""Half as many rows as a large push has: long ones are committed one by one, short ones together."""
CALL_S = 10.0
ACKNOWLEDGED = struct.Struct("=QQ")

POINTS = ("ticket", "claimed", "torn", "written", "group")
"""Where a writer dies by itself: it has a ticket; its slot is claimed; half the row is copied; all but the
last bytes are; in the middle of a large push."""


def words_in(buffer: ReplayBuffer) -> int:
    """How many words its rows are."""
    return buffer.fields["words"][1][0]


def rows_of(buffer: ReplayBuffer, name: int, first: int, count: int) -> Any:
    numbers = name << 32 | np.arange(first, first + count, dtype=np.uint64)
    return np.repeat(numbers[:, None], words_in(buffer), axis=1)


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
            rows = rows_of(buffer, name, number, 1 + number % MOST)
            ids = buffer.extend({"words": rows})
            os.write(pipe, b"".join(map(ACKNOWLEDGED.pack, ids, rows[:, 0].tolist())))
            number += len(rows)
        pushes = 0
    if point == "ticket":
        records = buffer._records.segment["rows"]
        forbid(records.ctypes.data, records.nbytes, may_read=True)
        buffer.extend({"words": rows_of(buffer, name, number, 2)})
    elif point in ("claimed", "torn", "written"):
        rows = rows_of(buffer, name, number, 1)
        at = {"claimed": 0, "torn": rows.nbytes // 4, "written": rows.nbytes - 64}[point]
        buffer.extend({"words": trapped(rows, at)})
    elif point == "group":
        rows = rows_of(buffer, name, number, 2 * GROUP)
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
    silent: bool = False
    """Whether its end of the pipe is closed: it has died."""
    status: int | None = None
    """How it ended, once it has."""

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
                self.silent = True
                break
            self.data += part
        whole = len(self.data) // ACKNOWLEDGED.size * ACKNOWLEDGED.size
        found, self.data = list(ACKNOWLEDGED.iter_unpack(self.data[:whole])), self.data[whole:]
        return found

    def end(self, number: int | None = signal.SIGKILL) -> int:
        """Kills it, or waits until it has died by itself; its status, however often that is asked for."""
        if self.status is not None:
            return self.status
        if number is not None:
            os.kill(self.pid, number)
        fd = os.pidfd_open(self.pid)
        ended = select.select([fd], [], [], CALL_S * LENIENCE)[0]
        os.close(fd)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
        self.status = os.waitpid(self.pid, 0)[1]
        if not ended:
            raise Violation(4, f"a writer that was to die still ran after {CALL_S:g} s")
        return self.status


def _be_writer(
    buffer: ReplayBuffer, name: int, go: int, pipe: int, point: str | None, pushes: int
) -> NoReturn:
    try:
        for number in (signal.SIGSEGV, signal.SIGABRT):
            signal.signal(number, signal.SIG_DFL)  # many die so, and need not say where
        _write(buffer, name, go, pipe, point, pushes)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
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
            raise Violation(
                2, f"torn rows {batch.ids[torn].tolist()}: {words[torn][:, [0, words.shape[1] // 2, -1]]}"
            )
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
