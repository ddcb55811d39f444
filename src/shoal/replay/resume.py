"""The state that a resumed run needs in addition to the rows: the generators and the samplers' priorities.

    magic, 8 bytes | format, uint32 | size of the head, uint32 | SHA-256 of the rest | head, JSON | arrays

The head holds the token of the ring, the state of each generator as words, and the types of the arrays. The
same bytes are a part of a snapshot, the file `draws` of a directory that `save` wrote, and the file
`PATH.draws` beside the file PATH of a buffer, which `close` writes.
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

__all__ = ["Resumable", "SamplerState", "draws_path", "read_draws", "write_draws"]

_MAGIC, _FORMAT = b"SHOALDRW", 1
_HEAD = struct.Struct("<8sII32s")
_WORDS = 5
"""The number of words in the state of a generator (shoal_rng)."""


@dataclass(frozen=True)
class SamplerState:
    """The state of a sampler: its parameters, its generator, and the weight of each slot."""

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
    """The token of the ring; "" fits any ring."""
    draws: list[int]
    samplers: dict[str, SamplerState] = field(default_factory=dict)
    episodes: dict[str, NDArray[Any]] = field(default_factory=dict)
    """For a buffer of a vector environment: the state of the unfinished episodes."""

    def pack(self) -> bytes:
        """Returns the state as bytes."""
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
    def unpack(cls, data: bytes, where: str) -> Resumable:
        """Returns the state from such bytes; raises CorruptFileError for others.

        `where` is for the message.
        """
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
                raise ValueError("its checksum is wrong")
            head = json.loads(bytes(rest[:length]))
            arrays, at = [], length
            for dtype, shape in head["arrays"]:
                kind = np.dtype(str(dtype))
                size = kind.itemsize * math.prod(shape)
                arrays.append(np.frombuffer(rest[at : at + size], kind).reshape(shape).copy())
                at += size
            return cls._from_head(head, arrays)
        except (*UNREADABLE, struct.error) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise CorruptFileError(
                f"{where} does not hold the draws of a replay buffer: {why}; restore it, or remove it to "
                "restart the draws and the priorities"
            ) from error

    @classmethod
    def _from_head(cls, head: Any, arrays: list[NDArray[Any]]) -> Resumable:
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
        raise ValueError(f"the state of a generator must be {_WORDS} words of 64 bits, found {given!r:.80}")
    return words


def draws_path(path: Path) -> Path:
    """Returns the path of the file that stores the draws of the buffer in file `path`."""
    return path.with_name(path.name + ".draws")


def write_draws(path: Path, state: Resumable) -> None:
    """Writes the draws of the buffer in file `path`, completely or not at all."""
    target = draws_path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with (
            explain_os_errors(f"write the draws of the buffer to {str(target)!r}"),
            partial.open("wb") as file,
        ):
            file.write(state.pack())
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
        sync_directory(target.absolute().parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_draws(path: Path, ring: str) -> Resumable | None:
    """Returns the draws that were written for the buffer in `path`, whose token is `ring`, or None."""
    target = draws_path(path)
    try:
        with explain_os_errors(f"read {str(target)!r}"):
            data = target.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    state = Resumable.unpack(data, repr(str(target)))
    if state.ring != ring:
        raise CorruptFileError(
            f"{str(target)!r} holds the draws of another buffer than {str(path)!r}; remove it, or move it "
            "back beside its own buffer"
        )
    return state
