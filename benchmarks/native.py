"""C environments side by side: Shoal, its peers and plain C loops on CartPole-v1, interleaved in one run.

make bench            or    python benchmarks/native.py [--quick] [--peers gymnasium envpool] [--envs 8 1024]

Peers that cannot be imported are named and left out. What is measured how: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
from interleave import Burst, Timing, interleave_bursts, undisturbed
from loops import FLAGS, SCALAR, VECTORISED, VECTORISED_FLOAT, Loops
from numpy.typing import NDArray
from peers import LIBRARIES, PEERS, Interpreter, PeerError, random_actions, stepping

import shoal
from shoal.native.plugin import bundled

SIZES = (1, 8, 64, 1024, 8192)
LEASED, LIVE, IN_PLACE = "Shoal leased", "Shoal live", "Shoal live, actions in place"
FLOAT, FLOAT_LIVE, TWO = "Shoal leased, float", "Shoal live, float", "Shoal leased, 2 threads"
WRITE, PLUGIN = "(writing the actions)", "(the plug-in, from C)"  # parts of a step, for the table of calls
PIXELS, PIXEL_ENVS = "Pixels-v0", 1024


@dataclass(frozen=True)
class Rate:
    """What one call does, and what it took."""

    steps: int
    timing: Timing

    @property
    def per_second(self) -> float:
        return self.steps / self.timing.median_s

    def over(self, other: Rate) -> float:
        """How many times more steps a second than the other."""
        return self.steps / other.steps * self.timing.speedup(other.timing)

    def facts(self) -> dict[str, float]:
        low, high = self.steps / self.timing.high_s, self.steps / self.timing.low_s
        return {
            "median": self.per_second,
            "low": low,
            "high": high,
            "us_per_call": self.timing.median_s * 1e6,
        }


@dataclass(frozen=True)
class Bar:
    """A goal and what was measured; None: a rival it needs took no part."""

    text: str
    limit: float
    value: float | None
    at_least: bool = True

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "-"
        return "PASS" if (self.value >= self.limit) == self.at_least else "FAIL"

    def __str__(self) -> str:
        found = "not measured" if self.value is None else f"{self.value:,.2f}"
        sign = ">=" if self.at_least else "<"
        return f"{self.verdict:5} {self.text:66} {found:>14}   {sign} {self.limit:g}"


Rivals = dict[str, tuple[int, Burst]]
Rates = dict[str, Rate]


# ---- Who takes part


def shoal_rivals(num_envs: int, actions: NDArray[Any], opened: ExitStack) -> Rivals:
    """Shoal in every way of holding results, on one thread unless it says two."""

    def make(**options: Any) -> shoal.VectorEnv:
        options.setdefault("num_threads", 1)
        envs = opened.enter_context(shoal.make_vec("CartPole-v1", num_envs, **options))
        envs.reset(seed=0)
        return envs

    rivals = {
        LEASED: stepping(make().step, actions),
        LIVE: stepping(make(buffers="live").step, actions),
        TWO: stepping(make(num_threads=2).step, actions),
    }
    in_place = make(buffers="live")
    rivals[IN_PLACE] = stepping_in_place(in_place.step, in_place.actions, actions)
    rivals[WRITE] = writing(np.zeros_like(in_place.actions), actions)
    try:
        rivals[FLOAT] = stepping(make(precision="float").step, actions)
        rivals[FLOAT_LIVE] = stepping(make(precision="float", buffers="live").step, actions)
    except TypeError as error:
        print(f"without precision='float': {error}", file=sys.stderr)
    return {name: (num_envs, undisturbed(burst)) for name, burst in rivals.items()}


def stepping_in_place(step: Callable[[], Any], buffer: NDArray[Any], actions: NDArray[Any]) -> Burst:
    def burst(calls: int) -> float:
        turns = islice(cycle(list(actions)), calls)
        start = time.perf_counter()
        for action in turns:
            buffer[:] = action
            observations, rewards, terminated, truncated, info = step()
        return time.perf_counter() - start

    return burst


def writing(buffer: NDArray[Any], actions: NDArray[Any]) -> Burst:
    def burst(calls: int) -> float:
        turns = islice(cycle(list(actions)), calls)
        start = time.perf_counter()
        for action in turns:
            buffer[:] = action
        return time.perf_counter() - start

    return burst


def loop_rivals(num_envs: int, actions: NDArray[Any], loops: Loops) -> Rivals:
    rivals = {**loops.cartpole(actions), PLUGIN: loops.plugin(bundled()["CartPole-v1"], actions)}
    return {name: (num_envs, undisturbed(burst)) for name, burst in rivals.items()}


def peer_rivals(num_envs: int, interpreters: dict[str, Interpreter]) -> Rivals:
    rivals = {}
    for peer in PEERS:
        if peer.library in interpreters:
            try:
                rivals[peer.name] = interpreters[peer.library].make(peer, num_envs)
            except PeerError as error:
                print(f"without {peer.name} at {num_envs}: {error}", file=sys.stderr)
    return rivals


# ---- Measuring


def timed(rivals: Rivals, args: argparse.Namespace) -> Rates:
    times = interleave_bursts({name: burst for name, (_, burst) in rivals.items()}, args.bursts, args.burst_s)
    return {name: Rate(steps, times[name]) for name, (steps, _) in rivals.items()}


def cartpole(
    num_envs: int, args: argparse.Namespace, loops: Loops | None, interpreters: dict[str, Interpreter]
) -> Rates:
    actions = random_actions(num_envs)
    with ExitStack() as opened:
        rivals = shoal_rivals(num_envs, actions, opened)
        if loops is not None:
            opened.callback(loops.release)
            rivals.update(loop_rivals(num_envs, actions, loops))
        for interpreter in interpreters.values():
            opened.callback(interpreter.drop)
        rivals.update(peer_rivals(num_envs, interpreters))
        return timed(rivals, args)


def pixels(args: argparse.Namespace, loops: Loops | None) -> Rates:
    """Bytes of observations a second and thread, against memcpy of as many bytes."""
    with ExitStack() as opened:
        rivals: Rivals = {}
        for threads in (1, 2):
            envs = opened.enter_context(shoal.make_vec(PIXELS, PIXEL_ENVS, num_threads=threads))
            observations, _ = envs.reset(seed=0)
            num_bytes = observations.nbytes
            rivals[pixels_name("Shoal", threads)] = (
                num_bytes // threads,
                stepping(envs.step, random_actions(PIXEL_ENVS, 3)),
            )
            del observations
            if loops is not None:
                opened.callback(loops.release)
                rivals[pixels_name("memcpy", threads)] = (
                    num_bytes // threads,
                    loops.copy(num_bytes, threads),
                )
        return timed(rivals, args)


def pixels_name(who: str, threads: int) -> str:
    return f"{who}, {threads} thread{'s' * (threads > 1)}"


# ---- Saying


def print_rates(num_envs: int, rates: Rates) -> None:
    print(
        f"\nCartPole-v1, {num_envs} environment{'s' * (num_envs > 1)}: steps/s, median [quartiles]; times {LEASED}"
    )
    for name, rate in rates.items():
        if name != WRITE:
            facts = rate.facts()
            span = f"[{_short(facts['low'])} .. {_short(facts['high'])}]"
            print(f"  {name:28} {_short(facts['median']):>8} {span:22} {rate.over(rates[LEASED]):8.3f}")


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 999.5 * size else f"{number / size:.0f}{unit}"
    return f"{number:.3g}"


def call_costs(rates: Rates) -> dict[str, float] | None:
    """Microseconds of one vector step; `more` is what remains after the plug-in's own work."""
    if PLUGIN not in rates:
        return None
    us = {name: rates[name].timing.median_s * 1e6 for name in (LEASED, LIVE, IN_PLACE, WRITE, PLUGIN)}
    return {
        **us,
        "leased more": us[LEASED] - us[PLUGIN],
        "live more": us[LIVE] - us[PLUGIN],
        "in place more": us[IN_PLACE] - us[WRITE] - us[PLUGIN],
    }


def print_calls(results: dict[int, Rates]) -> None:
    print("\nWhat a call costs: microseconds of a vector step, and how many more than the plug-in's own work")
    print(f"  {'n':>5} {'plug-in':>9} {'step(actions) leased':>22} {'live':>16} {'step() in place':>22}")
    for num_envs, rates in results.items():
        us = call_costs(rates)
        if us is not None:
            print(
                f"  {num_envs:5} {us[PLUGIN]:9.3f} {us[LEASED]:11.3f} (+{us['leased more']:7.3f})"
                f" {us[LIVE]:7.3f} (+{us['live more']:5.3f})"
                f" {us[IN_PLACE] - us[WRITE]:11.3f} (+{us['in place more']:7.3f})"
            )


def print_pixels(rates: Rates) -> None:
    print(f"\n{PIXELS}, {PIXEL_ENVS} environments: GB/s of observations for each thread, median [quartiles]")
    for name, rate in rates.items():
        facts = rate.facts()
        span = f"[{facts['low'] / 1e9:.2f} .. {facts['high'] / 1e9:.2f}]"
        print(f"  {name:28} {facts['median'] / 1e9:8.2f} {span}")


def bars(results: dict[int, Rates], pictures: Rates) -> list[Bar]:
    def ratio(num_envs: int, ours: str, *theirs: str) -> float | None:
        """Against the best of them."""
        rates = results.get(num_envs, {})
        met = [rates[ours].over(rates[name]) for name in theirs if name in rates] if ours in rates else []
        return min(met) if met else None

    def cost(num_envs: int, what: str) -> float | None:
        costs = call_costs(results[num_envs]) if num_envs in results else None
        return None if costs is None else costs[what]

    envpool = tuple(peer.name for peer in PEERS if peer.library == "envpool")
    first = results.get(1, {}).get(LEASED)
    twos = [rates[TWO].over(rates[LEASED]) for rates in results.values()]
    speed = [
        (1024, LEASED, (VECTORISED,), 0.8),
        (1024, LEASED, (SCALAR,), 3),
        (1024, LEASED, ("Gymnasium NumPy",), 12),
        (1024, LEASED, envpool, 200),
        (1024, LEASED, ("PufferLib C",), 2.5),
        (8192, LEASED, (VECTORISED,), 0.8),
        (8192, LEASED, ("Gymnasium NumPy",), 5),
        (8192, LEASED, envpool, 150),
        (1024, FLOAT_LIVE, (VECTORISED_FLOAT,), 0.8),
        (8192, FLOAT, (VECTORISED_FLOAT,), 0.8),
        (1024, FLOAT, (VECTORISED_FLOAT,), 0.6),
        (8, LEASED, envpool, 50),
        (8, IN_PLACE, ("PufferLib C",), 2),
    ]
    named = {envpool: "the best EnvPool"}
    found = [
        Bar(f"n={n}: {ours} / {named.get(theirs, theirs[0])}", limit, ratio(n, ours, *theirs))
        for n, ours, theirs, limit in speed
    ]
    found += [
        Bar("n=8: step(actions) leased, us more than the C work", 1.5, cost(8, "leased more"), False),
        Bar("n=8: step() live, in place, us more than the C work", 0.5, cost(8, "in place more"), False),
        Bar("n=1: Shoal leased, thousand steps/s", 500, None if first is None else first.per_second / 1e3),
        Bar("every n: two threads / one, the worst", 0.9, min(twos, default=None)),
    ]
    for threads in (1, 2):
        ours, theirs = (pictures.get(pixels_name(who, threads)) for who in ("Shoal", "memcpy"))
        value = None if ours is None or theirs is None else ours.over(theirs)
        found.append(Bar(f"{PIXELS}: {pixels_name('Shoal', threads)} / memcpy", 0.9, value))
    return found


# ---- The run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="*", choices=LIBRARIES, default=LIBRARIES, help="default: all")
    parser.add_argument("--envs", nargs="+", type=int, default=SIZES, help="numbers of environments")
    parser.add_argument("--bursts", type=int, help="turns of each rival (default: 41; with --quick 11)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns: a rough picture")
    parser.add_argument("--json", metavar="FILE", help="also write all numbers there")
    for library in LIBRARIES:
        parser.add_argument(
            f"--python-{library}", metavar="PYTHON", default=sys.executable, help="where it is installed"
        )
    args = parser.parse_args()
    args.bursts = args.bursts or (11 if args.quick else 41)
    args.burst_s = 0.004 if args.quick else 0.006
    return args


def start_peers(args: argparse.Namespace, opened: ExitStack) -> dict[str, Interpreter]:
    interpreters = {}
    for library in args.peers:
        try:
            interpreters[library] = Interpreter(getattr(args, f"python_{library}"), library)
            opened.callback(interpreters[library].close)
        except PeerError as error:
            print(f"without {library}: {error}", file=sys.stderr)
    return interpreters


def compile_loops() -> Loops | None:
    try:
        return Loops()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"without C loops: {getattr(error, 'stderr', None) or error}", file=sys.stderr)
        return None


def main() -> None:
    args = arguments()
    began = time.monotonic()
    with ExitStack() as opened:
        interpreters = start_peers(args, opened)
        loops = compile_loops()
        versions = {"shoal": shoal.__version__, "numpy": np.__version__, "python": platform.python_version()}
        versions.update({library: interpreter.version for library, interpreter in interpreters.items()})
        print(", ".join(f"{name} {version}" for name, version in versions.items()), end="")
        print(
            f"; {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; cc {' '.join(FLAGS)}"
        )
        print(
            f"{args.bursts} bursts of {args.burst_s * 1e3:g} ms each, in turns; one thread unless it says two"
        )
        results = {}
        for num_envs in args.envs:
            results[num_envs] = cartpole(num_envs, args, loops, interpreters)
            print_rates(num_envs, results[num_envs])
        print_calls(results)
        pictures = pixels(args, loops)
        print_pixels(pictures)
    print("\nBars")
    for bar in (found := bars(results, pictures)):
        print(f"  {bar}")
    print(f"\n{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    if args.json:
        facts = {
            "versions": versions,
            "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
            "bursts": args.bursts,
            "steps_per_second": {
                n: {name: r.facts() for name, r in rates.items()} for n, rates in results.items()
            },
            "call_us": {n: call_costs(rates) for n, rates in results.items()},
            "pixels_bytes_per_second": {name: rate.facts() for name, rate in pictures.items()},
            "bars": [{**asdict(bar), "verdict": bar.verdict} for bar in found],
        }
        with open(args.json, "w") as file:
            json.dump(facts, file, indent=1)


if __name__ == "__main__":
    main()
