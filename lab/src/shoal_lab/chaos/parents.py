"""Kills trainers with SIGKILL at any moment: their workers must end with them.

Each trainer leads a session (setsid), which identifies all processes it started. The rows it had acknowledged
must be in the file of its replay buffer, and its names must be free for the next trainer.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import time
from functools import partial
from typing import NoReturn

import numpy as np

from shoal.memory import Layout, Segment
from shoal.replay import ReplayBuffer
from shoal.state import names
from shoal.vector import ProcessVectorEnv
from shoal_lab.chaos import ledger
from shoal_lab.chaos.faults import HANGS, LENIENCE
from shoal_lab.chaos.marked import ACTIONS, Marked, Violation
from shoal_lab.chaos.resources import Resources, kill_session, require_gone
from shoal_lab.chaos.rounds import Outcome, Reporter, Round

__all__ = ["stage"]

ENVS, WORKERS = 4, 4
CAPACITY = 64
NAMED = Layout({"words": (np.int64, (8,))})
GONE_S = 2.0
READY_S = 30.0
MOMENTS = ("making", "stepping", "stepping", "pushing", "busy workers", "repairing", "resetting", "closing")
"""The trainer's activity when it is killed."""


def stage(round_: Round, outcome: Outcome, reporter: Reporter) -> None:
    """Runs one round: a trainer for each kill."""
    resources, chooser = Resources(), round_.random()
    for _ in range(round_.kills):
        moment = chooser.choice(MOMENTS)
        context = chooser.choice([None, None, "fork"])
        reporter(outcome.kills, f"killing a trainer while {moment}")
        _kill_one(chooser, moment, context, outcome)
        outcome.kills += 1
        outcome.count(f"{moment}, context {context or 'own'}")
    resources.require_same("the trainers")


def _kill_one(chooser: random.Random, moment: str, context: str | None, outcome: Outcome) -> None:
    place = os.environ["SHOAL_CHAOS_DIR"]
    path, name = os.path.join(place, f"ring{outcome.kills}"), f"chaos-{os.getpid()}"
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _run_trainer(moment, context, path, name, writes)
    os.close(writes)
    try:
        if moment != "making":
            _wait_ready(reads)
        time.sleep(chooser.random() * (0.4 if moment == "making" else 0.03))
        os.kill(pid, signal.SIGKILL)
        gone = require_gone(pid, GONE_S)
        outcome.time("trainer killed, all its workers gone", gone)
    finally:
        kill_session(pid)
        os.waitpid(pid, 0)
        output = b""
        while part := os.read(reads, 1 << 16):
            output += part
        os.close(reads)
        # Takes over the dead owner's name; after a violation too, so that it does not leak.
        with Segment.named(NAMED, name) as segment:
            kept = segment["words"].any()
    if kept:
        raise Violation(5, "the named segment of a dead trainer was reused with its old contents")
    outcome.rows += _require_rows(path, output.split(b"ready", 1)[-1])
    if left := [path.name for path in names.list_paths()]:
        raise Violation(5, f"sessions {left} of a dead trainer are still listed")


def _wait_ready(reads: int) -> None:
    output = b""
    deadline = time.monotonic() + READY_S * LENIENCE
    while b"ready" not in output:
        if not select.select([reads], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Violation(4, f"a trainer was not ready within {READY_S:g} s")
        part = os.read(reads, 5)
        if not part:
            raise Violation(4, "a trainer ended by itself")
        output += part


def _require_rows(path: str, output: bytes) -> int:
    """Checks that every acknowledged row is in the file and that ids continue; returns the number of rows."""
    if not os.path.exists(path):
        return 0
    with ReplayBuffer.open(path) as buffer:
        whole = len(output) // ledger.ACKNOWLEDGEMENT.size * ledger.ACKNOWLEDGEMENT.size
        rows = list(ledger.ACKNOWLEDGEMENT.iter_unpack(output[:whole]))[-CAPACITY:]
        book = ledger.Ledger(buffer, ends={1: rows[0][1] - (1 << 32) - 1 if rows else -1})
        book.rows.update(rows)
        book.ends[1] = max([book.ends[1], *(value - (1 << 32) for _, value in rows)])
        book.check_batch(buffer.latest(CAPACITY) if rows else buffer.latest(1))
        book.require([id_ for id_, _ in rows])
        first = int(buffer.push({"words": np.zeros(ledger.WORDS, np.uint64)}))
        if rows and first <= rows[-1][0]:
            raise Violation(6, f"a push after recovery got id {first}, but {rows[-1][0]} was given before")
    os.unlink(path)
    return len(rows)


# -- the trainer's side -----------------------------------------------------------------------------------


def _run_trainer(moment: str, context: str | None, path: str, name: str, pipe: int) -> NoReturn:
    try:
        os.setsid()
        _train(moment, context, path, name, pipe)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


def _train(moment: str, context: str | None, path: str, name: str, pipe: int) -> None:
    segment = Segment.named(NAMED, name)
    segment["words"][:] = 1
    makers = [partial(Marked, env, 200.0) for env in range(ENVS)]
    envs = ProcessVectorEnv(makers, num_workers=WORKERS, context=context, on_fault="restart")
    buffer = ReplayBuffer(CAPACITY, ledger.FIELDS, path=path)
    envs.reset(seed=0)
    go_on = np.zeros(ENVS, np.int64)
    os.write(pipe, b"ready")
    for number in range(1 << 30):
        if moment == "busy workers":
            envs.step_async(np.array([0, *(ACTIONS.index(how) for how in list(HANGS)[:3])]))
            signal.pause()
        if moment == "repairing":
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(envs.worker_pids[number % WORKERS], signal.SIGKILL)  # type: ignore[arg-type]
        if moment == "resetting":
            envs.reset(seed=number)
        if moment == "closing" and number == 20:
            envs.close()
            signal.pause()
        if moment != "pushing":
            envs.step(go_on)
        row = 1 << 32 | number
        id_ = buffer.push({"words": np.full(ledger.WORDS, row, np.uint64)})
        os.write(pipe, ledger.ACKNOWLEDGEMENT.pack(id_, row))
