"""Kills writers of cpprb's multi-process buffer, and of Shoal's, in a push: does sample() still return?"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import numpy as np

from shoal_lab.chaos.rounds import Outcome, Round

__all__ = ["trial"]

CAPACITY, WORDS = 64, 4096


def _push_for_ever(buffer: Any, library: str, name: int) -> None:
    number = 0
    while True:
        number += 1
        row = np.full(WORDS, name << 20 | number % (1 << 20), np.float64)
        buffer.add(words=row) if library == "cpprb" else buffer.push({"words": row})


def trial(library: str, round_: Round, outcome: Outcome, trial: Any) -> None:
    """Starts two writers, kills one at a random moment, and then samples a hundred times."""
    if library == "cpprb":
        from cpprb import MPReplayBuffer

        context = multiprocessing.get_context("fork")
        buffer: Any = MPReplayBuffer(CAPACITY, {"words": {"shape": WORDS, "dtype": np.float64}}, ctx=context)
        buffer.add(words=np.zeros(WORDS))
    else:
        from shoal.replay import ReplayBuffer

        buffer = ReplayBuffer(CAPACITY, {"words": (np.float64, (WORDS,))})
        buffer.push({"words": np.zeros(WORDS)})
    pids = []
    for name in (1, 2):
        pid = os.fork()
        if pid == 0:
            try:
                _push_for_ever(buffer, library, name)
            finally:
                os._exit(1)
        pids.append(pid)
    time.sleep(0.05 + round_.random().random() * 0.02)
    os.kill(pids[0], signal.SIGKILL)
    os.waitpid(pids[0], 0)
    torn = 0
    try:
        with trial.phase("sample()"):
            for _ in range(100):
                words = buffer.sample(8)["words"].reshape(8, WORDS)
                torn += int((words != words[:, :1]).any(axis=1).sum())
            trial.notes.append(f"TORN ROWS ({torn})" if torn else "sample() works, rows whole")
    finally:
        os.kill(pids[1], signal.SIGKILL)
        os.waitpid(pids[1], 0)
    outcome.facts["wrong"] = torn
