"""The command `shoal bench`: chooses suites and peers, and writes the results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shoal.argument_types import positive, seconds
from shoal.errors import ShoalError
from shoal_lab.bench import charts, cuda, drawing, mine, peers, sweep
from shoal_lab.bench.compile import FLAGS
from shoal_lab.bench.load import watch_load
from shoal_lab.bench.measure import Bench, Planned
from shoal_lab.bench.progress import Progress, clock_text
from shoal_lab.bench.report import case_text, sweep_text
from shoal_lab.bench.results import Case, Sweep, document
from shoal_lab.bench.suites import memory, native, process, replay, startup

__all__ = ["DESCRIPTION", "SUITES", "add_arguments", "command_line", "machine", "run"]

DESCRIPTION = (
    "Measure Shoal, other installed libraries and the limits of this machine. All candidates of a case are "
    "measured in turn, so that a busy machine affects them equally."
)

SUITES: dict[str, Callable[..., list[Planned]]] = {
    "native": native.plan,
    "process": process.plan,
    "replay": replay.plan,
    "startup": startup.plan,
    "memory": memory.plan,
}
_SIZED = ("native", "process")
_SWEEP = "sweep"
_CUDA = "cuda"
_SMOKE = "--smoke only checks that the benchmarks run: its numbers mean nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `shoal bench`."""
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help="native, process, replay, startup or memory (default: all of these, in a short form); or "
        "sweep, which measures how the cost grows with the size; or cuda, on a machine with a GPU",
    )
    parser.add_argument(
        "--against",
        metavar="PEERS",
        help="compare with these libraries, separated by commas: gymnasium, envpool, pufferlib, sb3, "
        "tianshou, torchrl, cpprb (default: those that are installed)",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="use this Python for the library NAME (with cuda: gymnax); may be repeated",
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="install the libraries of --against into virtual environments in the cache",
    )
    parser.add_argument(
        "--envs", type=positive, nargs="+", metavar="N", help="measure with these numbers of environments"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="measure more cases, and each for longer; this takes a few minutes",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="only check that every suite and every sweep runs, in a few seconds; the numbers mean nothing",
    )
    parser.add_argument(
        "--mine",
        metavar="MODULE:FACTORY",
        help="measure your environment in every backend and recommend one; in place of MODULE:FACTORY you "
        "can give a C file or the id of a bundled environment",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="SWEEP",
        help="with sweep: run only the sweeps that you name: envs, bytes, threads, workers, replay",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=60.0,
        metavar="S",
        help="with sweep: spend at most S seconds on each sweep (default: %(default)g)",
    )
    parser.add_argument("--json", metavar="FILE", help="write all numbers to FILE as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw a chart to FILE, a .svg or .png file")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _checked(args: argparse.Namespace) -> None:
    """Checks the arguments before anything is measured."""
    for name in args.suites:
        if name not in (*SUITES, _SWEEP, _CUDA):
            raise ShoalError(f"unknown suite {name!r}; suites are {', '.join(SUITES)}, sweep and cuda")
    for alone in (_SWEEP, _CUDA):
        if alone in args.suites and len(args.suites) > 1:
            raise ShoalError(f"{alone} is a run of its own; leave out the other suites")
    for name in args.only or ():
        if name not in sweep.SWEEPS:
            raise ShoalError(f"unknown sweep {name!r}; sweeps are {', '.join(sweep.SWEEPS)}")
    if args.smoke and args.full:
        raise ShoalError("--smoke is the shortest run and --full the longest; leave out one of them")
    if args.only and _SWEEP not in args.suites:
        raise ShoalError("--only chooses sweeps: shoal bench sweep --only ...")
    if args.plot and Path(args.plot).suffix.lower() not in (".svg", ".png"):
        raise ShoalError(f"--plot writes a .svg or a .png file, got {args.plot!r}")
    for path in (args.json, args.plot):
        if path and not Path(path).absolute().parent.is_dir():
            raise ShoalError(
                f"{path} cannot be written: there is no directory {Path(path).absolute().parent}"
            )
    for given in args.python:
        if "=" not in given:
            raise ShoalError(f"--python wants NAME=PATH, such as envpool=/path/to/python, got {given!r}")


def _peers(args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, str]:
    if args.smoke and args.against is None:
        say("--smoke leaves peers out, unless --against names them")
        return {}
    against = None if args.against is None else [name for name in args.against.split(",") if name]
    pythons = dict(given.split("=", 1) for given in args.python)
    if args.install:
        for name in against or ():
            if name not in peers.PEERS:
                raise ShoalError(f"unknown peer {name!r}; peers are {', '.join(peers.PEERS)}")
        peers.install([name for name in against or peers.PEERS if name not in pythons], say)
    return peers.find(against, pythons, say)


def run(args: argparse.Namespace) -> int:
    """Measures, prints and writes; returns the exit status, which is 1 if Shoal raised an error."""
    _checked(args)
    if _CUDA in args.suites:
        cuda.run(smoke=args.smoke, gymnax=dict(given.split("=", 1) for given in args.python).get("gymnax"))
        return 0
    env = None if args.mine is None else mine.load(args.mine)
    say = lambda text: print(text, file=sys.stderr)  # noqa: E731
    alone = env is not None or _SWEEP in args.suites
    bench = Bench(
        {} if alone and args.against is None else _peers(args, say),
        full=args.full,
        smoke=args.smoke,
        repeats=0 if args.smoke else 200 if args.full else 24,
    )
    began = time.monotonic()
    cases: list[Case] = []
    sweeps: list[Sweep] = []
    advice: mine.Advice | None = None
    if bench.smoke:
        print(_SMOKE)
    print(_header(args))
    try:
        with watch_load() as others:
            if env is not None:
                planned = mine.plan(bench, env, tuple(args.envs) if args.envs else None)
                cases = _measured(bench, planned, args)
                sizes = [int(case.title.rpartition("=")[2].replace(",", "")) for case in cases]
                if cases:
                    advice = mine.advise(args.mine, env, dict(zip(sizes, cases, strict=True)))
            else:
                if _SWEEP not in args.suites:
                    cases = _suites(bench, args)
                if _SWEEP in args.suites or (args.smoke and not args.suites):
                    sweeps = _sweeps(bench, args)
    finally:
        bench.close()
    if bench.smoke:
        advice = None  # it was made as a check; the numbers of one call support no advice
    if advice is not None:
        print(_advice_text(advice))
    print(_footer(bench, others, time.monotonic() - began))
    _written(args, bench, cases, sweeps, advice)
    if bench.smoke:
        print(_SMOKE)
    for failure in bench.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if bench.failures else 0


def _suites(bench: Bench, args: argparse.Namespace) -> list[Case]:
    """Runs all suites under one progress bar; interpreters end with their suite."""
    names = list(dict.fromkeys(args.suites)) or list(SUITES)
    options = {name: {"envs": args.envs} if name in _SIZED else {} for name in names}
    plans = {name: SUITES[name](bench, **options[name]) for name in names}
    for name, peer in peers.PEERS.items():
        if args.against and name in args.against.split(",") and not set(peer.suites) & set(names):
            bench.note(f"{name} has no part in {', '.join(names)}, but in {', '.join(peer.suites)}")
    cases: list[Case] = []
    total = sum(planned.seconds for plan in plans.values() for planned in plan)
    with Progress(total, enabled=not args.quiet) as bench.progress:
        for name, plan in plans.items():
            cases += bench.go(plan, _saying(bench), name)
            bench.close()
    return [case for case in cases if case.rows]


def _sweeps(bench: Bench, args: argparse.Namespace) -> list[Sweep]:
    names = args.only or list(sweep.SWEEPS)
    with Progress(sweep.SECONDS * len(names), enabled=not args.quiet) as bench.progress:
        return sweep.run(bench, names, args.seconds, lambda found: bench.progress.say(sweep_text(found)))


def _measured(bench: Bench, planned: list[Planned], args: argparse.Namespace) -> list[Case]:
    with Progress(sum(one.seconds for one in planned), enabled=not args.quiet) as bench.progress:
        return bench.go(planned, _saying(bench))


def _saying(bench: Bench) -> Callable[[Case], None]:
    """Prints a case, without the parameters that its suite has printed already."""
    said: set[str] = set()
    return lambda case: bench.progress.say(case_text(case, said))


# ---- The description of the run


def command_line(args: argparse.Namespace, pythons: bool = True) -> str:
    """Returns the command that repeats the run, without output options; with `pythons`, the Pythons too."""
    left_out = ("--json", "--plot", *(() if pythons else ("--python",)))
    words, skip = ["shoal"], False
    for word in args.argv:
        if not skip and not word.startswith((*left_out, "--quiet")):
            words.append(word)
        skip = not skip and word in left_out
    return shlex.join(words)


def machine() -> dict[str, Any]:
    """Describes the machine."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "load": os.getloadavg()[0],
    }


def _header(args: argparse.Namespace) -> str:
    found = machine()
    return "\n".join(
        [
            command_line(args),
            f"shoal {version('shoal')}, Python {platform.python_version()}, numpy {version('numpy')}",
            f"{found['cpu']}, {found['cores']} cores, load {found['load']:.1f}",
            f"limits in C: cc {' '.join(FLAGS)}",
        ]
    )


def _footer(bench: Bench, others: Any, seconds: float) -> str:
    lines = [""]
    found = {library: text for library, text in bench.versions.items() if text}
    if found:
        lines += textwrap.wrap("measured: " + ", ".join(f"{name} {text}" for name, text in found.items()), 80)
    for note in bench.notes:
        lines += textwrap.wrap(note.splitlines()[0], 80, subsequent_indent="  ", break_on_hyphens=False)
    lines.append(f"{clock_text(seconds)} min, {others}, load {os.getloadavg()[0]:.1f} at the end")
    return "\n".join(lines)


def _advice_text(advice: mine.Advice) -> str:
    lines = ["", f"use: {advice.call}"]
    for reason in advice.reasons:
        lines += textwrap.wrap(reason, 80, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines)


def _written(
    args: argparse.Namespace,
    bench: Bench,
    cases: Sequence[Case],
    sweeps: Sequence[Sweep],
    advice: mine.Advice | None,
) -> None:
    if args.json:
        versions = {"Python": platform.python_version(), "numpy": version("numpy"), **bench.versions}
        versions = {name: text for name, text in versions.items() if text}
        facts = None if advice is None else advice.facts()
        found = document(command_line(args), machine(), versions, cases, sweeps, facts, bench.failures)
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
        print(f"written: {args.json}")
    if args.plot:
        command = command_line(args, pythons=False)
        footer = f"{command}, {machine()['cpu']}, {os.cpu_count()} cores, whiskers: quartiles"
        picture = charts.bars(cases, footer) if cases else charts.lines(sweeps, footer)
        drawing.write(args.plot, picture)
        print(f"written: {args.plot}")
