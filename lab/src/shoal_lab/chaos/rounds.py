"""A round: one part of the chaos with a seed and a number of kills, in its own process, with a deadline.

That process, the stage, sends a message whenever a call has returned. If the supervisor receives none for too
long, it requests the stage's stack, kills it with all processes it started, and reports a hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal_lab.chaos.marked import Violation
from shoal_lab.chaos.resources import kill_session

__all__ = ["INVARIANTS", "Outcome", "Reporter", "Round", "Stage", "run_round", "run_stage"]

INVARIANTS = {
    1: "every acknowledged push is readable, byte for byte, or was overwritten by capacity",
    2: "nothing torn and nothing that was never pushed is returned",
    3: "observation, reward, flags and info of a row belong to one environment, incarnation and step",
    4: "every call returns or raises by its deadline",
    5: "after close, descriptors, mappings, names, threads and children are as before",
    6: "after recovery, ids are exact",
}

_BEAT_S = 0.1
_STACK_S = 1.0
_STALLS = 4
"""The number of deadlines without a kill after which a fault is taken to hang, though other calls return."""


@dataclass(frozen=True)
class Round:
    """A round to run: `part` is a module of this package with a function `stage`."""

    part: str
    seed: int
    kills: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.part} {self.seed} {self.kills}"

    def random(self) -> random.Random:
        return random.Random(f"{self.part} {self.seed}")


@dataclass
class Outcome:
    """The result of a round; the outcomes of a part's rounds are added up."""

    part: str = ""
    kills: int = 0
    rows: int = 0
    """The number of rows and acknowledgements that were checked."""
    faults: dict[str, int] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    """Measured times in milliseconds, by name."""
    violations: list[tuple[int, str]] = field(default_factory=list)
    hangs: int = 0
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    def count(self, fault: str, number: int = 1) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + number

    def time(self, what: str, seconds: float) -> None:
        self.times.setdefault(what, []).append(round(seconds * 1e3, 4))

    def add(self, other: Outcome) -> None:
        self.kills += other.kills
        self.rows += other.rows
        for fault, number in other.faults.items():
            self.count(fault, number)
        for what, values in other.times.items():
            self.times.setdefault(what, []).extend(values)
        self.violations += other.violations
        self.hangs += other.hangs
        self.seconds += other.seconds


class Reporter:
    """Sends the stage's progress to the supervisor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._next = 0.0

    def __call__(self, kills: int, doing: str = "") -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _BEAT_S
            self.send({"kills": kills, "doing": doing})

    def send(self, message: dict[str, Any]) -> None:
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]


Stage = Callable[[Round, Outcome, Reporter], None]


def run_round(round_: Round, deadline_s: float, on_progress: Callable[[int], None]) -> Outcome:
    """Runs a round; returns its outcome, in which a stage that hung or died is a violation."""
    reads, writes = os.pipe()
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="shoal-chaos-") as place:
        begin = time.monotonic()
        stage = subprocess.Popen(
            [sys.executable, "-m", "shoal_lab.chaos.stage", str(writes), json.dumps(asdict(round_))],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=[writes],
            start_new_session=True,
            env=_make_environment(place),
        )
        os.close(writes)
        try:
            outcome = _read_messages(round_, stage, reads, deadline_s, on_progress)
        finally:
            stage.kill()
            kill_session(stage.pid)
            stage.wait()
            os.close(reads)
        if outcome.violations:
            errors.seek(0)
            outcome.facts["output"] = errors.read()[-4000:].decode(errors="replace")
    outcome.part, outcome.seconds = round_.part, time.monotonic() - begin
    return outcome


def _make_environment(place: str) -> dict[str, str]:
    own = {"SHOAL_SESSION_DIR": os.path.join(place, "sessions"), "SHOAL_CHAOS_DIR": place}
    own["OPENBLAS_NUM_THREADS"] = "1"  # its threads end at a fork, which would look like a change
    return {**os.environ, **own}


def _read_messages(
    round_: Round,
    stage: subprocess.Popen[bytes],
    reads: int,
    deadline_s: float,
    on_progress: Callable[[int], None],
) -> Outcome:
    data, kills, doing = b"", 0, "starting"
    until = time.monotonic() + deadline_s
    stalled = time.monotonic() + _STALLS * deadline_s
    while True:
        if select.select([reads], [], [], min(0.2, max(0.0, until - time.monotonic())))[0]:
            part = os.read(reads, 1 << 16)
            data += part
            *lines, data = data.split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "outcome" in message:
                    return _parse_outcome(message["outcome"])
                until = time.monotonic() + deadline_s
                if message["kills"] > kills:
                    stalled = time.monotonic() + _STALLS * deadline_s
                kills, doing = message["kills"], message["doing"] or doing
                on_progress(kills)
            if part and time.monotonic() < stalled:
                continue
        if stage.poll() is not None:
            how = f"the stage ended with {stage.returncode} while {doing}"
            return Outcome(kills=kills, violations=[(4, how)])
        if time.monotonic() >= min(until, stalled):
            with contextlib.suppress(ProcessLookupError):
                stage.send_signal(signal.SIGUSR1)  # prints its stack
            time.sleep(_STACK_S)
            how = f"no call returned for {deadline_s:g} s while {doing}"
            if time.monotonic() < until:
                how = f"calls return, but no fault was seen for {_STALLS * deadline_s:g} s"
            return Outcome(kills=kills, hangs=1, violations=[(4, how)])


def _parse_outcome(values: dict[str, Any]) -> Outcome:
    outcome = Outcome(**values)
    outcome.violations = [(number, message) for number, message in outcome.violations]
    return outcome


def run_stage(fd: int, order: dict[str, Any]) -> None:
    """Runs a round in the stage process and sends the outcome."""
    os.set_inheritable(fd, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    round_, outcome, reporter = Round(**order), Outcome(), Reporter(fd)
    stage: Stage = importlib.import_module(f"shoal_lab.chaos.{round_.part}").stage
    try:
        stage(round_, outcome, reporter)
    except Violation as error:
        outcome.violations.append((error.invariant, str(error)))
    except Exception as error:  # unexpected: a call that should have returned raised
        traceback.print_exc()
        outcome.violations.append((4, f"{type(error).__name__}: {error}"))
    reporter.send({"outcome": asdict(outcome)})
