"""The signaller: a process that sends signals to other processes at given times and reports when it did.

It is a process, because the interpreter decides when a thread runs. Victims are given as descriptors (pidfd),
so that a reused process id is never hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass
from typing import NoReturn

from shoal_lab.chaos.resources import list_children

__all__ = ["SignalResult", "Signaller"]

_ORDER = struct.Struct("=iidd")  # signal, launcher (0: the victim is the descriptor), delay, pause
_DONE = struct.Struct("=id")  # whether the signal was sent, when
_CHILD_S = 0.2


@dataclass(frozen=True)
class SignalResult:
    """The result of an order: whether a process was hit, and when (time.monotonic)."""

    hit: bool
    moment: float


class Signaller:
    """Sends signals from a forked process. Make it first, so that it inherits no later descriptors."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._channel.close()
            _execute_orders(theirs)
        theirs.close()

    def send_signal(self, pid: int, number: int, delay_s: float, *, pause_s: float = 0.0) -> bool:
        """Orders a signal; with `pause_s`, SIGCONT follows. Returns False if there is no such process."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return False
        socket.send_fds(self._channel, [_ORDER.pack(number, 0, delay_s, pause_s)], [fd])
        os.close(fd)
        return True

    def kill_next_child(self, parent: int, delay_s: float) -> None:
        """Orders SIGKILL for the next child of `parent`, `delay_s` after it was forked."""
        self._channel.sendall(_ORDER.pack(signal.SIGKILL, parent, delay_s, 0.0))

    def take_result(self, timeout_s: float = 0.0) -> SignalResult | None:
        """Returns the result of the oldest executed order; None if there is none yet."""
        if not select.select([self._channel], [], [], timeout_s)[0]:
            return None
        hit, moment = _DONE.unpack(self._channel.recv(_DONE.size))
        return SignalResult(bool(hit), moment)

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _execute_orders(channel: socket.socket) -> NoReturn:
    try:
        while True:
            data, fds, _, _ = socket.recv_fds(channel, _ORDER.size, 1)
            if not data:
                break
            number, parent, delay_s, pause_s = _ORDER.unpack(data)
            if parent:
                fds = _wait_for_child(parent)
            time.sleep(delay_s)
            moment, hit = time.monotonic(), 0
            for fd in fds:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
                    hit = 1
                    if pause_s:
                        time.sleep(pause_s)
                        signal.pidfd_send_signal(fd, signal.SIGCONT)
                os.close(fd)
            channel.sendall(_DONE.pack(hit, moment))
    except (OSError, KeyboardInterrupt):
        pass
    os._exit(0)


def _wait_for_child(parent: int) -> list[int]:
    known, deadline = set(list_children(parent)), time.monotonic() + _CHILD_S
    while time.monotonic() < deadline:
        for pid in set(list_children(parent)) - known:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                if pid in list_children(parent):  # the process id was not reused
                    return [fd]
                os.close(fd)
    return []
