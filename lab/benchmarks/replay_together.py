"""Two processes that push batches of 64 while this one samples: rows a second, and whether any was torn.

python lab/benchmarks/replay_together.py [--seconds 2] [--turns 5] [--smoke]

Shoal, cpprb's multi-process buffer, and a NumPy ring in shared memory without any lock, in turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from statistics import median
from typing import Any

import numpy as np

from shoal.replay import ReplayBuffer

CAPACITY, ROWS, BATCH, WRITERS = 100_000, 64, 256, 2
FIELDS: dict[str, Any] = {
    "obs": (np.float32, (4,)),
    "action": (np.int64, ()),
    "reward": (np.float32, ()),
    "next_obs": (np.float32, (4,)),
    "done": (np.bool_, ()),
}


def rows_of(number: int) -> dict[str, np.ndarray]:
    """Rows whose every number is the same, so that a torn one shows."""
    return {name: np.full((ROWS, *shape), number % 97, dtype) for name, (dtype, shape) in FIELDS.items()}


def torn(batch: Any) -> int:
    """Rows of a sample whose numbers are not all the same."""
    action = np.asarray(batch["action"]).reshape(-1)
    same = (np.asarray(batch["obs"]) == action[:, None]).all(1)
    same &= (np.asarray(batch["next_obs"]) == action[:, None]).all(1)
    same &= np.asarray(batch["reward"]).reshape(-1) == action
    return int((~same).sum())


class Shoal:
    def __init__(self) -> None:
        self.buffer = ReplayBuffer(CAPACITY, FIELDS, seed=0)
        self.out = self.buffer._records.empty(BATCH)

    def push(self, rows: dict[str, np.ndarray]) -> None:
        self.buffer.extend(rows)

    def sample(self) -> Any:
        return self.buffer.sample(BATCH, self.out)

    def close(self) -> None:
        self.buffer.close()


class Cpprb:
    def __init__(self) -> None:
        import cpprb

        fields = {name: {"shape": shape or 1, "dtype": dtype} for name, (dtype, shape) in FIELDS.items()}
        self.buffer = cpprb.MPReplayBuffer(CAPACITY, fields)

    def push(self, rows: dict[str, np.ndarray]) -> None:
        self.buffer.add(**rows)

    def sample(self) -> Any:
        return self.buffer.sample(BATCH)

    def close(self) -> None:
        pass


class Unlocked:
    """What is given up without a protocol: as fast as stores are, and torn at times."""

    def __init__(self) -> None:
        self.arrays, self.memories = {}, []
        for name, (dtype, shape) in FIELDS.items():
            size = CAPACITY * int(np.prod(shape)) * np.dtype(dtype).itemsize
            self.memories.append(shared_memory.SharedMemory(create=True, size=size))
            self.arrays[name] = np.ndarray((CAPACITY, *shape), dtype, self.memories[-1].buf)
        self.at, self.rng = 0, np.random.default_rng(0)
        self.out = {name: np.empty((BATCH, *a.shape[1:]), a.dtype) for name, a in self.arrays.items()}

    def push(self, rows: dict[str, np.ndarray]) -> None:
        if self.at + ROWS > CAPACITY:
            self.at = 0
        for name, array in rows.items():
            self.arrays[name][self.at : self.at + ROWS] = array
        self.at += ROWS

    def sample(self) -> Any:
        index = self.rng.integers(0, CAPACITY, BATCH)
        for name, array in self.arrays.items():
            array.take(index, axis=0, out=self.out[name], mode="clip")
        return self.out

    def close(self) -> None:
        self.arrays.clear()
        for memory in self.memories:
            memory.close()
            memory.unlink()


def write(rival: Any, number: int, until: Any, pushed: Any) -> None:
    batches = [rows_of(number * 50 + i) for i in range(50)]
    turn = 0
    while turn == 0 or time.monotonic() < until.value:
        for _ in range(50):
            rival.push(batches[turn % 50])
            turn += 1
    pushed[number] = turn * ROWS


def run(kind: Callable[[], Any], seconds: float) -> tuple[float, float, int]:
    """Rows pushed a second, samples drawn a second, torn rows seen."""
    context = multiprocessing.get_context("fork")
    rival = kind()
    for number in range(CAPACITY // ROWS + 1):
        rival.push(rows_of(number))
    until, pushed = context.Value("d", 0.0, lock=False), context.Array("Q", WRITERS, lock=False)
    until.value = begin = time.monotonic()
    until.value = begin + seconds
    writers = [context.Process(target=write, args=(rival, n, until, pushed)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    samples = bad = 0
    while samples == 0 or time.monotonic() < until.value:
        bad += torn(rival.sample())
        samples += 1
    for writer in writers:
        writer.join()
    rival.close()
    return sum(pushed) / seconds, samples / seconds, bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="a turn of each (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="of each (default: %(default)s)")
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: one short turn of each, without cpprb"
    )
    args = parser.parse_args()
    if args.smoke:
        args.seconds, args.turns = 0.1, 1
    rivals: dict[str, Callable[[], Any]] = {"shoal": Shoal, "cpprb": Cpprb, "no lock, NumPy": Unlocked}
    if args.smoke or importlib.util.find_spec("cpprb") is None:
        print("(cpprb is left out by --smoke)" if args.smoke else "(cpprb is not installed)")
        del rivals["cpprb"]
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in rivals}
    for _ in range(args.turns):
        for name, kind in rivals.items():
            found[name].append(run(kind, args.seconds))
    ours = median(turn[0] for turn in found["shoal"])
    print(f"{WRITERS} processes push batches of {ROWS}, one samples {BATCH}; medians of {args.turns} turns")
    for name, turns in found.items():
        rate, drawn, bad = median(t[0] for t in turns), median(t[1] for t in turns), sum(t[2] for t in turns)
        shown = f"{rate / 1e6:8.2f} M rows/s pushed, {drawn:9,.0f} samples/s, {bad} torn rows"
        print(f"  {name:15} {shown}   shoal pushes {ours / rate:.2f}x")


if __name__ == "__main__":
    main()
