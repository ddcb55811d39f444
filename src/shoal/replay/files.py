"""Saves and loads replay buffers as plain files: one .npy per field and a manifest in JSON, no pickle.

DIRECTORY/manifest.json     format, capacity, fields, facts, rows, the next id, rows ever pushed
DIRECTORY/ids.npy           the ids of the rows, oldest first
DIRECTORY/0.npy 1.npy ...   the fields in the order of the manifest, [rows, ...]
DIRECTORY/draws             the states of the generators and the samplers' priorities (replay/resume.py)

Format 1 has neither the next id nor the draws, so its rows get new ids when they are loaded.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import (
    header_data_from_array_1_0,
    read_array_header_1_0,
    read_magic,
    write_array_header_1_0,
)
from numpy.typing import NDArray

from shoal.errors import UNREADABLE, CorruptFileError, VersionError, explain_os_errors
from shoal.memory.layout import parse_dtype
from shoal.replay.batches import Batch
from shoal.replay.buffer import ReplayBuffer, make_buffer
from shoal.replay.links import PREVIOUS, make_links
from shoal.replay.records import Records, sync_directory
from shoal.replay.resume import Resumable

__all__ = ["load", "save"]

_FORMAT, _OLDEST = 2, 1


def save(buffer: ReplayBuffer, directory: Path) -> int:
    """Writes the rows that are stored now and returns how many.

    The directory appears complete or not at all.
    """
    if directory.exists():
        raise FileExistsError(f"{str(directory)!r} exists; save into a new directory")
    if not directory.absolute().parent.is_dir():  # more likely a typing error than intended
        raise FileNotFoundError(f"{str(directory.absolute().parent)!r} is not a directory; create it first")
    state = buffer._capture_state("").pack()
    tail, total = buffer._ring.tail, buffer.total_pushed
    rows = buffer.latest(buffer.capacity)
    if len(rows.ids):
        tail = max(tail, int(rows.ids[-1]) + 1)  # other processes may have pushed meanwhile
    partial = directory.with_name(f".{directory.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with explain_os_errors(f"save the rows in {str(directory)!r}"):
            _write_all(buffer, rows, partial, tail, max(total, len(rows.ids)), state)
            os.rename(partial, directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(directory.absolute().parent)
    return len(rows.ids)


def _write_all(buffer: ReplayBuffer, rows: Batch, partial: Path, tail: int, total: int, state: bytes) -> None:
    partial.mkdir()
    for number, array in enumerate(rows.values()):
        _write(partial / f"{number}.npy", array)
    _write(partial / "ids.npy", rows.ids)
    manifest = {
        "format": _FORMAT,
        "capacity": buffer.capacity,
        "fields": [[name, dtype.str, list(shape)] for name, (dtype, shape) in buffer.fields.items()],
        "facts": buffer._records.facts,
        "rows": len(rows.ids),
        "next_id": tail,
        "total": total,
    }
    with (partial / "draws").open("wb") as file:
        file.write(state)
        file.flush()
        os.fsync(file.fileno())
    with (partial / "manifest.json").open("w") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(partial)


def load(directory: Path, seed: int | None) -> ReplayBuffer:
    """Returns a buffer with the rows of a directory that `save` wrote."""
    try:
        written = (directory / "manifest.json").read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            "load needs a directory that save wrote, with a manifest.json in it; at "
            f"{str(directory)!r} it found {'something else' if directory.exists() else 'nothing'}. Correct "
            "the path; to open a file or a snapshot, use ReplayBuffer.open"
        ) from None
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{str(directory)!r}: its manifest is not text: {error}") from error
    try:
        manifest = json.loads(written)
        if type(manifest["format"]) is not int:
            raise ValueError(f"its format is {manifest['format']!r}")
        if not _OLDEST <= manifest["format"] <= _FORMAT:
            raise VersionError(
                f"{str(directory)!r} is in format {manifest['format']}; this version reads {_OLDEST} to "
                f"{_FORMAT}; install the version of Shoal that wrote it",
                found=manifest["format"],
                expected=_FORMAT,
            )
        fields = {
            str(name): (parse_dtype(dtype), tuple(map(int, shape)))
            for name, dtype, shape in manifest["fields"]
        }
        count, capacity = int(manifest["rows"]), int(manifest["capacity"])
        rows = {
            name: _read(directory / f"{number}.npy", dtype, (count, *shape))
            for number, (name, (dtype, shape)) in enumerate(fields.items())
        }
        ids = _read(directory / "ids.npy", np.dtype(np.uint64), (count,))
        facts = dict(manifest["facts"])
        tail, total, state = 0, 0, None
        if manifest["format"] > 1:
            tail, total = int(manifest["next_id"]), int(manifest["total"])
            state = Resumable.unpack((directory / "draws").read_bytes(), repr(str(directory / "draws")))
    except (*UNREADABLE, FileNotFoundError) as error:
        raise CorruptFileError(
            f"{str(directory)!r} does not hold a saved replay buffer: {_explain(error)}"
        ) from error
    if not 0 <= count <= capacity or not (np.diff(ids.astype(np.int64)) > 0).all():
        raise CorruptFileError(
            f"{str(directory)!r} is damaged: expected at most {capacity} rows in the order of their ids, "
            f"found {count} rows that break this rule; restore it, or save the buffer again"
        )
    links = "num_envs" in facts
    if state is not None:
        records = Records(capacity, fields, links=links, facts=facts)
        return _restore(directory, records, rows, ids, tail, total, state, seed)
    if links:
        rows[PREVIOUS] = _renumber_links(rows[PREVIOUS], ids)
    buffer = make_buffer(Records(capacity, fields, links=links, facts=facts), seed)
    buffer.extend(rows)
    if links:
        make_links(buffer._records).set(rows[PREVIOUS], np.arange(count, dtype=np.uint64))
    return buffer


def _restore(
    directory: Path,
    records: Records,
    rows: dict[str, NDArray[Any]],
    ids: NDArray[np.uint64],
    tail: int,
    total: int,
    state: Resumable,
    seed: int | None,
) -> ReplayBuffer:
    """Returns a buffer with the rows under their old ids and with the saved state."""
    buffer = make_buffer(records, seed)
    try:
        slots = ids % np.uint64(records.capacity)
        newest = int(ids[-1]) + 1 if len(ids) else 0
        if len(np.unique(slots)) != len(ids) or not newest <= tail < 2**62 or not len(ids) <= total <= tail:
            raise CorruptFileError(
                f"{str(directory)!r} is damaged: expected ids that have room in {records.capacity} rows and "
                f"are less than the next id, {tail}; restore it, or save the buffer again"
            )
        buffer._ring.restore(rows, ids, tail, total)
        if buffer._links is not None:
            buffer._links.set(rows[PREVIOUS], ids)
        buffer._resume(state, seed)
    except BaseException:
        buffer.close()
        raise
    return buffer


def _explain(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"its manifest has no {error}"
    return str(error).split("allow_pickle")[0] or type(error).__name__


def _renumber_links(previous: NDArray[np.uint64], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns links by the new ids of the rows, their indices; 0 for a link to a row that was not saved."""
    if not len(ids):
        return previous
    places = np.minimum(np.searchsorted(ids, previous - 1), len(ids) - 1)
    there = (previous > 0) & (ids[places] == previous - 1)
    return np.where(there, places.astype(np.uint64) + 1, 0).astype(np.uint64)


def _write(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        write_array_header_1_0(file, header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8).data)  # its error has the reason; np.save's does not
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Reads an array. It checks the header before it allocates: a damaged one must not reserve memory."""
    with explain_os_errors(f"read {str(path)!r}"), path.open("rb") as file:
        try:
            read_magic(file)
            found, fortran, found_dtype = read_array_header_1_0(file)
        except OSError:
            raise
        except Exception as error:  # NumPy parses the header, so many types are possible
            raise ValueError(f"{path.name}: not an array: {type(error).__name__}") from error
        if found_dtype != dtype or found != shape or fortran:
            raise ValueError(f"{path.name}: expected {dtype}{list(shape)}, found {found_dtype}{list(found)}")
        expected, there = dtype.itemsize * math.prod(shape), os.fstat(file.fileno()).st_size - file.tell()
        if expected != there:
            raise ValueError(f"{path.name}: expected {expected} bytes of {dtype}{list(shape)}, found {there}")
        array: NDArray[Any] = np.fromfile(file, dtype)
    return array.reshape(shape)
