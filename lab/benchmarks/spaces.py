"""Writing and reading spaces in shared memory: Shoal against Gymnasium, interleaved in one run.

make bench            or    python lab/benchmarks/spaces.py [--bursts 25] [--smoke]
"""

from __future__ import annotations

import argparse
import platform

import gymnasium
import gymnasium.vector.utils as theirs
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Text, Tuple

import shoal
import shoal.spaces as ours
from shoal_lab.bench.interleave import interleave

CASES: dict[str, Space] = {
    "Box(4,) float32": Box(-1, 1, (4,)),
    "Dict of four Box(4,)": Dict({key: Box(-1, 1, (4,)) for key in "abcd"}),
    "Box(84, 84, 4) uint8": Box(0, 255, (84, 84, 4), np.uint8),
    "Discrete": Discrete(5),
    "Dict of Dict and Tuple": Dict(
        a=Dict(b=Box(-1, 1, (8,)), c=Discrete(3)), d=Tuple((Discrete(2), Box(0, 1)))
    ),
    "Text(8)": Text(8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=25, help="turns of each rival (default: %(default)s)")
    parser.add_argument("--num-envs", type=int, default=64, help="rows of the memory (default: %(default)s)")
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: one short turn of each rival"
    )
    args = parser.parse_args()
    if args.smoke:
        args.bursts = 1
    n = args.num_envs
    print(
        f"shoal {shoal.__version__}, gymnasium {gymnasium.__version__}, numpy {np.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}; {n} rows, {args.bursts} bursts each; "
        "median [quartiles]"
    )
    print(f"{'':34} {'Gymnasium':>32} {'Shoal':>32} {'ratio':>7}")
    for name, space in CASES.items():
        space.seed(0)
        value = space.sample()
        memories = {
            "theirs": theirs.create_shared_memory(space, n),
            "ours": ours.create_shared_memory(space, n),
        }
        for verb in ("write", "read"):
            rivals = {}
            for who, functions in (("theirs", theirs), ("ours", ours)):
                memory = memories[who]
                if verb == "write":
                    call = functions.write_to_shared_memory
                    rivals[who] = lambda c=call, s=space, v=value, m=memory: c(s, 3, v, m)
                else:
                    call = functions.read_from_shared_memory
                    rivals[who] = lambda c=call, s=space, m=memory: c(s, m, n)
            times = interleave(rivals, args.bursts, 0.001 if args.smoke else 0.02)
            ratio = times["theirs"].median_s / times["ours"].median_s
            print(f"{verb + ' ' + name:34} {times['theirs']!s:>32} {times['ours']!s:>32} {ratio:6.1f}x")


if __name__ == "__main__":
    main()
