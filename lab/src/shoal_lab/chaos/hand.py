"""The hand: a process that sends signals to others at the moments it is told, and says when it did.

A process of its own, since a thread's moments are those at which the interpreter lets it run. Victims are
named by descriptor (pidfd), so that no number that was used again is ever hit.
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

from shoal_lab.chaos.held import children

__all__ = ["Hand", "Struck"]

_ORDER = struct.Struct("=iidd")  # signal, launcher (0: the victim is the descriptor), delay, pause
_DONE = struct.Struct("=id")  # whether it struck, when
_NEWBORN_S = 0.2


@dataclass(frozen=True)
class Struck:
    """What became of an order: whether anybody was hit, and when (time.monotonic)."""

    hit: bool
    moment: float


class Hand:
    """Fork it before anything is started: it holds nothing of what comes later."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._channel.close()
            _obey(theirs)
        theirs.close()

    def strike(self, pid: int, number: int, delay_s: float, *, pause_s: float = 0.0) -> bool:
        """Orders a signal; with `pause_s` it is followed by SIGCONT. False: there is no such process."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return False
        socket.send_fds(self._channel, [_ORDER.pack(number, 0, delay_s, pause_s)], [fd])
        os.close(fd)
        return True

    def strike_newborn(self, parent: int, delay_s: float) -> None:
        """Kills the next child of `parent`, so long after it was born."""
        self._channel.sendall(_ORDER.pack(signal.SIGKILL, parent, delay_s, 0.0))

    def struck(self, timeout_s: float = 0.0) -> Struck | None:
        """What became of the oldest order that was carried out; None if none was yet."""
        if not select.select([self._channel], [], [], timeout_s)[0]:
            return None
        hit, moment = _DONE.unpack(self._channel.recv(_DONE.size))
        return Struck(bool(hit), moment)

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _obey(channel: socket.socket) -> NoReturn:
    try:
        while True:
            data, fds, _, _ = socket.recv_fds(channel, _ORDER.size, 1)
            if not data:
                break
            number, parent, delay_s, pause_s = _ORDER.unpack(data)
            if parent:
                fds = _await_newborn(parent)
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


def _await_newborn(parent: int) -> list[int]:
    known, deadline = set(children(parent)), time.monotonic() + _NEWBORN_S
    while time.monotonic() < deadline:
        for pid in set(children(parent)) - known:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                if pid in children(parent):  # still the one that was seen
                    return [fd]
                os.close(fd)
    return []
