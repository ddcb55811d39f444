"""The `shoal` command: each subcommand is one function that returns the exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shoal import __version__
from shoal.errors import ShoalError
from shoal.memory import list_names
from shoal.memory.limits import format_bytes
from shoal.memory.names import reap

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `shoal ARGV...`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="shoal", description="The data plane of reinforcement learning.")
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser("demo", help="step environments in worker processes, all data in one segment")
    demo.add_argument("--env", default="CartPole-v1", help="a Gymnasium id (default: %(default)s)")
    demo.add_argument("--num-envs", type=_positive, default=64, metavar="N", help="(default: %(default)s)")
    demo.add_argument("--num-workers", type=_positive, default=2, metavar="N", help="(default: %(default)s)")
    demo.add_argument("--seconds", type=float, default=10.0, help="how long (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="check what this machine offers, and say what to do")
    doctor.add_argument("--strict", action="store_true", help="exit with 1 on warnings too")
    doctor.set_defaults(run=_doctor)

    clean = commands.add_parser("clean", help="list named segments and remove those of dead owners")
    clean.add_argument("--dry-run", action="store_true", help="list only")
    clean.set_defaults(run=_clean)

    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = args.run(args)
        return status
    except ShoalError as error:
        print(f"shoal {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _demo(args: argparse.Namespace) -> int:
    from shoal import demo

    return demo.run(args.env, args.num_envs, args.num_workers, args.seconds, args.seed)


def _doctor(args: argparse.Namespace) -> int:
    from shoal import doctor

    return doctor.run(strict=args.strict)


def _clean(args: argparse.Namespace) -> int:
    entries = list_names()
    if not entries:
        print("no named segments")
        return 0
    left = 0
    for entry in entries:
        owner = "unknown" if entry.owner_pid is None else str(entry.owner_pid)
        if entry.alive:
            outcome = "in use, kept"
        elif args.dry_run:
            outcome = "owner is dead, would be removed"
        elif reap(entry.path):
            outcome = "owner is dead, removed"
        else:
            outcome = "owner is dead, could not be removed"
            left += 1
        print(f"{entry.name:40} {format_bytes(entry.size_bytes):>10}  owner {owner:>8}  {outcome}")
    return 1 if left else 0
