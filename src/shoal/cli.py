"""The `shoal` command: each subcommand is one function that returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from shoal import __version__
from shoal.argument_types import png, port, positive, seconds, whole
from shoal.errors import ShoalError
from shoal.memory import list_names
from shoal.memory.limits import format_bytes
from shoal.memory.names import reap

__all__ = ["main"]

_LAB = {
    "bench": "measure Shoal, its peers and the limits of this machine",
    "chaos": "kill, stop and starve Shoal's processes and check what they promise",
}
"""Commands of shoal-lab, a distribution of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `shoal ARGV...`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="shoal", description="The data plane of reinforcement learning.")
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    given = list(sys.argv[1:] if argv is None else argv)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    _add_demo(commands)

    _add_environments(commands)

    doctor = commands.add_parser("doctor", help="check what this machine offers, and say what to do")
    doctor.add_argument("--strict", action="store_true", help="exit with 1 on warnings too")
    doctor.set_defaults(run=_doctor)

    clean = commands.add_parser("clean", help="list named segments and remove those of dead owners")
    clean.add_argument("--dry-run", action="store_true", help="list only")
    clean.set_defaults(run=_clean)

    new = commands.add_parser("new", help="write a new C environment to start from")
    new.add_argument("name", help="a C identifier, such as my_env")
    new.set_defaults(run=_new)

    build = commands.add_parser("build", help="compile a C environment; prints the library's path")
    build.add_argument("source", help="the C file")
    build.add_argument(
        "--puffer",
        action="store_true",
        help="the source is the folder of a PufferLib environment, ocean/NAME",
    )
    build.add_argument("--output", metavar="FILE", help="where to put it (default: a cache)")
    build.add_argument("--compiler", metavar="CC", help="(default: $CC, or cc)")
    build.set_defaults(run=_build)

    check = commands.add_parser("check", help="hold a C environment against the contract")
    check.add_argument("env", help="a C file, a compiled library, or the id of a bundled environment")
    check.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=_option,
        help="check it with this option of the environment; may be repeated",
    )
    check.add_argument(
        "--asan",
        action="store_true",
        help="compile the source with AddressSanitizer and UBSan, which find the line of a bad read or write",
    )
    check.set_defaults(run=_check)

    _add_viewer(commands)

    _add_lab(commands, given)

    args, unknown = parser.parse_known_args(given)
    if unknown and getattr(args, "run", None) is not _refuse_lab:  # whose options are not known
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.argv = given
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = args.run(args)
        return status
    except (ShoalError, ValueError, TypeError) as error:
        print(f"shoal {args.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `shoal demo | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="learn CartPole, or another environment, while you look")
    demo.add_argument(
        "--env",
        default="CartPole-v1",
        help="bundled, or any Gymnasium id with observations of shape (n,) (default: %(default)s)",
    )
    demo.add_argument("--num-envs", type=positive, default=64, metavar="N", help="(default: %(default)s)")
    demo.add_argument(
        "--num-workers",
        type=positive,
        metavar="N",
        help="step in N worker processes (default: environments in C on threads, others in one per core)",
    )
    demo.add_argument("--seed", type=whole, default=0, metavar="K", help="(default: %(default)s)")
    demo.add_argument(
        "--steps",
        type=positive,
        default=1_000_000,
        metavar="N",
        help="end after so many, solved or not (default: %(default)s)",
    )
    demo.add_argument("--seconds", type=seconds, help="end after so many, solved or not")
    demo.add_argument("--watch", action="store_true", help="show it in a web page (`shoal watch`)")
    demo.add_argument(
        "--cluster",
        type=positive,
        nargs="?",
        const=2,
        metavar="NODES",
        help="on each of so many nodes of a Ray cluster that is simulated here (default: %(const)s nodes)",
    )
    demo.add_argument("--png", metavar="FILE", help="write the learning curve as a picture")
    demo.set_defaults(run=_demo)


def _add_environments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands that describe environments."""
    envs = commands.add_parser(
        "envs",
        help="list the bundled environments",
        description="Lists the environments that come with Shoal, one line each.",
    )
    envs.set_defaults(run=_envs)

    info = commands.add_parser(
        "info",
        help="describe an environment",
        description="Prints an environment's observation, action, reward, options, agents and time limit.",
    )
    info.add_argument("env", help="the id of a bundled environment, a C file, or a compiled library")
    info.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=_option,
        help="describe it with this option; may be repeated",
    )
    info.set_defaults(run=_info)


def _add_lab(commands: argparse._SubParsersAction[argparse.ArgumentParser], given: Sequence[str]) -> None:
    """Adds the commands of shoal-lab. The arguments of the one that was given come from its entry point."""
    chosen = next((word for word in given if not word.startswith("-")), None)
    for name, summary in _LAB.items():
        if name != chosen:
            commands.add_parser(name, help=summary)
            continue
        found = metadata.entry_points(group="shoal.commands", name=name)
        if not found:
            parser = commands.add_parser(name, help=summary, description=_lab_is_missing(name))
            parser.set_defaults(run=_refuse_lab)
            continue
        command = next(iter(found)).load()
        parser = commands.add_parser(name, help=summary, description=command.DESCRIPTION)
        command.add_arguments(parser)
        parser.set_defaults(run=command.run)


def _lab_is_missing(name: str) -> str:
    return (
        f"`shoal {name}` comes with the package shoal-lab, which is not installed. Install it with "
        "`pip install shoal-lab`, or with `pip install ./lab` in a checkout of Shoal."
    )


def _refuse_lab(args: argparse.Namespace) -> int:
    print(f"shoal {args.command}: {_lab_is_missing(args.command)}", file=sys.stderr)
    return 2


def _add_viewer(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands that look into a running session."""
    session = argparse.ArgumentParser(add_help=False)
    session.add_argument("name", nargs="?", help="a session (default: the only one; `shoal ps` lists them)")

    watch = commands.add_parser("watch", parents=[session], help="show a running session in a web page")
    watch.add_argument("--host", default="127.0.0.1", help="listen on another address (default: %(default)s)")
    watch.add_argument("--port", type=port, default=0, help="(default: any that is free)")
    watch.add_argument("--no-browser", action="store_true", help="print the link, open nothing")
    watch.add_argument(
        "--png", type=png, metavar="FILE", help="no page: write a picture of one environment and end"
    )
    watch.add_argument("--env", type=whole, default=0, metavar="K", help="of --png (default: %(default)s)")
    watch.add_argument(
        "--timeout",
        type=seconds,
        default=5.0,
        metavar="SECONDS",
        help="how long --png waits for a step of it (default: %(default)g)",
    )
    watch.set_defaults(run=_watch)

    ps = commands.add_parser("ps", help="list the running sessions")
    ps.add_argument("--json", action="store_true", help="all that is known of each, for programs")
    ps.set_defaults(run=_ps)

    top = commands.add_parser("top", parents=[session], help="show a running session's counters, live")
    top.add_argument(
        "--env", type=whole, action="append", metavar="K", help="show its tick too; may be repeated"
    )
    top.add_argument("--seconds", type=seconds, help="how long (default: until the run ends)")
    top.set_defaults(run=_top)

    metrics = commands.add_parser("metrics", help="print sessions for Prometheus")
    metrics.add_argument("name", nargs="?", help="a session (default: all that live)")
    metrics.set_defaults(run=_metrics)


def _demo(args: argparse.Namespace) -> int:
    from shoal import demo

    return demo.run(
        args.env,
        args.num_envs,
        args.num_workers,
        seed=args.seed,
        steps=args.steps,
        seconds=args.seconds,
        watch=args.watch,
        png=args.png,
        cluster=args.cluster,
    )


def _doctor(args: argparse.Namespace) -> int:
    from shoal import doctor

    return doctor.run(strict=args.strict)


def _option(text: str) -> tuple[str, int | float | str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            pass
    return name, value


def _envs(args: argparse.Namespace) -> int:
    from shoal.native.describe import list_envs

    envs = list_envs()
    width = max(map(len, envs), default=0)
    for name, summary in envs.items():
        print(f"{name:{width}}  {summary}")
    return 0


def _info(args: argparse.Namespace) -> int:
    from shoal.native.describe import describe_env, format_env

    print(format_env(describe_env(args.env, dict(args.option))))
    return 0


def _new(args: argparse.Namespace) -> int:
    from shoal.native.template import new

    try:
        for path in new(args.name, Path.cwd()):
            print(path.relative_to(Path.cwd()))
    except (ValueError, FileExistsError) as error:
        print(f"shoal new: {error}", file=sys.stderr)
        return 1
    return 0


def _build(args: argparse.Namespace) -> int:
    from shoal.native.build import build
    from shoal.native.puffer import build_puffer, find_source

    output = None if args.output is None else Path(args.output)
    if args.puffer:
        print(build_puffer(find_source(args.source), output=output, compiler=args.compiler))
        return 0
    print(build(args.source, output=output, compiler=args.compiler))
    return 0


def _check(args: argparse.Namespace) -> int:
    from shoal import check

    return check.run(args.env, dict(args.option), asan=args.asan)


def _watch(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    if args.png is not None:
        return commands.picture(args.name, args.env, args.png, args.timeout)
    return commands.watch(args.name, args.host, args.port, browser=not args.no_browser)


def _ps(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    return commands.ps(as_json=args.json)


def _top(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    return commands.top(args.name, list(dict.fromkeys(args.env or [0])), args.seconds)


def _metrics(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    return commands.metrics(args.name)


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
