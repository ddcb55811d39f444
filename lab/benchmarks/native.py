"""C environments side by side: Shoal, its peers and plain C loops on CartPole-v1, interleaved in one run.

make bench or python lab/benchmarks/native.py [--quick] [--smoke] [--peers gymnasium envpool] [--envs 8 1024]

Peers that cannot be imported are named and left out. lab/benchmarks/README.md explains the measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from standings import (
    FLOAT,
    FLOAT_LIVE,
    IN_PLACE,
    LEASED,
    LIVE,
    PLUGIN,
    TWO,
    WRITE,
    CallCost,
    Rate,
    Rates,
    bars,
    print_calls,
    print_pixels,
    print_rates,
)

import shoal
from shoal.native.plugin import bundled
from shoal_lab.bench.compile import FLAGS, NoCompiler
from shoal_lab.bench.interleave import Burst, interleave_bursts, undisturbed
from shoal_lab.bench.interpreter import Interpreter, PeerError
from shoal_lab.bench.loops import Loops
from shoal_lab.bench.rivals.native import MAKERS, random_actions, stepping

LIBRARIES = tuple(library for library in MAKERS if library != "shoal")
SIZES = (1, 8, 64, 1024, 8192)
PIXELS, PIXEL_ENVS = "Pixels-v0", 1024

Rivals = dict[str, tuple[int, Burst]]  # name -> environment steps per call, and the burst


# ---- The rivals


def shoal_rivals(num_envs: int, actions: NDArray[Any], opened: ExitStack) -> Rivals:
    """Makes Shoal with every kind of result buffers, on one thread unless the name says two."""

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
    rivals[FLOAT] = stepping(make(precision="float").step, actions)
    rivals[FLOAT_LIVE] = stepping(make(precision="float", buffers="live").step, actions)
    return {name: (num_envs, undisturbed(burst)) for name, burst in rivals.items()}


def stepping_in_place(step: Callable[[], Any], buffer: NDArray[Any], actions: NDArray[Any]) -> Burst:
    rows = list(actions)

    def burst(calls: int) -> float:
        turns = islice(cycle(rows), calls)
        start = time.perf_counter()
        for action in turns:
            buffer[...] = action
            observations, rewards, terminated, truncated, info = step()
        return time.perf_counter() - start

    return burst


def writing(buffer: NDArray[Any], actions: NDArray[Any]) -> Burst:
    rows = list(actions)

    def burst(calls: int) -> float:
        turns = islice(cycle(rows), calls)
        start = time.perf_counter()
        for action in turns:
            buffer[...] = action
        return time.perf_counter() - start

    return burst


def loop_rivals(num_envs: int, actions: NDArray[Any], loops: Loops) -> Rivals:
    rivals = {**loops.cartpole(actions), PLUGIN: loops.plugin(bundled()["CartPole-v1"], actions)}
    return {name: (num_envs, undisturbed(burst)) for name, burst in rivals.items()}


def peer_rivals(num_envs: int, interpreters: dict[str, Interpreter]) -> Rivals:
    rivals = {}
    for library, interpreter in interpreters.items():
        for name in MAKERS[library]:
            if not name.endswith("start"):
                try:
                    rivals[name] = interpreter.make(name, num_envs)
                except PeerError as error:
                    print(f"without {name} at {num_envs}: {error}", file=sys.stderr)
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
    """Measures bytes of observations per second and thread, against memcpy of the same size."""
    num_envs = args.pixel_envs
    with ExitStack() as opened:
        rivals: Rivals = {}
        for threads, words in ((1, "1 thread"), (2, "2 threads")):
            envs = opened.enter_context(shoal.make_vec(PIXELS, num_envs, num_threads=threads))
            num_bytes = envs.reset(seed=0)[0].nbytes
            bursts = {"Shoal": stepping(envs.step, random_actions(num_envs, 3))}
            if loops is not None:
                opened.callback(loops.release)
                bursts["memcpy"] = loops.copy(num_bytes, threads)
            for who, burst in bursts.items():
                rivals[f"{who}, {words}"] = (num_bytes // threads, undisturbed(burst))
        return timed(rivals, args)


# ---- The run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="*", choices=LIBRARIES, help="default: all; with --smoke: none")
    parser.add_argument("--envs", nargs="+", type=int, help="numbers of environments")
    parser.add_argument("--bursts", type=int, help="turns of each rival (default: 41; with --quick 11)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns: a rough picture")
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: one call of each rival, in seconds"
    )
    parser.add_argument("--json", metavar="FILE", help="also write all numbers to FILE")
    for library in LIBRARIES:
        parser.add_argument(
            f"--python-{library}",
            metavar="PYTHON",
            default=sys.executable,
            help="the Python that has this peer",
        )
    args = parser.parse_args()
    args.envs = args.envs or (SIZES[:2] if args.smoke else SIZES)
    if min(args.envs) < 1 or (args.bursts is not None and args.bursts < 1):
        parser.error("--envs and --bursts count from 1")
    if args.peers is None:
        args.peers = () if args.smoke else LIBRARIES
        if args.smoke:
            print("without peers: --smoke leaves them out, unless --peers names them", file=sys.stderr)
    args.bursts = args.bursts or (1 if args.smoke else 11 if args.quick else 41)
    args.pixel_envs = 16 if args.smoke else PIXEL_ENVS
    args.burst_s = None if args.smoke else 0.004 if args.quick else 0.006  # None: one call
    return args


def start_peers(args: argparse.Namespace, opened: ExitStack) -> dict[str, Interpreter]:
    interpreters = {}
    for library in args.peers:
        try:
            interpreters[library] = Interpreter(getattr(args, f"python_{library}"), library, "native")
            opened.callback(interpreters[library].close)
        except PeerError as error:
            print(f"without {library}: {error}", file=sys.stderr)
    return interpreters


def compile_loops() -> Loops | None:
    try:
        return Loops()
    except NoCompiler as error:
        print(f"without C loops: {error}", file=sys.stderr)
        return None


def main() -> None:
    args = arguments()
    began = time.monotonic()
    with ExitStack() as opened:
        interpreters = start_peers(args, opened)
        loops = compile_loops()
        versions = {"shoal": shoal.__version__, "numpy": np.__version__, "Python": platform.python_version()}
        versions |= {library: interpreter.version for library, interpreter in interpreters.items()}
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        load = f"load {os.getloadavg()[0]:.1f}"
        print(f"{platform.machine()}, {os.cpu_count()} cores, {load}; C loops with {' '.join(FLAGS)}")
        length = "one call" if args.burst_s is None else f"{args.burst_s * 1e3:g} ms"
        print(f"{args.bursts} bursts of {length} each, in turns; 1 thread unless it says 2")
        results = {}
        for num_envs in args.envs:
            results[num_envs] = cartpole(num_envs, args, loops, interpreters)
            print_rates(num_envs, results[num_envs])
        print_calls(results)
        pictures = pixels(args, loops)
        print_pixels(f"{PIXELS}, num_envs={args.pixel_envs}", pictures)
    print("\nBars")
    for bar in (found := bars(results, pictures)):
        print(f"  {bar}")
    print(f"\n{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    if args.json:
        costs = {num_envs: CallCost.of(rates) for num_envs, rates in results.items()}
        facts = {
            "versions": versions,
            "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
            "bursts": args.bursts,
            "steps_per_second": {
                n: {name: r.facts() for name, r in rates.items()} for n, rates in results.items()
            },
            "call_us": {num_envs: asdict(cost) for num_envs, cost in costs.items() if cost},
            "pixels_bytes_per_second": {name: rate.facts() for name, rate in pictures.items()},
            "bars": [{**asdict(bar), "verdict": bar.verdict} for bar in found],
        }
        with open(args.json, "w") as file:
            json.dump(facts, file, indent=1)


if __name__ == "__main__":
    main()
