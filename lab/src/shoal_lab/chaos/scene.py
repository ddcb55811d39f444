"""The common parts of the scenes with workers: calls with a deadline, and faults planned one at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal_lab.chaos.faults import CRASHES, HANGS, LENIENCE
from shoal_lab.chaos.marked import ACTIONS, POINTS, Checker, Violation
from shoal_lab.chaos.resources import Resources, launcher_pid
from shoal_lab.chaos.rounds import Outcome, Reporter, Round
from shoal_lab.chaos.signaller import Signaller

__all__ = ["Faults", "Scene"]

SIGNALS = [signal.SIGKILL] * 6 + [signal.SIGSEGV, signal.SIGABRT]
_OFTEN = 0.25
_RESTS, _REST_S = 0.1, 0.25
_AGAIN = ", right after another"


class Scene:
    """One workload of a stage."""

    def __init__(self, round_: Round, outcome: Outcome, reporter: Reporter) -> None:
        self.random, self.outcome, self.reporter = round_.random(), outcome, reporter
        self.seed = round_.seed
        self.signaller = Signaller()
        self._rested: set[str] = set()
        self.armed = os.path.join(os.environ["SHOAL_CHAOS_DIR"], "armed")

    def call(self, what: str, limit_s: float, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Makes a call that must return in time; the supervisor finds a call that never returns."""
        self.reporter(self.outcome.kills, what)
        begin = time.monotonic()
        try:
            return function(*args, **named)
        finally:
            took = time.monotonic() - begin
            if took > limit_s * LENIENCE:
                message = f"{what} took {took:.2f} s, more than the limit of {limit_s * LENIENCE:g} s"
                self.outcome.violations.append((4, message))

    def pause(self, timing: str) -> str:
        """Sometimes sleeps before a fault, so that not all come close together; returns the time's name."""
        if timing in self._rested and self.random.random() > _RESTS:
            return timing + _AGAIN
        self._rested.add(timing)
        time.sleep(_REST_S)
        return timing

    @contextlib.contextmanager
    def require_no_leaks(self, what: str) -> Iterator[None]:
        resources = Resources()
        yield
        resources.require_same(what)

    @contextlib.contextmanager
    def starve(self, envs: Any) -> Iterator[None]:
        """Puts all processes on one core, beside two busy processes."""
        cores = os.sched_getaffinity(0)
        one = {self.random.choice(sorted(cores))}
        pids = [os.getpid(), launcher_pid() or os.getpid(), *filter(None, envs.worker_pids)]
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            for pid in [*pids, *(process.pid for process in busy)]:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(pid, one)
            for pid in pids[2:]:
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, pid, 19)
            yield
        finally:
            for process in busy:
                process.kill()
                process.wait()
            for pid in [*pids[:2], *filter(None, envs.worker_pids)]:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(pid, cores)


class Faults:
    """Plans faults for the workers of a vector environment, one after the other.

    Random faults are signals of the signaller, at any instruction. Named faults are actions, or files that
    kill a process that makes or resets an environment.
    """

    def __init__(self, scene: Scene, envs: Any, checker: Checker, timed: bool = False) -> None:
        self._scene, self._envs, self._checker, self._left = scene, envs, checker, 0
        self._timed = timed
        self._orders = 0
        self._parent = os.getpid() if envs.context == "fork" else launcher_pid()
        self.expected: int | None = None
        """The environment that was made to fail: its next row must report the fault."""

    @property
    def is_done(self) -> bool:
        return self._left <= 0 and not self.is_pending

    @property
    def is_pending(self) -> bool:
        """Whether a fault is pending; counts the faults that have happened."""
        while self._orders and (result := self._scene.signaller.take_result()) is not None:
            self._orders -= 1
            if result.hit:
                self._count(1)
        armed = [self._scene.armed + ".made", self._scene.armed + ".reset"]
        return bool(self._orders) or any(map(os.path.exists, armed)) or self.expected is not None

    def set_count(self, kills: int) -> None:
        """Sets the number of kills still to do."""
        self._left = kills

    def _count(self, number: int) -> None:
        self._scene.outcome.kills += number
        self._left -= number

    def actions(self, env_ids: Sequence[int]) -> NDArray[np.int64]:
        """Returns the next actions of these environments; most of them continue."""
        chosen = np.zeros(len(env_ids), np.int64)
        chooser = self._scene.random
        if self._left <= 0 or self.is_pending or chooser.random() > _OFTEN:
            return chosen
        kind = chooser.random()
        if kind < (0.7 if self._timed else 0.4):
            self._plan_failure(env_ids, chosen, list(HANGS) if self._timed else [*CRASHES, *POINTS])
        elif self._timed:
            self._send_signal("SIGSTOP at random", signal.SIGSTOP)
        elif kind < 0.86:
            number = chooser.choice(SIGNALS)
            self._send_signal(f"{number.name} at random", number)
        elif kind < 0.91:
            self._send_signal("SIGSTOP, then SIGCONT", signal.SIGSTOP, chooser.random() * 0.03)
        elif kind < 0.95:
            self._send_signal("SIGKILL at random", signal.SIGKILL)
            self._scene.signaller.kill_next_child(self._parent, chooser.random() * 0.02)
            self._orders += 1
            self._scene.outcome.count("its replacement too")
        elif kind < 0.98:
            Path(self._scene.armed + ".made").touch()
            self._send_signal("at point made", signal.SIGKILL)
            self._count(1)
        else:
            Path(self._scene.armed + ".reset").touch()
            self._scene.outcome.count("at point reset")
            self._count(1)
        return chosen

    def _send_signal(self, name: str, number: int, pause_s: float = 0.0) -> None:
        pid = self._scene.random.choice(self._envs.worker_pids)
        if pid is not None and self._scene.signaller.send_signal(
            pid, number, self._scene.random.random() * 0.01, pause_s=pause_s
        ):
            self._orders += 1
            self._scene.outcome.count(name)

    def _plan_failure(self, env_ids: Sequence[int], chosen: NDArray[np.int64], kinds: list[str]) -> None:
        # The step after an episode's end is a reset and ignores its action.
        resets = self._checker.mode == AutoresetMode.NEXT_STEP
        able = [row for row, env in enumerate(env_ids) if not (resets and self._checker.done[env])]
        if not able:
            return
        row, how = self._scene.random.choice(able), self._scene.random.choice(kinds)
        chosen[row] = ACTIONS.index(how)
        self.expected = int(env_ids[row])
        self._scene.outcome.count(f"at point {how}" if how in POINTS else how)
        self._count(1)

    def check_row(self, env: int, fault: bool) -> None:
        """Checks that the row of an environment that was made to fail reports a fault."""
        if env == self.expected:
            self.expected = None
            if not fault:
                raise Violation(3, f"environment {env} was made to fail, but its row reports no fault")

    def clear(self) -> None:
        for name in (".made", ".reset"):
            Path(self._scene.armed + name).unlink(missing_ok=True)
