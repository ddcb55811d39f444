"""What a process holds, and who belongs to it: compared before and after, nothing may be left."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from shoal.memory import list_names
from shoal.process import launcher
from shoal.state import names
from shoal_lab.chaos.faults import LENIENCE
from shoal_lab.chaos.marked import Violation

__all__ = ["Held", "children", "is_spare", "kill_session", "launcher_pid", "members", "require_gone"]


def _stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [] if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return []


def children(pid: int) -> list[int]:
    """Of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def members(session: int) -> list[int]:
    """The living processes of a session (setsid): a trainer, its launcher, their workers."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(entry)
            if len(fields) > 3 and int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def kill_session(session: int) -> None:
    """Ends everybody in it, whoever is forked meanwhile too."""
    while found := members(session):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        time.sleep(0.01)


def require_gone(session: int, within_s: float) -> float:
    """How long until nobody of a session lives; a Violation if that takes too long."""
    begin = time.monotonic()
    while left := members(session):
        waited = time.monotonic() - begin
        if waited > within_s * LENIENCE:
            told = ", ".join(f"{pid} ({' '.join(_stat(pid)[:1])})" for pid in left)
            kill_session(session)
            raise Violation(5, f"processes {told} are there {waited:.1f} s after their parent's end")
        time.sleep(0.002)
    return time.monotonic() - begin


def launcher_pid() -> int:
    """The process that this one's workers are forked from; 0 if there is none."""
    current: Any = launcher._current
    return 0 if current is None else int(current._process.pid)


def is_spare(pid: int) -> bool:
    """Whether that is the worker which a launcher has in reserve, and which comes and goes."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == launcher.SPARE + "\n"
    return False


class Held:
    """Descriptors, mappings of segments, threads, children, names, of this process and its launcher."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> Counter[str]:
        gc.collect()
        found: Counter[str] = Counter()
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one that lists
                kind = os.readlink(f"/proc/self/fd/{fd}").split(":")[0].removesuffix(" (deleted)")
                if "/proc/" not in kind:
                    found[f"descriptor {kind}"] += 1
        for line in Path("/proc/self/maps").read_text().splitlines():
            found["mapping"] += "memfd:shoal" in line or "/shm/shoal" in line
        found["thread"] = len(os.listdir("/proc/self/task"))
        first = launcher_pid()
        for parent in {os.getpid(), first} - {0}:
            for pid in children(parent):
                if pid != first and not is_spare(pid):
                    found["child"] += 1
        found["child"] += 0
        for entry in list_names():
            if entry.owner_pid == os.getpid():  # others of this user have theirs
                found[f"name {entry.name}"] += 1
        for path in names.list_paths():
            found[f"session {path.name}"] += 1
        return found

    def require_same(self, what: str, patience_s: float = 5.0) -> None:
        """A Violation if anything is there now that was not there at first, or the other way round."""
        deadline = time.monotonic() + patience_s
        while (now := self._now()) != self._before and time.monotonic() < deadline:
            time.sleep(0.02)  # the launcher reaps when it is told
        if now != self._before:
            changed = [
                f"{key}: {self._before[key]} before, {now[key]} after"
                for key in sorted(now.keys() | self._before.keys())
                if now[key] != self._before[key]
            ]
            raise Violation(5, f"{what} left something: {'; '.join(changed)}")
