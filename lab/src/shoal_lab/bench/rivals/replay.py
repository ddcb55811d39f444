"""Replay buffers: Shoal, a bare gather in C, a NumPy ring, and the peers.

Rows are (obs, action, reward, next_obs, done). A rival is made from an operation, a capacity, the shape and
the type of observations; its buffer is filled once and serves every operation.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_lab.bench.interleave import Burst, repeated, undisturbed

__all__ = ["BATCH", "MAKERS", "drop", "rows_of"]

BATCH = 256
"""Rows of one sample."""
Call = Callable[[], object]
Rows = dict[str, NDArray[Any]]
Shape = tuple[int, ...]


def rows_of(count: int, shape: Shape, dtype: str) -> Rows:
    """Different rows, the same each time."""
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 255, (count, *shape)).astype(dtype)
    return {
        "obs": obs,
        "action": rng.integers(0, 4, count),
        "reward": rng.random(count).astype(np.float32),
        "next_obs": obs[::-1].copy(),
        "done": np.zeros(count, np.bool_),
    }


def priorities_of(count: int) -> NDArray[Any]:
    """Of so many rows, the same each time."""
    return np.random.default_rng(0).random(count) + 0.1


class Rival:
    """A buffer that can be filled; each operation is a method that returns what to time."""

    def __init__(self, capacity: int, shape: Shape, dtype: str) -> None:
        self.capacity, self.shape, self.dtype = capacity, shape, dtype

    def add(self, rows: Rows) -> None:
        raise NotImplementedError

    def sample(self) -> Call:
        raise NotImplementedError

    def extend(self) -> Call:
        """A batch of 64 rows."""
        rows = rows_of(64, self.shape, self.dtype)
        return lambda: self.add(rows)

    def push(self) -> Call:
        """One row."""
        raise NotImplementedError

    def prioritized(self) -> Call:
        """A draw by priorities, and new priorities for what was drawn; of a buffer that this fills."""
        raise NotImplementedError

    def step(self) -> Call:
        """A step of 64 environments, as a training loop adds it."""
        raise NotImplementedError

    def stack(self) -> Call:
        """Transitions of stacks of four frames; of a buffer that this fills."""
        raise NotImplementedError

    def one(self) -> Rows:
        return {name: array[0] for name, array in rows_of(1, self.shape, self.dtype).items()}

    def close(self) -> None:
        pass


STACK = 4
EPISODE = 500
"""Frames of one episode in buffers of stacks."""


def frames_of(count: int, shape: Shape, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Different frames, and whether an episode ends with each."""
    frames = np.random.default_rng(0).integers(0, 255, (count, *shape)).astype(dtype)
    return frames, np.arange(1, count + 1) % EPISODE == 0


def fill(rival: Rival) -> None:
    step = min(5000, rival.capacity)
    rows = rows_of(step, rival.shape, rival.dtype)
    for _ in range(-(-rival.capacity // step)):
        rival.add(rows)


# ---- Shoal, and what it is measured against


class Shoal(Rival):
    def __init__(self, capacity: int, shape: Shape, dtype: str) -> None:
        from shoal.replay import ReplayBuffer

        super().__init__(capacity, shape, dtype)
        fields = {name: (array.dtype, array.shape[1:]) for name, array in rows_of(1, shape, dtype).items()}
        self.buffer = ReplayBuffer(capacity, fields, seed=0)

    def add(self, rows: Rows) -> None:
        self.buffer.extend(rows)

    def push(self) -> Call:
        return partial(self.buffer.push, self.one())

    def sample(self) -> Call:
        return lambda: self.buffer.sample(BATCH)

    def sample_out(self) -> Call:
        """The same, into the arrays of one batch each time."""
        out = self.buffer.sample(BATCH)
        return lambda: self.buffer.sample(BATCH, out)

    def prioritized(self) -> Call:
        from shoal.replay import PrioritizedSampler

        fill(self)
        sampler, priorities = PrioritizedSampler(self.buffer, seed=0), priorities_of(self.capacity)
        sampler.update_priorities(self.buffer.latest(self.capacity).ids, priorities)

        def call() -> None:
            batch = sampler.sample(BATCH, 0.4)
            sampler.update_priorities(batch.ids, priorities[:BATCH])

        return call

    def cartpole(self) -> Call:
        """Transitions of CartPole, as `for_env` keeps them."""
        buffer = self._steps()
        return lambda: buffer.sample(BATCH)

    def cartpole_n_step(self) -> Call:
        """The same over three steps."""
        buffer = self._steps()
        return lambda: buffer.sample_n_step(BATCH, 3, 0.99)

    def _steps(self) -> Any:
        """A buffer full of steps of CartPole."""
        from shoal.replay import ReplayBuffer
        from shoal.vector import make_vec

        envs = make_vec("CartPole-v1", 64, session=None)
        buffer = ReplayBuffer.for_env(envs, self.capacity, seed=0)
        buffer.begin(envs.reset(seed=0)[0])
        actions = np.random.default_rng(0).integers(0, 2, (64, 64))
        for step in range(self.capacity // 64 + 1):
            buffer.add(actions[step % 64], *envs.step(actions[step % 64]))
        envs.close()
        return buffer

    def stack(self) -> Call:
        from gymnasium.spaces import Box, Discrete
        from gymnasium.vector import AutoresetMode, VectorEnv

        from shoal.replay import ReplayBuffer

        envs: Any = VectorEnv()
        envs.num_envs, envs.metadata = 1, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        envs.single_observation_space = Box(0, 255, self.shape, np.dtype(self.dtype).type)
        envs.single_action_space = Discrete(4)
        buffer = ReplayBuffer.for_env(envs, self.capacity, seed=0)
        frames, ends = frames_of(min(5000, self.capacity), self.shape, self.dtype)
        no, one = np.zeros(1, np.bool_), np.ones(1)
        buffer.begin(frames[:1])
        for i in range(self.capacity + EPISODE):
            at = i % len(frames)
            buffer.add(one.astype(np.int64), frames[at : at + 1], one, ends[at : at + 1], no, {})
        return lambda: buffer.sample(BATCH, stack=STACK)

    def step(self) -> Call:
        from shoal.replay import ReplayBuffer
        from shoal.vector import make_vec

        envs = make_vec("CartPole-v1", 64, session=None)
        buffer = ReplayBuffer.for_env(envs, self.capacity)
        buffer.begin(envs.reset(seed=0)[0])
        envs.close()
        rows = rows_of(64, (4,), "float32")
        actions, rewards, flags = rows["action"] % 2, rows["reward"].astype(np.float64), rows["done"]
        return lambda: buffer.add(actions, rows["obs"], rewards, flags, flags, {})

    def gather(self) -> Burst:
        """The bare C loop over these very records."""
        from shoal_lab.bench.compile import SOURCES, compiled

        library = compiled(SOURCES / "gather.c")
        records = self.buffer._records
        columns = list(records.columns.values())
        number = len(columns)
        offsets = (ctypes.c_uint64 * number)(*(column.offset for column in columns))
        sizes = (ctypes.c_uint64 * number)(*(column.size_bytes for column in columns))
        target = self.buffer.sample(BATCH)  # the burst keeps it alive
        out = (ctypes.c_void_p * number)(*(array.ctypes.data for array in target.values()))
        rows = ctypes.c_void_p(records.segment["rows"].ctypes.data)
        u64 = ctypes.c_uint64
        shape = u64(self.capacity), u64(records.stride), u64(number)

        def burst(count: int, target: Any = target) -> float:
            begin = time.perf_counter()
            library.gather(rows, *shape, offsets, sizes, out, u64(BATCH), u64(count))
            return time.perf_counter() - begin

        return burst

    def close(self) -> None:
        self.buffer.close()


class Numpy(Rival):
    """A ring of arrays, `take(out=)`: what a careful user writes."""

    def __init__(self, capacity: int, shape: Shape, dtype: str) -> None:
        super().__init__(capacity, shape, dtype)
        self.at, self.rng = 0, np.random.default_rng(0)
        row = rows_of(1, shape, dtype)
        self.data = {name: np.empty((capacity, *a.shape[1:]), a.dtype) for name, a in row.items()}
        self.out = {name: np.empty((BATCH, *a.shape[1:]), a.dtype) for name, a in row.items()}

    def add(self, rows: Rows) -> None:
        count = len(rows["done"])
        if self.at + count > self.capacity:
            self.at = 0
        for name, array in rows.items():
            self.data[name][self.at : self.at + count] = array
        self.at += count

    def push(self) -> Call:
        one = self.one()

        def call() -> None:
            at = self.at % self.capacity
            for name, value in one.items():
                self.data[name][at] = value
            self.at = at + 1

        return call

    def sample(self) -> Call:
        def call() -> None:
            index = self.rng.integers(0, self.capacity, BATCH)
            for name, array in self.data.items():
                array.take(index, axis=0, out=self.out[name], mode="clip")

        return call


# ---- Peers


class Cpprb(Rival):
    def __init__(self, capacity: int, shape: Shape, dtype: str) -> None:
        import cpprb

        super().__init__(capacity, shape, dtype)
        self.fields: dict[str, dict[str, Any]] = {
            "obs": {"shape": shape, "dtype": np.dtype(dtype)},
            "action": {"dtype": np.int64},
            "reward": {},
            "next_obs": {"shape": shape, "dtype": np.dtype(dtype)},
            "done": {"dtype": np.bool_},
        }
        self.module = cpprb
        self.buffer = cpprb.ReplayBuffer(capacity, self.fields)

    def add(self, rows: Rows) -> None:
        self.buffer.add(**rows)

    def push(self) -> Call:
        one = self.one()
        return lambda: self.buffer.add(**one)

    def sample(self) -> Call:
        return lambda: self.buffer.sample(BATCH)

    def prioritized(self) -> Call:
        buffer = self.module.PrioritizedReplayBuffer(self.capacity, self.fields)
        rows = rows_of(min(50_000, self.capacity), self.shape, self.dtype)
        for _ in range(-(-self.capacity // len(rows["done"]))):
            buffer.add(**rows)
        priorities = priorities_of(self.capacity)
        buffer.update_priorities(np.arange(self.capacity), priorities)

        def call() -> None:
            buffer.update_priorities(buffer.sample(BATCH, 0.4)["indexes"], priorities[:BATCH])

        return call


class Sb3(Rival):
    def __init__(self, capacity: int, shape: Shape, dtype: str) -> None:
        super().__init__(capacity, shape, dtype)
        self.many = self._buffer(capacity, 64, timeouts=False)  # rows as the others keep them
        self.infos: list[dict[str, Any]] = [{} for _ in range(64)]

    def _buffer(self, capacity: int, num_envs: int, timeouts: bool) -> Any:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer as Theirs

        space = Box(0, 255, self.shape, np.dtype(self.dtype).type)
        options = {"device": "cpu", "handle_timeout_termination": timeouts}
        return Theirs(capacity, space, Discrete(4), n_envs=num_envs, **options)

    def add(self, rows: Rows) -> None:
        if len(rows["done"]) == 64:
            r = rows
            self.many.add(r["obs"], r["next_obs"], r["action"], r["reward"], r["done"], self.infos)
            return
        for begin in range(0, len(rows["done"]) // 64 * 64, 64):
            self.add({name: array[begin : begin + 64] for name, array in rows.items()})

    def push(self) -> Call:
        buffer, r = self._buffer(1000, 1, timeouts=False), rows_of(1, self.shape, self.dtype)
        return lambda: buffer.add(r["obs"], r["next_obs"], r["action"], r["reward"], r["done"], [{}])

    def sample(self) -> Call:
        return lambda: self.many.sample(BATCH)

    def step(self, timeouts: bool = True) -> Call:
        buffer, r = self._buffer(self.capacity, 64, timeouts), rows_of(64, self.shape, self.dtype)
        actions, rewards = r["action"] % 2, r["reward"].astype(np.float64)
        return lambda: buffer.add(r["obs"], r["next_obs"], actions, rewards, r["done"], self.infos)

    def step_no_timeouts(self) -> Call:
        return self.step(timeouts=False)

    def stack(self) -> Call:
        """It stores every stack, and the next one."""
        stacks = Sb3(self.capacity // 64 * 64, (STACK, *self.shape), self.dtype)
        fill(stacks)
        return stacks.sample()


class Tianshou(Rival):
    def __init__(self, capacity: int, shape: Shape, dtype: str) -> None:
        from tianshou.data import Batch
        from tianshou.data import ReplayBuffer as Theirs

        super().__init__(capacity, shape, dtype)
        self.batch, self.buffer = Batch, Theirs(capacity)

    def _row(self, rows: Rows, i: int) -> Any:
        return self.batch(
            obs=rows["obs"][i], act=rows["action"][i], rew=rows["reward"][i], terminated=rows["done"][i],
            truncated=False, obs_next=rows["next_obs"][i], info={},
        )  # fmt: skip

    def add(self, rows: Rows) -> None:
        for i in range(len(rows["done"])):
            self.buffer.add(self._row(rows, i))

    def push(self) -> Call:
        row = self._row(rows_of(1, self.shape, self.dtype), 0)
        return lambda: self.buffer.add(row)

    def sample(self) -> Call:
        return lambda: self.buffer.sample(BATCH)

    def stack(self) -> Call:
        """It stores each frame once and finds the others when it samples."""
        from tianshou.data import ReplayBuffer as Theirs

        buffer = Theirs(self.capacity, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=False)
        frames, ends = frames_of(min(5000, self.capacity), self.shape, self.dtype)
        for i in range(self.capacity):
            at = i % len(frames)
            row = {"obs": frames[at], "act": 0, "rew": 1.0, "terminated": ends[at], "truncated": False}
            buffer.add(self.batch(**row, info={}))
        return lambda: buffer.sample(BATCH)

    def stack_stored(self) -> Call:
        """It stores every stack, and the next one."""
        from tianshou.data import ReplayBuffer as Theirs

        buffer = Theirs(self.capacity)
        frames, ends = frames_of(min(500, self.capacity), (STACK, *self.shape), self.dtype)
        for i in range(self.capacity):
            at = i % len(frames)
            row = {"obs": frames[at], "act": 0, "rew": 1.0, "terminated": ends[at], "truncated": False}
            buffer.add(self.batch(**row, obs_next=frames[at], info={}))
        return lambda: buffer.sample(BATCH)

    def prioritized(self) -> Call:
        from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

        r = rows_of(self.capacity, self.shape, self.dtype)
        rows = r["obs"], r["action"], r["reward"], r["done"], r["done"], r["done"], r["next_obs"]
        buffer = PrioritizedReplayBuffer(self.capacity, alpha=0.6, beta=0.4)
        buffer.update(ReplayBuffer.from_data(*rows))
        priorities = priorities_of(self.capacity)
        buffer.update_weight(np.arange(self.capacity), priorities)

        def call() -> None:
            buffer.update_weight(buffer.sample(BATCH)[1], priorities[:BATCH])

        return call


class TorchRl(Rival):
    def __init__(self, capacity: int, shape: Shape, dtype: str) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        super().__init__(capacity, shape, dtype)
        self.torch, self.dict = torch, TensorDict
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=BATCH)

    def _rows(self, rows: Rows) -> Any:
        tensors = {name: self.torch.from_numpy(np.ascontiguousarray(array)) for name, array in rows.items()}
        return self.dict(tensors, batch_size=[len(rows["done"])])

    def add(self, rows: Rows) -> None:
        self.buffer.extend(self._rows(rows))

    def push(self) -> Call:
        one = self._rows(rows_of(1, self.shape, self.dtype))[0]
        return lambda: self.buffer.add(one)

    def sample(self) -> Call:
        return lambda: self.buffer.sample()

    def prioritized(self) -> Call:
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(self.capacity), batch_size=BATCH
        )
        buffer.extend(self._rows(rows_of(self.capacity, self.shape, self.dtype)))
        priorities = self.torch.from_numpy(priorities_of(self.capacity).astype(np.float32))
        buffer.update_priority(self.torch.arange(self.capacity), priorities)

        def call() -> None:
            buffer.update_priority(buffer.sample()["index"], priorities[:BATCH])

        return call


# ---- Made once, timed many times

_made: dict[tuple[Any, ...], Any] = {}
_FILL_THEMSELVES = ("prioritized", "stack", "stack_stored")


def _rival(kind: Callable[..., Any], capacity: int, shape: Shape, dtype: str, filled: bool = True) -> Any:
    key = kind, capacity, shape, dtype, filled
    if key not in _made:
        _made[key] = kind(capacity, shape, dtype)
        if filled:
            fill(_made[key])
    return _made[key]


def _maker(kind: Callable[..., Any]) -> Callable[..., tuple[int, Burst]]:
    def make(operation: str, capacity: int, shape: list[int], dtype: str) -> tuple[int, Burst]:
        rival = _rival(kind, capacity, tuple(shape), dtype, filled=operation not in _FILL_THEMSELVES)
        return 1, undisturbed(repeated(getattr(rival, operation)()))

    return make


def _gather(operation: str, capacity: int, shape: list[int], dtype: str) -> tuple[int, Burst]:
    return 1, undisturbed(_rival(Shoal, capacity, tuple(shape), dtype).gather())


MAKERS: dict[str, dict[str, Callable[..., tuple[int, Burst]]]] = {
    "shoal": {"Shoal": _maker(Shoal), "bare C gather": _gather, "NumPy ring": _maker(Numpy)},
    "cpprb": {"cpprb": _maker(Cpprb)},
    "stable_baselines3": {"SB3": _maker(Sb3)},
    "tianshou": {"Tianshou": _maker(Tianshou)},
    "torchrl": {"TorchRL": _maker(TorchRl)},
}
"""Library to what it offers, by name."""


def drop() -> None:
    """Frees every buffer."""
    for rival in _made.values():
        rival.close()
    _made.clear()
