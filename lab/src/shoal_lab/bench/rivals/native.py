"""CartPole-v1 in Shoal and in other libraries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Any

import numpy as np

from shoal_lab.bench.interleave import Burst, undisturbed

__all__ = ["MAKERS", "TURNS", "drop", "random_actions", "stepping"]

opened = ExitStack()
TURNS = 16
"""The number of action arrays, which are used in turn."""


def random_actions(num_envs: int, choices: int = 2) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns precomputed actions, one array per turn."""
    return np.random.default_rng(0).integers(0, choices, (TURNS, num_envs))


def stepping(step: Callable[[Any], tuple[Any, ...]], actions: Iterable[Any]) -> Burst:
    """Makes a burst that steps with these actions in turn and keeps each result until the next one."""
    actions = list(actions)

    def burst(calls: int) -> float:
        turns = islice(cycle(actions), calls)
        start = time.perf_counter()
        for action in turns:
            observations, rewards, terminated, truncated, info = step(action)
        return time.perf_counter() - start

    return burst


# ---- Each function returns environment steps per call, and the burst


def shoal_native(num_envs: int, **options: Any) -> tuple[int, Burst]:
    from shoal.vector import make_vec

    envs: Any = opened.enter_context(make_vec("CartPole-v1", num_envs, **options))
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def gymnasium_sync(num_envs: int) -> tuple[int, Burst]:
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def gymnasium_numpy(num_envs: int) -> tuple[int, Burst]:
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def envpool_sync(num_envs: int, num_threads: int = 1) -> tuple[int, Burst]:
    import envpool

    envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=num_threads)
    envs.reset()
    return num_envs, stepping(envs.step, random_actions(num_envs))


def envpool_sync_two(num_envs: int) -> tuple[int, Burst]:
    return envpool_sync(num_envs, num_threads=2)


def shoal_async(num_envs: int) -> tuple[int, Burst]:
    from shoal.vector import make_vec

    batch = max(1, num_envs // 2)
    envs = opened.enter_context(make_vec("CartPole-v1", num_envs, batch_size=batch, num_threads=2))
    return receiving(envs, num_envs, batch)


def envpool_async(num_envs: int) -> tuple[int, Burst]:
    import envpool

    batch = max(1, num_envs // 2)
    envs = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=num_envs, batch_size=batch, num_threads=2
    )
    return receiving(envs, num_envs, batch)


def receiving(envs: Any, num_envs: int, batch: int, batches: int = 8) -> tuple[int, Burst]:
    """Makes a burst of send and recv, half of the environments at a time; a call is eight batches."""
    actions = list(random_actions(batch))
    envs.async_reset()
    idle = [envs.recv()[-1]["env_id"] for _ in range(num_envs // batch)]

    def burst(calls: int) -> float:
        """Waits for all steps at the end, so that no step runs outside the measured time."""
        turns = islice(cycle(actions), calls * batches)
        start = time.perf_counter()
        for env_ids, action in zip(idle, turns, strict=False):
            envs.send(action, env_ids)
        for action in turns:
            observations, rewards, terminated, truncated, info = envs.recv()
            envs.send(action, info["env_id"])
        idle[:] = [envs.recv()[-1]["env_id"] for _ in idle]
        return time.perf_counter() - start

    return batch * batches, burst


def pufferlib_c(num_envs: int, report_interval: int = 1) -> tuple[int, Burst]:
    """Float32, 200 steps per episode, reset within the step; its actions have the type it works with."""
    from pufferlib.ocean.cartpole.cartpole import Cartpole

    envs = Cartpole(num_envs=num_envs, report_interval=report_interval)
    envs.reset()
    return num_envs, stepping(envs.step, random_actions(num_envs).astype(np.float32))


def pufferlib_c_seldom(num_envs: int) -> tuple[int, Burst]:
    """The same, with its log collected every 128th step, as in its other environments."""
    return pufferlib_c(num_envs, report_interval=128)


# ---- From nothing to the first observations


def _make_start(opener: Callable[[], Callable[[int], Any]]) -> Callable[[int], tuple[int, Burst]]:
    def make(num_envs: int) -> tuple[int, Burst]:
        start_envs = opener()

        def burst(calls: int) -> float:
            total = 0.0
            for _ in range(calls):
                start = time.perf_counter()
                envs = start_envs(num_envs)
                envs.reset()
                total += time.perf_counter() - start
                envs.close()
            return total

        return num_envs, burst

    return make


def _shoal_start() -> Callable[[int], Any]:
    from shoal.vector import make_vec

    return lambda num_envs: make_vec("CartPole-v1", num_envs)


def _gymnasium_start() -> Callable[[int], Any]:
    import gymnasium

    return lambda num_envs: gymnasium.make_vec(
        "CartPole-v1", num_envs, vectorization_mode="vector_entry_point"
    )


def _envpool_start() -> Callable[[int], Any]:
    import envpool

    return lambda num_envs: envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs)


def _pufferlib_start() -> Callable[[int], Any]:
    from pufferlib.ocean.cartpole.cartpole import Cartpole

    return lambda num_envs: Cartpole(num_envs=num_envs)


# ---- By library


def _quiet(make: Callable[..., tuple[int, Burst]]) -> Callable[..., tuple[int, Burst]]:
    def quiet(num_envs: int, options: dict[str, Any] | None = None) -> tuple[int, Burst]:
        steps, burst = make(num_envs, **options or {})
        return steps, undisturbed(burst)

    return quiet


MAKERS: dict[str, dict[str, Callable[..., tuple[int, Burst]]]] = {
    "shoal": {
        "Shoal": _quiet(shoal_native),
        "Shoal async, 2 threads": _quiet(shoal_async),
        "Shoal start": _make_start(_shoal_start),
    },
    "gymnasium": {
        "Gymnasium sync": _quiet(gymnasium_sync),
        "Gymnasium NumPy": _quiet(gymnasium_numpy),
        "Gymnasium start": _make_start(_gymnasium_start),
    },
    "envpool": {
        "EnvPool sync": _quiet(envpool_sync),
        "EnvPool sync, 2 threads": _quiet(envpool_sync_two),
        "EnvPool async, 2 threads": _quiet(envpool_async),
        "EnvPool start": _make_start(_envpool_start),
    },
    "pufferlib": {
        "PufferLib C": _quiet(pufferlib_c),
        "PufferLib C, log seldom": _quiet(pufferlib_c_seldom),
        "PufferLib start": _make_start(_pufferlib_start),
    },
}
"""The rivals of each library, by name."""


def drop() -> None:
    """Ends all rivals that were made."""
    global opened
    closing, opened = opened, ExitStack()
    closing.close()
