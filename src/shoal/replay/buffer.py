"""`ReplayBuffer`: rows of any fields, pushed and sampled by any number of processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.errors import SpaceError, SpaceKeyError
from shoal.memory import Segment
from shoal.memory.layout import FieldSpec
from shoal.replay.arguments import checked_capacity, checked_count, checked_ids, converted
from shoal.replay.batches import Batch, Outputs, Specs, begun
from shoal.replay.draws import Draws
from shoal.replay.fields import by_field, fields_of
from shoal.replay.records import Durability, Records, records_for

if TYPE_CHECKING:
    from shoal.replay.trajectories import TrajectoryBuffer

__all__ = ["Draw", "ReplayBuffer", "made"]

Draw: TypeAlias = Callable[[Any, "tuple[NDArray[Any] | None, ...]"], None]
"""Draws rows for a batch: its ids, and the fields that there is an array for."""

_MANY = 1 << 62
"""More rows than the core can be asked for: the careful way says what is wrong with such a number."""


class _OfTrajectories:
    """A method of buffers that know which row follows which alone; others say how to make such a one."""

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__} does not know which row follows which: add, begin, sample_n_step and "
            "sample_sequences are of buffers made with ReplayBuffer.for_env(envs, capacity)"
        )


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
        fields: Name to (dtype, shape) of one row's value, or to a space; or a space of whole rows.
        path: A new file to keep it in; None: anonymous memory.
        durability: What rows of a file survive once a push has returned. "process": the death of any process.
            "sync": a crash of the machine too; each push waits for the disk.
        seed: Of the draws of this handle in this process; None, and in other processes: their own.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, FieldSpec | Space[Any]] | Space[Any],
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "process",
        seed: int | None = None,
    ) -> None:
        kind = records_for(durability, path)
        self._begin(kind(checked_capacity(capacity), fields_of(fields), path), seed)

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

        if not hasattr(envs, "single_observation_space"):
            raise TypeError(
                f"for_env takes a vector environment, got {type(envs).__name__}; make one with "
                "shoal.make_vec(id, num_envs) or gymnasium.vector.SyncVectorEnv([function, ...])"
            )
        mode = (envs.metadata or {}).get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ValueError(
                f"for_env needs to know when environments reset: expected {type(envs).__name__}.metadata"
                f'["autoreset_mode"] to be a gymnasium.vector.AutoresetMode, found {mode!r}; set it'
            )
        return TrajectoryBuffer(
            capacity,
            envs.single_observation_space,
            envs.single_action_space,
            envs.num_envs,
            mode,
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
        self._records, self._ring = records, records.ring
        self._synced = records.durability == "sync"
        self.capacity = records.capacity
        self.fields: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            column.name: (column.dtype, column.shape) for column in records.columns.values()
        }
        self._outputs = Outputs()
        self._sampled: Specs = self.fields  # what `sample` gives
        self._raw = True  # and that as it is stored
        self._draws = Draws(seed)

    def seed(self, seed: int | None = None) -> None:
        """Begins the stream of draws of this handle, in this process, anew."""
        self._draws.seed(seed)

    def push(self, row: Any) -> int:
        """Stores one row whole, or raises and stores nothing; its id. A dict, flat or nested as a space."""
        number = self._ring.push(row)
        if number is None:
            ids = self._store({name: [value] for name, value in self._by_field(row).items()})
            number = int(ids[0])
        if self._synced:
            self._records.sync()
        return number

    def extend(self, batch: Any) -> range | NDArray[np.uint64]:
        """Stores rows from arrays [n, ...], each whole, or raises and stores nothing; their ids."""
        if not self._synced:
            ids = self._ring.extend(batch)
            return ids if type(ids) is range else self._looked_at(batch, ids)
        rows = self._extended(batch)
        self._records.sync()
        return rows

    def sample(self, n: int, out: Mapping[str, NDArray[Any]] | None = None, *, device: Any = None) -> Batch:
        """`n` rows, each drawn with the same chance; into the arrays of `out` if given.

        An `out` that is a batch of an earlier call is filled anew, its ids too, and given back. With `device`
        ("cpu", "cuda:0", a torch.device) the batch holds torch tensors.
        """
        if type(n) is int and 0 < n < _MANY and isinstance(out, dict) and device is None and self._raw:
            batch = out if type(out) is Batch else begun(Batch, n, out, out)
            if self._ring.sample_into(self._draws.words, n, batch, batch.ids) == n:
                return batch
        return self._outputs.filled(Batch, n, self._sampled, out, device, self._fill)

    def latest(self, n: int) -> Batch:
        """The `n` most recent rows, oldest first; all if there are fewer."""
        count = min(checked_count("n", n, 0), self.capacity)
        ids = np.empty(count, np.uint64)
        return self.fetch(ids[: self._records.ring.latest(count, ids)] if count else ids)

    def fetch(self, ids: Any) -> Batch:
        """The rows with these ids that are still there."""
        wanted = checked_ids(ids)
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

    @property
    def huge_page_bytes(self) -> int:
        """How much of that lies on 2 MB pages in this process: what the system gave of what was asked for."""
        return self._records.segment.huge_page_bytes

    def snapshot(self, path: str | os.PathLike[str]) -> int:
        """Writes a file that `open` opens, while others push; atomic, on disk when it returns. Rows in it."""
        _ = self._ring.length  # raises if it is closed
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

    if not TYPE_CHECKING:  # (a __getattr__ would make every attribute slower)
        add = begin = sample_n_step = sample_sequences = _OfTrajectories()

    # -- inside ---------------------------------------------------------------------------------------

    def _draw(self, batch: Batch, columns: tuple[NDArray[Any] | None, ...]) -> None:
        n = len(batch.ids)
        if self._records.ring.sample(self._draws.words, n, columns, batch.ids) < n:
            if len(self):
                raise ValueError(
                    f"cannot sample: of {len(self)} rows none is whole. They are being written by others at "
                    "this moment, or were left unfinished by writers that died. As good as empty: push "
                    "something, and give it a capacity of several times what its writers push at once"
                )
            raise ValueError("cannot sample from an empty buffer; push something first")

    def _fill(self, batch: Batch, draw: Draw | None = None) -> None:
        """Fills a batch of what `sample` gives with rows that are drawn."""
        (draw or self._draw)(batch, tuple(batch.values()))

    def _by_field(self, given: Any) -> dict[str, Any]:
        """A row, or rows, by field or nested as a space is: the fields' values in their order."""
        names = list(self.fields)
        if isinstance(given, Mapping) and given.keys() == self.fields.keys():
            return {name: given[name] for name in names}
        parts = list(by_field("", given, names))
        found = dict(parts)
        if found.keys() == self.fields.keys() and len(found) == len(parts):
            return {name: found[name] for name in names}
        if not isinstance(given, (Mapping, tuple)):
            raise TypeError(f"expected a dict with the keys {names}, got {type(given).__name__}")
        raise SpaceKeyError(f"expected the keys {names}, found {[name for name, _ in parts]}; nothing stored")

    def _extended(self, batch: Any) -> range | NDArray[np.uint64]:
        """Rows that are stored, but perhaps not on disk yet."""
        return self._looked_at(batch, self._ring.extend(batch))

    def _looked_at(self, batch: Any, stored: range | bytes | None) -> range | NDArray[np.uint64]:
        """The ids of what was stored; what did not fit at first sight is converted, or refused."""
        if stored is None:
            return self._store(self._by_field(batch))
        return np.frombuffer(stored, np.uint64).copy() if isinstance(stored, bytes) else stored

    def _store(self, batch: dict[str, Any]) -> range | NDArray[np.uint64]:
        arrays = {name: self._converted(name, value) for name, value in batch.items()}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SpaceError(f"every field must have as many rows as the others, found {lengths}")
        if not next(iter(lengths.values())):
            return range(0)
        stored = self._ring.extend(arrays)
        assert stored is not None, "every array is of its field's own type"
        return self._looked_at(arrays, stored)

    def _converted(self, name: str, value: Any) -> NDArray[Any]:
        return converted(name, value, self._records.columns[name])


def made(records: Records, seed: int | None) -> ReplayBuffer:
    """The kind of buffer that the records are of."""
    from shoal.replay.trajectories import TrajectoryBuffer

    kind = TrajectoryBuffer if "num_envs" in records.facts else ReplayBuffer
    self = kind.__new__(kind)
    self._begin(records, seed)
    return self


def _rebuild(segment: Segment) -> ReplayBuffer:
    return made(Records.of(segment), None)
