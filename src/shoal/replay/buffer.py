"""`ReplayBuffer`: rows of any fields, pushed and sampled by any number of processes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import CorruptFileError, SpaceError, SpaceKeyError
from shoal.memory import Segment
from shoal.memory.layout import FieldSpec
from shoal.replay.arguments import convert_ids, convert_rows, require_capacity, require_count
from shoal.replay.batches import Batch
from shoal.replay.draws import Draws
from shoal.replay.fields import parse_fields, split_by_field
from shoal.replay.records import Durability, Records, choose_records
from shoal.replay.resume import Resumable, SamplerState, draws_path, read_draws, write_draws
from shoal.replay.sampling import LEASES, Part, SamplingCache

if TYPE_CHECKING:
    from shoal.replay.prioritized import PrioritizedSampler
    from shoal.replay.tensors import Tensors
    from shoal.replay.trajectories import TrajectoryBuffer

__all__ = ["ReplayBuffer", "make_buffer"]


class _TrajectoryMethod:
    """A method that only a TrajectoryBuffer has. Reading it raises an error that says what to do."""

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__} does not record which row follows which: add, begin, sample_n_step and "
            "sample_sequences need a buffer made by ReplayBuffer.for_env(envs, capacity)"
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
        capacity: The number of rows. When the buffer is full, new rows overwrite the oldest.
        fields: A dict from name to (dtype, shape of one row) or to a space; or one space for whole rows.
        path: A new file that stores the buffer; None uses anonymous memory.
        durability: What a row in a file survives after its push has returned. "process": the death of any
            process. "sync": also a crash of the machine; each push waits for the disk.
        seed: The seed of the draws of this handle in this process. With None, and in other processes, the
            seed is random.
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
        kind = choose_records(durability, path)
        self._begin(kind(require_capacity(capacity), parse_fields(fields), path), seed)
        self._keep_draws(path, is_new=True)

    @staticmethod
    def for_env(
        envs: Any,
        capacity: int,
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "process",
        seed: int | None = None,
    ) -> TrajectoryBuffer:
        """Makes a buffer for the steps of a vector environment: transitions, n-step returns, sequences."""
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
        """Opens the file of a buffer, with the durability it was made with.

        It holds every row whose push had returned; after a crash of the machine, every row that was on disk.
        Unless a seed is given, the draws continue from the state saved by `snapshot` or `close`.
        """
        self = make_buffer(Records.open(path), seed)
        try:
            state = read_draws(Path(path), self._records.token)
            if state is None and self._records.resume:
                state = Resumable.unpack(self._records.resume, repr(os.fspath(path)))
            if state is not None:
                self._resume(state, seed)
            self._keep_draws(path, is_new=False)
        except BaseException:
            self._records.close()
            raise
        return self

    def _begin(self, records: Records, seed: int | None) -> None:
        self._records, self._ring = records, records.ring
        self._synced = records.durability == "sync"
        self.capacity = records.capacity
        self.fields: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            column.name: (column.dtype, column.shape) for column in records.columns.values()
        }
        self._draws = Draws(seed)
        self._leases = _core.Leases(LEASES)
        self._links = self._make_links()
        self._samplings = SamplingCache(self, Batch, self._draws)
        self._plan = self._samplings.rows().plan  # kept here because `sample` is called often
        self._tensors: Tensors | None = None
        self._samplers: list[weakref.ref[PrioritizedSampler]] = []
        self._saved: dict[str, SamplerState] = {}
        self._saved_episodes: dict[str, NDArray[Any]] = {}
        self._own_path: Path | None = None
        self._first_draws: list[int] = []
        self._opened_by = os.getpid()

    def seed(self, seed: int | None = None) -> None:
        """Restarts the draws of this handle, in this process, from a seed."""
        self._draws.seed(seed)

    def push(self, row: Any) -> int:
        """Stores one row and returns its id, or raises and stores nothing.

        A row is a dict, flat or nested.
        """
        number = self._ring.push(row)
        if number is None:
            ids = self._store({name: [value] for name, value in self._split_by_field(row).items()})
            number = int(ids[0])
        if self._synced:
            self._records.sync()
        return number

    def extend(self, batch: Any) -> range | NDArray[np.uint64]:
        """Stores rows from arrays [n, ...] and returns their ids, or raises and stores nothing."""
        if not self._synced:
            ids = self._ring.extend(batch)
            return ids if type(ids) is range else self._finish_extend(batch, ids)
        rows = self._extend_unsynced(batch)
        self._records.sync()
        return rows

    def sample(self, n: int, out: Mapping[str, NDArray[Any]] | None = None, *, device: Any = None) -> Batch:
        """Returns a batch of `n` rows, drawn uniformly with replacement.

        The buffer reuses the arrays of a batch, but only when you hold neither the batch, nor one of its
        arrays, nor a view or tensor of one. With `out`, a dict of arrays, it fills those arrays. If `out` is
        a batch of an earlier call, it fills that batch, ids included, and returns it. With `device` ("cpu",
        "cuda:0", a torch.device) the batch holds torch tensors.
        """
        if device is None:
            if out is None:
                batch: Batch | None = self._plan.lease(self._draws.words, n)
                if batch is not None:
                    return batch
            elif type(out) is Batch and self._plan.fill(self._draws.words, n, out, out.ids, None) == n:
                return out
        return self._samplings.rows().sample(n, out, device)

    def latest(self, n: int) -> Batch:
        """Returns the `n` newest rows, oldest first; all rows if there are fewer."""
        count = min(require_count("n", n, 0), self.capacity)
        ids = np.empty(count, np.uint64)
        return self.fetch(ids[: self._records.ring.latest(count, ids)] if count else ids)

    def fetch(self, ids: Any) -> Batch:
        """Returns the rows with these ids that are still stored."""
        wanted = convert_ids(ids)
        found = np.empty(len(wanted), np.bool_)
        arrays = self._records.empty(len(wanted))
        count = self._records.ring.fetch(wanted, tuple(arrays.values()), found.view(np.uint8))
        whole = count == len(wanted)
        batch = Batch(arrays if whole else {name: array[found] for name, array in arrays.items()})
        batch.ids = wanted if whole else wanted[found]
        return batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterates over the rows that are stored now, in the order of their ids."""
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
        """The number of rows ever stored."""
        return self._records.ring.total

    @property
    def durability(self) -> Durability:
        """What a row survives after its push has returned; "process" for a buffer without a file."""
        return self._records.durability

    @property
    def size_bytes(self) -> int:
        """The memory of the buffer in bytes."""
        return self._records.segment.size_bytes

    @property
    def huge_page_bytes(self) -> int:
        """How many of these bytes are on 2 MB pages in this process.

        The system may give fewer than requested.
        """
        return self._records.segment.huge_page_bytes

    def snapshot(self, path: str | os.PathLike[str]) -> int:
        """Writes the rows to a file for `open` and returns how many.

        The file appears complete or not at all, and is on disk when the call returns. Other processes can
        push meanwhile.
        """
        _ = self._ring.length  # raises if the buffer is closed
        rows = self._records.snapshot(Path(path), lambda token: self._capture_state(token).pack())
        draws_path(Path(path)).unlink(missing_ok=True)  # the draws of an earlier snapshot
        return rows

    def save(self, directory: str | os.PathLike[str]) -> int:
        """Writes the rows as one .npy file per field, with a manifest in JSON. Returns how many."""
        from shoal.replay.files import save

        return save(self, Path(directory))

    @staticmethod
    def load(directory: str | os.PathLike[str], *, seed: int | None = None) -> ReplayBuffer:
        """Returns a new buffer with the rows that `save` wrote, under the same ids.

        Unless a seed is given, the draws continue from the saved state.
        """
        from shoal.replay.files import load

        return load(Path(directory), seed)

    def close(self) -> None:
        """Closes this handle. Other processes can go on using the buffer, and its file remains."""
        self._leases.clear()
        try:
            self._write_draws()
        finally:
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

    if not TYPE_CHECKING:  # a __getattr__ would slow down every attribute
        add = begin = sample_n_step = sample_sequences = _TrajectoryMethod()

    # -- inside ---------------------------------------------------------------------------------------

    def _keep_draws(self, path: str | os.PathLike[str] | None, is_new: bool) -> None:
        """Makes `close` write the state of the draws to a file beside the buffer's own file."""
        if path is None:
            return
        self._own_path, self._first_draws = Path(path), self._draws.state()
        if is_new:
            draws_path(self._own_path).unlink(missing_ok=True)  # the draws of an earlier file of that name

    def _write_draws(self) -> None:
        """Writes the state of the draws, if this process opened the file and has drawn from it."""
        is_own = self._own_path is not None and self._opened_by == os.getpid()
        if self._own_path is None or not is_own or self._records.segment.closed:
            return
        is_sampled = any(reference() is not None for reference in self._samplers)
        if is_sampled or self._draws.state() != self._first_draws:
            write_draws(self._own_path, self._capture_state(self._records.token))

    def _capture_state(self, token: str) -> Resumable:
        """Returns the state that a resumed run needs in addition to the rows."""
        samplers = dict(self._saved)
        for reference in self._samplers:
            sampler = reference()
            if sampler is not None:
                samplers[sampler.name] = sampler._state()
        return Resumable(token, self._draws.state(), samplers)

    def _resume(self, state: Resumable, seed: int | None) -> None:
        """Restores such a state. If a seed was given, the draws start from the seed instead."""
        for name, sampler in state.samplers.items():
            if sampler.weights.shape != (self.capacity,):
                raise CorruptFileError(
                    f"the sampler {name!r} was saved with weights for {len(sampler.weights)} rows, but the "
                    f"buffer has room for {self.capacity}; load the files that were saved together"
                )
        self._saved, self._saved_episodes = dict(state.samplers), state.episodes
        if seed is None:
            self._draws.restore(state.draws)

    def _make_links(self) -> _core.Links | None:
        """Returns the links between the rows, or None if the buffer has no links."""
        return None

    def _list_parts(self, kind: str, size: int) -> list[Part]:
        """Returns the arrays of a batch for one kind of sampling."""
        return [Part(name, dtype, shape, "row", name) for name, (dtype, shape) in self.fields.items()]

    def _get_tensors(self) -> Tensors:
        if self._tensors is None:
            from shoal.replay.tensors import Tensors  # it imports torch

            self._tensors = Tensors()
        return self._tensors

    def _raise_nothing_drawn(self, is_rows: bool) -> NoReturn:
        if len(self) == 0:
            raise ValueError("cannot sample from an empty buffer; push something first")
        if not is_rows:
            raise ValueError("there is no complete transition in the buffer; add some steps first")
        raise ValueError(
            f"cannot sample: none of the {len(self)} rows is complete. Other processes are writing them "
            "now, or died while writing them. Push rows, and give the buffer a capacity of several times "
            "what its writers push at once"
        )

    def _split_by_field(self, given: Any) -> dict[str, Any]:
        """Returns the values in the order of the fields, from a row or rows that are flat or nested."""
        names = list(self.fields)
        if isinstance(given, Mapping) and given.keys() == self.fields.keys():
            return {name: given[name] for name in names}
        parts = list(split_by_field("", given, names))
        found = dict(parts)
        if found.keys() == self.fields.keys() and len(found) == len(parts):
            return {name: found[name] for name in names}
        if not isinstance(given, (Mapping, tuple)):
            raise TypeError(f"expected a dict with the keys {names}, got {type(given).__name__}")
        raise SpaceKeyError(f"expected the keys {names}, found {[name for name, _ in parts]}; nothing stored")

    def _extend_unsynced(self, batch: Any) -> range | NDArray[np.uint64]:
        """Stores rows and returns their ids, without waiting for the disk."""
        return self._finish_extend(batch, self._ring.extend(batch))

    def _finish_extend(self, batch: Any, stored: range | bytes | None) -> range | NDArray[np.uint64]:
        """Returns the ids of the stored rows.

        If nothing was stored, converts the batch and stores it, or raises.
        """
        if stored is None:
            return self._store(self._split_by_field(batch))
        return np.frombuffer(stored, np.uint64).copy() if isinstance(stored, bytes) else stored

    def _store(self, batch: dict[str, Any]) -> range | NDArray[np.uint64]:
        arrays = {name: self._convert(name, value) for name, value in batch.items()}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SpaceError(
                f"every field must have the same number of rows, found {lengths}; nothing stored"
            )
        if not next(iter(lengths.values())):
            return range(0)
        stored = self._ring.extend(arrays)
        assert stored is not None, "every array has the type of its field"
        return self._finish_extend(arrays, stored)

    def _convert(self, name: str, value: Any) -> NDArray[Any]:
        return convert_rows(name, value, self._records.columns[name])


def make_buffer(records: Records, seed: int | None) -> ReplayBuffer:
    """Returns a buffer over the records, of the class that they were made with."""
    from shoal.replay.trajectories import TrajectoryBuffer

    kind = TrajectoryBuffer if "num_envs" in records.facts else ReplayBuffer
    self = kind.__new__(kind)
    self._begin(records, seed)
    return self


def _rebuild(segment: Segment) -> ReplayBuffer:
    return make_buffer(Records.of(segment), None)
