"""Compares PufferLib's environments in Shoal and in PufferLib's own binding, in one run.

python lab/benchmarks/puffer.py ../PufferLib/pufferlib/ocean --envs 1024 [--smoke]

The binding is compiled here from the same checkout with the flags of its setup.py (-O2 -flto -DNDEBUG), and
called like the environment's Python class does it: actions are copied into its array, then vec_step is
called. Shoal checks actions and returns results that do not change; the binding overwrites them.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.compat.puffer import find_source
from shoal.compat.puffer.constructor import run_constructor
from shoal.compat.puffer.options import read_config
from shoal_lab.bench.interleave import Timing, interleave_bursts, undisturbed

clock = time.perf_counter


def compile_binding(folder: Path, scratch: Path) -> Any:
    """Compiles and imports PufferLib's binding of an environment."""
    raylib = next((path for above in folder.parents for path in above.glob("raylib-*_linux_amd64")), None)
    if raylib is None:
        raise SystemExit(f"no raylib-*_linux_amd64 above {folder}: PufferLib's binding needs it")
    target = scratch / folder.name / "binding.so"
    target.parent.mkdir()
    command = [os.environ.get("CC", "cc"), "-O2", "-flto", "-DNDEBUG", "-fwrapv", "-fPIC", "-shared", "-w"]
    command += ["-DPLATFORM_DESKTOP", f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    command += [f"-I{raylib / 'include'}", str(folder / "binding.c"), "-o", str(target)]
    subprocess.run([*command, str(raylib / "lib" / "libraylib.a"), "-lm", "-lpthread", "-ldl"], check=True)
    loader = importlib.machinery.ExtensionFileLoader("binding", str(target))
    spec = importlib.util.spec_from_file_location("binding", target, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def make_binding_burst(folder: Path, count: int, scratch: Path, tables: list[Any]) -> Any:
    source = find_source(folder)
    assert source.python is not None
    said = run_constructor(source.python, read_config(source.config))
    binding = compile_binding(folder, scratch)
    agents, space, acted = said.agents, said.observation_space, said.action_space
    rows = count * agents
    observations = np.zeros((rows, *(space.shape or ())), space.dtype)
    text = " ".join((folder / f"{folder.name}.h").read_text().replace("*", " * ").split())
    kind = np.float32 if "float * actions" in text else np.int32
    actions = np.zeros((rows, *(acted.shape or ())), kind)
    arrays = [observations, actions, np.zeros(rows, np.float32), np.zeros(rows, bool), np.zeros(rows, bool)]
    options = dict(said.arguments)
    if said.state is not None:
        options[said.state] = binding.shared(**said.shared)
    if agents == 1:
        handle = binding.vec_init(*arrays, count, 0, **options)
    else:
        parts = [slice(i * agents, (i + 1) * agents) for i in range(count)]
        made = [binding.env_init(*(array[part] for array in arrays), 0, **options) for part in parts]
        handle = binding.vectorize(*made)
    binding.vec_reset(handle, 0)

    def burst(times: int, arrays: list[Any] = arrays) -> float:  # keeps the arrays alive
        begin = clock()
        for turn in range(times):
            actions[:] = tables[turn & 15]
            binding.vec_step(handle)
        return clock() - begin

    return burst


def make_shoal_burst(folder: Path, count: int, tables: list[Any], threads: int | None) -> Any:
    envs = shoal.make_vec(f"puffer:{folder}", count, num_threads=threads, session=None)
    envs.reset(seed=0)

    def burst(times: int) -> float:
        begin = clock()
        for turn in range(times):
            envs.step(tables[turn & 15])
        return clock() - begin

    return burst


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ocean", type=Path)
    parser.add_argument("--names", nargs="+", default=["squared", "cartpole", "breakout", "pacman", "tetris"])
    parser.add_argument("--envs", nargs="+", type=int, default=[64, 1024])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--one-thread", action="store_true", help="use one thread and measure CPU time")
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: one environment, one short round"
    )
    args = parser.parse_args()
    if args.smoke:
        args.names, args.envs, args.rounds = args.names[:1], [8], 1
    if args.one_thread:  # CPU time does not depend on the load of the machine
        global clock
        clock = time.process_time
    print("| environment | environments | PufferLib's binding | Shoal, one thread | ratio | Shoal | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in args.names:
        for count in args.envs:
            folder = (args.ocean / name).resolve()
            rng = np.random.default_rng(0)
            with shoal.make_vec(f"puffer:{folder}", count, session=None) as probe:
                space = probe.action_space
            space.seed(int(rng.integers(2**31)))
            tables = [space.sample() for _ in range(16)]
            with tempfile.TemporaryDirectory() as scratch:
                bursts = {
                    "binding": make_binding_burst(folder, count, Path(scratch), tables),
                    "one": make_shoal_burst(folder, count, tables, 1),
                }
            if not args.one_thread:
                bursts["any"] = make_shoal_burst(folder, count, tables, None)
            rivals = {name: undisturbed(burst) for name, burst in bursts.items()}
            found: dict[str, Timing] = interleave_bursts(rivals, args.rounds)
            binding, one, any_ = found["binding"], found["one"], found.get("any", found["one"])
            cells = [name, str(count), f"{binding.median_s * 1e6:.1f} us"]
            cells += [f"{one.median_s * 1e6:.1f} us", f"{one.speedup(binding):.2f}"]
            cells += [f"{any_.median_s * 1e6:.1f} us", f"{any_.speedup(binding):.2f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
