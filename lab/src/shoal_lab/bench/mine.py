"""Measures the user's own environment with every backend, and recommends options, with reasons."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shoal.errors import ShoalError
from shoal.native.build import build
from shoal.native.plugin import bundled
from shoal.vector import make_vec
from shoal_lab.bench.interleave import Burst, undisturbed
from shoal_lab.bench.load import cores
from shoal_lab.bench.measure import Bench, Pace, Planned, Rival
from shoal_lab.bench.report import number
from shoal_lab.bench.results import Case
from shoal_lab.bench.rivals.process import stepping

__all__ = ["Advice", "advise", "load", "plan"]

Options = dict[str, Any]


@dataclass(frozen=True)
class Advice:
    """The recommended arguments of make_vec, and the reasons."""

    num_envs: int
    options: Options
    call: str
    reasons: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        return {
            "num_envs": self.num_envs,
            **{"num_workers": None, "num_threads": None, "caller_steps": None, **self.options},
            "call": self.call,
            "reasons": list(self.reasons),
        }


def load(text: str) -> Any:
    """Returns the function `module:factory`; returns a C file, a plug-in or a bundled id unchanged."""
    if text.endswith((".c", ".cc", ".cpp", ".so", ".dylib")):
        if not Path(text).is_file():
            raise ShoalError(f"--mine {text}: the file does not exist")
        return text
    if text in bundled():
        return text
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise ShoalError(
            "--mine must be module:factory (a function that makes an environment), a C file or a bundled id, "
            f"got {text!r}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ShoalError(f"--mine {text}: {error}; modules are imported from {os.getcwd()}") from error
    except AttributeError:
        raise ShoalError(f"--mine {text}: the module {module} has no {name!r}") from None
    if not callable(factory):
        raise ShoalError(
            f"--mine {text}: {name} must be a function or a class, found {type(factory).__name__}"
        )
    env = factory()
    try:
        if not isinstance(env, gymnasium.Env):
            raise ShoalError(f"--mine {text}: it must make a gymnasium.Env, but made {type(env).__name__}")
    finally:
        if hasattr(env, "close"):
            env.close()
    return factory


def library(env: str) -> Path:
    """Returns the path of the compiled plug-in."""
    if env.endswith((".c", ".cc", ".cpp")):
        return build(env)
    return bundled().get(env, Path(env).absolute())


def list_configurations(env: Any, count: int) -> dict[str, Options]:
    """Returns options for every backend, in the configurations that may be best on `count` cores."""
    counts = sorted({1, max(1, count // 2), count, 2 * count})
    processes: dict[str, Options] = {_plural(n, "worker"): {"num_workers": n} for n in counts}
    beside = max(1, count - 1)
    processes[f"{_plural(beside, 'worker')} + caller"] = {"num_workers": beside, "caller_steps": True}
    if callable(env):
        return processes
    threads: dict[str, Options] = {_plural(n, "thread"): {"num_threads": n} for n in counts if n <= count}
    apart = {"backend": "process", "num_workers": count}
    return {**threads, f"{_plural(count, 'worker')}, processes": apart}


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def plan(bench: Bench, env: Any, envs: tuple[int, ...] | None = None) -> list[Planned]:
    """Plans a case for each number of environments."""
    sizes = envs or ((8, 32, 128) if callable(env) else (64, 1024, 16384))[: 1 if bench.smoke else None]
    pace = bench.pace(Pace(5, 0.02), Pace(11, 0.03))
    return [
        Planned(f"your environment, num_envs={n:,}", pace.seconds(7) + 2, partial(_case, bench, env, n, pace))
        for n in sizes
    ]


def _case(bench: Bench, env: Any, num_envs: int, pace: Pace) -> Case:
    count = len(cores())
    rivals: list[Rival] = []
    with ExitStack() as opened:
        for name, options in list_configurations(env, count).items():
            if options.get("num_workers", 1) <= num_envs:
                made: Any = opened.enter_context(make_vec(env, num_envs, session=None, **options))
                rivals.append(Rival(name, "shoal", num_envs, _make_burst(made), _format_options(options)))
        if callable(env):
            sync = gymnasium.vector.SyncVectorEnv([env] * num_envs)
            opened.callback(sync.close)
            rivals.append(Rival("Gymnasium sync", "peer", num_envs, _make_burst(sync), "no processes"))
            alone = opened.enter_context(_make_lone_burst(env))
            rivals.append(
                Rival("it alone, on every core", "limit", count, alone, f"one in a loop, times {count}")
            )
        elif bench.loops is not None:
            opened.callback(bench.loops.release)
            made.action_space.seed(0)
            actions = [made.action_space.sample() for _ in range(16)]
            try:
                burst = bench.loops.plugin(library(env), np.ascontiguousarray(actions))
                bare = Rival("its step, called from C", "limit", num_envs, undisturbed(burst), "one thread")
                rivals.append(bare)
            except ValueError as error:
                bench.note(f"without a limit: {error}")
        title = f"your environment, num_envs={num_envs:,}"
        case = bench.timed("mine", title, "env steps/s", rivals, pace, lambda n, s: n / s, "random actions")
        return replace(case, rows=tuple(sorted(case.rows, key=lambda row: -row.median)))  # best first


def _make_burst(envs: Any) -> Burst:
    envs.reset(seed=0)
    envs.action_space.seed(0)
    return undisturbed(stepping(envs.step, [envs.action_space.sample() for _ in range(16)]))


@contextmanager
def _make_lone_burst(factory: Callable[[], Any]) -> Iterator[Burst]:
    """Makes a burst of one environment, stepped and reset in a plain loop."""
    env = factory()
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(16)]

    def burst(calls: int) -> float:
        start = time.perf_counter()
        for turn in range(calls):
            _, _, terminated, truncated, _ = env.step(actions[turn & 15])
            if terminated or truncated:
                env.reset()
        return time.perf_counter() - start

    try:
        yield burst
    finally:
        env.close()


def _format_options(options: Options) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


# ---- Advice


def advise(text: str, env: Any, cases: dict[int, Case]) -> Advice:
    """Recommends the fewest environments within a tenth of the best rate, and their best options."""
    options_of = list_configurations(env, len(cores()))
    best = {
        n: max((r for r in case.rows if r.role == "shoal"), key=lambda r: r.median)
        for n, case in cases.items()
    }
    top = max(row.median for row in best.values())
    num_envs = min(n for n, row in best.items() if row.median >= 0.9 * top)
    case, row = cases[num_envs], best[num_envs]
    options = options_of[row.name]
    what = text.partition(":")[2] if callable(env) else repr(text)
    call = f"shoal.make_vec({what}, num_envs={num_envs}, {_format_options(options)})"
    most = (
        f"{number(row.median)} env steps/s; more environments gain less than a tenth (best: {number(top)})."
    )
    reasons = [most]
    others = [r for r in case.rows if r.role == "shoal" and r is not row]
    if others:
        second = max(others, key=lambda r: r.median)
        reasons.append(f"{row.name}: {case.ratio(row, second):.2f} times the next best way ({second.name}).")
    share = case.of_limit(row)
    if share is not None and case.limit is not None:
        cost = 1e6 * (len(cores()) if callable(env) else 1) / case.limit.median
        bound = "the cores could do" if callable(env) else "its step does when called from C, on one thread"
        reasons.append(
            f"One step of your environment alone takes {cost:.3g} us. The rate above is {share:.0%} of what "
            f"{bound}."
        )
        if share < 0.3 and callable(env):
            reasons.append(
                "Most of a step is communication, so do more work per step, or write it in C (`shoal new`)."
            )
    sync = next((r for r in case.rows if r.role == "peer"), None)
    if sync is not None and sync.median > row.median:
        times = case.ratio(sync, row)
        reasons.append(
            f"The steps are so short that gymnasium.vector.SyncVectorEnv, without processes, is {times:.2f} "
            "times faster."
        )
    if case.rounds_disturbed:
        reasons.append("Other processes used the machine; measure again when it is idle.")
    return Advice(num_envs, options, call, tuple(reasons))
