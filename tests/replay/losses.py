"""Simulates a power loss at any moment: traces the writes, then opens the files as a crash may leave them.

A disk keeps what was synced. Of later writes, any part may have reached it: each block as it was at some time
since the sync, and each new name or not (a later one only with those before it). So the trace holds the
contents of every file before and after each call that syncs, links or renames, and a crash is one choice from
these.

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
    """One file: the contents that are surely on disk, and its later contents."""

    synced: bytes = b""
    since: tuple[bytes, ...] = ()

    def choose(self, chooser: random.Random) -> bytes:
        """Chooses the contents after a crash: the synced ones, the newest ones, or a mix of blocks."""
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
    """One moment: contents by inode, the names on disk, and later changes of names."""

    contents: dict[int, Content] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    changes: tuple[dict[str, int], ...] = ()
    acknowledged: Any = None
    """What Shoal had acknowledged to the caller at this moment."""

    def crash(self, chooser: random.Random, directory: Path) -> None:
        names = dict(chooser.choice((self.names, *self.changes)))  # all up to one of them
        left = {inode: self.contents[inode].choose(chooser) for inode in set(names.values())}
        for name, inode in names.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(left[inode])


class Disk:
    """Records the states of a directory that a crash may leave."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.states, self.now = directory, [State()], State()

    def record(self) -> None:
        """Records the current contents as a state that a crash may leave."""
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

    def record_sync(self, inode: int) -> None:
        """Records that a file is on disk; or for a directory its names and those of the files in it."""
        self.record()
        contents = dict(self.now.contents)
        if inode in contents:
            contents[inode] = Content(contents[inode].since[-1])
            self.now = replace(self.now, contents=contents)
        elif self.now.changes:
            self.now = replace(self.now, names=self.now.changes[-1], changes=())
        self.states.append(self.now)

    def acknowledge(self, acknowledged: Any) -> None:
        self.now = replace(self.now, acknowledged=acknowledged)
        self.record()

    @contextmanager
    def trace(self) -> Iterator[None]:
        disk, real_ring = self, _core.Ring

        class Ring(real_ring):
            """A ring whose syncs are recorded."""

            def __init__(
                self, arrays: Any, capacity: int, stride: int, places: Any, fd: int, checks: bool
            ) -> None:
                super().__init__(arrays, capacity, stride, places, fd, checks)
                self._inode = os.fstat(fd).st_ino

            def _on_disk(self, call: Callable[[Any], Any], mapping: Any) -> None:
                disk.record()
                call(mapping)
                if self._inode in disk.now.contents:
                    disk.record_sync(self._inode)

            def begin(self, mapping: Any) -> None:
                self._on_disk(super().begin, mapping)

            def sync(self, mapping: Any) -> None:
                self._on_disk(super().sync, mapping)

        def record_around(call: Callable[..., Any]) -> Callable[..., Any]:
            def through(*arguments: Any, **keywords: Any) -> Any:
                disk.record()
                result = call(*arguments, **keywords)
                disk.record()
                return result

            return through

        def fsync(fd: int) -> None:
            real_fsync(fd)
            disk.record_sync(os.fstat(fd).st_ino)

        real_fsync = os.fsync
        with (
            patch.object(_core, "Ring", Ring),
            patch.object(_core, "file_link", record_around(_core.file_link)),
            patch.object(os, "fsync", fsync),
            patch.object(os, "rename", record_around(os.rename)),
            patch.object(os, "replace", record_around(os.replace)),
        ):
            yield


# -- scenarios, and the checks after a crash during them ------------------------------------------------


def _check_file(path: Path, rows: Numbered, acknowledged: Any, required: bool) -> None:
    """Checks that every row was pushed, byte for byte, and that no acknowledged row is missing."""
    if not path.exists():
        assert not required, "the file is missing"
        return
    try:
        buffer = ReplayBuffer.open(path, seed=0)
    except CorruptFileError:
        assert not required, "a file that was on disk cannot be opened"
        return
    with buffer:
        there = rows.check(buffer)
        assert set(acknowledged or ()) <= set(there), f"lost {set(acknowledged) - set(there)}"
        assert rows.push(buffer, 1)[0] > max(there, default=-1)


def _make_push_scenario(level: Any) -> Callable[[Path, Disk], Callable[[Path, State], None]]:
    def scenario(directory: Path, disk: Disk) -> Callable[[Path, State], None]:
        rows, acknowledged = Numbered(30), []
        buffer = ReplayBuffer(8, rows.fields, path=directory / "a.ring", durability=level, seed=0)
        disk.acknowledge(())
        for count in (3, 1, 6, 2):
            acknowledged += rows.push(buffer, count)
            disk.acknowledge(tuple(acknowledged[-8:]) if level == "sync" else ())
        buffer.sample(4)  # so that close writes the draws
        buffer.close()
        pushed = dict(rows.pushed)

        def check(found: Path, state: State) -> None:
            seen = Numbered(30)
            seen.pushed, seen.next = dict(pushed), 100
            # During a push, the rows that it overwrites may already be lost.
            newest = max(acknowledged)
            must = [i for i in state.acknowledged or () if i > newest - 8]
            _check_file(found / "a.ring", seen, must, state.acknowledged is not None)

        return check

    return scenario


def _snapshot_scenario(directory: Path, disk: Disk) -> Callable[[Path, State], None]:
    rows = Numbered(30)
    with ReplayBuffer(8, rows.fields, seed=0) as buffer:
        rows.push(buffer, 5)
        buffer.snapshot(directory / "s.ring")
        disk.acknowledge((0, 1, 2, 3, 4))
        rows.push(buffer, 6)
        buffer.snapshot(directory / "s.ring")
        disk.acknowledge(tuple(range(3, 11)))
    pushed = dict(rows.pushed)

    def check(found: Path, state: State) -> None:
        path = found / "s.ring"
        if state.acknowledged is None and not path.exists():
            return
        seen = Numbered(30)
        seen.pushed = dict(pushed)
        with ReplayBuffer.open(path, seed=0) as buffer:  # complete at any moment, so it never raises
            there = tuple(seen.check(buffer))
        assert there in (tuple(range(5)), tuple(range(3, 11))), there
        assert state.acknowledged is None or there >= state.acknowledged, "an older snapshot came back"

    return check


def _save_scenario(directory: Path, disk: Disk) -> Callable[[Path, State], None]:
    with ReplayBuffer(8, {"x": (np.int64, ())}, seed=0) as buffer:
        buffer.extend({"x": np.arange(5)})
        buffer.save(directory / "saved")
        disk.acknowledge(True)

    def check(found: Path, state: State) -> None:
        if state.acknowledged is None and not (found / "saved").exists():
            return
        with ReplayBuffer.load(found / "saved", seed=0) as buffer:
            assert buffer.latest(8)["x"].tolist() == [0, 1, 2, 3, 4]

    return check


SCENARIOS = {
    "sync": _make_push_scenario("sync"),
    "process": _make_push_scenario("process"),
    "snapshot": _snapshot_scenario,
    "saved": _save_scenario,
}


def lose(name: str, losses: int, seed: int) -> tuple[int, int]:
    """Traces a scenario and checks `losses` crashes; returns how many, and the number of moments."""
    chooser = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="shoal-power-") as place:
        directory = Path(place) / "disk"
        directory.mkdir()
        disk = Disk(directory)
        with disk.trace():
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
