"""`shoal bench cuda`: C environments on a GPU, against the memory, all cores of the CPU, and gymnax.

Steps are those of a captured CUDA graph of 64 kernels, with buffers="live". Rivals take turns:

    memory    a copy from device to device: bytes read and written per second
    cores     the same environments in one process per core, started together
    gymnax    its CartPole in JAX, jitted and scanned, in a Python of its own (--python gymnax=PATH)
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shoal.vector import make_vec
from shoal_lab.bench.load import cores
from shoal_lab.bench.scaling import open_crew

__all__ = ["run"]

STEPS = 64
"""Steps of one graph."""
ROUNDS = 9
CASES: list[tuple[str, dict[str, Any], int]] = [
    *(("CartPole-v1", {}, count) for count in (4096, 65_536, 2**20, 2**22)),
    *(("CartPole-v1", {"precision": "float"}, count) for count in (4096, 65_536, 2**20, 2**22)),
    *((env, {}, 2**20) for env in ("Acrobot-v1", "MountainCar-v0", "Pendulum-v1")),
    *(("Squared-v0", {}, count) for count in (65_536, 2**20)),
]
WORLDS = [("Snake-v0", 65_536, 4096), ("Reef-v0", 16_384, 1024)]
"""Environment, worlds on the GPU, and worlds on all cores (as many as keep them busy)."""
GYMNAX = Path(__file__).parent / "rivals" / "gymnax_cartpole.py"
_COPY_BYTES = 2**30


def run(*, smoke: bool = False, gymnax: str | None = None) -> None:
    """Measures and prints; a smoke run uses the emulated device if there is no GPU."""
    if smoke:
        _smoke()
        return
    import torch

    print(f"{torch.cuda.get_device_name()}, {len(cores())} cores, medians of {ROUNDS} turns of {STEPS} steps")
    copy = _copying()
    print(f"{'':44} {'us a step':>10} {'G steps/s':>10}  {'bytes':>6}  share of a copy")
    for env, options, count in CASES:
        with _graph(env, count, options) as (burst, envs):
            taken, copied = _in_turns(burst, copy)
            size = _step_bytes(envs)
            share = size * count / taken * copied / (2 * _COPY_BYTES)
            name = f"{env}{' float' if options else ''}, {count:,}"
            print(f"{name:44} {taken * 1e6:10.2f} {count / taken / 1e9:10.2f}  {size:6}  {share:.2f}")
    for env, worlds, on_cores in WORLDS:
        _compare_with_cores(env, worlds, on_cores)
    if gymnax is not None:
        _compare_with_gymnax(gymnax)
    else:
        print("gymnax: not measured; give its Python with --python gymnax=PATH")


def _step_bytes(envs: Any) -> int:
    """Returns the bytes that a step must read and write for one row: arguments, results and state."""
    info = envs._info
    rows = sum(field.dtype.itemsize * int(np.prod(field.shape)) for field in info.observations + info.actions)
    episode = 2 * 8 + 2 * 4 + 1  # total and length, read and written; the reset flag
    return int(rows + 8 + 2 + episode + 2 * info.instance_bytes)


def _in_turns(*bursts: Callable[[], float]) -> tuple[float, ...]:
    times = [[burst() for burst in bursts] for _ in range(ROUNDS)]
    return tuple(statistics.median(column) for column in zip(*times, strict=True))


def _timed(work: Callable[[], object], count: int) -> float:
    """Returns the seconds of one of `count` pieces of work on the GPU."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / count / 1e3


def _copying() -> Callable[[], float]:
    import torch

    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: _timed(lambda: target.copy_(source), 4)


@contextmanager
def _graph(env: str, count: int, options: dict[str, Any]) -> Iterator[tuple[Callable[[], float], Any]]:
    """Yields a burst that returns the seconds of one step, and the environments."""
    import torch

    with make_vec(env, count, device="cuda", buffers="live", session=None, **options) as envs:
        envs.reset(seed=0)
        space: Any = envs.single_action_space
        rows = envs.num_envs
        actions = [
            torch.randint(0, int(space.n), (rows,), device="cuda")
            if hasattr(space, "n")
            else torch.rand((rows, *space.shape), device="cuda") * 2 - 1
            for _ in range(8)
        ]
        for action in actions:
            envs.step(action)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(STEPS):
                envs.step(actions[number % len(actions)])
        _timed(graph.replay, 2)
        replays = max(1, int(0.005 / max(_timed(graph.replay, 1), 1e-6)))
        yield lambda: _timed(graph.replay, replays) / STEPS, envs


def _compare_with_cores(env: str, worlds: int, on_cores: int) -> None:
    with _graph(env, worlds, {}) as (burst, envs), open_crew(len(cores())) as crew:
        rows = envs.num_envs // worlds
        step = crew.burst(len(cores()), env, on_cores)
        calls = max(4, int(0.3 / max(step(4) / 4, 1e-6)))
        taken, on_cpu = _in_turns(burst, lambda: step(calls) / calls)
    gpu, cpu = worlds * rows / taken, on_cores * rows / on_cpu
    print(
        f"{f'{env}, {worlds:,} worlds':44} {taken * 1e6:10.2f} {gpu / 1e9:10.3f}  "
        f"{gpu / cpu:.1f} times {len(cores())} processes ({cpu / 1e6:.1f} M steps/s, {on_cores:,} worlds)"
    )


def _compare_with_gymnax(python: str) -> None:
    for count in (65_536, 2**20):
        with (
            _graph("CartPole-v1", count, {"precision": "float"}) as (burst, _),
            subprocess.Popen(
                [python, str(GYMNAX), str(count), str(STEPS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as rival,
        ):
            assert rival.stdin is not None and rival.stdout is not None

            def theirs(rival: Any = rival) -> float:
                rival.stdin.write("\n")
                rival.stdin.flush()
                return float(rival.stdout.readline())

            theirs()
            taken, other = _in_turns(burst, theirs)
            rival.stdin.close()
        print(
            f"{f'gymnax CartPole (float), {count:,}':44} {other * 1e6:10.2f} {count / other / 1e9:10.2f}  "
            f"Shoal is {other / taken:.1f} times as fast"
        )


def _smoke() -> None:
    with make_vec("CartPole-v1", 256, device="emulated", session=None) as envs:
        envs.reset(seed=0)
        begin = time.perf_counter()
        for _ in range(STEPS):
            envs.step(np.zeros(256, np.int64))
        taken = (time.perf_counter() - begin) / STEPS
        print(f"emulated CartPole-v1, 256: {taken * 1e6:.0f} us a step, {_step_bytes(envs)} bytes for each")
    sys.stdout.flush()
