"""Python environments in processes: vector steps against a bare loop, round trips against a futex."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from shoal_lab.bench.compile import NoCompiler
from shoal_lab.bench.load import cores
from shoal_lab.bench.measure import Bench, Pace, Planned, Rival
from shoal_lab.bench.pingpong import BARE, BOUND, SLEEP, PingPong
from shoal_lab.bench.results import Case, Role
from shoal_lab.bench.rivals.process import MAKERS

__all__ = ["ENVS", "PEERS", "plan"]

ENVS = (8, 32)
PEERS = ("gymnasium", "stable_baselines3", "tianshou", "torchrl", "pufferlib")
_WORKLOADS = {
    "Still": "environments that do nothing",
    "Pixels": "84x84x4 bytes of observation",
    "Telling": "infos of two numbers each step",
}


_SIDES = {BOUND: "both sides in Python", BARE: "both sides in C", SLEEP: "both sides in C"}


def plan(bench: Bench, envs: Sequence[int] | None = None) -> list[Planned]:
    """Plans environments that do nothing, environments with pictures, and round trips."""
    pace = bench.pace(Pace(5, 0.012), Pace(15, 0.02))
    sizes = tuple(envs or (ENVS[:1] if bench.smoke else ENVS))
    cases = [("Still", n) for n in sizes] + [("Pixels", n) for n in (sizes if bench.full else sizes[:1])]
    if bench.every_case:
        cases += [("Telling", n) for n in sizes]
    planned = [
        Planned(_title(kind, n), pace.seconds(10) + 1 + n / 8, partial(_steps, bench, kind, n, pace))
        for kind, n in cases
    ]
    if sys.platform == "linux":
        planned.append(Planned("A round trip between two processes", 2, lambda: _trips(bench, pace)))
    else:
        bench.note("without round trips: they are measured against a futex, which Linux has")
    return planned


def _title(workload: str, num_envs: int) -> str:
    words = _WORKLOADS[workload]
    return f"{words[0].upper()}{words[1:]}, num_envs={num_envs}"


def configurations() -> dict[str, dict[str, Any]]:
    """Returns configurations of Shoal, the default first."""
    count = len(cores())
    found: dict[str, dict[str, Any]] = {f"Shoal, {count} workers" if count > 1 else "Shoal, 1 worker": {}}
    caller = max(1, count - 1)
    words = f"Shoal, {caller} worker{'s' if caller > 1 else ''} + caller"
    return {**found, words: {"num_workers": caller, "caller_steps": True}}


def _steps(bench: Bench, workload: str, num_envs: int, pace: Pace) -> Case:
    with bench.roster("process") as roster:
        for name, options in configurations().items():
            words = ", ".join(f"{key}={value}" for key, value in options.items())
            how = f"ProcessVectorEnv({words})"
            roster.add("shoal", "Shoal", [workload], num_envs, options, name=name, role="shoal", how=how)
            bare = options.get("num_workers", len(cores())), "caller_steps" in options
            if workload == "Still":
                what = "forked workers over one mapping, nothing else"
                title = name.replace("Shoal", "bare")
                roster.add(
                    "shoal", "bare loop", [workload], num_envs, *bare, name=title, role="limit", how=what
                )
        for library in PEERS:
            for maker in MAKERS[library]:
                has_infos = workload != "Telling" or library != "torchrl"  # it leaves infos in the workers
                if not maker.endswith("start") and has_infos:
                    roster.add(library, maker, [workload], num_envs)
        if workload != "Still" and bench.loops is not None:
            num_bytes = num_envs * (84 * 84 * 4 if workload == "Pixels" else 16)
            copy = bench.loops.copy(num_bytes, 1)
            roster.add_bare("memcpy", num_envs, copy, "the observations' bytes, one thread")
        title = _title(workload, num_envs)
        return bench.timed("process", title, "env steps/s", roster.rivals, pace, lambda n, s: n / s)


def _trips(bench: Bench, pace: Pace) -> Case:
    title, places = "A round trip between two processes", cores()
    rivals: list[Rival] = []
    where = f"cores {places[0]} and {places[-1]}" if len(places) > 1 else "one core for both"
    pingpong = None
    try:
        pingpong = PingPong()
        roles: dict[str, Role] = {BOUND: "shoal", BARE: "limit", SLEEP: "limit"}
        names = {BOUND: "Shoal, its gate", BARE: "futex, spinning first", SLEEP: "futex alone"}
        for way, burst in pingpong.bursts(places[0], places[-1]).items():
            rivals.append(Rival(names[way], roles[way], 1, burst, f"{where}, {_SIDES[way]}"))
        rivals.sort(key=lambda rival: rival.role != "shoal")
        return bench.timed("process", title, "us", rivals, pace, lambda n, s: s * 1e6, more_is_better=False)
    except NoCompiler as error:
        bench.note(f"without round trips: {error}")
        return Case("process", title, "us", (), more_is_better=False)
    finally:
        if pingpong is not None:
            pingpong.close()
