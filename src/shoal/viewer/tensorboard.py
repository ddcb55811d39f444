"""Writes a history as a TensorBoard event file, without TensorBoard.

file:   records of | u64 length | u32 masked CRC-32C of the length | Event | u32 masked CRC-32C of the Event |
Event:  a protocol buffer: 1 wall_time, 2 step, 3 file_version, 5 summary { 1 value { 1 tag, 2 simple_value }}
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from shoal.errors import ShoalError
from shoal.state.history import CURVES, History

if TYPE_CHECKING:
    from shoal.state.attach import Session
    from shoal.viewer.recorded import Recorded

__all__ = ["Events", "write_events"]

_POLL_S = 1.0
_TAGS = {"return": "episode/return", "length": "episode/length", "steps_per_s": "time/steps_per_s"}


def write_events(session: Session | Recorded, directory: str) -> str:
    """Writes the history to a new event file in `directory`, and follows it until the run ends or Ctrl-C.

    Returns the path of the file.
    """
    session.history()  # maps its memory, which stays readable after the end of the run
    with Events(directory) as events:
        try:
            while True:
                is_alive = session.alive  # before reading, so that the last bins are read as well
                events.add(session.history())
                if not is_alive:
                    break
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            events.add(session.history())
    return str(events.path)


class Events:
    """An event file. A bin that was written once is not written again."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.shoal"
        self.path = Path(directory) / name
        self._end = 0.0
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("xb")
        except OSError as error:
            raise ShoalError(
                f"cannot write {self.path}: {error.strerror}; choose another directory"
            ) from error
        self._write(_double(1, time.time()) + _text(3, "brain.Event:2"))

    def add(self, history: History) -> None:
        """Writes the bins after those that are written."""
        started = history.facts.get("started")
        zero = float(started) if isinstance(started, (int, float)) and math.isfinite(started) else 0.0
        new = np.flatnonzero(history.bins["begin"] >= self._end - 1e-6)
        curves = [history[name] for name in history.names]
        for at in new.tolist():
            values = b""
            for name, curve in zip(history.names, curves, strict=True):
                if not curve.weight[at] > 0:
                    continue
                tag = _TAGS.get(name, name)
                values += _value(tag, curve.mean[at])
                if name in CURVES[:2]:
                    values += _value(f"{tag}_low", curve.low[at]) + _value(f"{tag}_high", curve.high[at])
            if values:
                bin_ = history.bins[at]
                when = _double(1, zero + float(bin_["end"])) + b"\x10" + _varint(int(bin_["steps"]))
                self._write(when + _bytes(5, values))
            self._end = float(history.bins["end"][at])
        self._file.flush()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        check = struct.pack("<I", _mask(length)), struct.pack("<I", _mask(event))
        try:
            self._file.write(length + check[0] + event + check[1])
        except OSError as error:
            raise ShoalError(f"cannot write {self.path}: {error.strerror}") from error

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _value(tag: str, value: float) -> bytes:
    return _bytes(1, _text(1, tag) + b"\x15" + struct.pack("<f", value))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8", "replace"))


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _make_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _make_table()


def _mask(data: bytes) -> int:
    """Returns the CRC-32C of the data, masked as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
