"""Starting one worker process, whichever way, and what the parent holds of it."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import select
import signal
import socket
import time
from functools import partial
from typing import Any

from gymnasium.vector.utils import clear_mpi_env_vars

from shoal.errors import WorkerError, explain_os_errors
from shoal.process import worker
from shoal.process.launcher import Launcher, LauncherEnded, launcher, open_pidfd

__all__ = ["STILL_RUNNING", "Running", "start"]

STILL_RUNNING = -1
"""The fate of one that is not dying at all."""
_EXITING = 4  # Linux's PF_EXITING
_EXIT_DECIDED_S = 0.05
"""One that has lost a sign of life and is to end has done so by then, or said how; else it goes on."""


class Running:
    """A worker process: its socket, its end of life as a descriptor, and what it says on stderr."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid = 0
        self.stderr_read_fd, self.stderr_write_fd = os.pipe()
        try:
            os.set_blocking(self.stderr_read_fd, False)
        except BaseException:
            os.close(self.stderr_read_fd)
            os.close(self.stderr_write_fd)
            raise
        self._pidfd = -1
        self._process: Any = None
        self._launcher: Launcher | None = None
        self._status: int | None = None
        self._reaped = False

    @property
    def death_fd(self) -> int:
        """Tells of the worker's death: a pidfd by being readable, else the socket by hanging up."""
        return self._pidfd if self._pidfd >= 0 else self.channel.fileno()

    @property
    def death_is_hangup(self) -> bool:
        return self._pidfd < 0

    def alive(self) -> bool:
        if self._reaped:
            return False
        waiter = select.poll()
        waiter.register(self.death_fd, 0 if self.death_is_hangup else select.POLLIN)
        return not waiter.poll(0)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.alive():
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Waits for its end; whether it came."""
        if self._reaped:
            return True
        waiter = select.poll()
        waiter.register(self.death_fd, 0 if self.death_is_hangup else select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            if waiter.poll(max(0, min(left, 0.05)) * 1000):
                return True
            if left <= 0:
                return False

    def exit_status(self) -> int | None:
        """The exit status of one that is dying, before it is dead; None if nobody says; RUNS."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b") ")[2].split()  # from the third on, as proc(5) counts
            flags, status = int(fields[6]), int(fields[49])
        except (OSError, ValueError, IndexError):
            return None
        if not self.alive():  # else the number was still its own
            return None
        if status:
            return status
        # 0 is said of one that ends so, to who may not know, and before it is decided.
        return None if flags & _EXITING or self.wait(_EXIT_DECIDED_S) else STILL_RUNNING

    def reap(self) -> int | None:
        """Its exit status as os.waitpid gives it, once it is dead; None if nobody can say. Closes all."""
        if self._reaped:
            return self._status
        if self._process is not None:
            self._process.join(5)
            code = self._process.exitcode
            if code is not None:
                self._status = -code if code < 0 else code << 8
                self._process.close()
        elif self._launcher is not None:
            self._status = self._launcher.exit_status(self.pid, 1.0)
        self._reaped = True
        self.channel.close()
        for fd in (self.stderr_read_fd, self.stderr_write_fd, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self.stderr_read_fd = self.stderr_write_fd = self._pidfd = -1
        return self._status

    def read_stderr(self) -> bytes:
        """What is still in its stderr pipe."""
        words = b""
        with contextlib.suppress(BlockingIOError, OSError):
            while part := os.read(self.stderr_read_fd, 4096):
                words += part
        return words


def start(context: str | None, daemon: bool, name: str, inherited: Any) -> Running:
    """Starts a worker; one that is forked from this very process calls `inherited` for what it needs."""
    try:
        return _started(context, daemon, name, inherited)
    except LauncherEnded:  # killed a moment ago, perhaps with the worker that is to be replaced
        return _started(context, daemon, name, inherited)


def _started(context: str | None, daemon: bool, name: str, inherited: Any) -> Running:
    with explain_os_errors("start a worker process", WorkerError):
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                running = Running(ours)
            except BaseException:
                ours.close()
                raise
            try:
                if context is None:
                    running._launcher = launcher()
                    running.pid, running._pidfd = running._launcher.start(theirs)
                else:
                    with clear_mpi_env_vars():
                        _start_process(running, context, daemon, name, theirs, inherited)
            except BaseException as error:
                running._reaped = True
                ours.close()
                os.close(running.stderr_read_fd)
                os.close(running.stderr_write_fd)
                if isinstance(error, OSError) and error.errno == errno.EAGAIN:
                    raise WorkerError(
                        "cannot start a worker process: too many processes (see `ulimit -u`); "
                        "use fewer workers"
                    ) from error
                raise
    return running


def _start_process(
    running: Running, context: str, daemon: bool, name: str, theirs: socket.socket, inherited: Any
) -> None:
    chosen = multiprocessing.get_context(context)
    forked = context == "fork"
    if forked:  # what a worker imports: once here, not in each child
        from shoal.process import chunks, native_chunk  # noqa: F401
    arguments: tuple[Any, ...] = (theirs,)
    if forked:
        arguments += running.channel.fileno(), None if inherited is None else partial(inherited, running)
    process = chosen.Process(  # type: ignore[attr-defined]
        target=worker.run, args=arguments, name=name, daemon=daemon
    )
    gc.freeze()  # a child that collects garbage would copy every page it looks at
    try:
        process.start()
    finally:
        gc.unfreeze()
    running._process = process
    running.pid = process.pid
    running._pidfd = open_pidfd(process.pid)
