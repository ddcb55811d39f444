"""Thread scaling: environments of about a microsecond a step, Shoal's pool against a bare pthread loop.

    python benchmarks/scaling.py [--threads 1 2 4 8 16] [--num-envs 8192]

The bare loop's threads never wait for each other: it is what the cores can do.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
from interleave import interleave

import shoal
from shoal import _core
from shoal.native.build import build

STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cores = _core.cpu_count()
    counts = [1 << i for i in range(cores.bit_length()) if 1 << i <= cores]
    parser.add_argument("--threads", type=int, nargs="+", default=counts)
    parser.add_argument("--num-envs", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=300, help="work per step (default: %(default)s)")
    parser.add_argument("--bursts", type=int, default=9)
    args = parser.parse_args()
    library = build(Path(__file__).with_name("busy.c"))
    bare = ctypes.CDLL(str(library)).bare_loop
    bare.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 3, ctypes.c_int64]
    memory = np.arange(args.num_envs * 8, dtype=np.uint64)
    actions = np.zeros(args.num_envs, np.int64)
    rivals: dict[str, Callable[[], object]] = {}
    for threads in args.threads:
        envs = shoal.make_vec(library, args.num_envs, num_threads=threads, turns=args.turns)
        envs.reset(seed=0)

        def steps(envs: shoal.VectorEnv = envs) -> None:
            for _ in range(STEPS):
                envs.step(actions)

        def loop(threads: int = threads) -> None:
            bare(memory.ctypes.data, args.num_envs, threads, STEPS, args.turns)

        rivals[f"shoal {threads}"], rivals[f"bare {threads}"] = steps, loop
    times = interleave(rivals, args.bursts, 0.1)
    first = args.threads[0]
    total = args.num_envs * STEPS
    print(f"{args.num_envs} environments, {cores} cores, {args.bursts} bursts each, medians")
    print(
        f"{'threads':>8} {'Shoal':>12} {'bare loop':>12}  steps/s; {'scaling':>10} {'bare':>8} {'ratio':>7}"
    )
    for threads in args.threads:
        ours, theirs = times[f"shoal {threads}"].median_s, times[f"bare {threads}"].median_s
        scaling = times[f"shoal {first}"].median_s / ours
        bound = times[f"bare {first}"].median_s / theirs
        rates = f"{threads:>8} {total / ours:>12,.0f} {total / theirs:>12,.0f}"
        print(f"{rates} {scaling:>7.2f}x {bound:>7.2f}x {scaling / bound:>6.2f}")


if __name__ == "__main__":
    main()
