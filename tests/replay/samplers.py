"""Every kind of sampling, of buffers whose rows can be checked; the tests of outputs use all of them."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode

from shoal.replay import PrioritizedBatch, PrioritizedSampler, ReplayBuffer, TrajectoryBuffer

FIELDS = {
    "x": (np.int64, ()),
    "image": (np.uint8, (3, 5)),
    "flag": (np.bool_, ()),
    "none": (np.float32, (0,)),
}
SPACE = Dict(where=Box(-1e6, 1e6, (3,), np.float32), time=Discrete(10_000))


def rows(numbers):
    numbers = np.asarray(numbers, np.int64)
    return {
        "x": numbers,
        "image": np.repeat(numbers % 251, 15).reshape(-1, 3, 5).astype(np.uint8),
        "flag": numbers % 3 == 0,
        "none": np.zeros((len(numbers), 0), np.float32),
    }


def make_plain_buffer(capacity=100):
    buffer = ReplayBuffer(capacity, FIELDS, seed=0)
    buffer.extend(rows(range(capacity)))
    return buffer


def make_walk_buffer(capacity=300, steps=80, num_envs=3):
    """Environment e has observation [e, t, -t] and reward t at step t; episodes have 7, 8 and 9 steps."""
    buffer = TrajectoryBuffer(capacity, SPACE, Discrete(5), num_envs, AutoresetMode.NEXT_STEP, seed=0)
    envs, t = np.arange(num_envs), np.zeros(num_envs, np.int64)

    def seen():
        return {"where": np.stack([envs, t, -t], axis=1).astype(np.float32), "time": t.copy()}

    buffer.begin(seen())
    over = np.zeros(num_envs, np.bool_)
    for _ in range(steps):
        t = np.where(over, 0, t + 1)
        ended = np.where(over, False, t >= 7 + envs)
        buffer.add(t % 5, seen(), t.astype(np.float64), ended, np.zeros(num_envs, np.bool_))
        over = ended
    return buffer


def check(batch, buffer):
    """Checks that every row or step was stored, whole, and has the right id and weight."""
    if isinstance(batch, PrioritizedBatch):
        weights = np.asarray(batch.weights)
        assert weights.dtype == np.float32 and weights.max() == 1
        raw = priorities(batch.ids) ** -(0.6 * 0.4)
        assert np.allclose(weights, raw / raw.max())
    arrays = {name: np.asarray(value) for name, value in batch.items()}
    if "x" in arrays:
        for name, expected in rows(arrays["x"]).items():
            assert arrays[name].dtype == expected.dtype and np.array_equal(arrays[name], expected), name
        assert np.array_equal(batch.ids, arrays["x"].astype(np.uint64))
        return
    for name in ("obs", "next_obs") if "next_obs/time" in arrays else ("obs",):
        where, time = arrays[f"{name}/where"], arrays[f"{name}/time"]
        assert np.array_equal(where[..., 1], time) and np.array_equal(where[..., 2], -time)
    if "mask" in arrays:
        there, at = arrays["mask"], arrays["obs/time"]
        assert (there[:, 1:] <= there[:, :-1]).all() and there[:, 0].all()
        assert (np.diff(at, axis=1) == 1)[there[:, 1:]].all()
        assert np.array_equal(arrays["first"][there], at[there] == 0)
        assert all(not array[~there].any() for array in arrays.values())
        return
    before, after = arrays["obs/time"], arrays["next_obs/time"]
    assert np.array_equal(buffer.fetch(batch.ids)["obs/time"], before.reshape(len(before), -1)[:, -1] + 1)
    if before.ndim == 2:  # stacks
        for frames in (before, after):
            assert np.array_equal(frames[:, :-1], np.maximum(frames[:, 1:] - 1, 0))
        before, after = before[:, -1], after[:, -1]
    assert np.array_equal(arrays["action"], (before + 1) % 5)
    if "discount" not in arrays:
        assert np.array_equal(after, before + 1) and np.array_equal(arrays["reward"], after)
        return
    taken = after - before
    expected = [sum(0.5**k * (b + 1 + k) for k in range(n)) for b, n in zip(before, taken, strict=True)]
    assert np.allclose(arrays["reward"], expected) and np.allclose(arrays["discount"], 0.5**taken)
    assert (taken >= 1).all() and (taken <= 3).all()
    ends = after == 7 + arrays["next_obs/where"].reshape(len(after), -1)[:, -3]
    assert np.array_equal(arrays["terminated"], ends)


def priorities(ids):
    return 2.0 + ids % 7


def make_prioritized(make, name="sample", *arguments, **options):
    buffer = make()
    sampler = PrioritizedSampler(buffer, seed=0)
    ids = buffer.latest(buffer.capacity).ids
    sampler.update_priorities(ids, priorities(ids))
    return buffer, lambda n, **more: getattr(sampler, name)(n, *arguments, **options, **more)


def make_method(name, *arguments, **options):
    def of():
        buffer = make_walk_buffer()
        return buffer, lambda n, **more: getattr(buffer, name)(n, *arguments, **options, **more)

    return of


def make_simple():
    buffer = make_plain_buffer()
    return buffer, buffer.sample


SAMPLERS = {
    "rows": make_simple,
    "prioritized rows": lambda: make_prioritized(make_plain_buffer),
    "transitions": make_method("sample"),
    "stacks": make_method("sample", stack=4),
    "prioritized transitions": lambda: make_prioritized(make_walk_buffer),
    "n steps": make_method("sample_n_step", 3, 0.5),
    "stacks over n steps": make_method("sample_n_step", 3, 0.5, stack=4),
    "sequences": make_method("sample_sequences", 6),
    "prioritized stacks": lambda: make_prioritized(make_walk_buffer, stack=4),
    "prioritized n steps": lambda: make_prioritized(make_walk_buffer, "sample_n_step", 3, 0.5),
    "prioritized stacks over n steps": lambda: make_prioritized(
        make_walk_buffer, "sample_n_step", 3, 0.5, stack=4
    ),
    "prioritized sequences": lambda: make_prioritized(make_walk_buffer, "sample_sequences", 6),
}
"""Name to a function that gives a buffer and its sampler: sampler(n, out=..., device=...)."""
