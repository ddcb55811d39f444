"""Rivals that step Python environments in processes: Shoal, the bare loop and the peers.

A rival is made from a workload, [class of toys.py, arguments], a number of environments and options. Its
burst steps them and keeps each result until the next step. The first third of a burst does not count, because
sleeping processes must wake up and get a core first.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Any

from shoal_lab.bench.bare_process import BareProcesses, die_with_parent
from shoal_lab.bench.interleave import Burst
from shoal_lab.bench.load import cores
from shoal_lab.bench.rivals.native import random_actions
from shoal_lab.bench.toys import maker

__all__ = ["MAKERS", "Workload", "drop"]

Workload = list[Any]
"""The name of a class of toys.py, and its arguments."""
opened = ExitStack()


def stepping(step: Callable[[Any], Any], actions: Iterable[Any]) -> Burst:
    actions = list(actions)

    def steps(calls: int) -> None:
        for action in islice(cycle(actions), calls):
            held = step(action)  # noqa: F841

    return add_warm_up(steps)


def add_warm_up(steps: Callable[[int], None]) -> Burst:
    def burst(calls: int) -> float:
        steps(-(-calls // 2))
        start = time.perf_counter()
        steps(calls)
        return time.perf_counter() - start

    return burst


def stop_between(burst: Burst, pids: list[int]) -> Burst:
    """Stops workers that never sleep between their bursts, because they would slow down the other rivals."""

    def send_signal(number: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    def resumed(calls: int) -> float:
        send_signal(signal.SIGCONT)
        try:
            return burst(calls)
        finally:
            send_signal(signal.SIGSTOP)

    send_signal(signal.SIGSTOP)
    return resumed


def workload_makers(workload: Workload, num_envs: int) -> list[Callable[[], Any]]:
    return [maker(*workload)] * num_envs


# ---- Shoal and the bare loop


def shoal_process(workload: Workload, num_envs: int, options: dict[str, Any]) -> tuple[int, Burst]:
    from shoal.vector import ProcessVectorEnv

    envs = opened.enter_context(ProcessVectorEnv(workload_makers(workload, num_envs), **options))
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def shoal_send_recv(workload: Workload, num_envs: int, options: dict[str, Any]) -> tuple[int, Burst]:
    """Makes as many environment steps per call as there are environments; none runs between bursts."""
    from shoal.vector import ProcessVectorEnv

    envs = opened.enter_context(ProcessVectorEnv(workload_makers(workload, num_envs), **options))
    batch = options["batch_size"]
    turns = num_envs // batch
    actions = list(random_actions(batch))
    envs.async_reset(seed=0)
    idle = [envs.recv()[-1]["env_id"] for _ in range(turns)]

    def steps(calls: int) -> None:
        for env_ids, action in zip(idle, actions, strict=False):
            envs.send(action, env_ids)
        for action in islice(cycle(actions), calls * turns - turns):
            *results, info = envs.recv()
            envs.send(action, info["env_id"])
        idle[:] = [envs.recv()[-1]["env_id"] for _ in idle]

    return num_envs, add_warm_up(steps)


def bare(workload: Workload, num_envs: int, num_workers: int, caller_steps: bool) -> tuple[int, Burst]:
    envs = BareProcesses(workload_makers(workload, num_envs), num_workers, caller_steps)
    opened.callback(envs.close)
    return num_envs, stop_between(stepping(envs.step, random_actions(num_envs)), envs.pids)


# ---- Peers


def gymnasium_async(workload: Workload, num_envs: int) -> tuple[int, Burst]:
    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv(workload_makers(workload, num_envs))
    opened.callback(envs.close)
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def gymnasium_sync(workload: Workload, num_envs: int) -> tuple[int, Burst]:
    from gymnasium.vector import SyncVectorEnv

    envs = SyncVectorEnv(workload_makers(workload, num_envs))
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def sb3_subproc(workload: Workload, num_envs: int) -> tuple[int, Burst]:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv(workload_makers(workload, num_envs), start_method="fork")
    opened.callback(envs.close)
    envs.reset()
    return num_envs, stepping(envs.step, random_actions(num_envs))


def _tianshou(name: str) -> Callable[[Workload, int], tuple[int, Burst]]:
    def make(workload: Workload, num_envs: int) -> tuple[int, Burst]:
        import tianshou.env

        envs = getattr(tianshou.env, name)(workload_makers(workload, num_envs))
        opened.callback(envs.close)
        envs.reset()
        return num_envs, stepping(envs.step, random_actions(num_envs))

    return make


def torchrl_parallel(workload: Workload, num_envs: int) -> tuple[int, Burst]:
    import torch
    from torchrl.envs import GymWrapper, ParallelEnv

    def make() -> Any:
        return GymWrapper(maker(*workload)(), categorical_action_encoding=True)

    envs = ParallelEnv(num_envs, make, mp_start_method="fork")
    opened.callback(envs.close)
    state = envs.reset()

    def step(action: Any) -> Any:
        state["action"] = action
        return envs.step(state)["next"]

    return num_envs, stepping(step, map(torch.from_numpy, random_actions(num_envs)))


def _pufferlib(num_workers: int) -> Callable[[Workload, int], tuple[int, Burst]]:
    def make(workload: Workload, num_envs: int) -> tuple[int, Burst]:
        import pufferlib.emulation
        import pufferlib.vector

        def make_env(buf: Any = None, seed: int = 0) -> Any:
            die_with_parent()
            return pufferlib.emulation.GymnasiumPufferEnv(env=maker(*workload)(), buf=buf, seed=seed)

        backend = pufferlib.vector.Multiprocessing
        envs = pufferlib.vector.make(make_env, num_envs=num_envs, num_workers=num_workers, backend=backend)
        for process in envs.processes:
            opened.callback(process.kill)
        envs.reset()
        step = stepping(envs.step, random_actions(num_envs).astype("int32"))
        return num_envs, stop_between(step, [process.pid for process in envs.processes])

    return make


# ---- Starting

Start = Callable[[list[Callable[[], Any]], "str | None"], Any]


def _make_start(opener: Callable[[], Start]) -> Callable[[int, str | None], tuple[int, Burst]]:
    """Times the start up to the first observations; a context of None is the library's default."""

    def make(num_envs: int, context: str | None) -> tuple[int, Burst]:
        start_envs = opener()

        def burst(calls: int) -> float:
            total = 0.0
            for _ in range(calls):
                start = time.perf_counter()
                envs = start_envs(workload_makers(["Still"], num_envs), context)
                total += time.perf_counter() - start
                envs.close()
            return total

        return num_envs, burst

    return make


def _shoal_start() -> Start:
    from shoal.vector import ProcessVectorEnv

    return lambda makers, context: _reset_envs(ProcessVectorEnv(makers, context=context), seed=0)


def _gymnasium_start() -> Start:
    from gymnasium.vector import AsyncVectorEnv

    return lambda makers, context: _reset_envs(AsyncVectorEnv(makers, context=context), seed=0)


def _sb3_start() -> Start:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return lambda makers, context: _reset_envs(SubprocVecEnv(makers, start_method=context))


def _tianshou_start() -> Start:
    from tianshou.env import ShmemVectorEnv

    return lambda makers, context: _reset_envs(ShmemVectorEnv(makers))


def _bare_start() -> Start:
    """Forks one worker per core; each steps its part once."""

    def start(makers: list[Callable[[], Any]], context: str | None) -> Any:
        envs = BareProcesses(makers, min(len(makers), len(cores())), caller_steps=False)
        envs.step(random_actions(len(makers))[0])
        return envs

    return start


def _reset_envs(envs: Any, **seed: int) -> Any:
    envs.reset(**seed)
    return envs


MAKERS: dict[str, dict[str, Callable[..., tuple[int, Burst]]]] = {
    "shoal": {
        "Shoal": shoal_process,
        "Shoal send/recv": shoal_send_recv,
        "Shoal start": _make_start(_shoal_start),
        "bare loop": bare,
        "bare start": _make_start(_bare_start),
    },
    "gymnasium": {
        "Gymnasium async": gymnasium_async,
        "Gymnasium sync": gymnasium_sync,
        "Gymnasium start": _make_start(_gymnasium_start),
    },
    "stable_baselines3": {"SB3 subproc": sb3_subproc, "SB3 start": _make_start(_sb3_start)},
    "tianshou": {
        "Tianshou shmem": _tianshou("ShmemVectorEnv"),
        "Tianshou subproc": _tianshou("SubprocVectorEnv"),
        "Tianshou start": _make_start(_tianshou_start),
    },
    "torchrl": {"TorchRL parallel": torchrl_parallel},
    "pufferlib": {"PufferLib, 1 worker": _pufferlib(1), "PufferLib, 2 workers": _pufferlib(2)},
}
"""The rivals of each library, by name."""


def drop() -> None:
    """Ends all rivals that were made, in any state."""
    global opened
    closing, opened = opened, ExitStack()
    closing.close()
