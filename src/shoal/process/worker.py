"""A worker process: receives its plan, makes its environments, serves commands until it is stopped."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
from dataclasses import dataclass
from multiprocessing import util
from typing import Any

import numpy as np

from shoal import _core
from shoal.memory import Segment
from shoal.process.mail import Failure, HungUp, Mail, dumps, receive, transmit
from shoal.process.registry import pickle_registry
from shoal.process.requests import Chunk, Request

__all__ = [
    "ERROR",
    "INFO",
    "MESSAGE",
    "OBSERVATION",
    "SHOW_STACK",
    "STEP",
    "STOP",
    "Surroundings",
    "prepare",
    "run",
    "warm_up",
]

STEP, MESSAGE, STOP = _core.GATE_STEP, _core.GATE_MESSAGE, _core.GATE_STOP
"""Commands of the gate: step, read a message in the box, stop."""

INFO, ERROR, OBSERVATION = _core.REPORT_INFO, _core.REPORT_ERROR, _core.REPORT_OBSERVATION
"""Kinds of report about an environment: (environment, kind, value)."""

SHOW_STACK = signal.SIGUSR2
"""Makes a worker write its Python stack to stderr."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The working directory, module path, arguments and environment variables of the parent."""

    directory: str
    path: list[str]
    arguments: list[str]
    environment: dict[str, str]

    def enter(self) -> None:
        with contextlib.suppress(OSError):
            os.chdir(self.directory)
        sys.path[:] = self.path
        sys.argv[:] = self.arguments
        os.environ.clear()
        os.environ.update(self.environment)


def prepare() -> None:
    """In the launcher: loads what every worker needs, once, before workers are forked."""
    from shoal.process import chunks, native_chunk  # noqa: F401

    pickle_registry()


def warm_up() -> None:
    """In a spare worker: runs the first steps of a worker once, so that they are fast later.

    A forked process copies a shared page when it first writes to it. Some thousand pages at some
    microseconds each are copied here, while nobody waits.
    """
    from shoal.memory import Layout
    from shoal.native.plugin import bundled, load
    from shoal.process.pool import read_surroundings

    np.random.seed()
    ours, theirs = socket.socketpair()
    with ours, theirs, Segment(Layout({f"field {i}": (np.uint8, (1,)) for i in range(24)})) as segment:
        transmit(ours, dumps((read_surroundings(), pickle_registry())), [segment.fileno()])
        (here, registry), fds = receive(theirs)
        here.enter()
        registry.enter()
        Segment.from_fileno(fds[0]).close()
    load(next(iter(bundled().values())), {})


def run(channel: socket.socket, parent_end: int = -1, inherited: Any = None) -> None:
    """Runs a worker until it is stopped or its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if parent_end >= 0:
        os.close(parent_end)  # fork copied it: while this copy is open, the socket never hangs up
    board = None
    try:
        if inherited is None:
            plan, fds = receive(channel)
        else:  # forked from the parent itself
            plan, fds, board = inherited()
    except (HungUp, OSError):
        return
    from shoal.process.chunks import EnvChunk  # these import this module
    from shoal.process.native_chunk import NativeChunk

    worker = _Worker(channel, plan, fds, board)
    try:
        if plan.registry is not None:
            plan.registry.enter()
        chunk: Chunk = EnvChunk(plan, worker) if plan.plugin is None else NativeChunk(plan, worker)
        facts = chunk.facts()
    except BaseException as error:
        worker.answer_start(Failure.of(error, getattr(error, "env_id", None)))
        return
    if worker.answer_start(facts):
        worker.serve(chunk)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        util._exit_function()  # type: ignore[attr-defined]  # processes that environments started


class _Worker:
    """The worker's end of everything it shares with its parent (WorkerSide)."""

    def __init__(self, channel: socket.socket, plan: Any, fds: list[int], board: Segment | None) -> None:
        board_fd, wakeup_fd, stderr_read_fd, stderr_write_fd, out_fd, error_fd, *parent = fds
        if plan.surroundings is not None:
            plan.surroundings.enter()
            os.dup2(out_fd, 1)
            np.random.seed()  # otherwise every worker would have the launcher's generator
        os.close(out_fd)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # it may be a user's own stream object
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.dup2(stderr_write_fd, 2)
        os.close(stderr_write_fd)
        if board is None:
            board = Segment.from_fileno(board_fd)
        else:  # a forked worker has its parent's mapping
            os.close(board_fd)
        self.board = board
        self.channel = channel
        w = plan.worker
        parent_fd, tail, gate = parent[0] if parent else -1, board["tail"][w], board["gates"][w]
        _core.start_watch(parent_fd, channel.fileno(), stderr_read_fd, error_fd, tail, gate)
        faulthandler.enable(file=2, all_threads=False)
        faulthandler.register(SHOW_STACK, file=2, all_threads=True, chain=False)
        process = multiprocessing.current_process()
        process.name = f"ShoalWorker-{w}"
        process._config["daemon"] = plan.daemon  # type: ignore[attr-defined]
        self.mail = Mail(channel, board["reply"][w], board["request"][w])
        self.gate = _core.Gate(board["gates"], board["wakeup"], w, wakeup_fd, plan.crowded)

    def answer_start(self, facts: Any) -> bool:
        """Replies with the facts; returns False if the parent stops all workers because a start failed."""
        if self.gate.wait() != MESSAGE:
            return False
        self.reply(facts)
        return True

    def reply(self, value: Any) -> None:
        """Finishes the current command with a message."""
        data = _sendable(value)
        count = self.mail.put(data)
        self.gate.finish(1, count)
        self.mail.send_rest(_always)

    def serve(self, chunk: Chunk) -> None:
        while True:
            command = chunk.serve(self.gate)
            if command == STOP:
                chunk.close()
                self.gate.finish(0, 0)
                return
            try:
                request: Request = self.mail.take(self.gate.mail_bytes, _always)
                answer = request.run(chunk)
            except HungUp:
                return
            except BaseException as error:
                answer = Failure.of(error, None)
            self.reply(answer)

    def post(self, value: Any) -> None:
        """Sends a message that no command asked for."""
        transmit(self.channel, _sendable(value), [])

    def receive_fds(self, number: int) -> list[int]:
        """Returns the descriptors that the parent sent with the current request."""
        _, fds, _, _ = socket.recv_fds(self.channel, 1, number)
        return list(fds)


def _sendable(value: Any) -> bytes:
    """Pickles a value. A report that cannot be pickled is replaced by the error that says so."""
    try:
        return dumps(value)
    except Exception as error:
        if not isinstance(value, list):
            return dumps(Failure.of(error, None))
        return dumps([_report(*report) for report in value])


def _report(number: int, kind: int, what: Any) -> tuple[int, int, Any]:
    try:
        dumps(what)
    except Exception as error:
        return number, ERROR, Failure.of(error, number)
    return number, kind, what


def _always() -> bool:
    return True  # the watch thread ends this process when its parent ends
