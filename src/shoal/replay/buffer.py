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
from shoal.replay.arguments import checked_capacity, checked_count, checked_ids, converted
from shoal.replay.batches import Batch
from shoal.replay.draws import Draws
from shoal.replay.fields import by_field, fields_of
from shoal.replay.records import Durability, Records, records_for
from shoal.replay.resume import Resumable, SamplerState, beside, read_beside, write_beside
from shoal.replay.sampling import LEASES, Part, Ways

if TYPE_CHECKING:
    from shoal.replay.prioritized import PrioritizedSampler
    from shoal.replay.tensors import Tensors
    from shoal.replay.trajectories import TrajectoryBuffer

__all__ = ["ReplayBuffer", "made"]


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
        self._keep_draws_beside(path, is_new=True)

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
        Draws go on where they were when the snapshot was made, or the buffer closed, unless a seed is given.
        """
        self = made(Records.open(path), seed)
        try:
            state = read_beside(Path(path), self._records.token)
            if state is None and self._records.resume:
                state = Resumable.unpacked(self._records.resume, repr(os.fspath(path)))
            if state is not None:
                self._resume(state, seed)
            self._keep_draws_beside(path, is_new=False)
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
        self._links = self._linked()
        self._ways = Ways(self, Batch, self._draws)
        self._plan = self._ways.rows().plan  # of `sample`, at hand
        self._on_devices: Tensors | None = None
        self._samplers: list[weakref.ref[PrioritizedSampler]] = []
        self._saved: dict[str, SamplerState] = {}
        self._saved_episodes: dict[str, NDArray[Any]] = {}
        self._beside: Path | None = None
        self._begun_with: list[int] = []
        self._opened_by = os.getpid()

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
        """`n` rows, each drawn with the same chance.

        The arrays belong to the buffer, which fills them again only when nobody holds them any more: neither
        the batch, nor one of its arrays, nor a view or a tensor of one. Given `out`, a dict of arrays, those
        are filled; one that is a batch of an earlier call is filled anew, its ids too, and given back. With
        `device` ("cpu", "cuda:0", a torch.device) the batch holds torch tensors.
        """
        if device is None:
            if out is None:
                batch: Batch | None = self._plan.lease(self._draws.words, n)
                if batch is not None:
                    return batch
            elif type(out) is Batch and self._plan.fill(self._draws.words, n, out, out.ids, None) == n:
                return out
        return self._ways.rows().sample(n, out, device)

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
        rows = self._records.snapshot(Path(path), lambda token: self._resumable(token).packed())
        beside(Path(path)).unlink(missing_ok=True)  # of the snapshot that was there before
        return rows

    def save(self, directory: str | os.PathLike[str]) -> int:
        """Writes the rows as one .npy file per field, with a manifest in JSON; how many."""
        from shoal.replay.files import save

        return save(self, Path(directory))

    @staticmethod
    def load(directory: str | os.PathLike[str], *, seed: int | None = None) -> ReplayBuffer:
        """A new buffer with the rows that `save` wrote, under the same ids.

        Draws go on where they were, unless a seed is given.
        """
        from shoal.replay.files import load

        return load(Path(directory), seed)

    def close(self) -> None:
        """Gives the handle back; other processes are not disturbed, and a file stays."""
        self._leases.clear()
        try:
            self._write_draws_beside()
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

    if not TYPE_CHECKING:  # (a __getattr__ would make every attribute slower)
        add = begin = sample_n_step = sample_sequences = _OfTrajectories()

    # -- inside ---------------------------------------------------------------------------------------

    def _keep_draws_beside(self, path: str | os.PathLike[str] | None, is_new: bool) -> None:
        """From now on `close` writes the draws beside the file that the buffer lives in."""
        if path is None:
            return
        self._beside, self._begun_with = Path(path), self._draws.state()
        if is_new:
            beside(self._beside).unlink(missing_ok=True)  # of a file that was there before

    def _write_draws_beside(self) -> None:
        """Only by the process that opened the file, and only if it has drawn: others keep nothing there."""
        is_own = self._beside is not None and self._opened_by == os.getpid()
        if self._beside is None or not is_own or self._records.segment.closed:
            return
        is_sampled = any(reference() is not None for reference in self._samplers)
        if is_sampled or self._draws.state() != self._begun_with:
            write_beside(self._beside, self._resumable(self._records.token))

    def _resumable(self, token: str) -> Resumable:
        """What a run needs to go on from here, beside the rows."""
        samplers = dict(self._saved)
        for reference in self._samplers:
            sampler = reference()
            if sampler is not None:
                samplers[sampler.name] = sampler._state()
        return Resumable(token, self._draws.state(), samplers)

    def _resume(self, state: Resumable, seed: int | None) -> None:
        """Goes on from such a state, but for the stream of draws if a seed was given."""
        for name, sampler in state.samplers.items():
            if sampler.weights.shape != (self.capacity,):
                raise CorruptFileError(
                    f"the sampler {name!r} was saved with weights for {len(sampler.weights)} rows, and the "
                    f"buffer has room for {self.capacity}"
                )
        self._saved, self._saved_episodes = dict(state.samplers), state.episodes
        if seed is None:
            self._draws.restore(state.draws)

    def _linked(self) -> _core.Links | None:
        """The links between the rows; None: it is not known which follows which."""
        return None

    def _parts_of(self, way: str, size: int) -> list[Part]:
        """What the batches of a way to sample hold."""
        return [Part(name, dtype, shape, "row", name) for name, (dtype, shape) in self.fields.items()]

    def _tensors(self) -> Tensors:
        if self._on_devices is None:
            from shoal.replay.tensors import Tensors  # and with it torch

            self._on_devices = Tensors()
        return self._on_devices

    def _raise_nothing_drawn(self, is_rows: bool) -> NoReturn:
        if len(self) == 0:
            raise ValueError("cannot sample from an empty buffer; push something first")
        if not is_rows:
            raise ValueError("there is no whole transition in the buffer; add some steps first")
        raise ValueError(
            f"cannot sample: of {len(self)} rows none is whole. They are being written by others at "
            "this moment, or were left unfinished by writers that died. As good as empty: push "
            "something, and give it a capacity of several times what its writers push at once"
        )

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
