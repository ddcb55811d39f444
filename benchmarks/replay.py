"""Replay buffers side by side: Shoal, cpprb, SB3, Tianshou, TorchRL and a NumPy ring, interleaved in one run.

python benchmarks/replay.py [--bursts 15] [--images]       what is not installed is left out

Rows are (obs, action, reward, next_obs, done); sizes as said. Single-process, since most peers are.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from interleave import Burst, Timing, interleave_bursts, undisturbed

import shoal
from shoal.replay import PrioritizedSampler, ReplayBuffer

BATCH = 256
Call = Callable[[], object]


def rows_of(count: int, shape: tuple[int, ...], dtype: type) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 255, (count, *shape)).astype(dtype)
    return {
        "obs": obs,
        "action": rng.integers(0, 4, count),
        "reward": rng.random(count).astype(np.float32),
        "next_obs": obs[::-1].copy(),
        "done": np.zeros(count, np.bool_),
    }


class Shoal:
    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: type) -> None:
        fields = {
            "obs": (dtype, shape),
            "action": (np.int64, ()),
            "reward": (np.float32, ()),
            "next_obs": (dtype, shape),
            "done": (np.bool_, ()),
        }
        self.buffer = ReplayBuffer(capacity, fields, seed=0)
        self.out: Any = None  # the first batch, filled again each time
        self.sampler: PrioritizedSampler | None = None

    def add(self, rows: dict[str, np.ndarray]) -> None:
        self.buffer.extend(rows)

    def add_one(self, rows: dict[str, np.ndarray]) -> Call:
        one = {name: array[0] for name, array in rows.items()}
        return lambda: self.buffer.push(one)

    def sample(self) -> None:
        self.out = self.buffer.sample(BATCH, self.out)

    def prioritized(self) -> Call:
        sampler, priorities = PrioritizedSampler(self.buffer, seed=0), np.random.rand(BATCH) + 0.1
        out = self.buffer._records.empty(BATCH)

        def call() -> None:
            sampler.update_priorities(sampler.sample(BATCH, 0.4, out).ids, priorities)

        return call


class Numpy:
    """A ring of arrays, `take(out=)`: what a careful user writes."""

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: type) -> None:
        self.capacity, self.at, self.rng = capacity, 0, np.random.default_rng(0)
        self.data = {
            name: np.empty((capacity, *a.shape[1:]), a.dtype) for name, a in rows_of(1, shape, dtype).items()
        }
        self.out = {name: np.empty((BATCH, *a.shape[1:]), a.dtype) for name, a in self.data.items()}

    def add(self, rows: dict[str, np.ndarray]) -> None:
        count = len(rows["done"])
        if self.at + count > self.capacity:
            self.at = 0
        for name, array in rows.items():
            self.data[name][self.at : self.at + count] = array
        self.at += count

    def add_one(self, rows: dict[str, np.ndarray]) -> Call:
        one = {name: array[0] for name, array in rows.items()}

        def call() -> None:
            at = self.at % self.capacity
            for name, value in one.items():
                self.data[name][at] = value
            self.at = at + 1

        return call

    def sample(self) -> None:
        index = self.rng.integers(0, self.capacity, BATCH)
        for name, array in self.data.items():
            array.take(index, axis=0, out=self.out[name], mode="clip")


class Cpprb:
    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: type) -> None:
        import cpprb

        self.fields = {
            "obs": {"shape": shape, "dtype": dtype},
            "action": {"dtype": np.int64},
            "reward": {},
            "next_obs": {"shape": shape, "dtype": dtype},
            "done": {"dtype": np.bool_},
        }
        self.capacity, self.module = capacity, cpprb
        self.buffer = cpprb.ReplayBuffer(capacity, self.fields)

    def add(self, rows: dict[str, np.ndarray]) -> None:
        self.buffer.add(**rows)

    def add_one(self, rows: dict[str, np.ndarray]) -> Call:
        one = {name: array[0] for name, array in rows.items()}
        return lambda: self.buffer.add(**one)

    def sample(self) -> None:
        self.buffer.sample(BATCH)

    def prioritized(self) -> Call:
        buffer = self.module.PrioritizedReplayBuffer(self.capacity, self.fields)
        rows = rows_of(50_000, self.fields["obs"]["shape"], self.fields["obs"]["dtype"])
        for _ in range(self.capacity // 50_000):
            buffer.add(**rows)
        priorities = np.random.rand(BATCH) + 0.1

        def call() -> None:
            buffer.update_priorities(buffer.sample(BATCH, 0.4)["indexes"], priorities)

        return call


class Sb3:
    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: type) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer as Theirs

        space = Box(0, 255, shape, dtype)
        plain = {"device": "cpu", "handle_timeout_termination": False}  # rows as the others keep them
        self.many = Theirs(capacity, space, Discrete(4), n_envs=64, **plain)
        self.one = Theirs(1000, space, Discrete(4), n_envs=1, **plain)
        self.infos: list[dict[str, Any]] = [{} for _ in range(64)]

    def add(self, rows: dict[str, np.ndarray]) -> None:
        if len(rows["done"]) == 64:
            r = rows
            self.many.add(r["obs"], r["next_obs"], r["action"], r["reward"], r["done"], self.infos)
            return
        for begin in range(0, len(rows["done"]) // 64 * 64, 64):
            self.add({name: array[begin : begin + 64] for name, array in rows.items()})

    def add_one(self, rows: dict[str, np.ndarray]) -> Call:
        r = {name: array[:1] for name, array in rows.items()}
        return lambda: self.one.add(r["obs"], r["next_obs"], r["action"], r["reward"], r["done"], [{}])

    def sample(self) -> None:
        self.many.sample(BATCH)


class Tianshou:
    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: type) -> None:
        from tianshou.data import Batch
        from tianshou.data import ReplayBuffer as Theirs

        self.batch, self.buffer = Batch, Theirs(capacity)

    def _row(self, rows: dict[str, np.ndarray], i: int) -> Any:
        return self.batch(
            obs=rows["obs"][i], act=rows["action"][i], rew=rows["reward"][i], terminated=rows["done"][i],
            truncated=False, obs_next=rows["next_obs"][i], info={},
        )  # fmt: skip

    def add(self, rows: dict[str, np.ndarray]) -> None:
        for i in range(len(rows["done"])):
            self.buffer.add(self._row(rows, i))

    def add_one(self, rows: dict[str, np.ndarray]) -> Call:
        row = self._row(rows, 0)
        return lambda: self.buffer.add(row)

    def sample(self) -> None:
        self.buffer.sample(BATCH)


class TorchRl:
    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: type) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        self.torch, self.dict = torch, TensorDict
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=BATCH)

    def _rows(self, rows: dict[str, np.ndarray]) -> Any:
        tensors = {name: self.torch.from_numpy(np.ascontiguousarray(array)) for name, array in rows.items()}
        return self.dict(tensors, batch_size=[len(rows["done"])])

    def add(self, rows: dict[str, np.ndarray]) -> None:
        self.buffer.extend(self._rows(rows))

    def add_one(self, rows: dict[str, np.ndarray]) -> Call:
        one = self._rows({name: array[:1] for name, array in rows.items()})[0]
        return lambda: self.buffer.add(one)

    def sample(self) -> None:
        self.buffer.sample()


RIVALS: dict[str, Any] = {
    "shoal": Shoal,
    "cpprb": Cpprb,
    "sb3": Sb3,
    "tianshou": Tianshou,
    "torchrl": TorchRl,
    "numpy ring": Numpy,
}


def bare_gather(shoal_rival: Shoal, capacity: int, directory: Path) -> Burst | None:
    """The C loop over records of the same shape; None without a compiler."""
    library = directory / "gather.so"
    source = Path(__file__).parent / "gather.c"
    compiler = [
        os.environ.get("CC", "cc"),
        "-O3",
        "-march=native",
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        str(library),
    ]
    try:
        subprocess.run(compiler, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    loaded = ctypes.CDLL(str(library))
    records = shoal_rival.buffer._records
    columns = list(records.columns.values())
    number = len(columns)
    offsets = (ctypes.c_uint64 * number)(*(c.offset for c in columns))
    sizes = (ctypes.c_uint64 * number)(*(c.size_bytes for c in columns))
    shoal_rival.sample()
    out = (ctypes.c_void_p * number)(*(a.ctypes.data for a in shoal_rival.out.values()))
    rows = ctypes.c_void_p(records.segment["rows"].ctypes.data)
    u64 = ctypes.c_uint64

    def burst(count: int) -> float:
        import time

        begin = time.perf_counter()
        loaded.gather(
            rows, u64(capacity), u64(records.stride), u64(number), offsets, sizes, out, u64(BATCH), u64(count)
        )
        return time.perf_counter() - begin

    return burst


def step_adders(bursts: int) -> None:
    """One step of 64 environments, as a training loop adds it; SB3 as it comes looks for timeouts, too."""
    rows = rows_of(64, (4,), np.float32)
    flags, rewards = np.zeros(64, np.bool_), rows["reward"].astype(np.float64)
    envs = shoal.make_vec("CartPole-v1", 64)
    buffer = ReplayBuffer.for_env(envs, 100_000)
    buffer.begin(envs.reset(seed=0)[0])
    actions = rows["action"] % 2
    calls: dict[str, Call] = {"shoal": lambda: buffer.add(actions, rows["obs"], rewards, flags, flags, {})}
    try:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer as Theirs
    except ImportError:
        print("(sb3 is not installed)")
    else:
        infos: list[dict[str, Any]] = [{} for _ in range(64)]
        for name, timeouts in (("sb3", True), ("sb3, no timeouts", False)):
            theirs = Theirs(
                100_000, Box(0, 255, (4,), np.float32), Discrete(4), n_envs=64, device="cpu",
                handle_timeout_termination=timeouts,
            )  # fmt: skip
            calls[name] = lambda theirs=theirs: theirs.add(
                rows["obs"], rows["next_obs"], actions, rewards, flags, infos
            )
    show("a step of 64 environments", interleave_bursts(bursts_of(calls), bursts))
    envs.close()
    buffer.close()


def show(title: str, timings: dict[str, Timing]) -> None:
    print(f"\n{title}")
    ours = timings["shoal"]
    for name, timing in sorted(timings.items(), key=lambda item: item[1].median_s):
        print(f"  {name:12} {timing}   {timing.median_s / ours.median_s:8.2f} of shoal's")


def bursts_of(calls: dict[str, Call]) -> dict[str, Burst]:
    from interleave import _repeated

    return {name: undisturbed(_repeated(call)) for name, call in calls.items()}


def compare(
    title: str, capacity: int, shape: tuple[int, ...], dtype: type, bursts: int, only: set[str]
) -> None:
    """Fills every buffer, then times pushes and draws."""
    rivals: dict[str, Any] = {}
    step = min(5000, capacity)
    rows = rows_of(step, shape, dtype)
    for name, kind in RIVALS.items():
        if name not in only:
            continue
        try:
            rival = kind(capacity, shape, dtype)
        except ImportError:
            print(f"({name} is not installed)")
            continue
        for _ in range(capacity // step):
            rival.add(rows)
        rivals[name] = rival
    samples = bursts_of({name: rival.sample for name, rival in rivals.items()})
    with tempfile.TemporaryDirectory() as directory:
        bare = bare_gather(rivals["shoal"], capacity, Path(directory))
        if bare is not None:
            samples["bare C"] = undisturbed(bare)
        show(f"{title}: sample({BATCH}) of {capacity:,} rows", interleave_bursts(samples, bursts))
    batch = {name: array[:64].copy() for name, array in rows.items()}
    pushes = {name: (lambda rival=rival: rival.add(batch)) for name, rival in rivals.items()}
    show(f"{title}: a batch of 64", interleave_bursts(bursts_of(pushes), bursts))
    ones = {name: rival.add_one(rows) for name, rival in rivals.items()}
    show(f"{title}: one push", interleave_bursts(bursts_of(ones), bursts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=15, help="turns of each rival (default: %(default)s)")
    parser.add_argument("--images", action="store_true", help="84x84x4 frames too (several GB)")
    args = parser.parse_args()
    print(f"shoal {shoal.__version__}, numpy {np.__version__}, Python {platform.python_version()}")
    everybody = set(RIVALS)
    step_adders(args.bursts)
    compare("4 floats", 100_000, (4,), np.float32, args.bursts, everybody)
    compare("376 floats", 100_000, (376,), np.float32, args.bursts, everybody - {"tianshou"})
    if args.images:
        compare("84x84x4", 20_000, (84, 84, 4), np.uint8, args.bursts, {"shoal", "cpprb", "numpy ring"})
    calls: dict[str, Call] = {}
    for name in ("shoal", "cpprb"):
        try:
            rival = RIVALS[name](1_000_000, (4,), np.float32)
        except ImportError:
            continue
        if name == "shoal":
            for _ in range(200):
                rival.add(rows_of(5000, (4,), np.float32))
        calls[name] = rival.prioritized()
    show(
        f"prioritized sample({BATCH}) and update, 1,000,000 rows",
        interleave_bursts(bursts_of(calls), args.bursts),
    )


if __name__ == "__main__":
    main()
