"""`ReplayBuffer`: rows of any fields, pushed and sampled by any number of processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SpaceError, SpaceKeyError
from shoal.memory import Segment
from shoal.memory.layout import FieldSpec
from shoal.native.plugin import rng_words
from shoal.replay.records import Durability, Records, records_for

if TYPE_CHECKING:
    from shoal.replay.trajectories import TrajectoryBuffer

__all__ = ["Batch", "PrioritizedBatch", "ReplayBuffer", "made"]


class Batch(dict[str, NDArray[Any]]):
    """Rows as arrays by field, and their ids, which are never used again."""

    ids: NDArray[np.uint64]


class PrioritizedBatch(Batch):
    """Rows, their ids, and the weights that undo the bias of how they were drawn."""

    weights: NDArray[np.float32]


class ReplayBuffer:
    """The last `capacity` rows of named, typed fields, in shared memory.

    >>> buffer = ReplayBuffer(1000, {"obs": (np.float32, (4,)), "action": (np.int64, ())})
    >>> _ = buffer.extend({"obs": np.zeros((8, 4), np.float32), "action": np.arange(8)})
    >>> batch = buffer.sample(4)
    >>> batch["obs"].shape, len(buffer)
    ((4, 4), 8)
    >>> buffer.close()

    Args:
        capacity: How many rows; the oldest are overwritten.
        fields: Name to (dtype, shape) of one row's value.
        path: A new file to keep it in; None: anonymous memory.
        durability: What rows of a file survive once a push has returned. "process": the death of any process.
            "sync": a crash of the machine too; each push waits for the disk.
        seed: Of the draws of this handle; None: its own.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, FieldSpec],
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "process",
        seed: int | None = None,
    ) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)):
            raise TypeError(f"capacity must be an int, got {type(capacity).__name__}: {capacity!r}")
        if not 1 <= capacity < 2**40:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._begin(records_for(durability, path)(int(capacity), fields, path), seed)

    @staticmethod
    def for_env(
        envs: Any,
        capacity: int,
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "process",
        seed: int | None = None,
    ) -> TrajectoryBuffer:
        """A buffer for what `envs`, a vector environment, does: transitions, n-step returns, sequences."""
        from shoal.replay.trajectories import TrajectoryBuffer  # it builds on this class

        return TrajectoryBuffer(
            capacity,
            envs.single_observation_space,
            envs.single_action_space,
            envs.num_envs,
            envs.metadata["autoreset_mode"],
            seed=seed,
            path=path,
            durability=durability,
        )

    @staticmethod
    def open(path: str | os.PathLike[str], *, seed: int | None = None) -> ReplayBuffer:
        """Opens a file that a buffer was kept in, with the durability it was made with.

        Every row whose push had returned is there; if the machine went down, every one that was on disk.
        """
        return made(Records.open(path), seed)

    def _begin(self, records: Records, seed: int | None) -> None:
        self._records = records
        self.capacity = records.capacity
        self.fields: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            column.name: (column.dtype, column.shape) for column in records.columns.values()
        }
        self._known_out: tuple[tuple[Any, ...], dict[str, NDArray[Any]]] = (), {}
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Begins the stream of draws anew."""
        self._rng = np.array(rng_words(secrets.randbits(64) if seed is None else seed), np.uint64)

    def push(self, row: Mapping[str, Any]) -> int:
        """Stores one row whole, or raises and stores nothing; its id."""
        ids = self._records.push(row, batched=False)
        if ids is None:
            ids = self._store({name: [row[name]] for name in self._named(row)}, self._records.push)
        return int(ids[0])

    def extend(self, batch: Mapping[str, Any]) -> range | NDArray[np.uint64]:
        """Stores rows from arrays [n, ...], each whole, or raises and stores nothing; their ids."""
        return self._extended(batch, self._records.push)

    def sample(self, n: int, out: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """`n` rows, each drawn with the same chance; into the arrays of `out` if given."""
        batch = Batch(self._arrays(n, out))
        batch.ids = np.empty(n, np.uint64)
        if self._records.ring.sample(self._rng, n, tuple(batch.values()), batch.ids) < n:
            raise ValueError("cannot sample from an empty buffer; push something first")
        return batch

    def latest(self, n: int) -> Batch:
        """The `n` most recent rows, oldest first; all if there are fewer."""
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(f"n must be an int, got {type(n).__name__}: {n!r}")
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        count = min(int(n), self.capacity)
        ids = np.empty(count, np.uint64)
        return self.fetch(ids[: self._records.ring.latest(count, ids)] if count else ids)

    def fetch(self, ids: Any) -> Batch:
        """The rows with these ids that are still there."""
        wanted = np.ascontiguousarray(ids, np.uint64)
        found = np.empty(len(wanted), np.bool_)
        arrays = self._records.empty(len(wanted))
        count = self._records.ring.fetch(wanted, tuple(arrays.values()), found.view(np.uint8))
        whole = count == len(wanted)
        batch = Batch(arrays if whole else {name: array[found] for name, array in arrays.items()})
        batch.ids = wanted if whole else wanted[found]
        return batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows in the order of their ids, from the oldest there is now."""
        ids = np.empty(self.capacity, np.uint64)
        ids = ids[: self._records.ring.latest(self.capacity, ids)]
        for begin in range(0, len(ids), 1024):
            batch = self.fetch(ids[begin : begin + 1024])
            for place in range(len(batch.ids)):
                yield {name: array[place] for name, array in batch.items()}

    def __len__(self) -> int:
        return self._records.ring.length

    @property
    def total_pushed(self) -> int:
        """Rows ever stored."""
        return self._records.ring.total

    @property
    def durability(self) -> Durability:
        """What rows survive once a push has returned; of memory, which has no file: "process"."""
        return self._records.durability

    @property
    def size_bytes(self) -> int:
        """Memory the rows take."""
        return self._records.segment.size_bytes

    def snapshot(self, path: str | os.PathLike[str]) -> int:
        """Writes a file that `open` opens, while others push; atomic, on disk when it returns. Rows in it."""
        return self._records.snapshot(Path(path))

    def save(self, directory: str | os.PathLike[str]) -> int:
        """Writes the rows as one .npy file per field, with a manifest in JSON; how many."""
        from shoal.replay.files import save

        return save(self, Path(directory))

    @staticmethod
    def load(directory: str | os.PathLike[str], *, seed: int | None = None) -> ReplayBuffer:
        """A new buffer with the rows that `save` wrote."""
        from shoal.replay.files import load

        return load(Path(directory), seed)

    def close(self) -> None:
        """Gives the handle back; other processes are not disturbed, and a file stays."""
        self._records.close()

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._records.segment,)

    def __repr__(self) -> str:
        shown = ", ".join(f"{column.name}: {column}" for column in self._records.columns.values())
        return f"<ReplayBuffer of {self.capacity} rows {{{shown}}}>"

    # -- inside ---------------------------------------------------------------------------------------

    def _named(self, given: Mapping[str, Any]) -> list[str]:
        if not isinstance(given, Mapping):
            raise TypeError(f"expected a dict with the keys {list(self.fields)}, got {type(given).__name__}")
        if given.keys() != self.fields.keys():
            raise SpaceKeyError(f"expected the keys {list(self.fields)}, found {list(given)}; nothing stored")
        return list(self.fields)

    def _extended(self, batch: Mapping[str, Any], push: Callable[..., Any]) -> range | NDArray[np.uint64]:
        ids: range | NDArray[np.uint64] | None = push(batch, batched=True)
        return self._store({name: batch[name] for name in self._named(batch)}, push) if ids is None else ids

    def _store(self, batch: dict[str, Any], push: Callable[..., Any]) -> range | NDArray[np.uint64]:
        arrays = {name: self._converted(name, value) for name, value in batch.items()}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SpaceError(f"every field must have as many rows as the others, found {lengths}")
        if not next(iter(lengths.values())):
            return range(0)
        stored: range | NDArray[np.uint64] | None = push(arrays, batched=True)
        assert stored is not None, "every array is of its field's own type"
        return stored

    def _converted(self, name: str, value: Any) -> NDArray[Any]:
        column = self._records.columns[name]
        try:
            given = np.asarray(value)
            array = given.astype(column.dtype, casting="same_kind", copy=False)
        except (TypeError, ValueError) as error:
            raise SpaceError(f"field {name!r}: expected {column}, found {value!r:.80}: {error}") from error
        if array.ndim == 0 or array.shape[1:] != column.shape:
            raise SpaceError(
                f"field {name!r}: expected rows of shape {column.shape}, found {array.shape} in all"
            )
        return np.ascontiguousarray(array)

    def _arrays(self, n: Any, out: Mapping[str, NDArray[Any]] | None) -> dict[str, NDArray[Any]]:
        """Arrays for a batch: new ones, or those given, checked."""
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(f"n must be an int, got {type(n).__name__}: {n!r}")
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        if out is None:
            return self._records.empty(int(n))
        known = (n, *map(id, out.values()))
        if known != self._known_out[0]:  # the same arrays were looked at before, and are kept
            self._known_out = known, self._checked_out(out, int(n))
        return self._known_out[1]

    def _prioritized(self, n: int, draw: Callable[[int], PrioritizedBatch]) -> PrioritizedBatch:
        """What a sampler draws, as this buffer gives it."""
        return draw(n)

    def _checked_out(self, out: Mapping[str, NDArray[Any]], n: int) -> dict[str, NDArray[Any]]:
        for name in self._named(out):
            column, array = self._records.columns[name], out[name]
            fits = isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable
            if not fits or array.dtype != column.dtype or array.shape != (n, *column.shape):
                raise SpaceError(
                    f"out[{name!r}] must be a writable C-contiguous array {column.dtype}{[n, *column.shape]}"
                )
        return {name: out[name] for name in self.fields}


def made(records: Records, seed: int | None) -> ReplayBuffer:
    """The kind of buffer that the records are of."""
    from shoal.replay.trajectories import TrajectoryBuffer

    kind = TrajectoryBuffer if "num_envs" in records.facts else ReplayBuffer
    self = kind.__new__(kind)
    self._begin(records, seed)
    return self


def _rebuild(segment: Segment) -> ReplayBuffer:
    return made(Records.of(segment), None)
