"""Arguments nobody should pass, to everything public: an exception that is promised, and life goes on."""

from __future__ import annotations

import functools
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import shoal
from shoal.errors import ShoalError
from shoal.memory import Layout, Segment
from shoal.replay import PrioritizedSampler, ReplayBuffer, SharedCircularBuffer
from shoal.vector import ProcessVectorEnv
from tests.fuzz.mutate import EDGES
from tests.fuzz.tables import MOST_BYTES

ALLOWED = (
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    OverflowError,
    OSError,
    MemoryError,
    ShoalError,
    gymnasium.error.Error,
)
FIELDS = {"number": (np.uint64, ()), "body": (np.uint8, (24,))}
_DTYPES = (
    "u1",
    "i1",
    "i8",
    "u8",
    ">i8",
    "f2",
    "f4",
    "f8",
    ">f4",
    "?",
    "c8",
    "O",
    "U3",
    "S2",
    "V5",
    "M8[s]",
    "i4,f4",
)


class _Odd:
    """Says it is everything, and is nothing."""

    def __len__(self) -> int:
        return 2**62

    def __index__(self) -> int:
        raise ValueError("no index")

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class _Buffer(np.ndarray):  # type: ignore[type-arg]
    """A subclass of an array."""


def odd(chooser: random.Random, depth: int = 0) -> Any:
    """A value that is probably not what was asked for, or just about."""
    kind = chooser.randrange(14 if depth < 2 else 9)
    if kind <= 1:
        return chooser.choice((-1, 0, 1, 2, 3, 4, 8, *EDGES, -(2**63), -(2**63) - 1, 10**30))
    if kind == 2:
        return chooser.choice(
            (0.0, -0.0, 0.5, 1e300, -1e-300, float("nan"), float("inf"), True, False, None, 1j)
        )
    if kind == 3:
        return chooser.choice(
            (
                "",
                "a",
                "..",
                "/",
                "x" * 300,
                "\0",
                "é",
                "\ud800",
                "CartPole-v1",
                "live",
                b"",
                b"abc",
                bytearray(8),
            )
        )
    if kind == 4:
        return chooser.choice(
            (object(), _Odd(), int, len, ..., slice(3), range(5), {1}, memoryview(b"12345678"), np.newaxis)
        )
    if kind == 5:
        value = chooser.choice((0, 1, -1, 2**31, 255))
        return np.dtype(chooser.choice(("u1", "i8", "f4", "?"))).type(value % 128)
    if kind <= 8:
        return odd_array(chooser)
    if kind <= 11:
        return [odd(chooser, depth + 1) for _ in range(chooser.randrange(5))]
    if kind == 12:
        return tuple(odd(chooser, depth + 1) for _ in range(chooser.randrange(4)))
    names = ("number", "body", "a", "", 0, "reset_mask", "obs")
    return {chooser.choice(names): odd(chooser, depth + 1) for _ in range(chooser.randrange(4))}


def odd_array(chooser: random.Random) -> Any:
    dtype = np.dtype(chooser.choice(_DTYPES))
    shape = tuple(
        chooser.choice((0, 1, 2, 4, 4, 5, 24)) for _ in range(chooser.choice((0, 1, 1, 1, 2, 2, 3)))
    )
    array = np.zeros(shape, dtype)
    if dtype.kind in "iuf" and array.size:
        array.flat[chooser.randrange(array.size)] = chooser.choice(
            (1, 3, 100, np.nan if dtype.kind == "f" else 7)
        )
    how = chooser.randrange(8)
    if how == 0 and array.ndim:
        array = array[::-1]
    elif how == 1 and array.ndim:
        array = np.repeat(array, 2, axis=0)[::2]
    elif how == 2:
        array = array.T
    elif how == 3:
        array = np.broadcast_to(array, (4, *array.shape))
    elif how == 4:
        array = array.view(_Buffer)
    elif how == 5:
        array.flags.writeable = False
    elif how == 6 and dtype.kind in "iuf" and array.size:
        raw = bytearray(array.nbytes + 1)
        array = np.frombuffer(raw, dtype, array.size, 1).reshape(array.shape)  # not aligned
    return array


def _maybe(chooser: random.Random, good: Any) -> Any:
    return good if chooser.random() < 0.6 else odd(chooser)


def _some(chooser: random.Random, good: dict[str, Any]) -> dict[str, Any]:
    """A few of these keywords, each right or odd."""
    names = chooser.sample(list(good), chooser.randrange(min(4, len(good)) + 1))
    return {name: _maybe(chooser, good[name]) for name in names}


@functools.cache
def _envs(pid: int, kind: str) -> Any:
    more = {"batch_size": 2} if kind == "flow" else {}
    envs = shoal.make_vec("CartPole-v1", 4, num_threads=1, session=None, **more)
    envs.async_reset(seed=0) if kind == "flow" else envs.reset(seed=0)
    return envs


def _step(chooser: random.Random, directory: Path) -> None:
    envs = _envs(os.getpid(), "plain")
    try:
        which = chooser.randrange(7)
        if which <= 2:
            envs.step(odd(chooser))
        elif which == 3:
            envs.reset(seed=odd(chooser), options=chooser.choice((None, odd(chooser))))
        elif which == 4:
            envs.rollout(odd(chooser)).start(odd(chooser))
        elif which == 5:
            envs.restore_env(_maybe(chooser, 0), odd(chooser))
        else:
            envs.save_env(odd(chooser)), envs.render_env(odd(chooser))
    finally:
        assert envs.step(np.zeros(4, np.int64))[0].shape == (4, 4)


def _send(chooser: random.Random, directory: Path) -> None:
    envs = _envs(os.getpid(), "flow")
    _, _, _, _, info = envs.recv()
    try:
        envs.send(_maybe(chooser, np.zeros(2, np.int64)), _maybe(chooser, info["env_id"]))
    except BaseException:
        envs.send(np.zeros(2, np.int64), info["env_id"])
        raise


def _make(chooser: random.Random, directory: Path) -> None:
    keywords = _some(
        chooser,
        {
            "num_threads": 1, "autoreset_mode": "SameStep", "buffers": "live", "max_slots": 2,
            "session": None,
            "episode_stats": True, "check": ("nan",), "render_mode": "rgb_array", "batch_size": 2,
            "max_episode_steps": 5,
            "backend": "native", "precision": "float",
        },
    )  # fmt: skip
    keywords.setdefault("session", None)
    if isinstance(keywords.get("num_threads"), int) and keywords["num_threads"] > 8:
        keywords["num_threads"] = 0  # thousands of threads are possible, and slow
    name = chooser.choice(("CartPole-v1", "Snake-v0", odd(chooser)))
    count = _maybe(chooser, 4)
    if callable(name) or not isinstance(name, (str, int, float, type(None))):
        name = "CartPole-v1"  # a function is an environment in Python: the process target's
    if isinstance(name, str) and name not in ("CartPole-v1", "Snake-v0"):
        keywords["backend"] = "native"
    envs = shoal.make_vec(name, count, **keywords)
    try:
        if envs.batch_size is None:
            envs.reset(seed=0)
            envs.step()
    finally:
        envs.close()


def _segments(chooser: random.Random, directory: Path) -> None:
    spec = _maybe(chooser, (np.float32, (3,)))
    layout = chooser.choice((lambda: Layout({_maybe(chooser, "a"): spec}), lambda: odd(chooser)))()
    which = chooser.randrange(5)
    if which == 0:
        Segment(layout).close()
    elif which == 1:
        Segment.named(layout, f"fuzz-{os.getpid()}" if chooser.random() < 0.5 else odd(chooser)).close()
    elif which == 2:
        path = directory / f"a-{os.getpid()}.seg"
        path.unlink(missing_ok=True)
        Segment.file(layout, path).close()
        Segment.open(path, odd(chooser)).close()
    elif which == 3:
        Segment.attach(odd(chooser), readonly=True).close()
    else:
        with Segment(Layout({"a": (np.float32, (3,))})) as segment:
            segment.rows(_maybe(chooser, "a"), odd(chooser))


@functools.cache
def _buffer(pid: int) -> tuple[ReplayBuffer, PrioritizedSampler, SharedCircularBuffer]:
    buffer = ReplayBuffer(16, FIELDS, seed=0)
    buffer.extend({"number": np.arange(20, dtype=np.uint64), "body": np.zeros((20, 24), np.uint8)})
    circular = SharedCircularBuffer(4, 2)
    circular.push([1, 2], 1, 0.5, [2, 3], False)
    return buffer, PrioritizedSampler(buffer, seed=0), circular


def _replay(chooser: random.Random, directory: Path) -> None:
    buffer, sampler, circular = _buffer(os.getpid())
    row = {"number": _maybe(chooser, np.uint64(3)), "body": _maybe(chooser, np.zeros(24, np.uint8))}
    calls: list[Callable[[], Any]] = [
        lambda: buffer.push(_maybe(chooser, row)),
        lambda: buffer.extend(_maybe(chooser, {name: [value, value] for name, value in row.items()})),
        lambda: buffer.extend({"number": odd_array(chooser), "body": odd_array(chooser)}),
        lambda: buffer.sample(
            _few(chooser), chooser.choice((None, odd(chooser), {"number": odd_array(chooser)}))
        ),
        lambda: buffer.fetch(odd(chooser)),
        lambda: buffer.latest(_few(chooser)),
        lambda: buffer.seed(odd(chooser)),
        lambda: sampler.sample(_few(chooser), beta=odd(chooser)),
        lambda: sampler.update_priorities(_maybe(chooser, np.array([3, 4], np.uint64)), odd(chooser)),
        lambda: circular.push(
            odd(chooser), _maybe(chooser, 1), _maybe(chooser, 0.5), odd(chooser), odd(chooser)
        ),
        lambda: circular.sample(_few(chooser)),
        lambda: circular.latest(_few(chooser)),
    ]
    try:
        chooser.choice(calls)()
    finally:
        buffer.push({"number": np.uint64(1), "body": np.zeros(24, np.uint8)})
        assert buffer.sample(2)["body"].shape == (2, 24)


def _few(chooser: random.Random) -> Any:
    """A count; millions of rows are possible, and slow."""
    value = odd(chooser)
    return 5 if isinstance(value, (int, np.integer)) and 1000 < value < 2**40 else value


def _buffers(chooser: random.Random, directory: Path) -> None:
    which = chooser.randrange(4)
    if which == 0:
        ReplayBuffer(
            _maybe(chooser, 8), _maybe(chooser, {"a": _maybe(chooser, (np.float32, (2,)))}), seed=odd(chooser)
        ).close()
    elif which == 1:
        keywords = _some(chooser, {"path": None, "durability": "process", "seed": 3})
        keywords.pop("path", None)
        ReplayBuffer(8, FIELDS, **keywords).close()
    elif which == 2:
        SharedCircularBuffer(_maybe(chooser, 4), _maybe(chooser, 2)).close()
    else:
        PrioritizedSampler(_maybe(chooser, _buffer(os.getpid())[0]), alpha=odd(chooser), beta=odd(chooser))


class Small(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.answer if self.answer is not None else (np.zeros(2, np.float32), 0.0, False, False, {})


def _processes(chooser: random.Random, directory: Path) -> None:
    good = {
        "shared_memory": True, "copy": True, "daemon": True, "observation_mode": "same", "num_workers": 1,
        "autoreset_mode": "NextStep", "caller_steps": True, "batch_size": 1, "buffers": "copy",
        "max_slots": 2,
        "on_fault": "restart", "step_timeout_s": 5.0, "reset_timeout_s": 5.0, "check": ("nan",),
        "episode_stats": True,
    }  # fmt: skip
    answer = odd(chooser) if chooser.random() < 0.4 else None
    if chooser.random() < 0.3:
        answer = (odd(chooser), odd(chooser), odd(chooser), odd(chooser), odd(chooser))
    keywords = _some(chooser, good)
    for name in ("step_timeout_s", "reset_timeout_s"):
        if isinstance(keywords.get(name), (int, float)) and keywords[name] < 1:
            keywords[name] = 5.0
    keywords.setdefault("num_workers", 1)
    if chooser.random() < 0.7:
        keywords["step_timeout_s"] = keywords["reset_timeout_s"] = 5.0
    envs = ProcessVectorEnv([functools.partial(Small, answer)] * 2, context="fork", session=None, **keywords)
    try:
        if envs.batch_size is None:
            envs.reset(seed=_maybe(chooser, 3))
            envs.step(_maybe(chooser, np.zeros(2, np.int64)))
    finally:
        envs.close()


_CALLS = {
    "step": _step,
    "send": _send,
    "make": _make,
    "segments": _segments,
    "replay": _replay,
    "buffers": _buffers,
}


def run(directory: Path, data: bytes) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, resource.RLIM_INFINITY))
    chooser = random.Random(data)
    _CALLS[chooser.choice(list(_CALLS))](chooser, directory)


def run_processes(directory: Path, data: bytes) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, resource.RLIM_INFINITY))
    _processes(random.Random(data), directory)
