"""Runs every PufferLib environment below a folder and prints a table: make test-puffer SRC=../PufferLib

Each runs in a process of its own: 100,000 steps with random actions, then twice the same seed for the same
bytes. `--asan` builds the environments with AddressSanitizer and stops at its first report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Worlds that are large by default, smaller: a step of theirs takes milliseconds. And what no .ini says.
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "3.0": {
        "nmmo3": {"num_players": 64},  # the map as it is: on a small one it looks for room for ever
        "convert": {"num_agents": 64},
        "school": {"num_agents": 64},
        "snake": {"num_snakes": 16, "width": 64, "height": 64, "num_food": 64},
    },
    "4.0": {
        "convert": {"num_agents": 64},
        "chess": {"agents": 2},
        "moba": {"num_envs": 1, "agents": 80},  # 16 games share a table of 256 MiB
        "nmmo3": {"num_agents": 64},
        "snake": {"num_agents": 16, "width": 64, "height": 64, "num_food": 64},
        "squared_continuous": {"size": 11},
    },
    "5.0": {},
}  # fmt: skip


def options(path: Path) -> dict[str, Any]:
    from shoal.compat.puffer import find_source

    return OPTIONS[find_source(path).contract].get(path.name, {})


def folders(root: Path) -> list[Path]:
    """Every folder that looks like an environment, or was meant to be one."""
    found = {path.parent for path in root.rglob("binding.c")}
    for header in root.rglob("*.h"):
        if header.stem == header.parent.name and "pufferenv.h" in header.read_text(errors="replace"):
            found.add(header.parent)
    return sorted(found, key=lambda path: path.name)


def digest(path: Path, steps: int, num_envs: int, seed: int) -> tuple[str, Any]:
    """A hash of all that comes out of so many steps, and the environments, still open."""
    import numpy as np

    import shoal

    chosen = {"num_envs": num_envs, **options(path)}
    envs = shoal.make_vec(f"puffer:{path}", session=None, **chosen)
    observation, _ = envs.reset(seed=seed)
    rows = envs.num_envs
    envs.single_action_space.seed(seed)
    table = np.stack([envs.single_action_space.sample() for _ in range(256)])
    rng = np.random.default_rng(seed)
    digested = hashlib.sha256()
    for _ in range(-(-steps // chosen["num_envs"])):
        observation, rewards, ends, _, _ = envs.step(table[rng.integers(0, 256, rows)])
        for part in observation.values() if isinstance(observation, dict) else [observation]:
            digested.update(part.tobytes())
        digested.update(rewards.tobytes() + ends.tobytes())
    return digested.hexdigest(), envs


def child(path: Path, steps: int, report: Path) -> None:
    from shoal.compat.puffer import find_source, prepare

    facts: dict[str, Any] = {"contract": find_source(path).contract}

    def tell(**more: Any) -> None:
        facts.update(more)
        report.write_text(json.dumps(facts))

    tell()
    ready = prepare(path, {name: value for name, value in options(path).items() if name != "num_envs"})
    tell(compiles=True, shared=len(ready.writable_globals))
    started = time.monotonic()
    _, envs = digest(path, steps, 16, 7)
    tell(runs=True, seconds=time.monotonic() - started, agents=envs.agents_per_env)
    tell(state=sorted(envs.state(0)))
    first = digest(path, 2000, 4, 1)
    second = digest(path, 2000, 4, 1)
    tell(same=first[0] == second[0])
    for one in (envs, first[1], second[1]):
        one.close()
    tell(closes=True)


def row(path: Path, steps: int, asan: bool, limit_s: float, scratch: Path) -> tuple[bool, str]:
    report = scratch / f"{path.name}.json"
    report.unlink(missing_ok=True)
    environment = dict(os.environ)
    if asan:
        compiler = environment.get("CC", "cc")
        names = subprocess.run(
            [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
        environment |= {
            "CC": f"{compiler} -g -O1 -fno-omit-frame-pointer -fsanitize=address",
            "LD_PRELOAD": names.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        }
    command = [sys.executable, __file__, "--child", str(path), "--steps", str(steps), "--report", str(report)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
        said, code = done.stderr + done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        said, code = (error.stderr or b"").decode(errors="replace"), -1
    facts = json.loads(report.read_text()) if report.exists() else {}
    (scratch / f"{path.name}.txt").write_text(said)
    note = ""
    if code != 0:
        report_line = re.search(r"ERROR: AddressSanitizer: .*", said)
        frame = re.search(r"#\d+ \S+ in (\S+) \S*/(\w[^/\s]*\.[ch]:\d+)", said)
        lines = [line for line in said.strip().splitlines() if line.strip()]
        note = f"did not end in {limit_s:.0f} s" if code == -1 else (lines[-1] if lines else f"status {code}")
        found = re.findall(r"shoal\.errors\.\w+: (.*)", said)
        note = found[-1] if found else note
        if report_line:
            note = report_line.group(0).split(": ", 2)[-1].split(" on address")[0]
            note += f" in {frame.group(1)} ({frame.group(2)})" if frame else ""
    marks = ["yes" if facts.get(key) else "no" for key in ("compiles", "runs", "same")]
    state = ", ".join(facts.get("state", [])) or "-"
    if facts.get("shared"):
        note = f"{facts['shared']} globals, one thread" + (f"; {note}" if note else "")
    speed = f"{steps / facts['seconds'] / 1000:.0f}k" if facts.get("seconds") else "-"
    cells = [
        path.name,
        facts.get("contract", "?"),
        *marks,
        str(facts.get("agents", "-")),
        speed,
        state,
        note[:160],
    ]
    return bool(facts.get("runs")), "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--asan", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one environment")
    parser.add_argument("--scratch", type=Path, default=Path("build/puffer"))
    parser.add_argument("--child", type=Path)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    if args.child is not None:
        child(args.child, args.steps, args.report)
        return 0
    args.scratch.mkdir(parents=True, exist_ok=True)
    print("| environment | contract | compiles | runs | deterministic | agents | steps/s | state | notes |")
    print("|---|---|---|---|---|---|---|---|---|")
    good = total = 0
    for path in folders(args.root):
        if args.only and path.name not in args.only:
            continue
        ran, line = row(path, args.steps, args.asan, args.limit, args.scratch)
        total, good = total + 1, good + ran
        print(line, flush=True)
    print(f"\n{good} of {total} ran {args.steps:,} steps{' under AddressSanitizer' if args.asan else ''}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
