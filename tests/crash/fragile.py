"""An environment that fails in every way on command, and helpers of the tests of failing workers.

Workers import this module, so it loads nothing that is slow to load.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from shoal.errors import WorkerDied
from shoal.vector import ProcessVectorEnv
from shoal_lab.chaos.faults import LENIENCE, crash

GO_ON, KILL, SEGFAULT, ABORT, EXIT, RAISE, LOOP, C_LOOP, DEAF_LOOP = range(9)
FINISH, BIG, SLOW, SAY, STOP, FORK, HEAVY, BECOME = range(9, 17)
"""Actions. LOOP is Python's, C_LOOP never gives up the GIL, DEAF_LOOP blocks all signals first; HEAVY takes
memory, BECOME makes the process another program."""

WAYS = {KILL: "kill", SEGFAULT: "segfault", ABORT: "abort", EXIT: "exit", LOOP: "loop", C_LOOP: "loop in C"}
WAYS |= {DEAF_LOOP: "loop, signals blocked", STOP: "stop"}

SLOW_S = 1.2
BIG_BYTES = 10_000_000

SOON_S = 2.0
"""A death is known in milliseconds; a test machine may be busy with other things."""


class Broken(Exception):
    """What RAISE raises."""


class Fragile(gymnasium.Env):
    """Shows who it is, a number drawn when it was made, its step, and what its generator drew at reset."""

    observation_space = Box(-(2**62), 2**62, (4,), np.int64)
    action_space = Discrete(17)

    def __init__(self, tag: int = 0, deaths: str | None = None) -> None:
        """`deaths` is a file; while it holds a number above 0 that is counted down and this process ends."""
        if deaths is not None and (left := int(Path(deaths).read_text())) > 0:
            Path(deaths).write_text(str(left - 1))
            crash("kill")
        self.tag, self.count, self.drawn = tag, 0, 0
        self.nonce = int.from_bytes(os.urandom(5), "little")
        self.note = "none"

    def _seen(self):
        return np.array([self.tag, self.nonce, self.count, self.drawn], np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.do((options or {}).get(self.tag, GO_ON))
        self.count, self.drawn = 0, int(self.np_random.integers(2**31))
        return self._seen(), {"seed": -1 if seed is None else seed}

    def step(self, action):
        self.count += 1
        info = self.do(int(action))
        return self._seen(), float(self.count), action == FINISH, False, info

    def do(self, what):
        """Fails as `what` says."""
        if what in WAYS:
            crash(WAYS[what])
        elif what == RAISE:
            raise Broken(f"environment {self.tag} was told to")
        elif what == BIG:
            return {"big": np.full(BIG_BYTES, self.tag, np.uint8)}
        elif what == SLOW:
            time.sleep(SLOW_S)
        elif what == SAY:
            print(f"environment {self.tag} speaks", file=sys.stderr)
            print(f"and {self.tag} prints")
        elif what == FORK:
            child = multiprocessing.get_context("fork").Process(target=int)
            child.start()
            child.join()
        elif what == HEAVY:
            self.held = np.ones(BIG_BYTES * 10, np.uint8)
        elif what == BECOME:
            os.execv("/bin/sleep", ["sleep", "100"])
        return {}

    def do_if(self, tag, what):
        """For `call`, which calls every environment."""
        return self.do(what) if tag == self.tag else {}

    def leave_from_a_thread(self, delay_s=0.0):
        """Ends well, but not by the thread that steps."""
        threading.Timer(delay_s, os._exit, (0,)).start()
        time.sleep(60)

    def echo(self, value):
        return value

    def write_for_ever(self):
        while True:
            os.write(2, b"again and again\n")


class Wide(Fragile):
    """Takes large actions, and gives their sum as the reward."""

    action_space = Box(-np.inf, np.inf, (200_000,), np.float32)

    def step(self, action):
        assert action.dtype == np.float64
        return self._seen(), float(action.sum()), False, False, {}


def make_fragile(count: int = 4, workers: int = 2, deaths: Path | None = None, kind=Fragile, **arguments):
    """`count` of them over some workers: environment i is i."""
    path = None if deaths is None else str(deaths)
    makers = [partial(kind, tag, path) for tag in range(count)]
    return ProcessVectorEnv(makers, num_workers=workers, **arguments)


def actions(*chosen: int, count: int = 4) -> np.ndarray:
    """Actions for all, GO_ON where nothing else is said: actions(3, KILL) is KILL for environment 3."""
    whole = np.full(count, GO_ON, np.int64)
    for env, what in zip(chosen[::2], chosen[1::2], strict=True):
        whole[env] = what
    return whole


def state_of(pid: int) -> str:
    """As ps shows it: R, S, T, Z; X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not just what is left of one."""
    return state_of(pid) not in "ZX"


def wait_until(condition, within_s: float) -> float:
    """How long it took; an AssertionError if it takes longer."""
    within_s *= LENIENCE
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < within_s, f"not within {within_s} s"
        time.sleep(0.005)
    return time.monotonic() - begin


def wait_gone(pids, within_s: float) -> float:
    return wait_until(lambda: not any(map(is_running, pids)), within_s)


@contextlib.contextmanager
def at_most(seconds: float):
    """What is inside takes no longer."""
    seconds *= LENIENCE
    begin = time.monotonic()
    yield
    took = time.monotonic() - begin
    assert took <= seconds, f"took {took:.2f} s, at most {seconds} s was promised"


def died(envs, chosen) -> WorkerDied:
    """The death that a step with these actions raises, soon."""
    with at_most(SOON_S):
        try:
            envs.step(chosen)
        except WorkerDied as error:
            return error
    raise AssertionError("nobody died")


PRELUDE = """
import os, signal, sys, time
from tests.crash.fragile import *
from shoal.errors import ForkedError
from shoal.process import launcher

def say(*words):
    print(*words, flush=True)
"""
"""What scripts of these tests begin with."""


def read_words(process):
    """The next line a script says."""
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.split()
