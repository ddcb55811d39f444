"""Power that is lost at any moment: what is asked of the disk is traced, what it may be left with is opened.

A disk keeps what was synced. Of everything since then any part may have reached it: each block as it was at
some time since, each name or not (a later one only with those before it). So the trace holds what every file
looked like before and after each call that syncs, links or renames, and a crash is one choice from all that.

python -m tests.replay.losses --losses 2000 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from shoal import _core
from shoal.errors import CorruptFileError
from shoal.replay import ReplayBuffer
from tests.replay.power import Numbered

GRAINS = (64, 512, 4096)


@dataclass(frozen=True)
class Content:
    """One file: what is certainly on disk, and what it looked like since."""

    synced: bytes = b""
    since: tuple[bytes, ...] = ()

    def left(self, chooser: random.Random) -> bytes:
        """After a crash: all of it, none of what is new, or each block from some time."""
        images = (self.synced, *self.since)
        how = chooser.randrange(4)
        if how == 0:
            return self.synced
        if how == 1:
            return images[-1]
        size = len(chooser.choice(images)) if how == 2 else len(images[-1])
        grain = chooser.choice(GRAINS)
        picked = (chooser.choice(images)[at : at + grain].ljust(grain, b"\0") for at in range(0, size, grain))
        return b"".join(picked)[:size]


@dataclass(frozen=True)
class State:
    """A moment: contents by inode, names that are on disk, and changes of names that may not be."""

    contents: dict[int, Content] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    changes: tuple[dict[str, int], ...] = ()
    acknowledged: Any = None
    """What the caller had been told when it happened."""

    def crash(self, chooser: random.Random, directory: Path) -> None:
        names = dict(chooser.choice((self.names, *self.changes)))  # all up to one of them
        left = {inode: self.contents[inode].left(chooser) for inode in set(names.values())}
        for name, inode in names.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(left[inode])


class Disk:
    """Traces what a directory's files are told to do."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.states, self.now = directory, [State()], State()

    def look(self) -> None:
        """Whatever is stored now may be what a crash leaves."""
        contents, names = dict(self.now.contents), {}
        for path in sorted(self.directory.rglob("*")):
            if path.is_file():
                inode, data = path.stat().st_ino, path.read_bytes()
                names[str(path.relative_to(self.directory))] = inode
                known = contents.get(inode, Content())
                if not known.since or known.since[-1] != data:
                    contents[inode] = replace(known, since=(*known.since[-6:], data))
        last = self.now.changes[-1] if self.now.changes else self.now.names
        changes = self.now.changes if names == last else (*self.now.changes, names)
        self.now = replace(self.now, contents=contents, changes=changes)
        self.states.append(self.now)

    def synced(self, inode: int) -> None:
        """All of a file is on disk; of a directory its names, and those of the files in it."""
        self.look()
        contents = dict(self.now.contents)
        if inode in contents:
            contents[inode] = Content(contents[inode].since[-1])
            self.now = replace(self.now, contents=contents)
        elif self.now.changes:
            self.now = replace(self.now, names=self.now.changes[-1], changes=())
        self.states.append(self.now)

    def tell(self, acknowledged: Any) -> None:
        self.now = replace(self.now, acknowledged=acknowledged)
        self.look()

    @contextmanager
    def traced(self) -> Iterator[None]:
        disk, real_ring = self, _core.Ring

        class Ring(real_ring):
            """A ring whose syncs are seen."""

            def __init__(
                self, arrays: Any, capacity: int, stride: int, places: Any, fd: int, checks: bool
            ) -> None:
                super().__init__(arrays, capacity, stride, places, fd, checks)
                self._inode = os.fstat(fd).st_ino

            def _on_disk(self, call: Callable[[Any], Any], mapping: Any) -> None:
                disk.look()
                call(mapping)
                if self._inode in disk.now.contents:
                    disk.synced(self._inode)

            def begin(self, mapping: Any) -> None:
                self._on_disk(super().begin, mapping)

            def sync(self, mapping: Any) -> None:
                self._on_disk(super().sync, mapping)

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def through(*arguments: Any, **keywords: Any) -> Any:
                disk.look()
                result = call(*arguments, **keywords)
                disk.look()
                return result

            return through

        def fsync(fd: int) -> None:
            real_fsync(fd)
            disk.synced(os.fstat(fd).st_ino)

        real_fsync = os.fsync
        with (
            patch.object(_core, "Ring", Ring),
            patch.object(_core, "file_link", around(_core.file_link)),
            patch.object(os, "fsync", fsync),
            patch.object(os, "rename", around(os.rename)),
            patch.object(os, "replace", around(os.replace)),
        ):
            yield


# -- what is done, and what must hold after a crash within it -------------------------------------------


def _opened(path: Path, rows: Numbered, acknowledged: Any, required: bool) -> None:
    """Rows that are there were pushed, byte for byte; those that must be there are."""
    if not path.exists():
        assert not required, "the file that was there is gone"
        return
    try:
        buffer = ReplayBuffer.open(path, seed=0)
    except CorruptFileError:
        assert not required, "a file that was on disk is refused"
        return
    with buffer:
        there = rows.check(buffer)
        assert set(acknowledged or ()) <= set(there), f"lost {set(acknowledged) - set(there)}"
        assert rows.push(buffer, 1)[0] > max(there, default=-1)


def _pushed(level: Any) -> Callable[[Path, Disk], Callable[[Path, State], None]]:
    def scenario(directory: Path, disk: Disk) -> Callable[[Path, State], None]:
        rows, told = Numbered(30), []
        buffer = ReplayBuffer(8, rows.fields, path=directory / "a.ring", durability=level, seed=0)
        disk.tell(())
        for count in (3, 1, 6, 2):
            told += rows.push(buffer, count)
            disk.tell(tuple(told[-8:]) if level == "sync" else ())
        buffer.sample(4)  # so that the draws are kept beside the file
        buffer.close()
        pushed = dict(rows.pushed)

        def check(found: Path, state: State) -> None:
            seen = Numbered(30)
            seen.pushed, seen.next = dict(pushed), 100
            # While rows are being pushed those that they replace may be gone.
            newest = max(told)
            must = [i for i in state.acknowledged or () if i > newest - 8]
            _opened(found / "a.ring", seen, must, state.acknowledged is not None)

        return check

    return scenario


def _snapshot(directory: Path, disk: Disk) -> Callable[[Path, State], None]:
    rows = Numbered(30)
    with ReplayBuffer(8, rows.fields, seed=0) as buffer:
        rows.push(buffer, 5)
        buffer.snapshot(directory / "s.ring")
        disk.tell((0, 1, 2, 3, 4))
        rows.push(buffer, 6)
        buffer.snapshot(directory / "s.ring")
        disk.tell(tuple(range(3, 11)))
    pushed = dict(rows.pushed)

    def check(found: Path, state: State) -> None:
        path = found / "s.ring"
        if state.acknowledged is None and not path.exists():
            return
        seen = Numbered(30)
        seen.pushed = dict(pushed)
        with ReplayBuffer.open(path, seed=0) as buffer:  # whole, at any moment: never refused
            there = tuple(seen.check(buffer))
        assert there in (tuple(range(5)), tuple(range(3, 11))), there
        assert state.acknowledged is None or there >= state.acknowledged, "an old one came back"

    return check


def _saved(directory: Path, disk: Disk) -> Callable[[Path, State], None]:
    with ReplayBuffer(8, {"x": (np.int64, ())}, seed=0) as buffer:
        buffer.extend({"x": np.arange(5)})
        buffer.save(directory / "saved")
        disk.tell(True)

    def check(found: Path, state: State) -> None:
        if state.acknowledged is None and not (found / "saved").exists():
            return
        with ReplayBuffer.load(found / "saved", seed=0) as buffer:
            assert buffer.latest(8)["x"].tolist() == [0, 1, 2, 3, 4]

    return check


SCENARIOS = {"sync": _pushed("sync"), "process": _pushed("process"), "snapshot": _snapshot, "saved": _saved}


def lose(name: str, losses: int, seed: int) -> tuple[int, int]:
    """Makes the trace, then opens `losses` states that a crash may leave; how many, of how many moments."""
    chooser = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="shoal-power-") as place:
        directory = Path(place) / "disk"
        directory.mkdir()
        disk = Disk(directory)
        with disk.traced():
            check = SCENARIOS[name](directory, disk)
        moments = disk.states
        for number in range(losses):
            state = moments[number % len(moments)]
            after = Path(place) / "after"
            after.mkdir()
            state.crash(chooser, after)
            try:
                check(after, state)
            except BaseException as error:
                moment = f"moment {number % len(moments)} of {len(moments)}"
                raise AssertionError(f"{name}, seed {seed}, loss {number} at {moment}: {error}") from error
            shutil.rmtree(after)
    return losses, len(moments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in SCENARIOS:
        losses, moments = lose(name, arguments.losses, arguments.seed)
        print(f"{name}: {losses} losses of power at {moments} moments, nothing lied", flush=True)


if __name__ == "__main__":
    main()
