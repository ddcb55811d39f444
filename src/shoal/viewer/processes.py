"""Reads the memory use of a run's processes from /proc."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["tree_bytes"]


def tree_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Returns the memory of a process and its descendants in bytes, shared pages once; None if unknown.

    Trainer and workers map the same segments, so the largest shared size is counted for all. (Exact shares
    would need a walk through each process's page tables, under a lock that the run needs.)
    """
    parents: dict[int, int] = {}
    for entry in proc.glob("[0-9]*/stat"):
        # The program's name, in parentheses, can contain any character.
        words = _read(entry).rpartition(")")[2].split()
        if len(words) > 1:
            parents[int(entry.parent.name)] = int(words[1])
    tree = {pid}
    while below := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= below
    private, shared = 0, 0
    for one in tree:
        pages = _read(proc / str(one) / "statm").split()
        if len(pages) > 2:
            private += int(pages[1]) - int(pages[2])
            shared = max(shared, int(pages[2]))
    return (private + shared) * os.sysconf("SC_PAGE_SIZE") or None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process ended in the meantime
        return ""
