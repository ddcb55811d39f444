"""What a resumed run needs beside the rows: the streams of draws and the samplers' priorities.

    magic, 8 bytes | format, uint32 | bytes of the head, uint32 | SHA-256 of the rest | head, JSON | arrays

The head names the ring it belongs to, the state of each generator as words, and the arrays in their order.
The same bytes are a part of a snapshot, the file `draws` of what `save` writes, and `PATH.draws` beside a
file that a buffer lives in, which is written when the buffer is closed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UNREADABLE, CorruptFileError, VersionError, explain_os_errors
from shoal.replay.records import sync_directory

__all__ = ["Resumable", "SamplerState", "beside", "read_beside", "write_beside"]

_MAGIC, _FORMAT = b"SHOALDRW", 1
_HEAD = struct.Struct("<8sII32s")
_WORDS = 5
"""Of a generator's state: shoal_rng."""


@dataclass(frozen=True)
class SamplerState:
    """A sampler: how it weighs and draws, and the weight of each slot."""

    alpha: float
    beta: float
    draws: list[int]
    seen: int
    """The ticket up to which rows have a weight."""
    highest: float
    weights: NDArray[np.float32]


@dataclass
class Resumable:
    """The state of one handle on a ring."""

    ring: str
    """The ring's token; "": any."""
    draws: list[int]
    samplers: dict[str, SamplerState] = field(default_factory=dict)
    episodes: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Of a vector environment's buffer: what it knows of the episodes that go on."""

    def packed(self) -> bytes:
        arrays = [np.ascontiguousarray(state.weights, np.float32) for state in self.samplers.values()]
        arrays += [np.ascontiguousarray(array) for array in self.episodes.values()]
        head = json.dumps(
            {
                "ring": self.ring,
                "draws": self.draws,
                "samplers": [
                    {
                        "name": name,
                        "alpha": state.alpha,
                        "beta": state.beta,
                        "draws": state.draws,
                        "seen": state.seen,
                        "highest": state.highest,
                    }
                    for name, state in self.samplers.items()
                ],
                "episodes": list(self.episodes),
                "arrays": [[array.dtype.str, list(array.shape)] for array in arrays],
            }
        ).encode()
        rest = b"".join([head, *(array.tobytes() for array in arrays)])
        return _HEAD.pack(_MAGIC, _FORMAT, len(head), hashlib.sha256(rest).digest()) + rest

    @classmethod
    def unpacked(cls, data: bytes, where: str) -> Resumable:
        """What such bytes say; CorruptFileError for others."""
        try:
            magic, version, length, digest = _HEAD.unpack_from(data)
            if magic != _MAGIC:
                raise ValueError(f"it begins with {magic!r}, not {_MAGIC!r}")
            if version != _FORMAT:
                raise VersionError(
                    f"{where} holds draws in format {version}; this version of Shoal reads {_FORMAT}; use "
                    "the version that wrote it",
                    found=version,
                    expected=_FORMAT,
                )
            rest = memoryview(data)[_HEAD.size :]
            if hashlib.sha256(rest).digest() != digest:
                raise ValueError("its bytes are not those that were written")
            head = json.loads(bytes(rest[:length]))
            arrays, at = [], length
            for dtype, shape in head["arrays"]:
                kind = np.dtype(str(dtype))
                size = kind.itemsize * math.prod(shape)
                arrays.append(np.frombuffer(rest[at : at + size], kind).reshape(shape).copy())
                at += size
            return cls._from(head, arrays)
        except (*UNREADABLE, struct.error) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise CorruptFileError(
                f"{where} does not hold the draws of a replay buffer: {why}; restore it, or remove it to "
                "begin streams of draws and priorities anew"
            ) from error

    @classmethod
    def _from(cls, head: Any, arrays: list[NDArray[Any]]) -> Resumable:
        self = cls(str(head["ring"]), _words(head["draws"]))
        for place, one in enumerate(head["samplers"]):
            weights = arrays[place]
            if weights.dtype != np.float32 or weights.ndim != 1:
                raise ValueError(f"the weights of a sampler are {weights.dtype}{list(weights.shape)}")
            self.samplers[str(one["name"])] = SamplerState(
                float(one["alpha"]),
                float(one["beta"]),
                _words(one["draws"]),
                int(one["seen"]),
                float(one["highest"]),
                weights,
            )
        rest = arrays[len(self.samplers) :]
        self.episodes = dict(zip(map(str, head["episodes"]), rest, strict=True))
        return self


def _words(given: Any) -> list[int]:
    words = [int(word) for word in given]
    if len(words) != _WORDS or not all(0 <= word < 2**64 for word in words):
        raise ValueError(f"a stream of draws is {_WORDS} words of 64 bits, found {given!r:.80}")
    return words


def beside(path: Path) -> Path:
    """The file that keeps the draws of a buffer that lives in another."""
    return path.with_name(path.name + ".draws")


def write_beside(path: Path, state: Resumable) -> None:
    """Writes it, whole or not at all."""
    target = beside(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with (
            explain_os_errors(f"write the draws of the buffer to {str(target)!r}"),
            partial.open("wb") as file,
        ):
            file.write(state.packed())
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
        sync_directory(target.absolute().parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_beside(path: Path, ring: str) -> Resumable | None:
    """What was written there, if anything was, for the ring with that token."""
    target = beside(path)
    try:
        with explain_os_errors(f"read {str(target)!r}"):
            data = target.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    state = Resumable.unpacked(data, repr(str(target)))
    if state.ring != ring:
        raise CorruptFileError(
            f"{str(target)!r} keeps the draws of another buffer than {str(path)!r}; remove it, or put the "
            "files that belong together side by side"
        )
    return state
