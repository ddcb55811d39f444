"""Writers of a replay ring that acknowledge their pushes, and the ledger of the rows that must be in it."""

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
from shoal_lab.chaos.faults import LENIENCE, copy_with_trap, crash, forbid
from shoal_lab.chaos.marked import Violation

__all__ = [
    "ACKNOWLEDGEMENT",
    "CALL_S",
    "FIELDS",
    "GROUP",
    "POINTS",
    "WORDS",
    "Ledger",
    "Writer",
    "count_words",
    "make_fields",
]

WORDS = 1024
"""Rows are long, so that a kill often hits the copy. Each word has the writer's and the row's number."""


def make_fields(words: int) -> dict[str, tuple[type[np.uint64], tuple[int]]]:
    return {"words": (np.uint64, (words,))}


FIELDS = make_fields(WORDS)
MOST = 3
"""The maximum number of rows of a push."""
BURST = 24
"""The number of pushes that a writer makes at each start signal; most kills hit a push."""
GROUP = 16
"""Half the rows of a large push. Long rows are committed one by one, short rows together."""
CALL_S = 10.0
ACKNOWLEDGEMENT = struct.Struct("=QQ")

POINTS = ("ticket", "claimed", "torn", "written", "group")
"""The points where a writer kills itself: with a ticket; with a claimed slot; with a quarter of the row
copied; with all but the last bytes copied; in the middle of a large push."""


def count_words(buffer: ReplayBuffer) -> int:
    """Returns the number of words of the buffer's rows."""
    return buffer.fields["words"][1][0]


def make_rows(buffer: ReplayBuffer, name: int, first: int, count: int) -> Any:
    numbers = name << 32 | np.arange(first, first + count, dtype=np.uint64)
    return np.repeat(numbers[:, None], count_words(buffer), axis=1)


def count_rows(pushes: int) -> int:
    """Returns the number of rows of the first `pushes` pushes."""
    number = 0
    for _ in range(pushes):
        number += 1 + number % MOST
    return number


# -- the writers' side ------------------------------------------------------------------------------------


def _write(buffer: ReplayBuffer, name: int, go: int, pipe: int, point: str | None, pushes: int) -> None:
    """Pushes a burst at each start signal; or `pushes` times, and then dies at the point."""
    number = 0
    while point is None or pushes > 0:
        if point is None and not os.read(go, 1):
            return
        for _ in range(BURST if point is None else pushes):
            rows = make_rows(buffer, name, number, 1 + number % MOST)
            ids = buffer.extend({"words": rows})
            os.write(pipe, b"".join(map(ACKNOWLEDGEMENT.pack, ids, rows[:, 0].tolist())))
            number += len(rows)
        pushes = 0
    if point == "ticket":
        records = buffer._records.segment["rows"]
        forbid(records.ctypes.data, records.nbytes, may_read=True)
        buffer.extend({"words": make_rows(buffer, name, number, 2)})
    elif point in ("claimed", "torn", "written"):
        rows = make_rows(buffer, name, number, 1)
        at = {"claimed": 0, "torn": rows.nbytes // 4, "written": rows.nbytes - 64}[point]
        buffer.extend({"words": copy_with_trap(rows, at)})
    elif point == "group":
        rows = make_rows(buffer, name, number, 2 * GROUP)
        buffer.extend({"words": copy_with_trap(rows, rows[0].nbytes * (GROUP + 2))})
    else:
        crash(str(point))


@dataclass
class Writer:
    """The parent's side of a writer."""

    name: int
    pid: int
    go: int
    pipe: int
    due: int = 0
    """The number of pushes it has been started for, which determines the number of rows."""
    last: int = -1
    """The number of the last row it acknowledged."""
    ids: list[int] = field(default_factory=list)
    data: bytes = b""
    silent: bool = False
    """Whether its end of the pipe is closed, which means that it has died."""
    status: int | None = None
    """Its wait status after it has ended."""

    @staticmethod
    def start(buffer: ReplayBuffer, name: int, point: str | None = None, pushes: int = 0) -> Writer:
        (reads, writes), (orders, gives) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            os.close(gives)
            _run_writer(buffer, name, orders, writes, point, pushes)
        os.close(writes)
        os.close(orders)
        os.set_blocking(reads, False)
        return Writer(name, pid, gives, reads)

    def allow_burst(self) -> None:
        self.due += BURST
        os.write(self.go, b"!")

    @property
    def finished(self) -> bool:
        """Whether it has acknowledged all the pushes it was started for."""
        return self.last + 1 >= count_rows(self.due)

    def read_pipe(self) -> list[tuple[int, int]]:
        """Returns the acknowledgements since the last call, as (id, value)."""
        while True:
            try:
                part = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                self.silent = True
                break
            self.data += part
        whole = len(self.data) // ACKNOWLEDGEMENT.size * ACKNOWLEDGEMENT.size
        found, self.data = list(ACKNOWLEDGEMENT.iter_unpack(self.data[:whole])), self.data[whole:]
        return found

    def end(self, number: int | None = signal.SIGKILL) -> int:
        """Kills it, or waits until it has died by itself; returns its wait status, on repeated calls too."""
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
            raise Violation(4, f"a writer that should have died still ran after {CALL_S:g} s")
        return self.status


def _run_writer(
    buffer: ReplayBuffer, name: int, go: int, pipe: int, point: str | None, pushes: int
) -> NoReturn:
    try:
        for number in (signal.SIGSEGV, signal.SIGABRT):
            signal.signal(number, signal.SIG_DFL)  # many die by these; no traceback is needed
        _write(buffer, name, go, pipe, point, pushes)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


# -- the checker ------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """The rows that writers acknowledged, which must therefore be in the ring."""

    buffer: ReplayBuffer
    writers: dict[int, Writer] = field(default_factory=dict)
    """The running writers, by name."""
    ends: dict[int, int] = field(default_factory=dict)
    """The last number that each dead writer acknowledged."""
    rows: dict[int, int] = field(default_factory=dict)
    """The acknowledged value of each id."""
    checked: int = 0
    started: int = 0

    def start(self, point: str | None = None, pushes: int = 0) -> Writer:
        self.started += 1
        writer = Writer.start(self.buffer, self.started, point, pushes)
        self.writers[writer.name] = writer
        return writer

    def read_acknowledgements(self, writer: Writer) -> list[int]:
        """Records new acknowledgements of a writer; returns their ids."""
        new = []
        for id_, value in writer.read_pipe():
            if value != writer.name << 32 | (writer.last + 1):
                raise Violation(6, f"writer {writer.name} acknowledged {value:#x} after row {writer.last}")
            if id_ in self.rows or (writer.ids and id_ <= writer.ids[-1]):
                raise Violation(
                    6, f"id {id_} was given to writer {writer.name}, but it had been given before"
                )
            self.rows[id_] = value
            writer.last += 1
            new.append(id_)
        writer.ids = (writer.ids + new)[-64:]
        return new

    def check_batch(self, batch: Any) -> None:
        """Checks that every row is whole and was pushed, or is being pushed, with its id."""
        words = batch["words"]
        torn = (words != words[:, :1]).any(axis=1)
        if torn.any():
            raise Violation(
                2, f"torn rows {batch.ids[torn].tolist()}: {words[torn][:, [0, words.shape[1] // 2, -1]]}"
            )
        for writer in self.writers.values():
            self.read_acknowledgements(writer)
        for id_, value in zip(batch.ids.tolist(), words[:, 0].tolist(), strict=True):
            self.checked += 1
            if id_ in self.rows:
                if self.rows[id_] != value:
                    raise Violation(1, f"row {id_} is {value:#x}; {self.rows[id_]:#x} was acknowledged")
                continue
            name, number = value >> 32, value & 0xFFFFFFFF
            known = self.writers[name].last if name in self.writers else self.ends.get(name)
            if known is None or not known < number <= known + 2 * GROUP:
                raise Violation(2, f"row {id_} is {value:#x}, which no writer was pushing (last: {known})")

    def require(self, ids: list[int]) -> None:
        """Checks that these rows are unchanged, or overwritten: a later ticket for their slot was taken."""
        wanted = ids[-self.buffer.capacity :]
        found = self.buffer.fetch(wanted)
        taken = int(self.buffer._records.segment["tail"][0])
        self.check_batch(found)
        missing = set(wanted) - set(found.ids.tolist())
        lost = [id_ for id_ in missing if taken <= id_ + self.buffer.capacity]
        if lost:
            raise Violation(1, f"rows {sorted(lost)} were acknowledged and are lost (tickets: {taken})")
        self.checked += len(wanted)

    def check_dead_writer(self, writer: Writer) -> None:
        """Removes a dead writer and checks the rows it had acknowledged."""
        self.read_acknowledgements(writer)
        os.close(writer.pipe)
        os.close(writer.go)
        self.ends[writer.name] = writer.last
        del self.writers[writer.name]
        self.require(writer.ids)

    def forget(self) -> None:
        """Drops entries that must have been overwritten long ago."""
        if len(self.rows) > 8 * self.buffer.capacity + 4096:
            least = max(self.rows) - 4 * self.buffer.capacity - 1024
            self.rows = {id_: value for id_, value in self.rows.items() if id_ > least}
