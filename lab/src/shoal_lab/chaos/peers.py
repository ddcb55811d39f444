"""The same faults on a peer: its exceptions and delays, whether it continues, whether close() returns.

Each trial runs in its own process, so that a peer that hangs is counted and ended with all its processes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from shoal_lab.chaos.report import table
from shoal_lab.chaos.rounds import Round, run_round

__all__ = ["run"]

MODULES = {"gymnasium": "gymnasium", "sb3": "stable_baselines3", "envpool": "envpool", "cpprb": "cpprb"}
PACKAGES = {**MODULES, "sb3": "stable-baselines3"}

FAULTS = ("SIGKILL at random", "segfault", "exit", "loop", "SIGSTOP for 1.5 s, limit 0.5 s", "trainer killed")
CASES = {
    "gymnasium": FAULTS,
    "sb3": FAULTS,
    "envpool": ("an id out of range", "trainer killed"),
    "cpprb": ("writer killed in a push",),
}


def run(libraries: Sequence[str], trials: int, seed: int, *, as_json: bool) -> int:
    """Runs every case with Shoal and each peer and prints both; returns 1 if Shoal hung or was wrong."""
    missing = [name for name in libraries if importlib.util.find_spec(MODULES[name]) is None]
    if missing:
        packages = " ".join(PACKAGES[name] for name in missing)
        print(f"not installed: {packages}; install with: pip install {packages}")
        return 2
    found: dict[str, dict[str, dict[str, Any]]] = {}
    say: Callable[[str], None] = (lambda text: None) if as_json else partial(print, flush=True)
    for peer in libraries:
        for case in CASES[peer]:
            for library in ("shoal", peer):
                if library not in found.setdefault(case, {}):
                    found[case][library] = _run_trials(library, case, trials, seed)
                    say(f"{case}, {library}: {found[case][library]['most']}")
    versions = {name: _version(PACKAGES.get(name, name)) for name in ("shoal", *libraries)}
    if as_json:
        print(json.dumps({"trials": trials, "versions": versions, "cases": found}))
    else:
        _show(found, versions, trials)
    ours = [one["shoal"] for one in found.values()]
    return 1 if any(one[bad] for one in ours for bad in ("hangs", "wrong", "left", "trainer")) else 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # it runs from its sources
        return "of unknown version"


def _run_trials(library: str, case: str, trials: int, seed: int) -> dict[str, Any]:
    said: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    times = []
    for number in range(trials):
        round_ = Round("peer_trials", seed + number, 1, {"library": library, "case": case})
        outcome = run_round(round_, 90, lambda kills: None)
        facts = outcome.facts
        words = facts.get("notes") or [message for _, message in outcome.violations]
        said["; ".join(words)] += 1
        sums["hangs"] += outcome.hangs
        for name in ("wrong", "left", "trainer"):
            sums[name] += facts.get(name, 0)
        if "ms" in facts and "hang" not in facts:
            times.append(facts["ms"])
    median = round(float(np.median(times)), 1) if times else None
    most, number = said.most_common(1)[0]
    shown = most + (f" [{number} of {trials}]" if number < trials else "")
    kept = {name: sums[name] for name in ("hangs", "wrong", "left", "trainer")}
    return {"most": shown, "said": dict(said), "ms": median, **kept}


def _show(found: Any, versions: dict[str, str], trials: int) -> None:
    print(
        f"\n{trials} trials of each; {', '.join(f'{name} {version}' for name, version in versions.items())}\n"
    )
    for case, by_library in found.items():
        print(case)
        for library, one in by_library.items():
            took = "" if one["ms"] is None else f"  ({one['ms']:g} ms)"
            print(f"    {library:10} {one['most']}{took}")
    lines = [["", "hangs", "wrong rows", "processes left", "trainer died"]]
    for library in versions:
        cases = [by_library[library] for by_library in found.values() if library in by_library]
        sums = [sum(one[name] for one in cases) for name in ("hangs", "wrong", "left", "trainer")]
        lines.append([f"{library}, {len(cases) * trials} trials", *map(str, sums)])
    print("\n" + table(lines))
