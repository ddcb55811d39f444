"""The command line of `shoal chaos` and `python -m shoal_lab.chaos`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.argument_types import positive, whole

__all__ = ["DESCRIPTION", "add_arguments", "main", "run"]

DESCRIPTION = (
    "Kill, stop, hang and starve the processes of a small workload, at random moments and at fixed "
    "points inside an operation, such as the middle of a push, and check after each fault that nothing was "
    "lost, torn, leaked or hung. The exit status is 0 if every check passed."
)

PARTS = ("workers", "ring", "parents")
PEERS = ("gymnasium", "sb3", "envpool", "cpprb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `shoal chaos`."""
    parser.add_argument(
        "--kills",
        type=positive,
        metavar="N",
        help="kill N workers, 10 * N processes that write to a replay buffer, and N / 10 programs that own "
        "environments (default: 100). With --only, kill N processes of that part. With --against, try each "
        "fault N times (default: 3)",
    )
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="S", help="seed of all random choices (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        choices=["workers", "ring", "parents"],
        help="run only this part: workers, processes that write to a replay buffer (ring), or programs that "
        "own environments (parents)",
    )
    parser.add_argument("--minutes", type=_time, metavar="M", help="start no new round after M minutes")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--record",
        type=_record,
        metavar="FILE",
        help="store the result of each round in FILE, and skip the rounds that FILE already has",
    )
    parser.add_argument(
        "--deadline",
        type=_time,
        default=30.0,
        metavar="SECONDS",
        help="report a call that takes longer than SECONDS as a hang (default: %(default)g)",
    )
    parser.add_argument(
        "--against",
        choices=PEERS,
        action="append",
        help="try the same faults on this library, not on Shoal; may be repeated",
    )
    parser.add_argument(
        "--soak",
        type=_time,
        metavar="MINUTES",
        help="run another test: make, step, kill and close environments for MINUTES, and check that no "
        "resource leaks",
    )
    parser.add_argument(
        "--chart", type=_record, metavar="FILE", help="with --soak: write a chart to FILE (SVG)"
    )


def run(args: argparse.Namespace) -> int:
    """Runs `shoal chaos` with these arguments; returns the exit status."""
    if not hasattr(os, "pidfd_open") or not Path("/proc/self/fd").exists():
        print("shoal chaos needs Linux (pidfd_open and /proc)", file=sys.stderr)
        return 2
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # ends the started processes too
    if args.chart is not None and args.soak is None:
        print("--chart draws the result of --soak; give both options", file=sys.stderr)
        return 2
    if args.soak is not None:
        from shoal_lab.chaos import soak

        return soak.run(args.soak, args.seed, args.chart, as_json=args.json)
    if args.against:
        from shoal_lab.chaos import peers

        return peers.run(args.against, args.kills or 3, args.seed, as_json=args.json)
    from shoal_lab.chaos import report
    from shoal_lab.chaos.plan import plan_rounds, run_rounds

    parts = [args.only] if args.only else list(PARTS)
    rounds = plan_rounds(parts, args.kills or 100, args.seed, exactly=args.only is not None)
    until = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    found = run_rounds(rounds, args.deadline, until, args.record, quiet=args.json)
    return report.show(found, rounds, args.seed, as_json=args.json)


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def _record(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in an existing directory, got {text!r}")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m shoal_lab.chaos`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="shoal chaos", description=DESCRIPTION)
    add_arguments(parser)
    return run(parser.parse_args(argv))
