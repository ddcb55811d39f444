"""Threads that step, receive, reset, read state, close and are interrupted at random, on every backend.

    python -m tests.vector.stress --seconds 60 --seed 1      (make stress runs it under AddressSanitizer)

Each call must return its own results, raise what the interface says, or be refused; arrays that are held must
not change; close() must end everything. Anything else is a violation: it is printed with its seed, and the
exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from collections import Counter
from multiprocessing import TimeoutError as WaitTimeout
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded

from shoal.errors import ClosedError, ShoalError
from shoal.vector import ProcessVectorEnv
from tests.vector.latched import BACKENDS, make

NUM_ENVS = 4
ALLOWED = (ShoalError, ResetNeeded, AlreadyPendingCallError, NoAsyncCallError, WaitTimeout)
MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")


class Interrupt(BaseException):
    """What the signal handler raises in the main thread."""


class Round:
    """One vector environment and the threads that use it until one of them closes it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.backend = self.random.choice(BACKENDS)
        self.asynchronous = self.backend in ("native", "Python in workers") and self.random.random() < 0.4
        kwargs: dict[str, Any] = {"session": None, "length": self.random.choice((3, 50))}
        if self.asynchronous:
            kwargs["batch_size"] = 2
        else:
            # A step of a device shows the last rows of environments that are over, which others stepped.
            modes = MODES[:2] if self.backend == "emulated" else MODES
            kwargs["autoreset_mode"] = self.mode = self.random.choice(modes)
            kwargs["buffers"] = self.random.choice(("leased", "leased", "copy"))
            kwargs["max_slots"] = self.random.choice((2, 64))
        self.sleep_us = self.random.choice((0, 0, 60))
        self.envs = make(self.backend, NUM_ENVS, sleep_us=self.sleep_us, **kwargs)
        self.rows_per_call = 2 if self.asynchronous else NUM_ENVS
        self.calls: Counter[str] = Counter()
        self.violations: list[str] = []
        self.interruptible = False

    def run(self, seconds: float, threads: int) -> None:
        stop_at = time.monotonic() + seconds
        started = [threading.Thread(target=self.work, args=(number,)) for number in range(1, threads)]
        for thread in started:
            thread.start()
        before = signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, seconds / 7, seconds / 7)
        self.work(0, stop_at)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        closers = [threading.Thread(target=self.envs.close) for _ in range(self.random.randint(0, 2))]
        for thread in closers:
            thread.start()
        self.envs.close()
        for thread in started + closers:
            thread.join(60)
            if thread.is_alive():
                self.violations.append("a thread hangs after close()")
        if not self.envs.closed:
            self.violations.append("close() returned and the environments are open")

    def _interrupt(self, *_: Any) -> None:
        if self.interruptible:  # the main thread is inside a call, or about to handle what came of it
            self.interruptible = False  # once: the handler of the first must not be interrupted
            raise Interrupt

    def work(self, number: int, stop_at: float | None = None) -> None:
        """Calls at random until the environments are closed, or until `stop_at`."""
        luck, kept = random.Random(f"{self.random.random()} {number}"), []
        is_main = stop_at is not None
        while not self.violations and (stop_at is None or time.monotonic() < stop_at):
            try:
                self.interruptible |= is_main
                if self.call(
                    luck.choice(ASYNCHRONOUS if self.asynchronous else SYNCHRONOUS), number, luck, kept
                ):
                    continue
                if not is_main:
                    return
            except Interrupt:
                self.calls["interrupted"] += 1
            finally:
                if is_main:
                    self.interruptible = False

    def call(self, name: str, number: int, luck: random.Random, kept: list[Any]) -> bool:
        """One call and what came of it; False once the environments are closed."""
        try:
            found = getattr(self, name)(number + 1, luck)
            self.calls[name] += 1
            if found is not None:
                kept.append((found, found.copy()))
                del kept[:-6]
        except ClosedError:
            self.calls["closed"] += 1
            return False
        except ALLOWED as error:
            self.calls["refused" if "inside" in str(error) else "not now"] += 1
        except Interrupt:
            raise
        except BaseException as error:
            self.violations.append(f"{name}: {type(error).__name__}: {error}")
        if not all(np.array_equal(now, then) for now, then in kept):
            self.violations.append(f"a result changed while it was held, seen after {name}")
        return True

    # -- calls --

    def _require_mine(self, observations: Any, rewards: Any, mine: int) -> Any:
        seen = observations[:, 1]
        fresh = observations[:, 0] == 0  # reset by this very step
        if not ((seen == mine) | fresh).all() or not ((rewards == observations[:, 0]) | fresh).all():
            raise AssertionError(f"action {mine}: {observations.tolist()} {rewards.tolist()}")
        return observations

    def step(self, mine: int, luck: random.Random) -> Any:
        observations, rewards, *_ = self.envs.step(np.full(NUM_ENVS, mine))
        return self._require_mine(observations, rewards, mine)

    def step_list(self, mine: int, luck: random.Random) -> Any:
        observations, rewards, *_ = self.envs.step([mine] * NUM_ENVS)
        return self._require_mine(observations, rewards, mine)

    def reset(self, mine: int, luck: random.Random) -> Any:
        observations, _ = self.envs.reset(seed=luck.choice((None, 5)))
        if not (observations[:, :2] == [0, -1]).all():
            raise AssertionError(f"a reset gave {observations.tolist()}")
        return observations

    def reset_some(self, mine: int, luck: random.Random) -> Any:
        mask = np.array([luck.random() < 0.5 for _ in range(NUM_ENVS)])
        mask[luck.randrange(NUM_ENVS)] = True
        observations, _ = self.envs.reset(options={"reset_mask": mask})
        if not (observations[mask, :2] == [0, -1]).all():
            raise AssertionError(f"a reset of {mask} gave {observations.tolist()}")
        return observations

    def rollout(self, mine: int, luck: random.Random) -> Any:
        if self.mode == "SAME_STEP":
            return None
        rollout = self.envs.rollout(3)
        rollout.start(self.envs.reset()[0])
        for t in range(3):
            rollout.step(np.full(NUM_ENVS, mine))
            self._require_mine(rollout.observations[t + 1], rollout.rewards[t], mine)
        return rollout.observations

    def split_step(self, mine: int, luck: random.Random) -> Any:
        if not isinstance(self.envs, ProcessVectorEnv):
            return None
        self.envs.step_async(np.full(NUM_ENVS, mine))
        self.envs.step_wait(timeout=luck.choice((None, 0.001)))  # perhaps of another thread's step
        return None

    def state(self, mine: int, luck: random.Random) -> None:
        self.envs.state(luck.randrange(NUM_ENVS))

    def stats(self, mine: int, luck: random.Random) -> None:
        if self.envs.stats["steps"] < 0:
            raise AssertionError("a negative number of steps")

    def save(self, mine: int, luck: random.Random) -> None:
        if self.envs.has_extension("shoal.checkpoint/1"):
            self.envs.restore_env(luck.randrange(NUM_ENVS), self.envs.save_env(luck.randrange(NUM_ENVS)))

    def async_reset(self, mine: int, luck: random.Random) -> None:
        self.envs.async_reset(seed=3)

    def exchange(self, mine: int, luck: random.Random) -> Any:
        observations, _, _, _, info = self.envs.recv()
        kept = observations.copy()
        for _ in range(20):  # until no other thread is inside
            try:
                self.envs.send(np.full(2, mine), info["env_id"])
                break
            except ClosedError:
                raise
            except ShoalError as error:
                if "inside" not in str(error):
                    raise
                time.sleep(0.0005)
        if not np.array_equal(observations, kept):
            raise AssertionError("a batch changed while it was held")
        return observations


SYNCHRONOUS = (
    *("step", "step_list") * 4,
    *("reset", "reset_some", "rollout", "split_step", "state", "stats", "save"),
)
ASYNCHRONOUS = (*("exchange",) * 8, "async_reset", "state", "stats")


def run(seconds: float, seed: int, rounds: int, round_s: float = 0.6) -> tuple[Counter[str], list[str]]:
    """Rounds until the time is over, at least `rounds`: how often what happened, and violations."""
    total: Counter[str] = Counter()
    violations: list[str] = []
    end, number = time.monotonic() + seconds, 0
    while (time.monotonic() < end or number < rounds) and not violations:
        number += 1
        one = Round(seed * 1_000_003 + number)
        one.run(round_s, threads=3)
        total += one.calls
        total["rounds"] += 1
        where = f"seed {seed}, round {number}, {one.backend}" + (", batch_size" if one.asynchronous else "")
        violations += [f"{where}: {violation}" for violation in one.violations]
    return total, violations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="run for this many seconds")
    parser.add_argument("--rounds", type=int, default=1, help="run at least this many rounds, however long")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all random choices")
    arguments = parser.parse_args()
    total, violations = run(arguments.seconds, arguments.seed, arguments.rounds)
    print(", ".join(f"{name} {count}" for name, count in total.most_common()))
    for violation in violations:
        print("VIOLATION", violation, file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
