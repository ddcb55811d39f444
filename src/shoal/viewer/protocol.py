"""The messages between the viewer's server and a page, over the WebSocket at `/socket`.

**Server to page**, binary messages:

    u32 little-endian: length of JSON | JSON, UTF-8 | zeros up to a multiple of 8 | data

The padding is counted from the start of the message, and each field starts at a multiple of 8 in the data, so
a page can make typed arrays directly over the received message. NaN and infinities are null in JSON.

    {"type": "hello", "facts": {...}, "sessions": [names]}
        The first message. It is sent again whenever another run of the session's name has started: all later
        messages belong to that run, and the first frame of each environment is whole. `facts` are those of
        the session. The page's watch request stays, without environments that the new run does not have, so a
        page should send it again.

    {"type": "counters", "time": seconds, "steps": n, "episodes": n, "steps_per_s": x, "ended": n,
     "mean_return": x | null, "mean_length": x | null, "run": "stepping" | "idle" | "ended"}
        Twice a second. The means are over the `ended` episodes since the last message, null if there are
        none.

    {"type": "frame", "env": k, "episode": e, "tick": t, "time": seconds, "number": n, "error": "",
     "schema": g, "changed": [[index, offset into data, bytes], ...], "fields": [...]}
        One snapshot. `fields` is its schema, in the environment's order; each entry is
            {"name", "part": "world" | "step", "dtype": as NumPy writes it ("<f4"), "shape": [...], "role",
             "columns": [...], "categories": [[value, name, "#rrggbb"], ...], "stable": bool}
        `fields` is left out if `schema` is the same as in the last frame of this environment sent to this
        page. `changed` lists fields by their index in `fields`; the data of other fields is the same as in
        that frame. A field that is not in `fields` no longer exists. `time` uses the clock of the counters.

    {"type": "history", "whole": bool, "names": ["return", "length", "steps_per_s", ...], "bins": n,
     "last": {name: x | null}, "returns": {"count": n, "low": x | null, "high": x | null, "bins": [...]}}
        The history of the run so far (`whole`), or only the bins after those that were sent before. The data
        are float64 arrays of n: begin and end in seconds since the run began, steps and episodes at the end;
        then float32 [n, names, 4]: mean, lowest, highest, weight (0: no value). Older bins are merged with
        time, so a whole history is sent again now and then and replaces the bins that the page holds. `last`
        has the last value of each logged name, `returns` a histogram of each row's last episode, or null.

    {"type": "recordings", "count": n, "problem": text, "kept": {"best" | "worst" | "newest": {"number": n,
     "env": k, "episode": e, "return": x | null, "length": n, "snapshots": n, "at": seconds since 1970}}}
        The recorded episodes, whenever they change: of the `count` whole episodes that the viewer recorded in
        the last ten minutes, those with the highest and the lowest return, and the last one. `problem` says
        why the last attempt to record failed.

    {"type": "recording", "number": n, "env": k, "episode": e, "return": x | null, "length": n,
     "frames": [[offset into data, bytes], ...]}
        A recording that the page asked for. The data has a whole message "frame" for each snapshot; the
        first one has a schema and all fields, and each other one belongs to the frame before.

    {"type": "error", "message": text}

    {"type": "link", "url": text, "host": text, "port": n}
        The answer to a request for a link: it opens the page once. `host` is the name of the machine.

**Sessions.** `/socket?session=NAME` is the socket of another session than the one that the viewer was started
with. If there is none of that name, the connection is closed with code 4404 and the reason as its text.

**Page to server**, text messages of at most 4 KiB, of three types:

    {"type": "link"}
        Asks for a link for somebody else.

    {"type": "recording", "number": n}
        Asks for a recording; one that is no longer kept is answered with an error.

    {"type": "watch", "envs": [0, 3], "rate": 20}
        Replaces the environments that this page watches: at most 16, with `rate` frames per second each (0.1
        to 60; default 20). The next frame of an environment that was left out once is whole. An invalid
        environment or rate is answered with an error, and nothing changes; any other message closes the
        connection with code 1008.

The server watches at most 16 environments for all pages together. The newest requests have priority; a page
that loses environments gets an error. After the end of the run, the last frames of watched environments are
kept until another run of that name starts. A page that reads slowly misses frames, and is always sent the
newest.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.state.history import History
from shoal.state.recording import Recording
from shoal.state.schema import Description, describe, to_json
from shoal.state.snapshot import Snapshot

__all__ = [
    "MAX_RATE_HZ",
    "MAX_WATCHED",
    "MIN_RATE_HZ",
    "BadMessage",
    "BadRequest",
    "Key",
    "World",
    "frame",
    "history_message",
    "pack",
    "plain",
    "read_watch",
    "recording_message",
]

MAX_WATCHED = 16
MIN_RATE_HZ, MAX_RATE_HZ = 0.1, 60.0

Key: TypeAlias = tuple[str, str]
"""The part and the name of a field."""


class BadMessage(ValueError):
    """A message that the protocol does not have."""


class BadRequest(ValueError):
    """A valid message with an environment or a rate that is not possible."""


@dataclass(frozen=True, slots=True)
class World:
    """A snapshot to send to pages: each field's bytes, and the stamp since which they are unchanged."""

    stamp: int
    number: int
    snapshot: Snapshot
    raw: dict[Key, NDArray[np.uint8]] = field(repr=False)
    since: dict[Key, int]
    """In the order of the schema."""
    description: Description
    schema: int
    """The stamp since which the schema is unchanged."""
    fields: str = field(repr=False)
    """The schema as JSON."""

    @classmethod
    def after(cls, last: World | None, stamp: int, number: int, snapshot: Snapshot) -> World:
        """Makes the world that follows `last`. Unchanged fields keep their stamp; they are compared once for
        all pages."""
        raw: dict[Key, NDArray[np.uint8]] = {}
        since: dict[Key, int] = {}
        description = describe(snapshot)
        before = {} if last is None else dict(zip(last.since, last.description, strict=True))
        for entry, one in zip(description, (*snapshot.world.values(), *snapshot.step.values()), strict=True):
            key = entry[0], entry[1]
            raw[key] = np.ascontiguousarray(one.data).reshape(-1).view(np.uint8)
            same = (
                last is not None
                and before.get(key) == entry
                and np.array_equal(last.raw[key], raw[key])  # compares bytes, so that NaN equals NaN
            )
            since[key] = last.since[key] if last is not None and same else stamp
        if last is not None and last.description == description:
            schema, fields = last.schema, last.fields
        else:
            schema, fields = stamp, to_json(description)
        return cls(stamp, number, snapshot, raw, since, description, schema, fields)


def pack(message: Mapping[str, Any]) -> bytes:
    """Returns a message to a page, without data."""
    return _join(json.dumps(plain(message), allow_nan=False, separators=(",", ":"), default=str), ())


def _join(text: str, data: Sequence[NDArray[np.uint8]]) -> bytes:
    """Joins JSON text and data; each array of `data` starts at a multiple of 8."""
    head = text.encode()
    parts: list[bytes | memoryview] = [struct.pack("<I", len(head)), head, bytes(-(4 + len(head)) % 8)]
    for one in data:
        parts += [one.data, bytes(-one.nbytes % 8)]
    return b"".join(parts)


def frame(world: World, known: Mapping[Key, int], schema: int) -> bytes:
    """Returns the message "frame" for a page whose last frame of this environment had `known` as its `since`,
    and this schema (0 if there was none)."""
    snapshot, changed, data, offset = world.snapshot, [], [], 0
    for index, (key, stamp) in enumerate(world.since.items()):
        if known.get(key) != stamp:
            raw = world.raw[key]
            changed.append((index, offset, raw.nbytes))
            data.append(raw)
            offset += raw.nbytes + -raw.nbytes % 8
    message = {
        "type": "frame",
        "env": snapshot.env_id,
        "episode": snapshot.episode,
        "tick": snapshot.tick,
        "time": snapshot.time_ns / 1e9,
        "number": world.number,
        "error": snapshot.error,
        "schema": world.schema,
        "changed": changed,
    }
    text = json.dumps(message, separators=(",", ":"))
    if world.schema != schema:
        text = f'{text[:-1]},"fields":{world.fields}}}'
    return _join(text, data)


def history_message(history: History, returns: Mapping[str, Any] | None, after: float | None) -> bytes | None:
    """Returns the message "history" with the bins after that time, or all of them if it is None.

    Returns None if there is nothing new.
    """
    bins, curves = history.bins, history.curves
    is_whole = after is None or bool(((bins["begin"] < after - 1e-6) & (bins["end"] > after + 1e-6)).any())
    if not is_whole:
        new = bins["begin"] > after - 1e-6  # type: ignore[operator]
        bins, curves = bins[new], curves[new]
        if not len(bins):
            return None
    about = {
        "type": "history",
        "whole": is_whole,
        "names": history.names,
        "bins": len(bins),
        "last": history.last,
        "returns": returns,
    }
    arrays = [bins[name].astype("<f8") for name in ("begin", "end", "steps", "episodes")]
    data = [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (*arrays, curves.astype("<f4"))]
    return _join(json.dumps(plain(about), allow_nan=False, separators=(",", ":")), data)


def recording_message(number: int, recording: Recording) -> bytes:
    """Returns the message "recording"."""
    world: World | None = None
    frames, data, offset = [], [], 0
    for place, snapshot in enumerate(recording.snapshots, 1):
        last, world = world, World.after(world, place, place, snapshot)
        one = frame(world, {}, 0) if last is None else frame(world, last.since, last.schema)
        frames.append((offset, len(one)))
        data.append(np.frombuffer(one, np.uint8))
        offset += len(one) + -len(one) % 8
    about = {
        "type": "recording",
        "number": number,
        "env": recording.env_id,
        "episode": recording.episode,
        "return": recording.episode_return,
        "length": recording.length,
        "frames": frames,
    }
    return _join(json.dumps(plain(about), allow_nan=False, separators=(",", ":")), data)


def read_watch(text: str, num_worlds: int) -> tuple[list[int], float] | int | None:
    """Parses a page's message: returns the environments and rate of "watch", the number of "recording", None
    for "link"."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:  # thousands of brackets cause a RecursionError
        raise BadMessage("expected JSON") from error
    if message == {"type": "link"}:
        return None
    if isinstance(message, dict) and message.get("type") == "recording":
        number = message.get("number")
        if set(message) != {"type", "number"} or type(number) is not int:
            raise BadMessage('expected {"type": "recording", "number": ...} with a whole number')
        return number
    if (
        not isinstance(message, dict)
        or message.get("type") != "watch"
        or set(message) - {"type", "envs", "rate"}
    ):
        raise BadMessage('expected {"type": "watch", "envs": [...], "rate": ...}')
    envs, rate = message.get("envs"), message.get("rate", 20)
    if not isinstance(envs, list) or not all(type(env) is int for env in envs):
        raise BadMessage('"envs" must be a list of whole numbers')
    if type(rate) not in (int, float):
        raise BadMessage('"rate" must be a number')
    for env in envs:
        if not 0 <= env < num_worlds:
            raise BadRequest(f"no environment {env}: this run has {num_worlds}, counted from 0")
    envs = list(dict.fromkeys(envs))
    if len(envs) > MAX_WATCHED:
        raise BadRequest(
            f"{len(envs)} environments are too many: at most {MAX_WATCHED} can be watched at once"
        )
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:  # also true for NaN
        raise BadRequest(
            f"a rate of {rate} is not possible: it must be from {MIN_RATE_HZ} to {MAX_RATE_HZ:g}"
        )
    return envs, float(rate)


def plain(value: Any) -> Any:
    """Converts a value for JSON: NaN and infinities become None, NumPy numbers become Python numbers."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
