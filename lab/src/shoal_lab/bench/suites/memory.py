"""The memory of environments and buffers in all processes, against the size of their data."""

from __future__ import annotations

import os
from typing import Any

from shoal_lab.bench.interpreter import PeerError
from shoal_lab.bench.load import cores
from shoal_lab.bench.measure import Bench, Pace, Planned
from shoal_lab.bench.results import Case, Role, Row
from shoal_lab.bench.rivals.replay import rows_of

__all__ = ["plan"]

_ENVS, _ROWS = 32, 100_000
_PROCESSES = {
    "gymnasium": "Gymnasium async",
    "stable_baselines3": "SB3 subproc",
    "tianshou": "Tianshou shmem",
    "pufferlib": "PufferLib, 2 workers",
}
_BUFFERS = {"cpprb": "cpprb", "stable_baselines3": "SB3", "torchrl": "TorchRL"}


def plan(bench: Bench) -> list[Planned]:
    """Plans the cases; none without /proc, from which a process's memory is read."""
    if not os.path.exists("/proc/self/smaps_rollup"):
        bench.note("without memory: it is read from /proc/PID/smaps_rollup, which does not exist here")
        return []
    turns = bench.pace(Pace(3, None), Pace(5, None)).bursts
    return [
        Planned(f"Memory of {_ENVS} environments in processes", 3 * turns, lambda: _processes(bench, turns)),
        Planned(f"Memory of {_ROWS:,} rows", 2 * turns, lambda: _rows(bench, turns)),
    ]


def _measure_added(
    bench: Bench, library: str, group: str, turns: int, maker: str, *arguments: Any
) -> tuple[float, ...]:
    """Returns the MB that making a rival adds, in each turn; () if it cannot be made."""
    found = []
    try:
        interpreter = bench.interpreter(library, group)
        if interpreter is None:
            return ()
        for _ in range(turns + 1):
            before = interpreter.memory_bytes()
            interpreter.make(maker, *arguments)[1](1)
            found.append((interpreter.memory_bytes() - before) / 1e6)
            interpreter.drop()
    except PeerError as error:
        bench.leave_out(maker, library == "shoal", error)
    return tuple(max(1e-3, megabytes) for megabytes in found[1:])  # the first turn loads modules, too


def _case(title: str, rows: list[tuple[str, Role, tuple[float, ...], str]], turns: int, what: str) -> Case:
    made = tuple(Row(name, role, values, how) for name, role, values, how in rows if values)
    how = f"{what}; proportional set size of all processes, added; {turns} turns"
    return Case("memory", title, "MB", made, how, more_is_better=False)


def _processes(bench: Bench, turns: int) -> Case:
    workload = ["Pixels"]
    options: dict[str, Any] = {}
    ours = _measure_added(bench, "shoal", "process", turns, "Shoal", workload, _ENVS, options)
    rows: list[tuple[str, Role, tuple[float, ...], str]] = [
        ("Shoal", "shoal", ours, "ProcessVectorEnv, a worker per core, all of its slots")
    ]
    for library, maker in _PROCESSES.items():
        rows.append(
            (maker, "peer", _measure_added(bench, library, "process", turns, maker, workload, _ENVS), "")
        )
    workers = len(cores())
    bare = _measure_added(bench, "shoal", "process", turns, "bare loop", workload, _ENVS, workers, False)
    rows.append(("bare loop", "limit", bare, "forked workers over one mapping"))
    title = f"{_ENVS} Python environments in processes, 84x84x4 bytes of observation"
    return _case(title, rows, turns, "one step made")


def _rows(bench: Bench, turns: int) -> Case:
    what = "sample", _ROWS, [4], "float32"
    rows: list[tuple[str, Role, tuple[float, ...], str]] = [
        ("Shoal", "shoal", _measure_added(bench, "shoal", "replay", turns, "Shoal", *what), "ReplayBuffer")
    ]
    for library, maker in _BUFFERS.items():
        rows.append((maker, "peer", _measure_added(bench, library, "replay", turns, maker, *what), ""))
    payload = sum(array.nbytes for array in rows_of(1, (4,), "float32").values()) * _ROWS / 1e6
    rows.append(("bytes of the rows", "limit", (payload,), "arithmetic"))
    return _case(f"{_ROWS:,} rows of 4 floats in a replay buffer", rows, turns, "filled")
