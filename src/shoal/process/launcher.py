"""The launcher: a clean process, started once, from which workers are forked.

    trainer --spawn--> launcher (NumPy, Gymnasium and Shoal loaded; one thread)
       |  "start", a worker's socket          |--fork--> worker    14 ms instead of 400
       |  pid and pidfd, later its exit status |--fork--> worker
                                               |--fork--> spare    4 ms, for the next replacement

1. The trainer is never forked, because it may have threads, a GPU context or a window.
2. The launcher ends with the trainer: it polls the trainer's pidfd and the socket. Workers do the same.
3. The launcher is the workers' parent, so it reaps them and reports their exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from multiprocessing import spawn, util
from typing import Any, NoReturn

from shoal.errors import WorkerError

__all__ = ["SPARE", "Launcher", "LauncherEnded", "launcher", "main", "open_pidfd"]

_LOOK_S = 0.1
_QUIET_S = 0.1  # without requests before the spare is forked: that takes a core for some milliseconds
SPARE = "shoal spare"
"""The name of the spare worker in `ps`."""
_FRAME = struct.Struct("=cqq")  # kind, pid or error, exit status or number of the request
_START, _STARTED, _ENDED, _FAILED = b"s", b"p", b"x", b"f"


def open_pidfd(pid: int) -> int:
    """Opens a descriptor that is readable once a process has ended; -1 without pidfds (Linux < 5.3)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


class LauncherEnded(WorkerError):
    """The launcher was killed, or could not start. A new launcher may succeed."""


class Launcher:
    """The trainer's side."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        parent_fd = open_pidfd(os.getpid())
        # A process group of its own, so that Ctrl-C reaches the trainer only. Not a session of its own: the
        # kernel's autogroup shares cores between sessions, and the trainer would compete with its workers.
        program = (
            "import os, signal, sys; os.setpgid(0, 0); signal.signal(signal.SIGTTOU, signal.SIG_IGN); "
            # Loading can take long on a busy machine; until then this timer notices the trainer's end.
            f"signal.signal(signal.SIGALRM, lambda *_: os.getppid() == {os.getpid()} or os._exit(0)); "
            "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM]); "
            f"signal.setitimer(signal.ITIMER_REAL, {_LOOK_S}, {_LOOK_S}); "
            f"sys.path[:] = {sys.path!r}; "
            f"from shoal.process.launcher import main; main({theirs.fileno()}, {parent_fd})"
        )
        environment = dict(os.environ)
        # NumPy is loaded here once for all workers, and each of them must not start a thread per core.
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        try:
            self._process = subprocess.Popen(
                [_executable(), *util._args_from_interpreter_flags(), "-c", program],  # type: ignore[attr-defined]
                stdin=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), parent_fd) if fd >= 0],
                env=environment,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if parent_fd >= 0:
                os.close(parent_fd)
        self._socket = ours
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        self._gone = False
        self._requests = 0
        self.pid = os.getpid()

    def start(self, channel: socket.socket) -> tuple[int, int]:
        """Forks a worker that holds `channel`; returns its pid and a pidfd (-1 without pidfds)."""
        with self._lock:
            try:
                self._requests += 1
                request = _FRAME.pack(_START, 0, self._requests)
                socket.send_fds(self._socket, [request], [channel.fileno()])
                while True:
                    kind, pid, number, fds = self._read()
                    if kind == _STARTED and number == self._requests:
                        self._ended.pop(pid, None)  # the status of an earlier process with this pid
                        return pid, fds[0] if fds else -1
                    for fd in fds:  # the answer to a request that Ctrl-C cut short
                        os.close(fd)
                    if kind == _FAILED and number == self._requests:
                        raise WorkerError(
                            f"cannot start a worker process: {os.strerror(pid)}; this is often a limit on "
                            "processes (see `ulimit -u`): raise it, or use fewer workers"
                        )
            except (OSError, EOFError) as error:
                self._gone = True
                raise LauncherEnded(
                    f"the process that starts workers (process {self._process.pid}) has ended; "
                    "its error message is printed above"
                ) from error

    def exit_status(self, pid: int, timeout_s: float) -> int | None:
        """Returns how a worker ended, as os.waitpid does; None if the launcher does not report it in time."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            try:
                while pid not in self._ended:
                    left = max(0.0, deadline - time.monotonic())  # negative after a SIGSTOP
                    if not select.select([self._socket], [], [], left)[0]:
                        return None
                    self._read()
            except (OSError, EOFError, ValueError):  # the launcher has ended, or the socket is closed
                return None
            return self._ended.pop(pid)

    @property
    def is_alive(self) -> bool:
        return self.pid == os.getpid() and not self._gone and self._process.poll() is None

    def close(self) -> None:
        self._socket.close()
        if self.pid == os.getpid():
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _read(self) -> tuple[bytes, int, int, list[int]]:
        data, fds, _, _ = socket.recv_fds(self._socket, _FRAME.size, 1)
        while 0 < len(data) < _FRAME.size:
            data += self._socket.recv(_FRAME.size - len(data))
        if not data:
            raise EOFError
        kind, pid, number = _FRAME.unpack(data)
        if kind == _ENDED:
            self._ended[pid] = number
            if len(self._ended) > 4096:  # statuses that were never read
                self._ended.pop(next(iter(self._ended)))
        return kind, pid, number, list(fds)


_current: Launcher | None = None
_current_lock = threading.Lock()


def launcher() -> Launcher:
    """Returns the launcher of this process; starts one if there is none or it has died."""
    global _current
    with _current_lock:
        if _current is None or not _current.is_alive:
            if _current is not None:
                _current.close()
            _current = Launcher()
        return _current


@atexit.register
def _close_current() -> None:
    if _current is not None:
        _current.close()


def _executable() -> str:
    found: Any = spawn.get_executable()
    if not found:
        raise WorkerError(
            "cannot find the Python program for workers, because sys.executable is empty; set it with "
            "multiprocessing.set_executable(), or use context='fork'"
        )
    return os.fsdecode(found)


# -- in the launcher process --------------------------------------------------------------------------


def main(fd: int, parent_fd: int) -> NoReturn:
    """Forks a worker for each request until the trainer ends."""
    import gc

    import cloudpickle  # type: ignore[import-untyped]  # noqa: F401  # once here, not in every worker

    from shoal.process import worker

    worker.prepare()
    signal.setitimer(signal.ITIMER_REAL, 0)  # from here on poll() notices the trainer's end
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Blocked signals are inherited from the trainer. Without SIGCHLD no death would be reported.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    channel = socket.socket(fileno=fd)
    channel.set_inheritable(False)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning)
    gc.collect()
    gc.freeze()  # a garbage collection in a worker then does not copy the pages of what is loaded here
    waiter = select.poll()
    waiter.register(channel, select.POLLIN)
    waiter.register(woken, select.POLLIN)
    if parent_fd >= 0:
        waiter.register(parent_fd, select.POLLIN)
    mine = [channel, woken, wakes]
    spare: _Spare | None = None
    needs_spare = False
    while True:
        ready = {number for number, _ in waiter.poll(_QUIET_S * 1000 if needs_spare else None)}
        if parent_fd in ready:
            os._exit(0)
        if woken.fileno() in ready:
            woken.recv(4096)
            if _report_ended(channel, spare):
                spare, needs_spare = None, True
        if needs_spare and not ready:  # no request for _QUIET_S
            needs_spare, spare = False, _Spare.fork(mine, parent_fd)
        if channel.fileno() not in ready:
            continue
        try:
            data, fds, _, _ = socket.recv_fds(channel, _FRAME.size, 1)
        except OSError:  # the trainer ended with reports unread
            os._exit(0)
        if not data:
            os._exit(0)
        request = _FRAME.unpack(data)[2]
        try:
            pid = spare.take(fds[0]) if spare is not None else 0
            pid = pid or _fork_worker(mine if spare is None else [*mine, spare.orders], parent_fd, fds[0])
        except OSError as error:
            os.close(fds[0])
            channel.sendall(_FRAME.pack(_FAILED, error.errno or 0, request))
            continue
        spare, needs_spare = None, True
        os.close(fds[0])
        pidfd = open_pidfd(pid)
        try:
            socket.send_fds(channel, [_FRAME.pack(_STARTED, pid, request)], [pidfd] if pidfd >= 0 else [])
        except OSError:  # the trainer has ended; the worker notices that itself
            os._exit(0)
        if pidfd >= 0:
            os.close(pidfd)


def _fork_worker(others: list[socket.socket], parent_fd: int, fd: int) -> int:
    """Forks a worker and returns its pid; in the worker itself this does not return."""
    pid = os.fork()
    if pid == 0:
        _leave_launcher(others, parent_fd)
        _work(fd)
    return pid


def _leave_launcher(others: list[socket.socket], parent_fd: int) -> None:
    for other in others:
        other.close()
    if parent_fd >= 0:
        os.close(parent_fd)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _work(fd: int) -> NoReturn:
    from shoal.process import worker

    with socket.socket(fileno=fd) as theirs:
        worker.run(theirs)
    os._exit(0)


@dataclass
class _Spare:
    """A worker that was forked in advance, so that replacing a dead one need not wait for a fork."""

    pid: int
    orders: socket.socket

    @classmethod
    def fork(cls, others: list[socket.socket], parent_fd: int) -> _Spare | None:
        """Forks a spare worker; returns None if that fails, because a spare is optional."""
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return None
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                return None
            if pid == 0:
                _leave_launcher([*others, ours], parent_fd)
                _wait_for_work(theirs)
        return cls(pid, ours)

    def take(self, fd: int) -> int:
        """Makes it the worker of that socket; returns its pid, or 0 if it is dead."""
        with self.orders:
            try:
                socket.send_fds(self.orders, [b"w"], [fd])
                return self.pid
            except OSError:
                pass
        # Reaped here, so that its end is not reported as that of a worker. A living one ends without orders.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        return 0


def _wait_for_work(orders: socket.socket) -> NoReturn:
    from shoal.process import worker

    before = _rename_process(SPARE)
    with contextlib.suppress(Exception):  # it only saves time; the worker reports a real problem later
        worker.warm_up()
    fds: list[int] = []
    with contextlib.suppress(OSError):
        _, fds, _, _ = socket.recv_fds(orders, 1, 1)
    orders.close()
    if not fds:  # the launcher has ended
        os._exit(0)
    _rename_process(before)
    _work(fds[0])


def _rename_process(name: str) -> str:
    """Sets this process's name in `ps`, and returns the previous one."""
    with contextlib.suppress(OSError):  # not every system has this file
        with open("/proc/self/comm", "r+") as file:
            before = file.read().rstrip("\n")
            file.seek(0)
            file.write(name)
        return before
    return ""


def _report_ended(channel: socket.socket, spare: _Spare | None) -> bool:
    """Reports exit statuses to the trainer; returns whether the spare worker has ended."""
    lost = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return lost
        if pid == 0:
            return lost
        if spare is not None and pid == spare.pid:
            spare.orders.close()
            lost = True
            continue
        with contextlib.suppress(OSError):
            channel.sendall(_FRAME.pack(_ENDED, pid, status))
