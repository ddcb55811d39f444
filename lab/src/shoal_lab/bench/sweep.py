"""Measures the same case at many sizes, within memory and time, and describes where it saturates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from shoal.memory.limits import format_bytes, memory_limits
from shoal.native.build import build
from shoal.vector import make_vec
from shoal_lab.bench import scaling
from shoal_lab.bench.compile import SOURCES
from shoal_lab.bench.interleave import undisturbed
from shoal_lab.bench.load import cores
from shoal_lab.bench.loops import VECTORISED
from shoal_lab.bench.measure import Bench, Pace, Rival
from shoal_lab.bench.report import number
from shoal_lab.bench.results import Case, Point, Sweep
from shoal_lab.bench.rivals.native import random_actions, stepping
from shoal_lab.bench.rivals.replay import BATCH, MAKERS

__all__ = ["SECONDS", "SWEEPS", "grow", "knee", "run"]

SECONDS = 12.0
"""The estimated duration of a sweep."""
_PART = 0.9  # saturated: within a tenth of the best


def knee(points: Sequence[tuple[float, float]], part: float = _PART) -> float | None:
    """Returns the first x from which every value is at least `part` of the best.

    Returns None if only the last value is, so also for a single point.
    """
    best = max(value for _, value in points)
    from_there = None
    for x, value in reversed(points):
        if value < part * best:
            break
        from_there = x
    return None if from_there == points[-1][0] else from_there


def grow(
    sizes: Sequence[float],
    measure: Callable[[float], Case],
    need_bytes: Callable[[float], float],
    limit_s: float,
    note: Callable[[str], None],
    done: Callable[[float], object] = lambda part: None,
    now: Callable[[], float] = time.monotonic,
    free_bytes: Callable[[], int] | None = None,
) -> list[Point]:
    """Measures from small to large; stops when less than twice the needed memory is free, or time is over."""
    free_bytes = free_bytes or (lambda: min((limit.free_bytes for limit in memory_limits()), default=2**62))
    points: list[Point] = []
    began = now()
    for size in sizes:
        need = int(2 * need_bytes(size))
        if need > free_bytes():
            free = format_bytes(free_bytes())
            note(f"stopped before {size:,.0f}: it needs {format_bytes(need)}, {free} are free")
            break
        if points and now() - began > limit_s:
            note(f"stopped before {size:,.0f}: the time limit of {limit_s:g} s is over (--seconds)")
            break
        points.append(Point(size, measure(size)))
        done(len(points) / len(sizes))
    return points


def _list_medians(points: Sequence[Point], name: str, per_x: bool = False) -> list[tuple[float, float]]:
    """Returns a rival's medians along x; with `per_x`, x divided by the median: a rate instead of a cost."""
    found = []
    for point in points:
        for row in point.case.rows:
            if row.name == name:
                found.append((point.x, point.x / row.median if per_x else row.median))
    return found


def _format_share(points: Sequence[Point], at: float) -> str:
    """Formats the part of the limit that the first row of Shoal reaches at x = `at`."""
    case = next(point.case for point in points if point.x == at)
    share = None if case.shoal is None else case.of_limit(case.shoal)
    return "" if share is None or case.limit is None else f", {share:.2f} of {case.limit.name}"


def _select_sizes(bench: Bench, sizes: Sequence[int]) -> Sequence[int]:
    """Returns all sizes; in a smoke run the smallest two."""
    return sizes[:2] if bench.smoke else sizes


# ---- The sweeps


def envs(bench: Bench, limit_s: float) -> Sweep:
    """Sweeps the number of environments in C."""
    pace = bench.pace(Pace(5, 0.004), Pace(9, 0.006))
    every = f"Shoal, up to {len(cores())} threads"

    def measure(size: float) -> Case:
        count = int(size)
        with bench.roster("native") as roster:
            roster.add("shoal", "Shoal", count, {"num_threads": 1}, name="Shoal, 1 thread", role="shoal")
            roster.add("shoal", "Shoal", count, {}, name=every, role="shoal")
            if bench.loops is not None:
                loop = bench.loops.cartpole(random_actions(count))[VECTORISED]
                roster.add_bare(f"{VECTORISED}, 1 thread", count, loop)
            return bench.timed("sweep", "CartPole-v1", "env steps/s", roster.rivals, pace, lambda n, s: n / s)

    sizes = [2**power for power in range(17)] if bench.full else [4**power for power in range(9)]
    words: list[str] = []
    points = grow(_select_sizes(bench, sizes), measure, lambda n: n * 2000, limit_s, words.append, bench.done)
    one = _list_medians(points, "Shoal, 1 thread")
    at = knee(one) if one else None
    if one:
        first, best = one[0], max(one, key=lambda point: point[1])
        words.insert(
            0, f"One environment: {number(first[1])} steps/s, so a call costs {1e6 / first[1]:.2f} us."
        )
        words.insert(1, f"Best: {number(best[1])} steps/s at {best[0]:,.0f}{_format_share(points, best[0])}.")
    many = _list_medians(points, every)
    if many and one and len(cores()) > 1:
        pays = next((x for (x, a), (_, b) in zip(many, one, strict=True) if a > 1.2 * b), None)
        said = "no number here" if pays is None else f"{pays:,.0f} environments on"
        words.insert(2, f"More than one thread pays (by a fifth) from {said}.")
    if at is not None:
        words.append(f"Saturated from num_envs={at:,.0f} on: more environments add less than a tenth.")
    return Sweep("envs", "CartPole-v1 in C", "num_envs", tuple(points), tuple(words), at)


def observation(bench: Bench, limit_s: float) -> Sweep:
    """Sweeps the bytes of an observation, in a step of 16 environments."""
    pace = bench.pace(Pace(5, 0.008), Pace(9, 0.01))
    library, count = build(SOURCES / "sized.c"), 16
    native, processes, limit = "Shoal, C", "Shoal, Python in processes", "memcpy"

    def measure(size: float) -> Case:
        num_bytes = int(size)
        with bench.roster("process") as roster, ExitStack() as opened:
            made: Any = opened.enter_context(
                make_vec(library, count, num_threads=1, session=None, bytes=num_bytes)
            )
            made.reset(seed=0)
            burst = undisturbed(stepping(made.step, random_actions(count)))
            roster.rivals.append(Rival(native, "shoal", count, burst))
            workload = ["Sized", num_bytes]
            roster.add("shoal", "Shoal", workload, count, {}, name=processes, role="shoal")
            if bench.loops is not None:
                roster.add_bare(limit, count, bench.loops.copy(count * num_bytes, 1))
            return bench.timed(
                "sweep", f"{num_bytes:,} bytes", "us", roster.rivals, pace, lambda n, s: s * 1e6,
                more_is_better=False,
            )  # fmt: skip

    sizes = [2**power for power in range(4, 21)] if bench.full else [16 * 4**power for power in range(9)]
    words: list[str] = []
    points = grow(
        _select_sizes(bench, sizes), measure, lambda b: 64 * count * b, limit_s, words.append, bench.done
    )
    at = None
    for name in (native, processes):
        moved = _list_medians(points, name, per_x=True)
        if moved:
            at = knee(moved) if name == native else at
            best = max(moved, key=lambda point: point[1])
            rate = best[1] * count / 1e3
            words.append(f"{name}: at most {rate:.1f} GB/s, at {format_bytes(int(best[0]))} an observation.")
    if points and at is not None:
        words.append(
            f"C environments are bound by memory from {format_bytes(int(at))} on{_format_share(points, at)}."
        )
    return Sweep(
        "bytes", f"A step of {count} environments", "bytes of an observation", tuple(points), tuple(words), at
    )


_FIRST = {"CartPole-v1": 262_144, "Squared-v0": 65_536, "Snake-v0": 4_096, "Reef-v0": 1_024}
_ROW_BYTES = {"CartPole-v1": 400, "Squared-v0": 1_200, "Snake-v0": 6_000, "Reef-v0": 60_000, "Uneven-v0": 400}


def threads(bench: Bench, limit_s: float) -> list[Sweep]:
    """Sweeps threads and environments against independent processes, which are the limit."""
    pace = bench.pace(Pace(9, 0.1), Pace(15, 0.3))
    most = len(cores())
    uneven = str(build(SOURCES / "uneven.c"))
    sizes: dict[str, list[int]] = {name: [count, 4 * count] for name, count in _FIRST.items()}
    sizes["CartPole-v1"].insert(0, 8_192)
    sizes["Reef-v0"].insert(0, 256)
    sizes["Uneven-v0"] = [64 * most]
    if bench.smoke:
        sizes, counts = {name: [64 * most] for name in sizes}, [1]
    else:
        counts = [count for count in _powers(most) if 1 < count < most][-1:]
    found: list[Sweep] = []
    total, done = len(sizes) + len(_FIRST), 0

    with scaling.open_crew(most) as crew:

        def add(title: str, x_label: str, env: str, cases: dict[int, tuple[int, int]]) -> None:
            nonlocal done
            words: list[str] = []
            is_uneven = env == "Uneven-v0"
            path = uneven if is_uneven else env

            def measure(x: float) -> Case:
                every_way = is_uneven or (env == "CartPole-v1" and x == _FIRST[env])
                return scaling.measure(bench, crew, path, *cases[int(x)], pace, every_way=every_way)

            points = grow(
                list(cases),
                measure,
                lambda x: 4 * cases[int(x)][0] * _ROW_BYTES[env],
                limit_s,
                words.append,
            )
            for point in points:
                words.append(f"{point.x:,.0f}: {_describe_scaling(point.case)}.")
            found.append(Sweep("threads", title, x_label, tuple(points), tuple(words)))
            done += 1
            bench.done(done / total)

        for env, some in sizes.items():
            add(f"{env}, {most} threads", "num_envs", env, {size: (size, most) for size in some})
        for env, count in _FIRST.items() if counts else ():
            size = 64 * most if bench.smoke else count
            cases = {number_of: (size, number_of) for number_of in counts}
            add(f"{env}, {size:,} environments", "num_threads", env, cases)
        batch = most * (2 if bench.smoke else 64)
        sampled = scaling.measure_samples(bench, crew, batch, most, pace)
        words = (f"{batch:,}: {_describe_scaling(sampled)}.",)
        found.append(
            Sweep("threads", "Replay, long rows", "rows of a batch", (Point(batch, sampled),), words)
        )
    idle = scaling.idle_cpu_us("CartPole-v1", 8_192, most, 0.05 if bench.smoke else 1.0)
    said = (
        f"An idle vector environment used {idle:.0f} us of CPU time a second, from 2 ms after its last step."
    )
    found[0] = replace(found[0], words=(*found[0].words, said))
    return found


def _describe_scaling(case: Case) -> str:
    """Formats the part of the process limit that the threads reach, and their speed-up."""
    ours = [row for row in case.rows if row.role == "shoal"]
    share = case.of_limit(ours[0])
    words = (
        "no limit measured" if share is None or case.limit is None else f"{share:.2f} of {case.limit.name}"
    )
    single = [row for row in ours[1:] if row.name == "Shoal, 1 thread"]
    if single:
        words += f", {case.ratio(ours[0], single[0]):.1f} x 1 thread"
    for row in ours[1:]:
        part = case.of_limit(row)
        if row not in single and part is not None:
            words += f"; {row.name.removeprefix('Shoal, ')}: {part:.2f}"
    return words


def workers(bench: Bench, limit_s: float) -> Sweep:
    """Sweeps worker processes, with Python environments of 50 us."""
    pace = bench.pace(Pace(5, 0.02), Pace(9, 0.02))
    count = 32

    def measure(size: float) -> Case:
        number_of = int(size)
        with bench.roster("process") as roster:
            workload, options = ["Busy", 50], {"num_workers": number_of}
            roster.add("shoal", "Shoal", workload, count, options, role="shoal")
            roster.add("shoal", "bare loop", workload, count, number_of, False, role="limit")
            return bench.timed(
                "sweep", f"{number_of} workers", "env steps/s", roster.rivals, pace, lambda n, s: n / s
            )

    words: list[str] = []
    points = grow(
        _select_sizes(bench, _powers(min(2 * len(cores()), count))),
        measure,
        lambda n: n * (64 << 20),
        limit_s,
        words.append,
        bench.done,
    )
    return _make_scaling_sweep(
        "workers", f"{count} Python environments of 50 us", "num_workers", points, words, "bare loop"
    )


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _make_scaling_sweep(
    name: str, title: str, x_label: str, points: list[Point], words: list[str], limit: str
) -> Sweep:
    ours, bound = _list_medians(points, "Shoal"), _list_medians(points, limit)
    at = knee(ours) if ours else None
    if ours:
        best = max(ours, key=lambda point: point[1])
        share = _format_share(points, best[0])
        words.insert(0, f"Best: {best[1] / ours[0][1]:.2f} x {x_label}=1, at {best[0]:,.0f}{share}.")
    if bound:
        most = max(bound, key=lambda point: point[1])
        words.append(f"The cores allow ({limit}): {most[1] / bound[0][1]:.2f} x, at {most[0]:,.0f}.")
    if at is not None:
        words.append(f"Saturated from {x_label}={at:,.0f} on.")
    return Sweep(name, title, x_label, tuple(points), tuple(words), at)


def replay(bench: Bench, limit_s: float) -> Sweep:
    """Sweeps the capacity, with pushes and samples; the bare gather has only the cache and TLB misses."""
    pace = bench.pace(Pace(5, 0.008), Pace(9, 0.02))
    row_bytes = 64
    names = {"sample": f"sample({BATCH})", "extend": "push of 64", "push": "push of 1"}
    gather = f"bare gather of {BATCH}"
    assert set(MAKERS["shoal"]) >= {"Shoal", "bare C gather"}

    def measure(size: float) -> Case:
        with bench.roster("replay") as roster:
            for operation, name in names.items():
                roster.add("shoal", "Shoal", operation, int(size), [4], "float32", name=name, role="shoal")
            what = "sample", int(size), [4], "float32"
            roster.add("shoal", "bare C gather", *what, name=gather, role="limit")
            return bench.timed(
                "sweep", f"{size:,.0f} rows", "us", roster.rivals, pace, lambda n, s: s * 1e6,
                more_is_better=False,
            )  # fmt: skip

    words: list[str] = []
    points = grow(
        _select_sizes(bench, [10**power for power in range(3, 8)]),
        measure,
        lambda n: n * row_bytes,
        limit_s,
        words.append,
    )
    drawn, bare = _list_medians(points, names["sample"]), _list_medians(points, gather)
    at = None
    if drawn:
        cheap = min(cost for _, cost in drawn)
        at = next((x for i, (x, _) in enumerate(drawn) if all(c > 1.5 * cheap for _, c in drawn[i:])), None)
        words.append(
            f"A sample of {BATCH} costs {drawn[0][1]:.2f} us from {drawn[0][0]:,.0f} rows and "
            f"{drawn[-1][1]:.2f} us from {drawn[-1][0]:,.0f}{_format_share(points, drawn[-1][0])}."
        )
    if at is not None:
        words.append(
            f"The caches are too small from {at:,.0f} rows ({format_bytes(int(at * row_bytes))}) on: "
            "a sample costs at least half as much again."
        )
    if bare:
        words.append(
            f"The bare gather grows from {bare[0][1]:.2f} to {bare[-1][1]:.2f} us over the same rows."
        )
    return Sweep("replay", "Replay of rows of 64 bytes", "capacity, rows", tuple(points), tuple(words), at)


SWEEPS: dict[str, Callable[[Bench, float], Sweep | list[Sweep]]] = {
    "envs": envs,
    "bytes": observation,
    "threads": threads,
    "workers": workers,
    "replay": replay,
}


def run(bench: Bench, names: Sequence[str], limit_s: float, done: Callable[[Sweep], object]) -> list[Sweep]:
    """Runs the sweeps, each within its time limit; a sweep that raises is recorded in `bench.failures`."""
    found = []
    for name in names:
        bench.begin(f"sweep {name}", SECONDS)
        with bench.record_failures():
            some = SWEEPS[name](bench, limit_s)
            for measured in [some] if isinstance(some, Sweep) else some:
                shown = replace(measured, words=(), saturates_at=None) if bench.smoke else measured
                found.append(shown)
                done(shown)
                if not measured.points:
                    bench.fail("no point was measured; " + " ".join(measured.words))
        bench.progress.end(SECONDS)
    return found
