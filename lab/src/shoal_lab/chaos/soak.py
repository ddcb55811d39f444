"""Repeats making, stepping, killing, attaching and closing, and checks that resources do not grow.

Flat means: in the last third of the time, the maximum number of descriptors, mappings, threads and children
after a cycle is not higher than in the second third (the first third warms up), and the median memory (RSS)
of the trainer and its launcher is at most 2 MB or 3 % higher. Only mappings of files and shared memory count:
the allocator maps and unmaps private memory at any time, and RSS includes it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import SessionError, WorkerDied
from shoal.replay import ReplayBuffer
from shoal.state import attach
from shoal.vector import ProcessVectorEnv, make_vec
from shoal_lab.chaos.marked import Checker, Marked
from shoal_lab.chaos.resources import is_spare, launcher_pid, list_children

__all__ = ["count_mappings", "find_growth", "run"]

ENVS, WORKERS, STEPS = 8, 2, 40
MOST = 2048  # the maximum number of samples
COUNTS = ("descriptors", "mappings", "threads", "children")
MEMORY = ("trainer_mb", "launcher_mb")


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources after a cycle, when everything is closed."""

    seconds: float
    descriptors: int
    mappings: int
    threads: int
    children: int
    trainer_mb: float
    launcher_mb: float

    @staticmethod
    def take(begin: float) -> Sample:
        first = launcher_pid()
        return Sample(
            round(time.monotonic() - begin, 2),
            len(os.listdir("/proc/self/fd")),
            count_mappings(Path("/proc/self/maps").read_text()),
            len(os.listdir("/proc/self/task")),
            _wait_for_workers(first),
            _rss_mb(os.getpid()),
            _rss_mb(first),
        )


def count_mappings(maps: str) -> int:
    """Count the lines of /proc/PID/maps that map a file or shared memory: the inode of any other is 0."""
    return sum(line.split(None, 5)[4] != "0" for line in maps.splitlines())


def _wait_for_workers(first: int) -> int:
    """Waits until the launcher has reaped dead workers; returns the number of workers left."""
    deadline = time.monotonic() + 2
    while (left := _count_workers(first)) and time.monotonic() < deadline:
        time.sleep(0.005)
    return left


def _count_workers(first: int) -> int:
    return sum(not is_spare(pid) for pid in list_children(first))


def _thin(samples: list[Sample], every: int) -> tuple[list[Sample], int]:
    """Drops every other sample if there are many, because the list itself must not grow without limit."""
    return (samples, every) if len(samples) < MOST else (samples[::2], 2 * every)


def _rss_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return round(pages * os.sysconf("SC_PAGESIZE") / 1e6, 2)


def find_growth(samples: list[Sample]) -> dict[str, str]:
    """Returns what is not flat, with a description; {} if everything is flat."""
    third = len(samples) // 3
    if third < 3:
        return {"samples": f"{len(samples)} are too few to judge; soak longer"}
    early, late = samples[third : 2 * third], samples[2 * third :]
    bad = {}
    for name in COUNTS:
        before, after = (max(getattr(one, name) for one in part) for part in (early, late))
        if after > before:
            bad[name] = f"{before} at most in the second third, {after} in the last"
    for name in MEMORY:
        before, after = (float(np.median([getattr(one, name) for one in part])) for part in (early, late))
        if after > before + max(2.0, 0.03 * before):
            bad[name] = f"{before:.1f} MB in the second third, {after:.1f} in the last"
    return bad


# -- a cycle ----------------------------------------------------------------------------------------------


def _cycle(chooser: random.Random, number: int) -> int:
    """Does everything once; returns the number of checked rows."""
    rows = _python_envs(chooser, number)
    with make_vec("shoal/CartPole-v1", 64, backend="process", num_workers=2, on_fault="restart") as envs:
        envs.reset(seed=number)
        os.kill(envs.worker_pids[0], signal.SIGKILL)  # type: ignore[arg-type]
        envs.step(np.zeros(64, np.int64))
    with make_vec("shoal/CartPole-v1", 64) as envs:
        envs.reset(seed=number)
        envs.step(np.zeros(64, np.int64))
    with ReplayBuffer(256, {"words": (np.uint64, (64,))}) as buffer:
        pid = os.fork()
        if pid == 0:
            while True:
                buffer.push({"words": np.ones(64, np.uint64)})
        buffer.push({"words": np.zeros(64, np.uint64)})
        time.sleep(chooser.random() * 0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        words = buffer.sample(32)["words"]
        assert (words == words[:, :1]).all(), "a torn row"
    return rows


def _python_envs(chooser: random.Random, number: int) -> int:
    restart = number % 2 == 0
    makers = [partial(Marked, env, 20.0) for env in range(ENVS)]
    name = f"soak-{os.getpid()}"
    envs = ProcessVectorEnv(
        makers, num_workers=WORKERS, on_fault="restart" if restart else "raise", session=name
    )
    checker = Checker(ENVS, envs.autoreset_mode)
    observation, _ = envs.reset(seed=number)
    for env in range(ENVS):
        checker.check_reset(env, observation, env)
    session = attach(name)
    session.watch([0], 60.0)
    dies = chooser.randrange(STEPS)
    try:
        for step in range(STEPS):
            if step == dies:
                os.kill(chooser.choice(envs.worker_pids), signal.SIGKILL)  # type: ignore[arg-type]
            results = envs.step(np.zeros(ENVS, np.int64))
            for env in range(ENVS):
                checker.check(env, env, results)
            if step % 10 == 9:
                session.latest(0)
    except (WorkerDied, SessionError):
        if restart:
            raise
        envs.reset()
    session.close()
    envs.close()
    return checker.rows


def run(minutes: float, seed: int, chart: Path | None, *, as_json: bool) -> int:
    """Runs cycles for `minutes` and prints the resources; returns 1 if they grew."""
    chooser, samples, rows, cycles, every = random.Random(seed), list[Sample](), 0, 0, 1
    with tempfile.TemporaryDirectory(prefix="shoal-soak-") as place:
        os.environ["SHOAL_SESSION_DIR"] = place
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        begin, last = time.monotonic(), 0.0
        while time.monotonic() < begin + 60 * minutes or cycles < 12:
            rows += _cycle(chooser, cycles)
            cycles += 1
            if cycles % every == 0:
                samples.append(Sample.take(begin))
                samples, every = _thin(samples, every)
            if not as_json and time.monotonic() - last > 10:
                last = time.monotonic()
                print(
                    f"{samples[-1].seconds:6.0f} s, cycle {cycles}: {_format_sample(samples[-1])}", flush=True
                )
    bad = find_growth(samples)
    if chart is not None:
        from shoal_lab.chaos.chart import draw_chart

        chart.write_text(draw_chart([asdict(one) for one in samples], cycles))
    if as_json:
        first, final = asdict(samples[len(samples) // 3]), asdict(samples[-1])
        print(
            json.dumps(
                {"flat": not bad, "cycles": cycles, "rows": rows, "early": first, "last": final, "bad": bad}
            )
        )
        return 1 if bad else 0
    last_sample = _format_sample(samples[-1])
    print(f"\n{cycles} cycles in {samples[-1].seconds:.0f} s, {rows:,} rows checked: {last_sample}")
    for name, how in bad.items():
        print(f"NOT FLAT: {name}: {how}")
    print("resources grew" if bad else __doc__.split("\n\n")[1].strip().replace("\n", " "))
    return 1 if bad else 0


def _format_sample(sample: Sample) -> str:
    counts: dict[str, Any] = {name: getattr(sample, name) for name in COUNTS}
    text = ", ".join(f"{number} {name}" for name, number in counts.items())
    return f"{text}, {sample.trainer_mb:.1f} + {sample.launcher_mb:.1f} MB"
