"""Python environments in processes, side by side: Shoal, its peers and a bare loop, interleaved in one run.

    python lab/benchmarks/process.py [--quick] [--smoke] [--json FILE] [--peers gymnasium] [--only still]

Peers that cannot be imported are named and left out. lab/benchmarks/README.md explains the measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import process_standings as standings
from process_standings import ASYNC, BARE_OF, CONFIGURATIONS, SYNC, TWO
from standings import Bar, Rate, Rates

import shoal
from shoal_lab.bench.compile import NoCompiler
from shoal_lab.bench.interleave import Burst, Timing, interleave_bursts
from shoal_lab.bench.interpreter import Interpreter, PeerError
from shoal_lab.bench.load import WaitForQuiet, cpu_seconds, watch_load
from shoal_lab.bench.pingpong import BARE, SLEEP, PingPong, crowd
from shoal_lab.bench.rivals.native import random_actions
from shoal_lab.bench.rivals.process import MAKERS
from shoal_lab.bench.toys import maker

LIBRARIES = tuple(library for library in MAKERS if library != "shoal")
SIZES = (8, 32)
WORK_US = (1, 2, 5, 10, 20, 50, 100, 1000)
STARTED, CONTEXTS = 32, ("fork", "forkserver", "spawn")
DEFAULT = "default"
CORE = Path(__file__).resolve().parents[2] / "core"

Rivals = dict[str, tuple[int, Burst]]  # name -> environment steps per call, and the burst


class Run:
    """One run: its rivals, its duration and its results."""

    def __init__(self, args: argparse.Namespace, interpreters: dict[str, Interpreter]) -> None:
        self.args, self.interpreters = args, interpreters
        self.patience = WaitForQuiet(args.patient)
        self.bars: list[Bar] = []
        self.facts: dict[str, Any] = {}

    @contextmanager
    def rivals(self) -> Iterator[Rivals]:
        """Yields a dict that the body fills with `add`; all rivals end with the body."""
        try:
            yield {}
        finally:
            for interpreter in self.interpreters.values():
                interpreter.drop()

    def add(self, rivals: Rivals, library: str, maker: str, *arguments: Any, name: str | None = None) -> None:
        if library in self.interpreters:
            try:
                rivals[name or maker] = self.interpreters[library].make(maker, *arguments)
            except PeerError as error:
                if library == "shoal":
                    raise
                print(f"without {name or maker} ({arguments}): {error}", file=sys.stderr)

    def timed(self, rivals: Rivals, bursts: int, burst_s: float | None, title: str) -> Rates:
        with watch_load() as others:
            patient = {name: self.patience(burst) for name, (_, burst) in rivals.items()}
            times = interleave_bursts(patient, bursts, burst_s)
        rates = {name: Rate(steps, times[name]) for name, (steps, _) in rivals.items()}
        self.facts[title] = {"rates": standings.facts(rates), "others_cores": others.cores}
        self.others = f"{others}, load {os.getloadavg()[0]:.1f}"
        return rates

    def pick(self, smoke: Any, quick: Any, full: Any) -> Any:
        """Returns the argument for this kind of run: smoke, quick or full."""
        return smoke if self.args.smoke else quick if self.args.quick else full

    @property
    def sizes(self) -> tuple[int, ...]:
        return SIZES[:1] if self.args.smoke else SIZES

    @property
    def bursts(self) -> int:
        return int(self.pick(1, 5, 15))

    def burst_s(self, times: float = 1) -> float | None:
        """Returns the seconds of a burst; None means one call."""
        return self.pick(None, 0.012 * times, 0.02 * times)


# ---- Sections


def compare(run: Run, workload: str, what: str, bars: Callable[[int, Rates], list[Bar]] | None) -> None:
    """Compares all rivals on one workload."""
    for num_envs in run.pick(SIZES[:1], SIZES if workload == "Still" else SIZES[:1], SIZES):
        with run.rivals() as rivals:
            for name, options in CONFIGURATIONS.items():
                run.add(rivals, "shoal", "Shoal", [workload], num_envs, options, name=name)
            if bars is standings.still_bars:
                for name, options in CONFIGURATIONS.items():
                    bare = [workload], num_envs, options["num_workers"], "caller_steps" in options
                    run.add(rivals, "shoal", "bare loop", *bare, name=BARE_OF[name])
            for library in LIBRARIES:
                for peer in MAKERS[library]:
                    has_infos = workload != "Telling" or library != "torchrl"  # it leaves infos in workers
                    if not peer.endswith("start") and has_infos:
                        run.add(rivals, library, peer, [workload], num_envs)
            title = f"{what}, num_envs={num_envs}"
            rates = run.timed(rivals, run.bursts, run.burst_s(), title)
        standings.print_rates(f"{title} ({run.others})", rates)
        run.bars += bars(num_envs, rates) if bars is not None else []


def still(run: Run) -> None:
    compare(run, "Still", "Environments that do nothing", standings.still_bars)


def pixels(run: Run) -> None:
    compare(run, "Pixels", "84x84x4 bytes of observation", standings.pixel_bars)


def infos(run: Run) -> None:
    compare(run, "Telling", 'Infos of {"a": 1.0, "b": 2} each step', None)
    loads = {"no infos": ["Still"], **{kind: ["Telling", kind] for kind in ("two", "four", "mixed")}}
    for num_envs in run.pick(SIZES[:1], SIZES, (4, *SIZES)):
        with run.rivals() as rivals:
            for kind, load in loads.items():
                run.add(rivals, "shoal", "Shoal", load, num_envs, {}, name=f"Shoal, {kind}")
                run.add(rivals, "gymnasium", SYNC, load, num_envs, name=f"{SYNC}, {kind}")
            title = f"What infos of numbers add to a step, default arguments, num_envs={num_envs}"
            rates = run.timed(rivals, run.bursts, run.burst_s(), title)
        standings.print_plain(f"{title} ({run.others})", rates, "Shoal, no infos")
        run.bars += standings.info_bars(num_envs, rates)
    print("\n  Where the time goes, us per vector step, from envs.stats")
    for num_envs in run.sizes:
        for kind, load in loads.items():
            split = time_split(load, num_envs, run.pick(20, 500, 2000))
            run.facts[f"split, {kind}, {num_envs}"] = split
            words = ", ".join(f"{name} {us:.1f}" for name, us in split.items())
            print(f"  {kind:8} n={num_envs:<3} {words}")


def time_split(load: list[str], num_envs: int, steps: int) -> dict[str, float]:
    """Splits the time of a vector step with two workers: the total, the parts in envs.stats, and the rest."""
    with shoal.vector.ProcessVectorEnv([maker(*load)] * num_envs, num_workers=2) as envs:
        envs.reset(seed=0)
        actions = random_actions(num_envs)[0]

        def step() -> dict[str, float]:
            start = time.perf_counter()
            for _ in range(steps):
                envs.step(actions)
            return {"step": (time.perf_counter() - start) * 1e6 / steps, **envs.stats["time_us"]}

        first, second = step(), step()
    parts = {name: 2 * us - first[name] for name, us in second.items() if name != "step"}  # they are averages
    return {"step": second["step"], **parts, "rest": second["step"] - sum(parts.values())}


def work(run: Run) -> None:
    """Finds the cost of a step from which processes are faster."""
    bursts = run.pick(1, 5, 11)
    for num_envs in run.sizes:
        results: dict[float, Rates] = {}
        for us in run.pick(WORK_US[:2], WORK_US[3::2], WORK_US):
            with run.rivals() as rivals:
                load = ["Busy", us], num_envs
                run.add(rivals, "shoal", "Shoal", *load, CONFIGURATIONS[TWO], name=TWO)
                run.add(rivals, "gymnasium", SYNC, *load)
                results[us] = run.timed(rivals, bursts, run.burst_s(), f"work {us} us, {num_envs}")
        standings.print_work(num_envs, results)
        run.bars += standings.work_bars(num_envs, results)


def gates(run: Run) -> None:
    """Measures a round trip of the gate: with two cores, with one, and beside busy processes."""
    try:
        pingpong = PingPong(CORE)
    except NoCompiler as error:
        print(f"without round trips: {error}", file=sys.stderr)
        return
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as opened:
        opened.callback(pingpong.close)
        among = opened.enter_context(crowd(cores))
        places = {
            "a core for each": (pingpong.bursts(cores[0], cores[-1]), BARE),
            "one core for both": (pingpong.bursts(cores[0], cores[0]), SLEEP),
        }
        crowded = {name: among(burst) for name, burst in places["a core for each"][0].items()}
        places["beside a busy process on every core"] = crowded, SLEEP
        found = {}
        for words, (bursts, against) in places.items():
            rivals = {name: (1, burst) for name, burst in bursts.items()}
            rates = run.timed(rivals, run.bursts, run.burst_s(), f"round trip, {words}")
            standings.print_plain(f"A round trip, {words} ({run.others})", rates, against)
            found[words] = rates
        run.bars += standings.gate_bars(*found.values())
        with run.rivals() as stepped:
            for name, options in CONFIGURATIONS.items():
                run.add(stepped, "shoal", "Shoal", ["Still"], 8, options, name=name)
            run.add(stepped, "gymnasium", ASYNC, ["Still"], 8)
            title = "Vector steps, num_envs=8, beside a busy process on every core"
            stepped = {name: (steps, among(burst)) for name, (steps, burst) in stepped.items()}
            rates = run.timed(stepped, run.bursts, run.burst_s(3), title)
        standings.print_plain(f"{title} ({run.others})", rates, ASYNC)
        for name in CONFIGURATIONS:
            run.bars.append(Bar(f"crowded, n=8: {name} / {ASYNC}", 1, standings.over(rates, name, ASYNC)))


def idle(run: Run) -> None:
    """Measures the CPU time of idle workers."""
    seconds = run.pick(0.2, 2, 10)
    with shoal.vector.ProcessVectorEnv([maker("Still")] * 8, num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step(random_actions(8)[0])
        pids = [pid for pid in envs.worker_pids if pid is not None]
        time.sleep(0.1)
        before = cpu_seconds(pids)
        time.sleep(seconds)
        used = (cpu_seconds(pids) - before) * 10 / seconds
    print(f"\nTwo idle workers used {used:.2f} s of CPU time in 10 s")
    run.facts["idle_cpu_s"] = used
    run.bars.append(Bar("idle: CPU seconds of two workers in 10 s", 0.2, used, at_least=False))


def start(run: Run) -> None:
    """Measures the time from construction to the first observations."""
    contexts = run.pick(CONTEXTS[:1], CONTEXTS[:1], CONTEXTS)
    with run.rivals() as rivals:
        run.add(rivals, "shoal", "Shoal start", STARTED, None, name="Shoal, default, again")
        for context in contexts:
            run.add(rivals, "shoal", "Shoal start", STARTED, context, name=f"Shoal, {context}")
            run.add(rivals, "gymnasium", "Gymnasium start", STARTED, context, name=f"{ASYNC}, {context}")
        rivals["Shoal, default, first"] = (STARTED, first_start)
        rivals["Shoal, default, again"][1](1)
        times: dict[str, list[float]] = {name: [] for name in rivals}
        with watch_load() as others:
            for _ in range(run.pick(1, 2, 3)):
                for name, (_, burst) in rivals.items():
                    times[name].append(run.patience(burst)(1))
    rates = {name: Rate(STARTED, Timing.of(turns)) for name, turns in times.items()}
    run.facts["start"] = {"rates": standings.facts(rates), "others_cores": others.cores}
    print(f"\nFrom nothing to the first observations of {STARTED} environments, ms ({others})")
    for name, rate in rates.items():
        turns = ", ".join(f"{turn * 1e3:.0f}" for turn in rate.timing.turns_s)
        print(f"  {name:28} {rate.us / 1e3:8.1f}   each: {turns}")
    run.bars += standings.start_bars(rates, contexts)


def first_start(calls: int) -> float:
    """Measures a start in a process that has started no worker before."""
    total = 0.0
    for _ in range(calls):
        interpreter = Interpreter(sys.executable, "shoal", "process")
        total += interpreter.make("Shoal start", STARTED, None)[1](1)
        interpreter.close()
    return total


def workers(run: Run) -> None:
    """Compares the default number of workers with others."""
    numbers: dict[str, dict[str, Any]] = {DEFAULT: {}}
    numbers |= {f"num_workers={number}": {"num_workers": number} for number in (1, 2, 4)}
    numbers["default, caller_steps"] = {"caller_steps": True}
    for num_envs in run.pick(SIZES[:1], SIZES[-1:], SIZES):
        results = {}
        for words, us in (("light", 1), ("medium", 50), ("heavy", 1000)):
            title = f"{words} environments ({us} us), n={num_envs}"
            with run.rivals() as rivals:
                for name, options in numbers.items():
                    run.add(rivals, "shoal", "Shoal", ["Busy", us], num_envs, options, name=name)
                results[title] = run.timed(rivals, run.pick(1, 5, 9), run.burst_s(), title)
            standings.print_plain(f"Number of workers, {title} ({run.others})", results[title], DEFAULT)
        run.bars += standings.worker_bars(results, DEFAULT)


def uneven(run: Run) -> None:
    """Compares step with send and recv on steps of different length."""
    for num_envs in run.pick(SIZES[:1], SIZES[-1:], SIZES):
        load = ["Varied", 100, 2000], num_envs
        with run.rivals() as rivals:
            run.add(rivals, "shoal", "Shoal", *load, CONFIGURATIONS[TWO], name=TWO)
            for batch in (num_envs // 2, num_envs // 4):
                options = {"num_workers": 2, "batch_size": batch}
                run.add(rivals, "shoal", "Shoal send/recv", *load, options, name=f"send/recv, batch {batch}")
            run.add(rivals, "gymnasium", ASYNC, *load)
            title = f"Steps of 100 us to 2 ms, num_envs={num_envs}"
            rates = run.timed(rivals, run.pick(1, 3, 7), run.pick(None, 0.1, 0.25), title)
        standings.print_plain(f"{title}: for as many steps ({run.others})", rates, TWO)
        name = f"send/recv, batch {num_envs // 2}"
        run.bars.append(
            Bar(f"uneven steps, n={num_envs}: {name} / {TWO}", 1, standings.over(rates, name, TWO))
        )


SECTIONS: dict[str, Callable[[Run], None]] = {
    section.__name__: section for section in (still, pixels, infos, work, workers, uneven, gates, idle, start)
}


# ---- The run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="*", choices=LIBRARIES, help="default: all; with --smoke: none")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns: a rough picture")
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: one call of each rival, in seconds"
    )
    parser.add_argument(
        "--patient",
        type=float,
        default=0,
        metavar="SECONDS",
        help="wait for an idle machine before bursts, at most SECONDS in all",
    )
    parser.add_argument("--json", metavar="FILE", help="also write all numbers to FILE")
    parser.add_argument(
        "--python-peers", metavar="PYTHON", default=sys.executable, help="the Python that has the peers"
    )
    for library in LIBRARIES:
        parser.add_argument(f"--python-{library}", metavar="PYTHON", help="the Python that has this peer")
    args = parser.parse_args()
    if args.peers is None:
        args.peers = () if args.smoke else LIBRARIES
        if args.smoke:
            print("without peers: --smoke leaves them out, unless --peers names them", file=sys.stderr)
    if args.smoke:
        args.patient = 0
    return args


def start_interpreters(args: argparse.Namespace, opened: ExitStack) -> dict[str, Interpreter]:
    interpreters = {}
    for library in ("shoal", *args.peers):
        given = getattr(args, f"python_{library}", None) or args.python_peers
        try:
            python = sys.executable if library == "shoal" else given
            interpreters[library] = Interpreter(python, library, "process")
            opened.callback(interpreters[library].close)
        except PeerError as error:
            if library == "shoal":
                raise
            print(f"without {library}: {error}", file=sys.stderr)
    return interpreters


def main() -> None:
    args = arguments()
    began = time.monotonic()
    with ExitStack() as opened:
        interpreters = start_interpreters(args, opened)
        versions = {"Python": platform.python_version()}
        versions |= {library: interpreter.version for library, interpreter in interpreters.items()}
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        run = Run(args, interpreters)
        burst_s = run.burst_s()
        length = "one call" if burst_s is None else f"{burst_s * 1e3:g} ms"
        print(f"{run.bursts} bursts of {length} each, in turns")
        for name in args.only:
            SECTIONS[name](run)
            sys.stdout.flush()
    print("\nBars")
    for bar in run.bars:
        print(f"  {bar}")
    print(f"\n{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    if args.json:
        bars = [{**asdict(bar), "verdict": bar.verdict} for bar in run.bars]
        machine = {"platform": platform.platform(), "cores": os.cpu_count()}
        with open(args.json, "w") as file:
            json.dump({"versions": versions, "machine": machine, **run.facts, "bars": bars}, file, indent=1)


if __name__ == "__main__":
    main()
