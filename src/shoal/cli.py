"""The `shoal` command: each subcommand is one function that returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.argument_types import movie, png, port, positive, seconds, whole
from shoal.errors import ShoalError
from shoal.memory import list_names
from shoal.memory.limits import format_bytes
from shoal.memory.names import reap

__all__ = ["main"]

_LAB = {
    "bench": "measure Shoal, other libraries and the limits of this machine",
    "chaos": "kill, stop and starve Shoal's processes, and check that nothing is lost or left behind",
}
"""Commands of shoal-lab, a distribution of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `shoal ARGV...`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Shoal steps many environments at once. `shoal COMMAND --help` describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    given = list(sys.argv[1:] if argv is None else argv)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    _add_demo(commands)

    _add_environments(commands)

    doctor = _add_command(commands, "doctor", "report what this machine supports and what to change")
    doctor.add_argument("--strict", action="store_true", help="exit with status 1 if there are warnings")
    doctor.set_defaults(run=_doctor)

    clean = _add_command(commands, "clean", "list named shared memory; remove that of dead processes")
    clean.add_argument("--dry-run", action="store_true", help="only list, remove nothing")
    clean.set_defaults(run=_clean)

    new = _add_command(commands, "new", "write the source of a new C environment, as a starting point")
    new.add_argument("name", help="name of the environment: a C identifier, such as my_env")
    new.set_defaults(run=_new)

    build = _add_command(commands, "build", "compile a C environment and print the path of the library")
    build.add_argument(
        "source", help="path of the C file, or with --device cuda the id of a bundled environment"
    )
    build.add_argument(
        "--puffer",
        action="store_true",
        help="SOURCE is the directory of a PufferLib environment, such as ocean/NAME",
    )
    build.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the result to FILE (default: a file in the cache); with --device cuda, FILE may be an "
        "existing directory; the result in it gets the same name as in the cache, so that it can be copied "
        "into the cache of another machine",
    )
    build.add_argument(
        "--compiler", metavar="CC", help="use this compiler (default: $CC, else cc, gcc, clang or ziglang)"
    )
    build.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="cuda: compile PTX for a GPU instead of a library",
    )
    _add_option(build, "with --device cuda: compile it with this option of the environment; may be repeated")
    build.set_defaults(run=_build)

    check = _add_command(commands, "check", "test whether a C environment follows the rules for plug-ins")
    check.add_argument("env", help="a C file, a compiled library, or the id of a bundled environment")
    _add_option(check, "set this option of the environment; may be repeated")
    check.add_argument(
        "--asan",
        action="store_true",
        help="compile the source with AddressSanitizer and UBSan, which name the line of a bad read or write",
    )
    check.add_argument(
        "--device",
        default="cpu",
        help="cuda or cuda:N: compare a GPU's results with the CPU's; emulated: run the GPU's code on "
        "the CPU instead, and compare",
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


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, **keywords: Any
) -> argparse.ArgumentParser:
    """Adds a command whose description is its line in the list of commands."""
    description = f"{summary[0].upper()}{summary[1:]}."
    return commands.add_parser(name, help=summary, description=description, **keywords)


def _add_option(command: argparse.ArgumentParser, summary: str) -> None:
    command.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", type=_option, help=summary
    )


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = _add_command(commands, "demo", "train CartPole or another environment and show the progress")
    demo.add_argument(
        "--env",
        default="CartPole-v1",
        help="id of the environment; its observations must have the shape (n,) (default: %(default)s)",
    )
    demo.add_argument(
        "--num-envs",
        type=positive,
        default=64,
        metavar="N",
        help="number of environments (default: %(default)s)",
    )
    demo.add_argument(
        "--num-workers",
        type=positive,
        metavar="N",
        help="step in N worker processes (default: threads for environments in C, else one worker per core)",
    )
    demo.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="K",
        help="seed of environments and learner (default: %(default)s)",
    )
    demo.add_argument(
        "--steps",
        type=positive,
        default=1_000_000,
        metavar="N",
        help="stop after N steps, counted over all environments, even if the environment is not solved "
        "(default: %(default)s)",
    )
    demo.add_argument(
        "--seconds",
        type=seconds,
        metavar="S",
        help="stop after S seconds even if the environment is not solved",
    )
    demo.add_argument(
        "--watch", action="store_true", help="show the environments in a web page, as `shoal watch` does"
    )
    demo.add_argument(
        "--cluster",
        type=positive,
        nargs="?",
        const=2,
        metavar="NODES",
        help="train on a Ray cluster of NODES nodes (%(const)s if not given), simulated on this machine",
    )
    demo.add_argument(
        "--history", metavar="FILE", help="keep the run's history in FILE, which `shoal watch FILE` opens"
    )
    demo.add_argument("--png", metavar="FILE", help="write the learning curve to FILE as a PNG picture")
    demo.set_defaults(run=_demo)


def _add_environments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands that describe environments."""
    envs = commands.add_parser(
        "envs",
        help="list the bundled environments",
        description="List the environments that come with Shoal, one line each.",
    )
    envs.set_defaults(run=_envs)

    info = commands.add_parser(
        "info",
        help="describe an environment",
        description="Print an environment's observation, action, reward, options, agents and time limit.",
    )
    info.add_argument("env", help="the id of a bundled environment, a C file, or a compiled library")
    _add_option(info, "set this option of the environment; may be repeated")
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
    session.add_argument(
        "name", nargs="?", help="name of the session (default: the only one; `shoal ps` lists them)"
    )

    watch = _add_command(commands, "watch", "show a running session, or a history file, in a web page")
    watch.add_argument(
        "name",
        nargs="?",
        metavar="NAME|FILE",
        help="name of the session (default: the only one; `shoal ps` lists them), or a history file",
    )
    watch.add_argument(
        "--history",
        metavar="FILE",
        help="write the run's history to FILE every 10 seconds and at the end; `shoal watch FILE` opens it",
    )
    watch.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    watch.add_argument("--port", type=port, default=0, help="port to listen on (default: a free one)")
    watch.add_argument("--no-browser", action="store_true", help="print the link and do not open a browser")
    watch.add_argument(
        "--png",
        type=png,
        metavar="FILE",
        help="write a picture of one environment to FILE and exit, without a web page",
    )
    watch.add_argument(
        "--record",
        type=movie,
        metavar="FILE",
        help="write the next whole episode of one environment to FILE and exit, without a web page: .gif, or "
        "with ffmpeg .webm or .mp4",
    )
    watch.add_argument(
        "--keep",
        choices=("best", "worst"),
        help="with --record: record episodes for --timeout seconds, and write the one with the highest or "
        "the lowest return",
    )
    watch.add_argument(
        "--env",
        type=whole,
        metavar="K",
        help="id of the environment for --png and --record (default: 0; with --keep: random ones)",
    )
    watch.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="with --png: the longest wait for a step of the environment (default: 5); with --record: the "
        "longest wait for a whole episode (default: 30); with --keep: how long to record (default: 30)",
    )
    watch.set_defaults(run=_watch)

    ps = _add_command(commands, "ps", "list the running sessions")
    ps.add_argument("--json", action="store_true", help="print everything about each session as JSON")
    ps.set_defaults(run=_ps)

    top = _add_command(commands, "top", "show the counters of a running session, live", parents=[session])
    top.add_argument(
        "--env",
        type=whole,
        action="append",
        metavar="K",
        help="also show the tick of environment K (its steps since the reset); may be repeated",
    )
    top.add_argument(
        "--seconds", type=seconds, metavar="S", help="stop after S seconds (default: when the run ends)"
    )
    top.set_defaults(run=_top)

    metrics = _add_command(
        commands, "metrics", "print the counters and logged values of sessions in Prometheus' text format"
    )
    metrics.add_argument(
        "name",
        nargs="?",
        help="name of the session (default: all running sessions), or with --tensorboard a history file",
    )
    metrics.add_argument("--openmetrics", action="store_true", help="print the OpenMetrics 1.0 format")
    metrics.add_argument(
        "--tensorboard",
        metavar="DIR",
        help="write a TensorBoard event file to DIR, and add to it until the run ends; for a history file, "
        "write it once and exit",
    )
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
        history=args.history,
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
    from shoal.compat.puffer import build_puffer, find_source
    from shoal.native.build import build

    output = None if args.output is None else Path(args.output)
    if args.device == "cuda":
        return _build_ptx(args, output)
    if args.option:
        raise ValueError("a library takes its options when it is used; --option is for --device cuda")
    if args.puffer:
        print(build_puffer(find_source(args.source), output=output, compiler=args.compiler))
        return 0
    print(build(args.source, output=output, compiler=args.compiler))
    return 0


def _build_ptx(args: argparse.Namespace, output: Path | None) -> int:
    from shoal.cuda.ahead import build_ahead

    if args.compiler is not None:
        raise ValueError(
            "--compiler is for libraries; the package ziglang compiles for a GPU. Leave it out, or leave out "
            "--device cuda"
        )
    source = f"puffer:{args.source}" if args.puffer else args.source
    print(build_ahead(source, dict(args.option), output=output))
    return 0


def _check(args: argparse.Namespace) -> int:
    from shoal import check

    return check.run(args.env, dict(args.option), asan=args.asan, device=args.device)


def _watch(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    if args.keep is not None and args.record is None:
        raise ShoalError("--keep chooses which episode --record writes; add --record FILE")
    if args.record is not None:
        return commands.record(args.name, args.env, args.record, args.keep, args.timeout or 30.0)
    if args.png is not None:
        return commands.picture(args.name, args.env or 0, args.png, args.timeout or 5.0)
    return commands.watch(args.name, args.host, args.port, not args.no_browser, args.history)


def _ps(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    return commands.ps(as_json=args.json)


def _top(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    return commands.top(args.name, list(dict.fromkeys(args.env or [0])), args.seconds)


def _metrics(args: argparse.Namespace) -> int:
    from shoal.viewer import commands

    return commands.metrics(args.name, args.openmetrics, args.tensorboard)


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
