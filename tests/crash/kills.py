"""Kills workers at random moments and checks every row that comes back.

    python tests/crash/kills.py --kills 2000 --seed 1 --mode sync --signal KILL
    python tests/crash/kills.py --deaths 300              how long until a death is raised

What a row must be is in marked.py. Nothing hangs (a watchdog), and no process, descriptor or memory is left.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
from gymnasium.vector import AutoresetMode

sys.path.insert(0, str(Path(__file__).parents[2]))

from shoal.errors import WorkerDied
from shoal.process.launcher import launcher
from shoal.vector import ProcessVectorEnv
from tests.crash.marked import Checker, Marked

HANG_S = 60


class Killer:
    """A thread that sends signals to random workers at random moments.

    A worker and its first replacement may be hit in one step, not three in a row: that is given up.
    """

    def __init__(self, envs: ProcessVectorEnv, number: int, seed: int, pause_s: float, kind: int) -> None:
        self._envs, self._left, self._random = envs, number, random.Random(seed)
        self._pause_s, self._kind = pause_s, kind
        self.sent = 0
        self.seen: list[int | None] = [None] * envs.num_workers  # pids come again in a long run
        self._hits = [0] * envs.num_workers
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def forgive(self) -> None:
        """A step came back."""
        self._hits = [0] * len(self._hits)

    def _run(self) -> None:
        while self.sent < self._left:
            time.sleep(self._random.expovariate(1 / self._pause_s))
            w = self._random.randrange(len(self._hits))
            pid = self._envs.worker_pids[w]
            if pid is None or pid == self.seen[w] or self._hits[w] == 2:
                continue
            self.seen[w] = pid
            self._hits[w] += 1
            with contextlib.suppress(ProcessLookupError):  # it was buried this very moment
                os.kill(pid, self._kind)
                self.sent += 1


def watch_over() -> None:
    faulthandler.dump_traceback_later(HANG_S, exit=True)


def _actions(count: int) -> np.ndarray:
    return np.zeros(count, np.int64)


def begin_sync(envs: ProcessVectorEnv, checker: Checker, seed: int) -> None:
    observation, _ = envs.reset(seed=seed)
    for env in range(envs.num_envs):
        checker.begun(env, observation, env)


def begin_async(envs: ProcessVectorEnv, checker: Checker, seed: int) -> None:
    envs.async_reset(seed=seed)
    for _ in range(2):
        results = envs.recv()
        for row, env in enumerate(results[4]["env_id"]):
            checker.begun(int(env), results[0], row)
    envs.send(_actions(envs.num_envs), np.arange(envs.num_envs))


def run_sync(envs: ProcessVectorEnv, checker: Checker, killer: Killer) -> list[float]:
    """Steps until the killer is done, and a little more; how long each step with a fault took."""
    mended: list[float] = []
    turn, after = 0, 0
    held = []
    while after < 50:
        after += killer.done
        turn += 1
        if turn % 10 == 0:  # with SIGSTOP a step may take half a second
            watch_over()
        begin = time.perf_counter()
        results = envs.step(_actions(envs.num_envs))
        killer.forgive()
        if "fault" in results[4]:
            mended.append(time.perf_counter() - begin)
        for env in range(envs.num_envs):
            checker.check(env, env, results)
        if envs.autoreset_mode == AutoresetMode.DISABLED and any(checker.done):
            mask = np.array(checker.done)
            observation, info = envs.reset(options={"reset_mask": mask})
            for env in np.flatnonzero(mask | info.get("_fault", False)):
                checker.begun(int(env), observation, int(env))
        held = [*held, results][-(turn % 7) :]  # sometimes new slots are needed, sometimes not
    return mended


def run_async(envs: ProcessVectorEnv, checker: Checker, killer: Killer, seed: int) -> list[float]:
    """Likewise. At last it waits for all: who was stopped is not missed while others come back."""
    mended: list[float] = []
    chooser = random.Random(seed)
    turn, after = 0, 0
    while after < 52:
        after += killer.done
        turn += 1
        if turn % 10 == 0:  # with SIGSTOP a step may take half a second
            watch_over()
        begin = time.perf_counter()
        results = envs.recv()
        killer.forgive()
        if "fault" in results[4]:
            mended.append(time.perf_counter() - begin)
        ids = results[4]["env_id"].copy()
        for row, env in enumerate(ids):
            checker.check(int(env), row, results)
        parts = [ids] if chooser.random() < 0.7 else np.array_split(ids, 2)
        for part in parts if after <= 50 else []:
            envs.send(_actions(len(part)), part)
    return mended


def children_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def held() -> tuple[int, int, int, int]:
    """Descriptors, mappings of segments, threads, and processes of the launcher."""
    gc.collect()
    maps = sum("memfd:shoal" in line for line in Path("/proc/self/maps").read_text().splitlines())
    process = launcher()._process.pid
    deadline = time.monotonic() + 5
    while children_of(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(os.listdir("/proc/self/fd")), maps, threading.active_count(), len(children_of(process))


def percentiles(values: list[float]) -> str:
    if not values:
        return "none"
    p50, p99 = np.percentile(values, [50, 99]) * 1e3
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {max(values) * 1e3:.2f} ms ({len(values)})"


def run_kills(options: argparse.Namespace) -> None:
    mode = AutoresetMode[options.autoreset]
    stop = options.signal == "STOP"
    makers = [partial(Marked, env, options.work_us, options.die_making) for env in range(options.envs)]
    ProcessVectorEnv(makers[:1], num_workers=1).close()  # the launcher, and all that is kept once
    before = held()
    envs = ProcessVectorEnv(
        makers,
        num_workers=options.workers,
        autoreset_mode=mode,
        on_fault="restart",
        step_timeout_s=0.2 if stop else None,
        reset_timeout_s=5 if stop else None,  # a replacement may be stopped while it is made
        batch_size=options.envs // 2 if options.mode == "async" else None,
        context=options.context,
    )
    checker = Checker(options.envs, mode)
    begin = time.monotonic()
    watch_over()
    if options.mode == "sync":
        begin_sync(envs, checker, options.seed)
    else:
        begin_async(envs, checker, options.seed)
    killer = Killer(
        envs,
        options.kills,
        options.seed,
        0.1 if stop else options.pause_ms / 1e3,
        signal.SIGSTOP if stop else signal.SIGKILL,
    )
    mended = (
        run_sync(envs, checker, killer)
        if options.mode == "sync"
        else run_async(envs, checker, killer, options.seed)
    )
    seconds, restarts = time.monotonic() - begin, envs.stats["restarts"]
    pids = [pid for pid in envs.worker_pids if pid is not None]
    closing = time.monotonic()
    envs.close()
    closing = time.monotonic() - closing
    faulthandler.cancel_dump_traceback_later()
    print(f"{killer.sent} {options.signal}s in {seconds:.1f} s: {restarts} restarts")
    print(f"{checker.rows} rows exact, {checker.faults} flagged, {checker.episodes} episodes ended")
    print(f"step with a repair: {percentiles(mended)}; close {closing * 1e3:.1f} ms")
    del envs, killer.__dict__["_envs"]
    mended.clear()
    after = held()
    assert after == before, f"descriptors, mappings, threads, workers before {before} and after {after}"
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert restarts >= options.kills // 2, restarts  # two may hit one worker
    print("nothing left behind")


def run_deaths(options: argparse.Namespace) -> None:
    """How long from a kill to the exception, and from there to a working vector environment."""
    makers = [partial(Marked, env) for env in range(options.envs)]
    envs = ProcessVectorEnv(makers, num_workers=options.workers)
    envs.reset(seed=options.seed)
    chooser = random.Random(options.seed)
    to_killer, orders = os.pipe()[::-1]
    killed_at, from_killer = os.pipe()
    pid = os.fork()  # so that the killer's moments are not those at which this process has nothing to do
    if pid == 0:
        with os.fdopen(orders) as lines:
            for line in lines:
                victim, delay = line.split()
                time.sleep(float(delay))
                moment = time.monotonic()
                os.kill(int(victim), signal.SIGKILL)
                os.write(from_killer, f"{moment!r}\n".encode())
                if victim == "0":
                    break
        os._exit(0)
    known, revived = [], []
    with os.fdopen(killed_at) as answers:
        for _ in range(options.deaths):
            watch_over()
            victim = chooser.choice(envs.worker_pids)
            os.write(to_killer, f"{victim} {chooser.random() * 0.01}\n".encode())
            try:
                while True:
                    envs.step(_actions(options.envs))
            except WorkerDied as error:
                now = time.monotonic()
                assert error.pid == victim and error.signal == signal.SIGKILL
            known.append(now - float(answers.readline()))
            begin = time.perf_counter()
            envs.reset()
            revived.append(time.perf_counter() - begin)
    os.close(to_killer)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    envs.close()
    faulthandler.cancel_dump_traceback_later()
    print(f"from the kill to WorkerDied: {percentiles(known)}")
    print(f"reset() that brings the worker back: {percentiles(revived)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--deaths", type=int, help="measure so many deaths with on_fault='raise' instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--signal", choices=["KILL", "STOP"], default="KILL")
    parser.add_argument("--autoreset", choices=["NEXT_STEP", "SAME_STEP", "DISABLED"], default="NEXT_STEP")
    parser.add_argument("--envs", type=int, default=12)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--context", choices=["fork", "forkserver", "spawn"], default=None)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="mean time between kills")
    parser.add_argument("--work-us", type=float, default=100.0, help="mean time of a step")
    parser.add_argument("--die-making", type=float, default=0.0, help="chance to die while being made")
    options = parser.parse_args()
    faulthandler.enable()
    (run_kills if options.deaths is None else run_deaths)(options)


if __name__ == "__main__":
    sys.exit(main())
