"""The messages on a session's socket: notes of one size, each with at most one descriptor (core/host.h)."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

from shoal import _core

__all__ = [
    "COUNTERS",
    "FACTS",
    "HISTORY",
    "MAX_WATCHED",
    "PUBLISH",
    "RECORD",
    "RECORDED",
    "RETURNS",
    "WATCH",
    "WINDOW",
    "Note",
    "receive",
    "send",
]

FACTS, COUNTERS, WATCH = _core.NOTE_FACTS, _core.NOTE_COUNTERS, _core.NOTE_WATCH
WINDOW, PUBLISH = _core.NOTE_WINDOW, _core.NOTE_PUBLISH
HISTORY, RETURNS = _core.NOTE_HISTORY, _core.NOTE_RETURNS
RECORD, RECORDED = _core.NOTE_RECORD, _core.NOTE_RECORDED
MAX_WATCHED = _core.MAX_WATCHED
_FORMAT = struct.Struct(f"=IIq{MAX_WATCHED}q")


@dataclass(frozen=True, slots=True)
class Note:
    """One note; the receiver must close `fd`."""

    kind: int
    count: int = 0
    number: int = 0
    values: tuple[int, ...] = ()
    fd: int = -1


def send(channel: socket.socket, note: Note) -> None:
    values = (*note.values, *[0] * (MAX_WATCHED - len(note.values)))
    data = _FORMAT.pack(note.kind, note.count, note.number, *values)
    if note.fd >= 0:
        socket.send_fds(channel, [data], [note.fd])
    else:
        channel.sendall(data)


def receive(channel: socket.socket) -> Note | None:
    """Returns the next note; None at the end of the connection."""
    data = b""
    fd = -1
    while len(data) < _FORMAT.size:
        more, fds, _, _ = socket.recv_fds(channel, _FORMAT.size - len(data), 1)
        if not more:
            if fd >= 0:
                os.close(fd)
            return None
        data += more
        fd = fds[0] if fds else fd
    kind, count, number, *values = _FORMAT.unpack(data)
    return Note(kind, count, number, tuple(values), fd)
