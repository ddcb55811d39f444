"""The resources and child processes of a process, compared before and after to find leaks."""

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

__all__ = [
    "Resources",
    "is_spare",
    "kill_session",
    "launcher_pid",
    "list_children",
    "list_members",
    "require_gone",
]


def _stat(pid: int | str) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; [] if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return []


def list_children(pid: int) -> list[int]:
    """Returns the child processes of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def list_members(session: int) -> list[int]:
    """Returns the running processes of a session (setsid): a trainer, its launcher, their workers."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(entry)
            if len(fields) > 3 and int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def kill_session(session: int) -> None:
    """Kills all processes of a session, including those forked in the meantime."""
    while found := list_members(session):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        time.sleep(0.01)


def require_gone(session: int, within_s: float) -> float:
    """Waits until all processes of a session have ended; returns the seconds.

    A Violation if it takes longer.
    """
    begin = time.monotonic()
    while left := list_members(session):
        waited = time.monotonic() - begin
        if waited > within_s * LENIENCE:
            running = ", ".join(f"{pid} ({' '.join(_stat(pid)[:1])})" for pid in left)
            kill_session(session)
            raise Violation(5, f"processes {running} still run {waited:.1f} s after their parent's end")
        time.sleep(0.002)
    return time.monotonic() - begin


def launcher_pid() -> int:
    """Returns the process that this process's workers are forked from; 0 if there is none."""
    current: Any = launcher._current
    return 0 if current is None else int(current._process.pid)


def is_spare(pid: int) -> bool:
    """Whether the process is a launcher's spare worker, which may appear and disappear at any time."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == launcher.SPARE + "\n"
    return False


class Resources:
    """The descriptors, segment mappings, threads, children and names of this process and its launcher."""

    def __init__(self) -> None:
        self._before = self._read()

    @staticmethod
    def _read() -> Counter[str]:
        gc.collect()
        found: Counter[str] = Counter()
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                kind = os.readlink(f"/proc/self/fd/{fd}").split(":")[0].removesuffix(" (deleted)")
                if "/proc/" not in kind:
                    found[f"descriptor {kind}"] += 1
        for line in Path("/proc/self/maps").read_text().splitlines():
            found["mapping"] += "memfd:shoal" in line or "/shm/shoal" in line
        found["thread"] = len(os.listdir("/proc/self/task"))
        first = launcher_pid()
        for parent in {os.getpid(), first} - {0}:
            for pid in list_children(parent):
                if pid != first and not is_spare(pid):
                    found["child"] += 1
        found["child"] += 0
        for entry in list_names():
            if entry.owner_pid == os.getpid():  # other processes of this user have names too
                found[f"name {entry.name}"] += 1
        for path in names.list_paths():
            found[f"session {path.name}"] += 1
        return found

    def require_same(self, what: str, timeout_s: float = 5.0) -> None:
        """Raises a Violation if there is more of a resource than at construction.

        Less of one is not a leak: a child of earlier work may end meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while (more := (now := self._read()) - self._before) and time.monotonic() < deadline:
            time.sleep(0.02)  # the launcher may still have to reap
        if more:
            changed = [f"{key}: {self._before[key]} before, {now[key]} after" for key in sorted(more)]
            raise Violation(5, f"{what} leaked: {'; '.join(changed)}")
