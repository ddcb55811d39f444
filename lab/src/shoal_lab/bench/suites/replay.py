"""Replay buffers: draws, pushes and priorities, against a bare gather and memcpy of the same bytes."""

from __future__ import annotations

import math
from functools import partial

from shoal_lab.bench.measure import Bench, Pace, Planned
from shoal_lab.bench.results import Case
from shoal_lab.bench.rivals.replay import BATCH, MAKERS

__all__ = ["plan"]

_OPERATIONS = {
    "sample": f"sample({BATCH})",
    "extend": "push of 64 rows",
    "push": "push of one row",
    "prioritized": f"prioritized sample({BATCH}) and update",
}
_ROWS = {"4 floats": ((4,), "float32"), "376 floats": ((376,), "float32"), "84x84x4": ((84, 84, 4), "uint8")}
_SLOW = {"376 floats": {"tianshou"}, "84x84x4": {"tianshou", "torchrl", "stable_baselines3"}}  # to fill


def plan(bench: Bench) -> list[Planned]:
    """Four operations on small rows; with --full on larger ones too."""
    pace = bench.pace(Pace(7, 0.008), Pace(15, 0.02))
    kinds = list(_ROWS) if bench.every_case else ["4 floats"]
    planned = []
    for kind in kinds:
        capacity = 1_000 if bench.smoke else 20_000 if kind == "84x84x4" else 100_000
        for operation in _OPERATIONS:
            if operation != "prioritized" or kind == "4 floats":
                seconds = pace.seconds(7) + (9 if operation == "sample" else 1)
                title = _title(operation, kind, capacity)
                planned.append(
                    Planned(title, seconds, partial(_case, bench, operation, kind, capacity, pace))
                )
    return planned


def _title(operation: str, kind: str, capacity: int) -> str:
    return f"{_OPERATIONS[operation]}, {capacity:,} rows of {kind}"


def _case(bench: Bench, operation: str, kind: str, capacity: int, pace: Pace) -> Case:
    shape, dtype = _ROWS[kind]
    last = "prioritized" if kind == "4 floats" else "push"  # of this kind: buffers are filled once
    with bench.roster("replay", keep=operation != last) as roster:
        what = operation, capacity, list(shape), dtype
        roster.add("shoal", "Shoal", *what, role="shoal", how="ReplayBuffer(capacity, fields)")
        if operation == "sample":
            with_out = "sample_out", *what[1:]
            roster.add(
                "shoal", "Shoal", *with_out, name="Shoal, out=", role="shoal", how="one batch filled again"
            )
        if operation != "prioritized":
            roster.add("shoal", "NumPy ring", *what, how="arrays, take(out=)")
        for library in ("cpprb", "stable_baselines3", "tianshou", "torchrl"):
            lacks = operation == "prioritized" and library == "stable_baselines3"
            if library not in _SLOW.get(kind, ()) and not lacks:
                for maker in MAKERS[library]:
                    roster.add(library, maker, *what)
        if bench.loops is None:
            pass  # there is no compiler, so there are no limits
        elif operation in ("sample", "prioritized"):
            name = "bare C gather"
            roster.add("shoal", name, *what, role="limit", how="random records, copied column by column")
        else:
            row = 2 * math.prod(shape) * (4 if dtype == "float32" else 1) + 13
            copied = row * (64 if operation == "extend" else 1)
            roster.add_bare("memcpy", 1, bench.loops.copy(copied, 1), f"{copied:,} bytes")
        title = _title(operation, kind, capacity)
        parameters = "obs, action, reward, next_obs, done"
        return bench.timed(
            "replay", title, "us", roster.rivals, pace, lambda n, s: s * 1e6, parameters, more_is_better=False
        )
