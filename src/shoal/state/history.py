"""The history of a run: returns, lengths, steps/s and logged values over its whole time, in bins.

The run's host keeps the bins in shared memory of a fixed size (core/history.h). A `History` is a copy of
them: of a running session, of one that has ended, or of a file that was saved.

    file:  b"SHOALHIS" | u32 format | u32 bytes of JSON | JSON | zlib: bins, then curves | u32 CRC-32
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import UNREADABLE, SessionError
from shoal.memory import Layout, Segment

__all__ = ["CURVES", "Curve", "History", "ReadHistory", "WriteHistory", "read_history"]

CURVES = ("return", "length", "steps_per_s")
"""The curves that every history has; logged names follow."""

_ALL = len(CURVES) + _core.HISTORY_LOGGED
_HEAD = np.dtype([("begin", "<f8"), ("end", "<f8"), ("steps", "<u8"), ("episodes", "<u8")])
_BIN = np.dtype([("head", _HEAD), ("curves", "<f4", (_ALL, 4))])
_MAGIC, _FORMAT = b"SHOALHIS", 1
_PREFIX = struct.Struct("<8sII")
_MOST_BYTES = 16 << 20
_MOST_BINS = 1 << 16
_READ_TIMEOUT_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over the bins: arrays of the same length, NaN where a bin has no value.

    >>> nan = float("nan")
    >>> curve = Curve(*(np.array(values, np.float32) for values in ([9, nan], [8, nan], [10, nan], [4, 0])))
    >>> np.average(curve.mean[curve.weight > 0], weights=curve.weight[curve.weight > 0])  # of the whole run
    np.float32(9.0)
    """

    mean: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    weight: NDArray[np.float32]
    """The number of values in each bin: episodes, or calls that logged; for steps/s, seconds."""


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """A copy of a run's history, oldest bin first. Older bins are longer, and the number of bins is bounded.

    >>> envs = shoal.make_vec("CartPole-v1", 4, session="history-doc")
    >>> with shoal.attach("history-doc") as session:
    ...     sorted(session.history().names)
    ['length', 'return', 'steps_per_s']
    >>> envs.close()
    """

    facts: dict[str, Any]
    """The facts of the session, such as its name, environment and start."""
    bins: NDArray[Any] = field(repr=False)
    """`begin` and `end` in seconds since the run began; `steps` and `episodes` of the run at the end."""
    curves: NDArray[np.float32] = field(repr=False)
    """[bins, names, (mean, low, high, weight)]"""
    names: tuple[str, ...] = CURVES
    last: dict[str, float] = field(default_factory=dict)
    """The last value of each logged name."""

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, name: str) -> Curve:
        """Returns the curve of a name: "return", "length", "steps_per_s", or one that was logged."""
        if name not in self.names:
            raise KeyError(f"no curve {name!r}; there are {', '.join(self.names)}")
        one = self.curves[:, self.names.index(name)]
        weight = one[:, 3].copy()
        mean, low, high = (np.where(weight > 0, one[:, at], np.nan).astype(np.float32) for at in range(3))
        return Curve(mean, low, high, weight)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `shoal watch` and `read_history` open. It replaces an older file at once."""
        about = {"facts": self.facts, "names": self.names, "last": self.last, "bins": len(self)}
        text = json.dumps({**about, "saved": time.time()}, default=str).encode()
        body = zlib.compress(self.bins.tobytes() + np.ascontiguousarray(self.curves).tobytes(), 6)
        whole = _PREFIX.pack(_MAGIC, _FORMAT, len(text)) + text + body
        whole += struct.pack("<I", zlib.crc32(whole))
        target = Path(path)
        temporary = ""
        try:
            fd, temporary = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}-")
            with os.fdopen(fd, "wb") as file:
                file.write(whole)
            os.replace(temporary, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            why = error.strerror or error
            raise SessionError(f"cannot save the history to {target}: {why}; choose another file") from error

    def __repr__(self) -> str:
        span = f"{self.bins['end'][-1]:.1f} s" if len(self) else "empty"
        return f"<History of {self.facts.get('name')!r}: {len(self)} bins, {span}, {', '.join(self.names)}>"


def read_history(path: str | os.PathLike[str]) -> History:
    """Reads a file that was saved with `--history`, `history=` or `History.save`.

    Raises SessionError if it cannot be read, is not such a file, or is damaged.

    >>> read_history("no-such-file.history")
    Traceback (most recent call last):
        ...
    shoal.errors.SessionError: cannot read the history 'no-such-file.history': No such file or directory
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SessionError(f"{path} is not a file; give a file that was saved with --history")
            if found.st_size > _MOST_BYTES:
                raise SessionError(
                    f"{path} is not a history: it has {found.st_size:,} bytes, and a history has at most "
                    f"{_MOST_BYTES:,}"
                )
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with NUL is a ValueError
        why = getattr(error, "strerror", None) or error
        raise SessionError(f"cannot read the history {str(path)!r}: {why}") from error
    if data[: len(_MAGIC)] != _MAGIC:
        raise SessionError(f"{path} is not a history of Shoal; give a file that was saved with --history")
    try:
        return _parse(data)
    except (*UNREADABLE, struct.error, zlib.error) as error:
        raise SessionError(
            f"the history {path} is damaged or incomplete ({error}); copy it again from where it was saved"
        ) from error


def _parse(data: bytes) -> History:
    if len(data) < _PREFIX.size + 4:
        raise ValueError(f"{len(data)} bytes are too few")
    _, version, size = _PREFIX.unpack_from(data)
    if version != _FORMAT:
        raise ValueError(f"format {version}; this version of Shoal reads format {_FORMAT}")
    if zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise ValueError("its checksum is wrong")
    about = json.loads(data[_PREFIX.size : _PREFIX.size + size])
    facts, names, count = about["facts"], tuple(map(str, about["names"])), int(about["bins"])
    if not isinstance(facts, dict) or not isinstance(facts["name"], str):
        raise ValueError("its facts have no name")
    if names[: len(CURVES)] != CURVES or len(set(names)) != len(names) or len(names) > _ALL:
        raise ValueError(f"its curves are {', '.join(names)}")
    if not 0 <= count <= _MOST_BINS:
        raise ValueError(f"{count} bins")
    wanted = count * (_HEAD.itemsize + 16 * len(names))
    content = zlib.decompressobj().decompress(data[_PREFIX.size + size : -4], wanted + 1)
    if len(content) != wanted:
        raise ValueError(f"{count} bins need {wanted} bytes, and there are {len(content)}")
    bins = np.frombuffer(content, _HEAD, count)
    curves = np.frombuffer(content, "<f4", offset=bins.nbytes).reshape(count, len(names), 4)
    last = {str(name): float(value) for name, value in about["last"].items()}
    return _check(History(facts, bins, curves, names, last))


def _check(history: History) -> History:
    """Raises ValueError if the bins cannot be those of a run."""
    begin, end = history.bins["begin"], history.bins["end"]
    steps, weight = history.bins["steps"], history.curves[..., 3]
    if len(history) and not (
        np.isfinite(begin).all()
        and np.isfinite(end).all()
        and (begin >= 0).all()
        and (end >= begin).all()
        and (begin[1:] >= end[:-1] - 1e-6).all()
        and (steps[1:] >= steps[:-1]).all()
        and (weight >= 0).all()
    ):
        raise ValueError("its bins are not in order")
    return history


class WriteHistory:
    """The run's side: memory that only this process can write, and `log`."""

    def __init__(self) -> None:
        self._segment = Segment.published(Layout({"history": (np.uint8, (_core.HISTORY_BYTES,))}))
        self.memory = self._segment["history"]
        self._native = _core.History(self.memory)
        self.log = self._native.log

    def open_reader(self) -> int:
        """Returns a read-only descriptor, which belongs to the caller."""
        with self._segment.reader() as reader:
            return os.dup(reader.fileno())

    def copy(self, facts: Mapping[str, Any]) -> History:
        return _copy(self._native, facts)

    def close(self) -> None:
        self._segment.close()


class ReadHistory:
    """A watcher's side, over a descriptor that the host sent; it stays readable after the end of the run."""

    def __init__(self, fd: int) -> None:
        segment = Segment.from_fileno(fd, readonly=True)
        try:
            self._native = _core.History(segment["history"])
        except (KeyError, ValueError, TypeError) as error:
            raise SessionError(
                f"the run's history cannot be read ({error}); the run may use another version of Shoal"
            ) from error
        finally:
            segment.close()  # the array keeps the memory

    def copy(self, facts: Mapping[str, Any]) -> History:
        try:
            return _check(_copy(self._native, facts))
        except UNREADABLE as error:
            raise SessionError(f"the run's history is damaged: {error}; restart the run") from error


def _copy(native: _core.History, facts: Mapping[str, Any]) -> History:
    data = native.read(_READ_TIMEOUT_NS)
    if data is None:
        raise ValueError("its writer ended in the middle of a change")
    logged: Sequence[tuple[bytes, float, int]] = native.logged()
    names = [*CURVES, *(name.decode("utf-8", "replace") for name, _, _ in logged)]
    whole = np.frombuffer(data, _BIN)
    curves = whole["curves"][:, : len(names)].copy()
    last = {
        name: value for name, (_, value, times) in zip(names[len(CURVES) :], logged, strict=True) if times
    }
    return History(dict(facts), whole["head"].copy(), curves, tuple(names), last)
