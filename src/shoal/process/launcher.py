"""The launcher: a clean process, started once, from which workers are forked.

    trainer --spawn--> launcher (NumPy, Gymnasium and Shoal loaded; one thread)
       |  "start", a worker's socket          |--fork--> worker    14 ms instead of 400
       |  pid and pidfd, later its exit status |--fork--> worker
                                               |--fork--> spare    4 ms, for whoever is to be replaced

1. The trainer is never forked: it may have threads, a GPU, a window.
2. The launcher ends with the trainer (its pidfd, or the socket's end); workers have a watch of their own.
3. It is the workers' parent, so it reaps them and reports how they ended.
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
_QUIET_S = 0.1  # after a start: a fork and a rehearsal take a core for some milliseconds
SPARE = "shoal spare"
"""How `ps` calls the worker in reserve."""
_FRAME = struct.Struct("=cqq")  # kind, pid or error, exit status or number of the request
_START, _STARTED, _ENDED, _FAILED = b"s", b"p", b"x", b"f"


def open_pidfd(pid: int) -> int:
    """A descriptor that is readable once a process has ended; -1 where the system has none (Linux < 5.3)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


class LauncherEnded(WorkerError):
    """The launcher was killed, or could not start. Another may do better."""


class Launcher:
    """The trainer's side."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        parent_fd = open_pidfd(os.getpid())
        # Ctrl-C is the trainer's, so another process group; but not another session, or a kernel that shares
        # cores fairly between sessions (autogroup) makes the trainer and its workers wait for each other.
        program = (
            "import os, signal, sys; os.setpgid(0, 0); signal.signal(signal.SIGTTOU, signal.SIG_IGN); "
            # Until it has loaded everything, which takes long on a busy machine, it hears of nothing else.
            f"signal.signal(signal.SIGALRM, lambda *_: os.getppid() == {os.getpid()} or os._exit(0)); "
            "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM]); "
            f"signal.setitimer(signal.ITIMER_REAL, {_LOOK_S}, {_LOOK_S}); "
            f"sys.path[:] = {sys.path!r}; "
            f"from shoal.process.launcher import main; main({theirs.fileno()}, {parent_fd})"
        )
        environment = dict(os.environ)
        # Loaded once here for all workers; as many threads as cores in each of them would be too many.
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
        """Forks a worker that holds `channel`; its pid and a pidfd (-1 where there are none)."""
        with self._lock:
            try:
                self._requests += 1
                request = _FRAME.pack(_START, 0, self._requests)
                socket.send_fds(self._socket, [request], [channel.fileno()])
                while True:
                    kind, pid, number, fds = self._read()
                    if kind == _STARTED and number == self._requests:
                        self._ended.pop(pid, None)  # of another that had its number, and nobody asked about
                        return pid, fds[0] if fds else -1
                    for fd in fds:  # the answer to a request that Ctrl-C cut short
                        os.close(fd)
                    if kind == _FAILED and number == self._requests:
                        raise WorkerError(
                            f"cannot start a worker process: {os.strerror(pid)} "
                            "(a limit on processes? see `ulimit -u`)"
                        )
            except (OSError, EOFError) as error:
                self._gone = True
                raise LauncherEnded(
                    f"the process that starts workers (process {self._process.pid}) has ended; "
                    "its own error is printed above"
                ) from error

    def exit_status(self, pid: int, timeout_s: float) -> int | None:
        """How a worker ended, as os.waitpid says it; None if that cannot be known."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            try:
                while pid not in self._ended:
                    left = max(0.0, deadline - time.monotonic())  # over, if this was stopped meanwhile
                    if not select.select([self._socket], [], [], left)[0]:
                        return None
                    self._read()
            except (OSError, EOFError, ValueError):  # it has ended, or was closed
                return None
            return self._ended.pop(pid)

    @property
    def alive(self) -> bool:
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
            if len(self._ended) > 4096:  # nobody asked for these
                self._ended.pop(next(iter(self._ended)))
        return kind, pid, number, list(fds)


_current: Launcher | None = None
_current_lock = threading.Lock()


def launcher() -> Launcher:
    """The launcher of this process, started when first needed and again if it died."""
    global _current
    with _current_lock:
        if _current is None or not _current.alive:
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
            "cannot tell which program is Python (sys.executable is empty); set it with "
            "multiprocessing.set_executable(), or use context='fork'"
        )
    return os.fsdecode(found)


# -- the launcher's own side --------------------------------------------------------------------------


def main(fd: int, parent_fd: int) -> NoReturn:
    """Forks a worker for each request until the trainer ends."""
    import gc

    from shoal.process import worker

    worker.prepare()
    signal.setitimer(signal.ITIMER_REAL, 0)  # from here on it listens for the trainer's end
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A trainer that has signals blocked hands that down: then no death would be reported, no stack shown.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    channel = socket.socket(fileno=fd)
    channel.set_inheritable(False)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning)
    gc.collect()
    gc.freeze()  # what is loaded stays shared with the workers, page by page
    waiter = select.poll()
    waiter.register(channel, select.POLLIN)
    waiter.register(woken, select.POLLIN)
    if parent_fd >= 0:
        waiter.register(parent_fd, select.POLLIN)
    mine = [channel, woken, wakes]
    spare: _Spare | None = None
    wanted = False
    while True:
        heard = {number for number, _ in waiter.poll(_QUIET_S * 1000 if wanted else None)}
        if parent_fd in heard:
            os._exit(0)
        if woken.fileno() in heard:
            woken.recv(4096)
            if _report_ended(channel, spare):
                spare, wanted = None, True
        if wanted and not heard:  # nobody needs this core at the moment
            wanted, spare = False, _Spare.made(mine, parent_fd)
        if channel.fileno() not in heard:
            continue
        try:
            data, fds, _, _ = socket.recv_fds(channel, _FRAME.size, 1)
        except OSError:  # the trainer has gone without reading who ended
            os._exit(0)
        if not data:
            os._exit(0)
        request = _FRAME.unpack(data)[2]
        try:
            pid = spare.take(fds[0]) if spare is not None else 0
            pid = pid or _forked(mine if spare is None else [*mine, spare.orders], parent_fd, fds[0])
        except OSError as error:
            os.close(fds[0])
            channel.sendall(_FRAME.pack(_FAILED, error.errno or 0, request))
            continue
        spare, wanted = None, True
        os.close(fds[0])
        pidfd = open_pidfd(pid)
        try:
            socket.send_fds(channel, [_FRAME.pack(_STARTED, pid, request)], [pidfd] if pidfd >= 0 else [])
        except OSError:  # the trainer has gone; its worker's own watch sees to the worker
            os._exit(0)
        if pidfd >= 0:
            os.close(pidfd)


def _forked(others: list[socket.socket], parent_fd: int, fd: int) -> int:
    """A worker's pid; in the worker itself this does not return."""
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
    """A worker forked beforehand: who replaces one that died need not wait for a fork."""

    pid: int
    orders: socket.socket

    @classmethod
    def made(cls, others: list[socket.socket], parent_fd: int) -> _Spare | None:
        """None if the system has no room for it: it was not asked for."""
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
        """Has it work for that socket: its pid, or 0 if it is dead."""
        with self.orders:
            try:
                socket.send_fds(self.orders, [b"w"], [fd])
            except OSError:
                return 0
        return self.pid


def _wait_for_work(orders: socket.socket) -> NoReturn:
    from shoal.process import worker

    before = _called(SPARE)
    with contextlib.suppress(Exception):  # it was to save time; a worker says what it lacks when it is one
        worker.rehearse()
    fds: list[int] = []
    with contextlib.suppress(OSError):
        _, fds, _, _ = socket.recv_fds(orders, 1, 1)
    orders.close()
    if not fds:  # the launcher has ended
        os._exit(0)
    _called(before)
    _work(fds[0])


def _called(name: str) -> str:
    """Names this process, for `ps`; the name it had."""
    with contextlib.suppress(OSError):  # not on every system
        with open("/proc/self/comm", "r+") as file:
            before = file.read().rstrip("\n")
            file.seek(0)
            file.write(name)
        return before
    return ""


def _report_ended(channel: socket.socket, spare: _Spare | None) -> bool:
    """Tells the trainer who ended, and how; whether that was the spare one."""
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
