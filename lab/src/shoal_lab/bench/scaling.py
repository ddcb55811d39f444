"""Threads against independent processes: the same environments as one vector environment, and split.

    Shoal, 1 thread  |  Shoal, N threads  |  N processes of one thread, started together: the limit

Processes share nothing and never wait for each other, so the sum of their rates is what the cores can do. The
same for `sample` of a replay buffer with long rows, whose batches are copied by several threads.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.replay import ReplayBuffer
from shoal.vector import make_vec
from shoal_lab.bench.interleave import Burst
from shoal_lab.bench.measure import Bench, Pace, Rival
from shoal_lab.bench.results import Case

__all__ = ["Crew", "idle_cpu_us", "measure", "measure_samples", "open_crew"]

_TURNS = 4  # action arrays, used in turn
_PARTS = 4  # calls of recv per step of all environments
_ROW = 84 * 84 * 4  # bytes of a row of the replay buffer: four frames of Atari
_ROWS_PER_SAMPLE = 16  # of the buffer, for each row of a batch; more than the caches hold
_HEAD_START_S = 0.005  # until all processes have read the command
_TIMEOUT_S = 120.0


def _open(stack: ExitStack, env: str, num_envs: int, **how: Any) -> tuple[Any, Burst]:
    """Makes a vector environment, with these arguments of make_vec, and a burst of its steps."""
    envs: Any = stack.enter_context(make_vec(env, num_envs, session=None, **how))
    envs.reset(seed=0)
    choices = int(envs.single_action_space.n)
    actions = list(np.random.default_rng(0).integers(0, choices, (_TURNS, envs.num_envs)))
    step = envs.step

    def burst(calls: int) -> float:
        turns = islice(cycle(actions), calls)
        start = time.perf_counter()
        for action in turns:
            observations, rewards, terminated, truncated, info = step(action)
        return time.perf_counter() - start

    return envs, burst


def _open_steps(stack: ExitStack, env: str, num_envs: int) -> Burst:
    return _open(stack, env, num_envs, num_threads=1)[1]


def _open_parts(stack: ExitStack, env: str, num_envs: int, num_threads: int) -> Burst:
    """Makes a vector environment for send and recv of a quarter each; returns a burst of whole steps."""
    size = num_envs // _PARTS
    envs: Any = stack.enter_context(
        make_vec(env, num_envs, num_threads=num_threads, batch_size=size, session=None)
    )
    envs.async_reset(seed=0)
    choices = int(envs.single_action_space.n)
    actions = np.random.default_rng(0).integers(0, choices, size)
    received = [envs.recv()[4]["env_id"] for _ in range(_PARTS)]

    def burst(calls: int) -> float:
        start = time.perf_counter()
        for ids in received:
            envs.send(actions, ids)
        for _ in range(_PARTS * (calls - 1)):
            observations, rewards, terminated, truncated, info = envs.recv()
            envs.send(actions, info["env_id"])
        received[:] = [envs.recv()[4]["env_id"] for _ in range(_PARTS)]  # no thread works between bursts
        return time.perf_counter() - start

    return burst


def _open_samples(stack: ExitStack, batch: int) -> Burst:
    """Makes a replay buffer with long rows; returns a burst of samples."""
    capacity = batch * _ROWS_PER_SAMPLE
    buffer = stack.enter_context(ReplayBuffer(capacity, {"frames": (np.uint8, (_ROW,))}, seed=0))
    rows = np.random.default_rng(0).integers(0, 256, (min(capacity, 64), _ROW), np.uint8)
    while buffer.total_pushed < capacity:
        buffer.extend({"frames": rows})

    def burst(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            sampled = buffer.sample(batch)
        assert len(sampled["frames"]) == batch
        return time.perf_counter() - start

    return burst


def _open_samples_on(stack: ExitStack, batch: int, core: int) -> Burst:
    """The same on one core, where a buffer starts no threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    stack.callback(os.sched_setaffinity, 0, before)
    return _open_samples(stack, batch)


def _serve(pipe: Connection) -> None:
    """A process of the crew: opens what it is told to, and runs bursts of it; ends with the pipe."""
    with ExitStack() as stack:
        burst: Burst | None = None
        while True:
            try:
                command, *arguments = pipe.recv()
            except (EOFError, ConnectionError):
                return
            try:
                if command == "open":
                    stack.close()
                    burst = arguments[0](stack, *arguments[1:])
                    pipe.send(("ok", 0.0))
                else:
                    assert burst is not None
                    calls, start = arguments
                    while time.monotonic() < start:  # spins: a process that sleeps would start late
                        pass
                    pipe.send(("ok", burst(calls)))
            except Exception as error:
                pipe.send(("error", f"{type(error).__name__}: {error}"))


class Crew:
    """Processes that step their own environments at the same time."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _ask(self, commands: list[tuple[Any, ...]]) -> list[float]:
        """Sends a command to each of the first processes; returns their answers."""
        members = self._pipes[: len(commands)]
        for pipe, command in zip(members, commands, strict=True):
            pipe.send(command)
        answers = []
        for pipe in members:
            if not pipe.poll(_TIMEOUT_S):
                raise ShoalError(f"a process of the benchmark did not answer within {_TIMEOUT_S:g} s")
            answers.append(pipe.recv())
        for status, value in answers:  # only now, when no answer is left in a pipe
            if status != "ok":
                raise ShoalError(f"a process of the benchmark failed: {value}")
        return [value for _, value in answers]

    def burst(self, members: int, env: str, num_envs: int) -> Burst:
        """Splits the environments; returns a burst whose time is that of the sum of all rates."""
        return self._open([(_open_steps, env, num_envs // members)] * members)

    def burst_samples(self, members: int, batch: int) -> Burst:
        """Splits a batch; each process samples its part from a buffer of its own."""
        cores = sorted(os.sched_getaffinity(0))
        return self._open([(_open_samples_on, batch // members, core) for core in cores[:members]])

    def _open(self, parts: list[tuple[Any, ...]]) -> Burst:
        self._ask([("open", *part) for part in parts])

        def run(calls: int) -> float:
            times = self._ask([("run", calls, time.monotonic() + _HEAD_START_S)] * len(parts))
            return len(parts) / sum(1 / one for one in times)

        return run

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def open_crew(size: int) -> Iterator[Crew]:
    crew = Crew(size)
    try:
        yield crew
    finally:
        crew.close()


def measure(
    bench: Bench, crew: Crew, env: str, num_envs: int, threads: int, pace: Pace, *, every_way: bool = False
) -> Case:
    """Measures one thread, some threads and as many processes, in turns.

    With `every_way` also send and recv on the threads, and worker processes.
    """
    with ExitStack() as stack:
        rivals = []
        for count in sorted({1, threads}, reverse=True):  # the first row of Shoal is compared with the limit
            envs, burst = _open(stack, env, num_envs, num_threads=count)
            name = f"Shoal, {count} threads" if count > 1 else "Shoal, 1 thread"
            rivals.append(Rival(name, "shoal", num_envs, burst))
        if every_way:
            parts = _open_parts(stack, env, num_envs, threads)
            rivals.append(Rival("Shoal, send and recv", "shoal", num_envs, parts))
            _, burst = _open(stack, env, num_envs, backend="process", num_workers=threads)
            rivals.append(Rival("Shoal, worker processes", "shoal", num_envs, burst))
        rivals.append(Rival(_name(threads), "limit", num_envs, crew.burst(threads, env, num_envs)))
        title = f"{envs.spec.id if envs.spec else env}, {num_envs:,}"
        return bench.timed("sweep", title, "env steps/s", rivals, pace, lambda n, s: n / s)


def measure_samples(bench: Bench, crew: Crew, batch: int, threads: int, pace: Pace) -> Case:
    """Measures samples of long rows: Shoal's choice of threads, and processes that sample a part each."""
    with ExitStack() as stack:
        rivals = [
            Rival("Shoal", "shoal", batch, _open_samples(stack, batch)),
            Rival(_name(threads), "limit", batch, crew.burst_samples(threads, batch)),
        ]
        title = f"{batch:,} rows of {_ROW:,} bytes"
        return bench.timed("sweep", title, "rows/s", rivals, pace, lambda n, s: n / s)


def _name(processes: int) -> str:
    return f"{processes} processes" if processes > 1 else "1 process"


def idle_cpu_us(env: str, num_envs: int, threads: int, idle_s: float) -> float:
    """Returns the CPU time of an idle vector environment, per second, from 2 ms after its last step."""
    with ExitStack() as stack:
        _, burst = _open(stack, env, num_envs, num_threads=threads)
        burst(2000)
        time.sleep(0.002)
        before = time.process_time()
        time.sleep(idle_s)
        return (time.process_time() - before) / idle_s * 1e6
