"""Trainers that are killed with SIGKILL, whatever they are doing: their workers end with them.

Each trainer is the first of a session of its own (setsid), so that whoever it started is found by that. What
it had acknowledged is in the file of its replay buffer; its names can be had by the next.
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
from shoal_lab.chaos.held import Held, kill_session, require_gone
from shoal_lab.chaos.marked import ACTIONS, Marked, Violation
from shoal_lab.chaos.rounds import Outcome, Round, Tell

__all__ = ["stage"]

ENVS, WORKERS = 4, 4
CAPACITY = 64
NAMED = Layout({"words": (np.int64, (8,))})
GONE_S = 2.0
READY_S = 30.0
MOMENTS = ("making", "stepping", "stepping", "pushing", "busy workers", "repairing", "resetting", "closing")
"""What the trainer does when it is killed."""


def stage(round_: Round, outcome: Outcome, tell: Tell) -> None:
    """One round: a trainer for each kill."""
    held, chooser = Held(), round_.random()
    for _ in range(round_.kills):
        moment = chooser.choice(MOMENTS)
        context = chooser.choice([None, None, "fork"])
        tell(outcome.kills, f"killing a trainer while {moment}")
        _kill_one(chooser, moment, context, outcome)
        outcome.kills += 1
        outcome.count(f"{moment}, context {context or 'own'}")
    held.require_same("the trainers")


def _kill_one(chooser: random.Random, moment: str, context: str | None, outcome: Outcome) -> None:
    place = os.environ["SHOAL_CHAOS_DIR"]
    path, name = os.path.join(place, f"ring{outcome.kills}"), f"chaos-{os.getpid()}"
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _be_trainer(moment, context, path, name, writes)
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
        said = b""
        while part := os.read(reads, 1 << 16):
            said += part
        os.close(reads)
        # A dead owner's name is taken over; after a violation too, so that nothing is left of this.
        with Segment.named(NAMED, name) as segment:
            kept = segment["words"].any()
    if kept:
        raise Violation(5, "the named segment of a dead trainer was given out again with its contents")
    outcome.rows += _require_rows(path, said.split(b"ready", 1)[-1])
    if left := [path.name for path in names.list_paths()]:
        raise Violation(5, f"sessions {left} of a dead trainer are still listed")


def _wait_ready(reads: int) -> None:
    said = b""
    deadline = time.monotonic() + READY_S * LENIENCE
    while b"ready" not in said:
        if not select.select([reads], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Violation(4, f"a trainer was not ready within {READY_S:g} s")
        part = os.read(reads, 5)
        if not part:
            raise Violation(4, "a trainer ended by itself")
        said += part


def _require_rows(path: str, said: bytes) -> int:
    """Every acknowledged row is in the file, and ids go on."""
    if not os.path.exists(path):
        return 0
    with ReplayBuffer.open(path) as buffer:
        whole = len(said) // ledger.ACKNOWLEDGED.size * ledger.ACKNOWLEDGED.size
        rows = list(ledger.ACKNOWLEDGED.iter_unpack(said[:whole]))[-CAPACITY:]
        book = ledger.Ledger(buffer, ends={1: rows[0][1] - (1 << 32) - 1 if rows else -1})
        book.rows.update(rows)
        book.ends[1] = max([book.ends[1], *(value - (1 << 32) for _, value in rows)])
        book.look(buffer.latest(CAPACITY) if rows else buffer.latest(1))
        book.require([id_ for id_, _ in rows])
        first = int(buffer.push({"words": np.zeros(ledger.WORDS, np.uint64)}))
        if rows and first <= rows[-1][0]:
            raise Violation(6, f"a push after recovery got id {first}, and {rows[-1][0]} had been given")
    os.unlink(path)
    return len(rows)


# -- the trainer's side -----------------------------------------------------------------------------------


def _be_trainer(moment: str, context: str | None, path: str, name: str, pipe: int) -> NoReturn:
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
        os.write(pipe, ledger.ACKNOWLEDGED.pack(id_, row))
