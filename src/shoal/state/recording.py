"""Recordings: snapshots of one whole episode, taken step by step in the process that steps the environment.

    request -> tick 0 -> every step: a glance (episode, tick, reward) -> the end -> | head | snapshots |
                         some steps: a snapshot

Every step is seen, so the return is exact and a gap is noticed; an episode that was not seen whole is never
returned. Snapshots are fewer: at most 64 and 16 MiB. When there are too many, every second one is dropped and
from then on half as many are taken, so they are spread evenly over an episode of any length.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UNREADABLE, SessionError
from shoal.memory import Layout, Segment
from shoal.state.schema import Schema, describe
from shoal.state.snapshot import Field, Snapshot
from shoal.state.windows import count_content, decode, fill, serialise

__all__ = ["Glance", "Recorder", "Recording", "glance_at", "read_recording", "write_recording"]

MOST_SNAPSHOTS = 64
MOST_BYTES = 16 << 20
_MOST_ALL_BYTES = 64 << 20  # of a recording that is read
_WIDEST = 320  # pixels of a picture
_LARGE = 64 << 10  # bytes of an observation that is not kept if there is a world or a picture
_AIM_NS = 60_000_000  # of the run's time for one recording
_SHARE = 50  # a recording that takes less than this part of the time is never given up
_HEAD = struct.Struct("<8sII")
_STAMPS = struct.Struct("<5qQ")
_MAGIC, _FORMAT = b"ShoalRec", 1


@dataclass(frozen=True, slots=True)
class Glance:
    """One step of an environment, without its state."""

    episode: int
    tick: int
    reward: float
    """The mean over the agents."""
    is_over: bool
    """Whether the step ended the episode."""


def glance_at(snapshot: Snapshot) -> Glance:
    """Returns the step of a snapshot; one without an action is a reset."""
    step = snapshot.step
    if not any(name.split("/")[0] == "action" for name in step):
        return Glance(snapshot.episode, snapshot.tick, 0.0, False)
    is_over = bool(np.all(step["terminated"].data | step["truncated"].data))
    return Glance(snapshot.episode, snapshot.tick, float(np.mean(step["reward"].data)), is_over)


@dataclass(frozen=True, slots=True, repr=False)
class Recording:
    """One whole episode of an environment, from its reset to its end.

    >>> Recording(3, 7, 20.0, 20, ())
    <Recording of environment 3, episode 7: return 20, 20 steps, 0 snapshots>
    """

    env_id: int
    episode: int
    """Counted from 0."""
    episode_return: float
    """The sum of the rewards; with several agents, of their mean."""
    length: int
    """Steps of the episode."""
    snapshots: tuple[Snapshot, ...]
    """Evenly spread over the episode. Pictures are at most 320 pixels wide and high."""

    def __repr__(self) -> str:
        about = f"return {self.episode_return:g}, {self.length} steps, {len(self.snapshots)} snapshots"
        return f"<Recording of environment {self.env_id}, episode {self.episode}: {about}>"


class Recorder:
    """Records the next whole episode of one environment."""

    def __init__(self, env_id: int, number: int, began_ns: int) -> None:
        """`number` is that of the request."""
        self.env_id, self.number, self.began_ns = env_id, number, began_ns
        self.spent_ns = 0
        """The time that the run has spent on it; the caller adds it up."""
        self._is_rolling = False
        self._episode = self._tick = self._longest = 0
        self._return = 0.0
        self._stride = 1
        self._snapshots: list[Snapshot] = []
        self._bytes = 0
        self._cost_ns = 0
        self._allowed_ns = _AIM_NS

    def gives_up(self, now_ns: int) -> bool:
        """Whether it has taken too much of the run's time: the episode has very many steps."""
        return self.spent_ns > 4 * _AIM_NS and self.spent_ns * _SHARE > now_ns - self.began_ns

    def step(self, seen: Glance | None, look: Callable[[int], Snapshot | None]) -> Recording | None:
        """Takes one step; returns the recording if the episode has ended. None: it was not stepped."""
        if seen is None or (self._is_rolling and not seen.is_over and self._is_same(seen)):
            return None
        if self._is_rolling and (seen.is_over or self._is_next(seen)):
            self._tick += 1
            self._return += seen.reward
            if seen.is_over:
                if self._is_same(seen):  # with autoreset in the same step, the last state is gone
                    self._take(look, is_last=True)
                return Recording(self.env_id, self._episode, self._return, self._tick, tuple(self._snapshots))
            if self.spent_ns > self._allowed_ns:  # takes fewer from now on
                self._allowed_ns *= 2
                self._thin()
            if self._tick % self._stride == 0:
                self._take(look)
            return None
        self._longest = max(self._longest, seen.tick)
        self._is_rolling = seen.tick == 0
        if self._is_rolling:  # it begins, or the user has reset it
            self._episode, self._tick, self._return = seen.episode, 0, 0.0
            self._snapshots, self._bytes, self._stride = [], 0, 1
            self._take(look)
            most = min(MOST_SNAPSHOTS, max(16, _AIM_NS // max(1, self._cost_ns)))
            self._stride = max(1, math.ceil(self._longest / most))
        return None

    def _is_same(self, seen: Glance) -> bool:
        return (seen.episode, seen.tick) == (self._episode, self._tick)

    def _is_next(self, seen: Glance) -> bool:
        return (seen.episode, seen.tick) == (self._episode, self._tick + 1)

    def _take(self, look: Callable[[int], Snapshot | None], is_last: bool = False) -> None:
        began = time.monotonic_ns()
        snapshot = look(self.env_id)
        if snapshot is None:
            return
        small = shrink(snapshot)
        self._snapshots.append(small)
        self._bytes += _count_bytes(small)
        self._cost_ns = time.monotonic_ns() - began
        while len(self._snapshots) > 2 and (
            len(self._snapshots) > MOST_SNAPSHOTS or self._bytes > MOST_BYTES
        ):
            self._thin()
            if is_last and self._snapshots[-1] is not small:
                self._snapshots.append(small)

    def _thin(self) -> None:
        """Drops every second snapshot, and takes half as many from now on."""
        self._snapshots, self._stride = self._snapshots[::2], self._stride * 2
        self._bytes = sum(map(_count_bytes, self._snapshots))


def shrink(snapshot: Snapshot) -> Snapshot:
    """Returns a copy that later steps do not change, with smaller pictures and without large observations."""
    has_picture = bool(snapshot.world) or "frame" in snapshot.step
    step = {
        name: one
        for name, one in snapshot.step.items()
        if not (has_picture and name.startswith("observation") and one.data.nbytes > _LARGE)
    }
    return replace(snapshot, world=_copy_fields(snapshot.world), step=_copy_fields(step))


def _copy_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    return {name: replace(one, data=_copy(one), live=False) for name, one in fields.items()}


def _copy(one: Field) -> NDArray[Any]:
    data = one.data
    if one.role == "image" and data.dtype == np.uint8 and data.ndim in (2, 3) and data.size:
        bits = 0
        while max(data.shape[:2]) >> bits > _WIDEST:
            bits += 1
        if 0 < bits <= 4 and min(data.shape[:2]) >> bits:
            return _average(data, bits)
    return np.array(data, order="C")


def _average(data: NDArray[Any], bits: int) -> NDArray[Any]:
    """Returns a picture whose pixels are the means of squares of 2**bits pixels, so that thin lines stay."""
    side = 1 << bits
    height, width = (size >> bits << bits for size in data.shape[:2])
    rows = data[0:height:side].astype(np.uint16)
    for at in range(1, side):
        rows += data[at:height:side]
    squares = rows[:, 0:width:side].copy()
    for at in range(1, side):
        squares += rows[:, at:width:side]
    squares >>= 2 * bits
    small: NDArray[Any] = squares.astype(np.uint8)
    return small


def _count_bytes(snapshot: Snapshot) -> int:
    return sum(one.data.nbytes for one in (*snapshot.world.values(), *snapshot.step.values()))


def write_recording(recording: Recording) -> Segment:
    """Returns memory that holds a recording and that only this process can write."""
    about = {
        "env": recording.env_id,
        "episode": recording.episode,
        "return": recording.episode_return,
        "length": recording.length,
        "snapshots": len(recording.snapshots),
    }
    head = json.dumps(about).encode()
    parts = list(_describe_all(recording.snapshots))
    first = _align(_HEAD.size + len(head))
    size = first + sum(
        _STAMPS.size + _align(count_content(snapshot, schema)) for snapshot, schema, _ in parts
    )
    segment = Segment.published(Layout({"recording": (np.uint8, (size,))}))
    view = segment["recording"].data  # zeros
    view[: _HEAD.size + len(head)] = _HEAD.pack(_MAGIC, _FORMAT, len(head)) + head
    at = first
    for snapshot, schema, text in parts:
        length = count_content(snapshot, schema)
        stamps = snapshot.env_id, snapshot.episode, snapshot.tick, snapshot.time_ns, schema.generation
        _STAMPS.pack_into(view, at, *stamps, length)
        at += _STAMPS.size
        fill(snapshot, schema, text, view[at : at + length])
        at += _align(length)
    return segment


def _align(size: int) -> int:
    return size + -size % 8


def _describe_all(snapshots: Iterable[Snapshot]) -> Iterable[tuple[Snapshot, Schema, bytes]]:
    """Yields each snapshot with its schema, and the schema's text where it is a new one."""
    schema: Schema | None = None
    for snapshot in snapshots:
        text = b""
        if schema is None or schema.description != describe(snapshot):
            schema, text = serialise(1 if schema is None else schema.generation + 1, describe(snapshot))
        yield snapshot, schema, text


def read_recording(fd: int) -> Recording:
    """Reads a recording from a descriptor; raises SessionError if it is not a recording."""
    segment = Segment.from_fileno(fd, readonly=True)
    try:
        data = segment["recording"]
        if data.nbytes > _MOST_ALL_BYTES:
            raise ValueError(f"it has {data.nbytes:,} bytes; at most {_MOST_ALL_BYTES:,} are possible")
        return _parse(bytearray(data))
    except (*UNREADABLE, struct.error) as error:
        raise SessionError(
            f"the recording cannot be read ({error}); the run may use another version of Shoal"
        ) from error
    finally:
        segment.close()


def _parse(data: bytearray) -> Recording:
    magic, version, size = _HEAD.unpack_from(data)
    if (magic, version) != (_MAGIC, _FORMAT):
        raise ValueError(f"format {version} of {magic!r}; this version of Shoal reads format {_FORMAT}")
    about = json.loads(data[_HEAD.size : _HEAD.size + size])
    count, at, held = int(about["snapshots"]), _HEAD.size + size, None
    if not 0 <= count <= MOST_SNAPSHOTS + 1:
        raise ValueError(f"{count} snapshots")
    snapshots = []
    at += -at % 8
    for _ in range(count):
        *stamps, length = _STAMPS.unpack_from(data, at)
        at += _STAMPS.size
        if length > len(data) - at:
            raise ValueError("it is cut off")
        snapshot, held = decode(stamps, data[at : at + length], held)
        snapshots.append(snapshot)
        at += length + -length % 8
    value = float(about["return"])
    return Recording(int(about["env"]), int(about["episode"]), value, int(about["length"]), tuple(snapshots))
