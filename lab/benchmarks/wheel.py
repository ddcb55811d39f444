"""The speed of a wheel compared with a local build, and of plug-ins by zig with those of another compiler.

python lab/benchmarks/wheel.py [--wheel dist/shoal-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl] [--smoke]

Part 1: two processes, one with the wheel and one with a build of this checkout by the system's compiler, take
turns of some milliseconds at the same rows. Part 2: one process steps the bundled environments, compiled by
zig and by the system's compiler, in turns. Times are processor time of the thread. A ratio is the median over
the turns; above 1, the first of the two is faster.

The same build started twice can differ by a tenth in rows that only write memory, because its arrays lie on
other pages. So the processes of part 1 are started several times, and a row has the median over the starts.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "wheel-benchmark"
MEAN_BAR, ROW_BAR = 0.95, 0.85
BURST_S = 0.02
CARTPOLE_SIZES = (1, 8, 64, 1024, 8192)
CHILD = "--child"

Burst = Callable[[], float]  # runs for about BURST_S and returns steps per second of processor time


# ---- Rows


def make_rows(opened: ExitStack, smoke: bool) -> dict[str, Burst]:
    """Returns a burst for each row: CartPole of every size, the other environments at 1,024."""
    from shoal.native.plugin import bundled

    sizes = [(name, 1024) for name in sorted(bundled()) if name not in ("CartPole-v1", "Reef-v0")]
    rows = [*(("CartPole-v1", size) for size in CARTPOLE_SIZES), *sizes]
    rows = rows[1:3] if smoke else rows
    return {f"{name} x {size:,}": make_burst(name, size, opened) for name, size in rows}


def make_burst(env: str, num_envs: int, opened: ExitStack) -> Burst:
    import shoal

    envs = opened.enter_context(shoal.make_vec(env, num_envs, num_threads=1))
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(8)]

    def run(calls: int) -> float:
        turns = islice(cycle(actions), calls)
        start = time.thread_time()
        for action in turns:
            envs.step(action)
        return time.thread_time() - start

    run(100)
    calls = max(10, int(100 * BURST_S / max(run(100), 1e-6)))
    return lambda: calls / run(calls)


# ---- Part 1: processes that take turns


def serve(folder: str, smoke: bool) -> None:
    """Answers the name of a row with its rate; runs in a process of its own."""
    if folder:  # past an editable install, which would come first
        sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
        sys.path.insert(0, folder)
    import shoal

    with ExitStack() as opened:
        rows = make_rows(opened, smoke)
        print(json.dumps({"file": shoal.__file__, "rows": list(rows)}), flush=True)
        for line in sys.stdin:
            print(json.dumps(rows[json.loads(line)]()), flush=True)


@contextmanager
def start(folder: Path | None, smoke: bool) -> Iterator[tuple[dict[str, Any], Callable[[str], float]]]:
    command = [sys.executable, __file__, CHILD, "" if folder is None else str(folder)]
    command += ["--smoke"] if smoke else []
    with subprocess.Popen(
        command, cwd=ROOT / "lab", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        lines, answers = child.stdin, child.stdout

        def ask(row: str) -> float:
            print(json.dumps(row), file=lines, flush=True)
            return float(json.loads(answers.readline()))

        try:
            yield json.loads(answers.readline()), ask
        finally:
            lines.close()


def compare_installs(
    wheel: Path | None, local: Path | None, rounds: int, starts: int, smoke: bool
) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for number in range(starts):
        with start(wheel, smoke) as (facts, ask_wheel), start(local, smoke) as (others, ask_local):
            if number == 0:
                print(f"wheel: {facts['file']}\nlocal: {others['file']}")
            asks = {"wheel": ask_wheel, "local": ask_local}
            for row in facts["rows"]:
                one = ratio(lambda who, row=row, asks=asks: asks[who](row), "wheel", "local", rounds)
                found.setdefault(row, []).append(one)
    return {row: statistics.median(ratios) for row, ratios in found.items()}


def ratio(measure: Callable[[str], float], ours: str, theirs: str, rounds: int) -> float:
    """Returns the median of ours / theirs; each pair runs side by side, and the first one changes."""
    found = []
    for turn in range(rounds):
        order = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        rates = {who: measure(who) for who in order}
        found.append(rates[ours] / rates[theirs])
    return statistics.median(found)


def install(folder: Path, package: str, *flags: str) -> Path:
    """Installs Shoal alone into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run([*command, *flags, "--target", str(folder), package], check=True)
    return folder


# ---- Part 2: compilers


def compare_compilers(rounds: int, smoke: bool) -> dict[str, float] | None:
    """Returns zig / system for each bundled environment; None if shoal or one of the compilers is missing."""
    try:
        from shoal.errors import BuildError
        from shoal.native import compilers
        from shoal.native.build import build
    except ImportError:  # part 1 needs no shoal in this Python
        return None
    zig = compilers.find_zig()
    if zig is None or not any(map(shutil.which, compilers.LANGUAGES[".c"].compilers)):
        return None
    target = compilers.zig_target()
    commands = {"zig": f"'{zig}' cc {' '.join(target)}", "system": None}
    sources = sorted(path for path in (ROOT / "envs").glob("*/*.c") if path.stem != "reef")
    found = {}
    with ExitStack() as opened:
        for source in sources[1:2] if smoke else sources:
            try:
                libraries = {
                    who: build(source, compiler=command, flags=[f"-I{ROOT / 'envs'}"])
                    for who, command in commands.items()
                }
            except BuildError as error:
                sys.exit(f"{source.stem} was not compiled: {error}")
            bursts = {who: make_burst(str(library), 1024, opened) for who, library in libraries.items()}
            found[f"{source.stem} x 1,024"] = ratio(
                lambda who, bursts=bursts: bursts[who](), "zig", "system", rounds
            )
    return found


# ---- Report


def report(title: str, ratios: dict[str, float]) -> bool:
    """Prints the ratios and their mean; returns whether they reach the bars."""
    print(f"\n{title}")
    for row, value in ratios.items():
        print(f"  {row:32} {value:6.2f}{'' if value >= ROW_BAR else '   below ' + str(ROW_BAR)}")
    mean = math.exp(statistics.fmean(math.log(value) for value in ratios.values()))
    lowest = min(ratios, key=lambda row: ratios[row])
    print(
        f"  geometric mean {mean:.3f} (bar {MEAN_BAR}), lowest {ratios[lowest]:.2f}: {lowest} (bar {ROW_BAR})"
    )
    return mean >= MEAN_BAR and ratios[lowest] >= ROW_BAR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--wheel", type=Path, help="the wheel; without it, the newest of dist/ for this Python"
    )
    parser.add_argument("--rounds", type=int, default=21, help="turns of each row, for each start")
    parser.add_argument("--starts", type=int, default=5, help="how often the processes are started")
    parser.add_argument(
        "--smoke", action="store_true", help="two rows, no wheel and no build; figures mean nothing"
    )
    parser.add_argument(CHILD, dest="child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        serve(args.child, args.smoke)
        return 0
    rounds, starts = (1, 1) if args.smoke else (args.rounds, args.starts)
    wheel = local = None
    if not args.smoke:
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}-"
        suiting = [*(ROOT / "dist").glob(f"*{tag}*x86_64.whl"), *(ROOT / "dist").glob("*abi3*x86_64.whl")]
        chosen = args.wheel or next(iter(suiting), None)
        if chosen is None or not chosen.is_file():
            missing = chosen or "for this Python in dist/"
            parser.error(f"there is no wheel {missing}: run make wheels first")
        wheel = install(BUILD / "wheel", str(chosen))
        local = install(BUILD / "local", str(ROOT), "--no-build-isolation")
    reached = report(
        "wheel / local build, steps per second", compare_installs(wheel, local, rounds, starts, args.smoke)
    )
    ratios = compare_compilers(rounds, args.smoke)
    if ratios is None:
        print("\nnot compared: compilers; this needs shoal, ziglang and a compiler of the system")
    else:
        reached &= report("plug-ins: zig / system compiler, steps per second", ratios)
    return 0 if reached or args.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
