"""Replay buffers side by side: Shoal, cpprb, SB3, Tianshou, TorchRL and a NumPy ring, interleaved in one run.

python lab/benchmarks/replay.py [--bursts 15] [--images] [--smoke]      what is not installed is left out

Rows are (obs, action, reward, next_obs, done); sizes as said. "shoal" is the call as one writes it, whose
batch is held until the next is there; "shoal, out=" fills one batch again. Single-process, since most peers
are; each library lives in a Python of its own.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

import shoal
from shoal_lab.bench.compile import has_compiler
from shoal_lab.bench.interleave import Burst, Timing, interleave_bursts
from shoal_lab.bench.interpreter import Interpreter, PeerError
from shoal_lab.bench.rivals.replay import BATCH, MAKERS

RIVALS = {
    "shoal": ("shoal", "Shoal"),
    "cpprb": ("cpprb", "cpprb"),
    "sb3": ("stable_baselines3", "SB3"),
    "tianshou": ("tianshou", "Tianshou"),
    "torchrl": ("torchrl", "TorchRL"),
    "numpy ring": ("shoal", "NumPy ring"),
}
"""As the tables call them: the library and what it offers."""


class Run:
    """The interpreters, how often each rival is timed, and the tables."""

    def __init__(self, bursts: int, smoke: bool, opened: ExitStack) -> None:
        self.bursts, self.smoke = bursts, smoke
        self.interpreters: dict[str, Interpreter] = {}
        for library in MAKERS:
            if smoke and library != "shoal":
                print(f"({library} is left out by --smoke)")
                continue
            try:
                self.interpreters[library] = Interpreter(sys.executable, library, "replay")
                opened.callback(self.interpreters[library].close)
            except PeerError as error:
                if library == "shoal":
                    raise
                print(f"({library} is left out: {error})")

    def rows(self, capacity: int) -> int:
        """How many rows a buffer has in this run."""
        return 1_000 if self.smoke else capacity

    def add(self, rivals: dict[str, Burst], name: str, maker: tuple[str, str], *arguments: Any) -> None:
        library, made = maker
        if library in self.interpreters:
            rivals[name] = self.interpreters[library].make(made, *arguments)[1]

    def show(self, title: str, rivals: dict[str, Burst]) -> None:
        burst_s = None if self.smoke else 0.02  # None: one call
        timings: dict[str, Timing] = interleave_bursts(rivals, self.bursts, burst_s)
        print(f"\n{title}")
        ours = timings["shoal"]
        for name, timing in sorted(timings.items(), key=lambda item: item[1].median_s):
            print(f"  {name:16} {timing}   {timing.median_s / ours.median_s:8.2f} of shoal's")

    def compare(
        self, title: str, capacity: int, shape: tuple[int, ...], dtype: str, who: Iterable[str]
    ) -> None:
        """Fills every buffer, then times pushes and draws."""
        capacity = self.rows(capacity)
        rows = capacity, list(shape), dtype
        words = {
            "sample": f"sample({BATCH}) of {capacity:,} rows",
            "extend": "a batch of 64",
            "push": "one push",
        }
        for operation, what in words.items():
            rivals: dict[str, Burst] = {}
            for name in who:
                self.add(rivals, name, RIVALS[name], operation, *rows)
            if operation == "sample":
                self.add(rivals, "shoal, out=", RIVALS["shoal"], "sample_out", *rows)
            if operation == "sample" and has_compiler():
                self.add(rivals, "bare C", ("shoal", "bare C gather"), operation, *rows)
            self.show(f"{title}: {what}", rivals)
        self.drop()

    def step(self) -> None:
        """One step of 64 environments, as a training loop adds it; SB3 looks for timeouts, too."""
        rivals: dict[str, Burst] = {}
        rows = self.rows(100_000), [4], "float32"
        self.add(rivals, "shoal", RIVALS["shoal"], "step", *rows)
        self.add(rivals, "sb3", RIVALS["sb3"], "step", *rows)
        self.add(rivals, "sb3, no timeouts", RIVALS["sb3"], "step_no_timeouts", *rows)
        self.show("a step of 64 environments", rivals)

    def transitions(self) -> None:
        """What `for_env` keeps of CartPole: transitions, beside rows that hold both observations."""
        rivals: dict[str, Burst] = {}
        rows = self.rows(100_000), [4], "float32"
        self.add(rivals, "shoal", RIVALS["shoal"], "cartpole", *rows)
        self.add(rivals, "shoal, 3 steps", RIVALS["shoal"], "cartpole_n_step", *rows)
        for name in ("cpprb", "sb3"):
            self.add(rivals, name, RIVALS[name], "sample", *rows)
        self.show(f"for_env of CartPole: sample({BATCH}) of {rows[0]:,} rows", rivals)
        self.drop()

    def stacks(self) -> None:
        """Stacks of four frames. Tianshou can store each frame once, as Shoal does, or every stack."""
        rivals: dict[str, Burst] = {}
        rows = self.rows(10_000), [84, 84], "uint8"
        for name in ("shoal", "sb3", "tianshou"):
            self.add(rivals, name, RIVALS[name], "stack", *rows)
        self.add(rivals, "tianshou, stored", RIVALS["tianshou"], "stack_stored", *rows)
        self.show(f"stacks of 4 frames of 84x84: sample({BATCH}) of {rows[0]:,} rows", rivals)
        self.drop()

    def prioritized(self) -> None:
        rivals: dict[str, Burst] = {}
        capacity = self.rows(1_000_000)
        for name in ("shoal", "cpprb", "tianshou", "torchrl"):
            try:
                self.add(rivals, name, RIVALS[name], "prioritized", capacity, [4], "float32")
            except PeerError as error:  # TorchRL's trees are in C++, and not there for every version of torch
                if name == "shoal":
                    raise
                print(f"(without {name}: {error})")
        self.show(f"prioritized sample({BATCH}) and update, {capacity:,} rows", rivals)

    def drop(self) -> None:
        for interpreter in self.interpreters.values():
            interpreter.drop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=15, help="turns of each rival (default: %(default)s)")
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: small buffers and no peers, in seconds"
    )
    parser.add_argument("--images", action="store_true", help="84x84x4 frames too (several GB)")
    args = parser.parse_args()
    print(f"shoal {shoal.__version__}, numpy {np.__version__}, Python {platform.python_version()}")
    everybody = list(RIVALS)
    with ExitStack() as opened:
        run = Run(1 if args.smoke else args.bursts, args.smoke, opened)
        run.step()
        run.transitions()
        run.compare("4 floats", 100_000, (4,), "float32", everybody)
        fewer = [name for name in everybody if name != "tianshou"]
        run.compare("376 floats", 100_000, (376,), "float32", fewer)
        if args.images:
            run.compare("84x84x4", 20_000, (84, 84, 4), "uint8", ("shoal", "cpprb", "numpy ring"))
            run.stacks()
        run.prioritized()


if __name__ == "__main__":
    main()
