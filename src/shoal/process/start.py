"""Starts one worker process, from the launcher or by multiprocessing, and gives the parent a handle of it."""

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
"""`Running.exit_status` of a process that is not exiting."""
_EXITING = 4  # Linux's PF_EXITING
_EXIT_DECIDED_S = 0.05
"""A process that has lost its liveness word and is exiting has an exit status after this time."""


class Running:
    """The parent's handle of a worker process: its socket, a descriptor for its death, its stderr."""

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
        """The descriptor that shows the worker's death: a pidfd becomes readable, a socket hangs up."""
        return self._pidfd if self._pidfd >= 0 else self.channel.fileno()

    @property
    def death_is_hangup(self) -> bool:
        return self._pidfd < 0

    def is_alive(self) -> bool:
        if self._reaped:
            return False
        waiter = select.poll()
        waiter.register(self.death_fd, 0 if self.death_is_hangup else select.POLLIN)
        return not waiter.poll(0)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.is_alive():
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of the process; returns whether it has ended."""
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
        """Returns the exit status of a process that is still exiting; None if unknown; or STILL_RUNNING."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b") ")[2].split()  # from the third on, as proc(5) counts
            flags, status = int(fields[6]), int(fields[49])
        except (OSError, ValueError, IndexError):
            return None
        if not self.is_alive():  # it has ended, and another process may have its pid
            return None
        if status:
            return status
        # The kernel shows 0 for exit status 0, for lack of permission, and before the status is decided.
        return None if flags & _EXITING or self.wait(_EXIT_DECIDED_S) else STILL_RUNNING

    def reap(self) -> int | None:
        """Reaps a dead process and closes its descriptors; returns its wait status, None if unknown."""
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
        """Returns what is left in its stderr pipe."""
        output = b""
        with contextlib.suppress(BlockingIOError, OSError):
            while part := os.read(self.stderr_read_fd, 4096):
                output += part
        return output


def start(context: str | None, daemon: bool, name: str, inherited: Any) -> Running:
    """Starts a worker. One that is forked from this process calls `inherited` to get its plan."""
    try:
        return _try_start(context, daemon, name, inherited)
    except LauncherEnded:  # it was killed, perhaps together with the worker to replace: use a new launcher
        return _try_start(context, daemon, name, inherited)


def _try_start(context: str | None, daemon: bool, name: str, inherited: Any) -> Running:
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
    if forked:  # import here once what every child needs
        from shoal.process import chunks, native_chunk  # noqa: F401
    arguments: tuple[Any, ...] = (theirs,)
    if forked:
        arguments += running.channel.fileno(), None if inherited is None else partial(inherited, running)
    process = chosen.Process(  # type: ignore[attr-defined]
        target=worker.run, args=arguments, name=name, daemon=daemon
    )
    gc.freeze()  # otherwise a garbage collection in the child would copy every page it visits
    try:
        process.start()
    finally:
        gc.unfreeze()
    running._process = process
    running.pid = process.pid
    running._pidfd = open_pidfd(process.pid)
