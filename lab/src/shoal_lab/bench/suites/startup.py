"""The time up to the first observations: importing, environments in C, environments in processes."""

from __future__ import annotations

import contextlib
import sys
import time

from shoal_lab.bench.interleave import Burst
from shoal_lab.bench.interpreter import PeerError
from shoal_lab.bench.measure import Bench, Pace, Planned, Rival, RivalFailed, name_errors
from shoal_lab.bench.peers import PEERS, check_import
from shoal_lab.bench.results import Case
from shoal_lab.bench.rivals.native import random_actions

__all__ = ["plan"]

_STARTED, _NATIVE = 32, 1024
_STARTS = {  # with SB3's default, every worker would import torch, which takes a minute
    "gymnasium": ("Gymnasium start", "Gymnasium async", None, "AsyncVectorEnv as it comes"),
    "stable_baselines3": ("SB3 start", "SB3 subproc", "fork", 'start_method="fork", its quickest'),
    "tianshou": ("Tianshou start", "Tianshou shmem", None, "ShmemVectorEnv as it comes"),
}
_NATIVE_STARTS = {
    "gymnasium": ("Gymnasium start", "Gymnasium NumPy"),
    "envpool": ("EnvPool start", "EnvPool"),
    "pufferlib": ("PufferLib start", "PufferLib C"),
}


def plan(bench: Bench) -> list[Planned]:
    """Plans the cases. A start can take seconds, so a burst is one start."""
    turns = bench.pace(Pace(3, None), Pace(9, None))
    libraries = len(bench.pythons)
    return [
        Planned("Importing", turns.bursts * (1 + libraries), lambda: _imports(bench, turns)),
        Planned(f"Starting {_NATIVE:,} environments in C", 3, lambda: _native(bench, turns)),
        Planned(
            f"Starting {_STARTED} environments in processes", turns.bursts * 4, lambda: _process(bench, turns)
        ),
    ]


def _make_import_burst(python: str, names: str) -> Burst:
    def burst(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            wrong = check_import(python, names)
            if wrong is not None:  # a failed import would be fast
                raise PeerError(wrong)
        return time.perf_counter() - start

    return burst


def _imports(bench: Bench, pace: Pace) -> Case:
    below, bare = "numpy, gymnasium.vector", "NumPy and Gymnasium"
    ours = name_errors("Shoal", _make_import_burst(sys.executable, "shoal"))
    rivals = [Rival("Shoal", "shoal", 1, ours, "python -c 'import shoal'")]
    burst = name_errors(bare, _make_import_burst(sys.executable, below))
    rivals.append(Rival(bare, "limit", 1, burst, f"python -c 'import {below}'"))
    for name, peer in PEERS.items():
        if peer.module in bench.pythons and name != "gymnasium":
            burst = name_errors(name, _make_import_burst(bench.pythons[peer.module], peer.module))
            rivals.append(Rival(name, "peer", 1, burst, f"python -c 'import {peer.module}'"))
    _warm_up(rivals)  # compiles the sources and reads the files into the page cache
    how = "compiled before, the files in the page cache"
    return _time_rivals(bench, "Importing, in a new Python", rivals, pace, how)


def _native(bench: Bench, pace: Pace) -> Case:
    with bench.roster("native") as roster:
        roster.add("shoal", "Shoal start", _NATIVE, name="Shoal", role="shoal", how='make_vec("CartPole-v1")')
        for library, (maker, name) in _NATIVE_STARTS.items():
            roster.add(library, maker, _NATIVE, name=name)
        if bench.loops is not None:
            start = bench.loops.start(random_actions(_NATIVE))
            roster.add_bare("C: memory and one step", _NATIVE, start)
        title = f"Making {_NATIVE:,} CartPoles in C, to the first observations"
        return _time_rivals(bench, title, roster.rivals, pace, "libraries imported before")


def _process(bench: Bench, pace: Pace) -> Case:
    with bench.roster("process") as roster:
        how = "ProcessVectorEnv, a worker per core"
        roster.add("shoal", "Shoal start", _STARTED, None, name="Shoal", role="shoal", how=how)
        for library, (maker, name, context, way) in _STARTS.items():
            roster.add(library, maker, _STARTED, context, name=name, how=way)
        roster.add(
            "shoal",
            "bare start",
            _STARTED,
            None,
            name="fork, one step",
            role="limit",
            how="a worker per core",
        )
        title = f"Starting {_STARTED} environments in processes, to the first observations"
        _warm_up(roster.rivals)  # starts launchers and loads modules
        return _time_rivals(
            bench, title, roster.rivals, pace, "do nothing; not the first start of this Python"
        )


def _warm_up(rivals: list[Rival]) -> None:
    """Calls each rival once. A rival that fails here is left out and reported when it is timed."""
    for rival in rivals:
        with contextlib.suppress(RivalFailed):
            rival.burst(1)


def _time_rivals(bench: Bench, title: str, rivals: list[Rival], pace: Pace, parameters: str) -> Case:
    return bench.timed(
        "startup", title, "ms", rivals, pace, lambda n, s: s * 1e3, parameters, more_is_better=False
    )
