"""Tianshou's replay buffers with observations and actions in shared rings of Shoal.

    Tianshou index  ->  sub-buffer b, place p  ->  slot (p + shift[b]) % size of ring b  ->  row
    add       one native push for each sub-buffer
    sample    Tianshou draws the indices; one native gather for each sub-buffer, frame stacks included

Tianshou's own code chooses the next index, finds the starts of episodes and draws indices, so a run with a
seed has the same results as with Tianshou's buffers. Rewards, flags, infos and policy entries also stay in
Tianshou's arrays, since its algorithms read and change these as whole arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from tianshou import data
from tianshou.data import Batch
from tianshou.data.batch import alloc_by_keys_diff, create_value
from tianshou.data.utils.converter import to_hdf5

from shoal.adapters.nested import list_leaves, list_names, make_tree, rebuild
from shoal.errors import ShoalError, SpaceError
from shoal.replay import ReplayBuffer as SharedRows

__all__ = [
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "VectorReplayBuffer",
]

_IN_RING = ("obs", "act", "obs_next")
_COPIED = {"rew": np.float64, "terminated": np.bool_, "truncated": np.bool_}
"""These are in Tianshou's arrays, and also in the ring for other processes that read it."""
_CHUNK = 16_384


class _RingStorage:
    """The storage of a Tianshou buffer."""

    shared: list[SharedRows] = []
    """The rows of each sub-buffer, after the first add. Other processes may read them, but not push."""
    _trees: dict[str, Any] = {}  # key in the ring -> its field, or for a Batch a dict of fields
    _edges: NDArray[np.int64]  # the first index of each sub-buffer, and the end
    _sizes: NDArray[np.int64]
    _pushed: NDArray[np.int64]  # rows ever pushed into each ring
    _shift: NDArray[np.int64]

    # Tianshou's ReplayBuffer has these.
    _meta: Any
    _indices: NDArray[Any]
    _size: int
    _insertion_idx: int
    _save_obs_next: bool
    _save_only_last_obs: bool
    maxsize: int
    stack_num: int
    last_index: NDArray[Any]
    subbuffer_edges: NDArray[Any]

    # -- writing --------------------------------------------------------------------------------------

    def add(self, batch: Any, buffer_ids: Any = None) -> Any:
        """Stores transitions, as Tianshou's add does."""
        missing = {"obs", "act", *_COPIED} - set(batch.get_keys())
        if missing:
            raise ValueError(
                f"a batch must have the keys obs, act, rew, terminated and truncated; found "
                f"{sorted(batch.get_keys())}"
            )
        is_vector = isinstance(self, data.ReplayBufferManager)
        one = buffer_ids is None and not is_vector  # a transition without an axis for environments
        children = self._list_sub_buffers()
        ids = list(range(len(children))) if buffer_ids is None else [int(number) for number in buffer_ids]
        light, rows = self._split(batch, one)
        if (
            len(ids) != len(rows["rew"])
            or len(set(ids)) != len(ids)
            or not set(ids) <= set(range(len(children)))
        ):
            raise ValueError(
                "expected a row for each of buffer_ids, which must be distinct and of 0 to "
                f"{len(children) - 1}; found {len(rows['rew'])} rows and buffer_ids {ids}"
            )
        edges = self.subbuffer_edges
        done = rows["terminated"] | rows["truncated"]
        rewards = [batch.rew] if one else batch.rew
        results = [
            children[b]._update_state_pre_add(rewards[place], done[place]) for place, b in enumerate(ids)
        ]
        indices = np.array([index + edges[b] for b, (index, _, _, _) in zip(ids, results, strict=True)])
        if is_vector:
            self.last_index[ids] = indices
            self._lengths[ids] = [len(children[b]) for b in ids]
        self._write(indices, light, one)
        self._store(indices, rows)
        returns, lengths = (np.array([row[part] for row in results]) for part in (1, 2))
        return (
            indices,
            returns,
            lengths,
            np.array([row[3] + edges[b] for b, row in zip(ids, results, strict=True)]),
        )

    def _write(self, indices: NDArray[Any], light: Any, one: bool) -> None:
        """Writes to Tianshou's arrays. The first batch with a new key makes the array for it."""
        try:
            self._meta[indices] = light
        except ValueError:
            if len(self._meta.get_keys()) == 0:
                self._meta = create_value(light, self.maxsize, one)
            else:
                alloc_by_keys_diff(self._meta, light, self.maxsize, one)
            if isinstance(self, data.ReplayBufferManager):
                self._set_batch_for_children()
            self._meta[indices] = light

    def update(self, buffer: data.ReplayBuffer) -> NDArray[Any]:
        """Copies the rows of another buffer into this one, as Tianshou's update does."""
        if isinstance(self, data.ReplayBufferManager):
            raise NotImplementedError("a buffer of several sub-buffers cannot be updated from another buffer")
        stack_num, buffer.stack_num = buffer.stack_num, 1
        try:
            given = buffer.sample_indices(0)  # every index, oldest first
            batch = buffer[given]
        finally:
            buffer.stack_num = stack_num
        if len(given) == 0 or self.maxsize == 0:
            return np.array([], int)
        light, rows = self._split(batch, False)
        indices = (self._insertion_idx + np.arange(len(given))) % self.maxsize
        self._write(indices, light, False)
        self.last_index[0], self._insertion_idx = indices[-1], int(indices[-1] + 1) % self.maxsize
        self._size = min(self._size + len(given), self.maxsize)
        self._store(indices, rows)
        return indices

    def reset(self, keep_statistics: bool = False) -> None:
        """Removes every row; the next one has index 0 again."""
        super().reset(keep_statistics=keep_statistics)  # type: ignore[misc]
        if self.shared:
            self._shift = self._pushed % self._sizes

    def set_batch(self, batch: Any) -> None:
        """Replaces all rows by those of a batch of `maxsize` rows."""
        if len(batch) != self.maxsize:
            raise ValueError(f"expected a batch of {self.maxsize} rows, found {len(batch)}")
        light, rows = self._split(batch, False)
        super().set_batch(light)  # type: ignore[misc]
        for begin, child in zip(self._edges, self._list_sub_buffers(), strict=False):
            order = begin + (child._insertion_idx + np.arange(child.maxsize)) % child.maxsize
            self._store(order, {name: array[order] for name, array in rows.items()})

    def dropnull(self) -> None:
        raise NotImplementedError(
            "rows of a shared ring cannot be dropped one by one; do not add NaN, or use Tianshou's own buffer"
        )

    def _split(self, batch: Any, one: bool) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Splits a batch into the part for Tianshou's arrays and the rows for the rings."""
        keys = ("obs", "act", "obs_next") if self._save_obs_next else ("obs", "act")
        if "obs_next" in keys and "obs_next" not in batch.get_keys():
            raise ValueError(
                "a batch must have the key obs_next, or make the buffer with ignore_obs_next=True"
            )
        rows = {}
        for key in keys:
            for name, array in list_leaves(key, batch[key]):
                array = array[None] if one else array
                rows[name] = array[:, -1] if self._save_only_last_obs and key != "act" else array
        for key, kind in _COPIED.items():
            rows[key] = np.atleast_1d(np.asarray(batch[key], kind))
        light = Batch()
        for key in batch.get_keys():
            if key not in _IN_RING:
                light.__dict__[key] = batch[key]
        for key, kind in _COPIED.items():
            light.__dict__[key] = np.asarray(batch[key], kind)
        light.__dict__["done"] = np.logical_or(light.terminated, light.truncated)
        count = len(rows["rew"])
        if not self.shared:
            self._allocate(rows, {key: make_tree(key, batch[key]) for key in keys})
        return light, self._convert_rows(rows, count)

    def _convert_rows(self, rows: dict[str, NDArray[Any]], count: int) -> dict[str, NDArray[Any]]:
        fields = self.shared[0].fields
        if rows.keys() != fields.keys():
            raise SpaceError(f"expected the parts {list(fields)}, as in the first batch, found {list(rows)}")
        for name, (dtype, shape) in fields.items():
            if rows[name].shape != (count, *shape):
                raise SpaceError(
                    f"{name}: expected shape {(count, *shape)}, as in the first batch, found "
                    f"{rows[name].shape}"
                )
            rows[name] = np.ascontiguousarray(rows[name], dtype)
        return rows

    def _allocate(self, rows: Mapping[str, NDArray[Any]], trees: dict[str, Any]) -> None:
        fields = {name: (array.dtype, array.shape[1:]) for name, array in rows.items()}
        self.shared = [SharedRows(int(size), fields) for size in np.diff(self.subbuffer_edges)]
        self._trees = trees
        self._edges, self._sizes = self.subbuffer_edges, np.diff(self.subbuffer_edges)
        self._pushed, self._shift = np.zeros((2, len(self.shared)), np.int64)

    def _store(self, indices: NDArray[Any], rows: dict[str, NDArray[Any]]) -> None:
        """Pushes rows; each must be the next one of its sub-buffer."""
        subs, slots = self._find_slots(np.asarray(indices))
        begin, count = 0, len(subs)
        while begin < count:
            sub, slot = int(subs[begin]), int(slots[begin])
            end = begin + 1  # rows of one sub-buffer are pushed together
            while end < count and subs[end] == sub and end - begin < _CHUNK:
                end += 1
            pushed = int(self._pushed[sub])
            ids = self.shared[sub].extend({name: array[begin:end] for name, array in rows.items()})
            self._pushed[sub] += end - begin
            if int(ids[0]) != pushed or slot != pushed % self._sizes[sub]:
                raise ShoalError(
                    f"sub-buffer {sub}: expected row {pushed}, found row {int(ids[0])} for slot {slot}: "
                    "another process pushed into `shared`, or the indices of the buffer were changed "
                    "directly; other processes may only read"
                )
            begin = end

    # -- reading --------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            every = index == slice(None)
            chosen = self.sample_indices(0) if every else self._indices[: len(self)][index]
        else:
            chosen = self._indices[index]
        if not self.shared:
            raise KeyError("obs")
        nested = ("info", "policy")  # Tianshou stacks these like observations
        found = {key: self.get(chosen, key, Batch()) for key in nested}
        for key in self._meta.get_keys():
            if key not in (*_IN_RING, *nested):
                found[key] = self._meta[key][chosen]
        keys = ("obs", "obs_next") if self._save_obs_next else ("obs",)
        if self.stack_num == 1:
            found.update(self._gather(chosen, (*keys, "act")))
        else:
            found.update(self._gather(self._stack_indices(chosen, self.stack_num), keys))
            found.update(self._gather(chosen, ("act",)))
        if not self._save_obs_next:
            found["obs_next"] = self.get(self.next(chosen), "obs")
        first = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
        return Batch({key: found.pop(key) for key in first} | found)

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """Returns one key at these indices, with frames stacked as in Tianshou."""
        if key not in self._trees:
            return super().get(index, key, default_value, stack_num)  # type: ignore[misc]
        stack = self.stack_num if stack_num is None else stack_num
        chosen = self._indices[index]
        return self._gather(chosen if stack == 1 else self._stack_indices(chosen, stack), (key,))[key]

    def __getattr__(self, key: str) -> Any:
        """Returns `obs`, `obs_next` or `act` of every index in new arrays, or an attribute of Tianshou."""
        if key in _IN_RING and self._trees:
            if key not in self._trees:
                raise AttributeError(f"this buffer does not store {key}: ignore_obs_next is True")
            return self._gather(self._indices, (key,))[key]
        if key.startswith("__") or key == "_meta":
            raise AttributeError(key)
        return super().__getattr__(key)  # type: ignore[misc]

    def _stack_indices(self, indices: NDArray[Any], stack: int) -> NDArray[Any]:
        """Returns for each index the indices of its frame stack, oldest first, on a new last axis."""
        frames = [indices]
        for _ in range(stack - 1):
            frames.insert(0, self.prev(frames[0]))
        return np.stack(frames, axis=-1)

    def _gather(self, indices: Any, keys: tuple[str, ...]) -> dict[str, Any]:
        """Returns values at indices of any shape in new arrays; zeros for an index without a row."""
        index = np.asarray(indices)
        flat = index.reshape(-1)
        subs, slots = self._find_slots(flat)
        pushed, sizes = self._pushed[subs], self._sizes[subs]
        lengths = np.array([len(child) for child in self._list_sub_buffers()])
        written = flat - self._edges[subs] < lengths[subs]
        ids = np.where(written, slots + sizes * ((pushed - 1 - slots) // sizes), 0).astype(np.uint64)
        order = None
        if len(self.shared) > 1 and (subs[1:] < subs[:-1]).any():
            order = np.argsort(subs, kind="stable")
            subs, ids, written = subs[order], ids[order], written[order]
        names = {name for key in keys for name in list_names(self._trees[key])}
        fields = self.shared[0].fields
        into = {name: np.empty((len(ids), *fields[name][1]), fields[name][0]) for name in names}
        found = np.zeros(len(ids), np.bool_)
        ends = np.searchsorted(subs, np.arange(len(self.shared)), side="right").tolist()
        for ring, begin, end in zip(self.shared, [0, *ends[:-1]], ends, strict=True):
            if begin < end:
                columns = tuple(into[name][begin:end] if name in into else None for name in fields)
                ring._records.ring.fetch(ids[begin:end], columns, found[begin:end].view(np.uint8))
        if not found.all():
            self._require_found(ids, found, written)
        if not written.all():
            for array in into.values():
                array[~written] = 0
        if order is not None:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            into = {name: array[back] for name, array in into.items()}
        shaped = {name: array.reshape((*index.shape, *array.shape[1:]))[()] for name, array in into.items()}
        return {key: rebuild(self._trees[key], shaped) for key in keys}

    @staticmethod
    def _require_found(ids: NDArray[Any], found: NDArray[Any], written: NDArray[Any]) -> None:
        lost = written & ~found
        if lost.any():
            raise ShoalError(
                f"rows {ids[lost][:8].tolist()} are not in the ring: another process pushes into `shared`; "
                "other processes may only read it"
            )

    # -- where a row is -------------------------------------------------------------------------------

    def _find_slots(self, indices: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the sub-buffer of each index, and its slot in that ring."""
        subs = np.searchsorted(self._edges, indices, side="right") - 1
        return subs, (indices - self._edges[subs] + self._shift[subs]) % self._sizes[subs]

    def _list_sub_buffers(self) -> Any:
        """Returns the sub-buffers; they hold the next index and the number of rows."""
        return self.buffers if isinstance(self, data.ReplayBufferManager) else [self]

    # -- files ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to save: the rows, not handles on shared memory."""
        left_out = {"shared", "_edges", "_sizes", "_pushed", "_shift"}
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        if self.shared:
            trees = {name: name for name in self.shared[0].fields}
            saved, self._trees = self._trees, trees
            try:
                state["rows"] = {
                    str(place): self._gather(self._indices, (name,))[name] for place, name in enumerate(trees)
                }
            finally:
                self._trees = saved
            state["row_names"] = tuple(trees)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        arrays, names = state.pop("rows", None), state.pop("row_names", ())
        super().__setstate__(state)  # type: ignore[misc]
        if arrays is None:
            return
        rows = {name: arrays[str(place)] for place, name in enumerate(names)}
        self._allocate(rows, self._trees)
        for sub, child in enumerate(self._list_sub_buffers()):
            begin = self._edges[sub]
            first = int(child._insertion_idx) if len(child) == child.maxsize else 0
            order = begin + (first + np.arange(len(child))) % child.maxsize
            self._shift[sub] = -first % child.maxsize
            self._store(order, {name: array[order] for name, array in rows.items()})

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Saves the buffer to an HDF5 file, which `load_hdf5` reads."""
        with h5py.File(path, "w") as file:
            to_hdf5(self.__getstate__(), file, compression=compression)


class ReplayBuffer(_RingStorage, data.ReplayBuffer):
    """Tianshou's ReplayBuffer, of one environment, with observations and actions in a shared ring."""


class VectorReplayBuffer(_RingStorage, data.VectorReplayBuffer):
    """Tianshou's VectorReplayBuffer with observations and actions in shared rings, one per sub-buffer."""


class _ResetPriorities:
    weight: Any
    maxsize: int

    def reset(self, keep_statistics: bool = False) -> None:
        """Removes every row and its priority. Tianshou keeps the priorities, and then draws old rows."""
        super().reset(keep_statistics=keep_statistics)  # type: ignore[misc]
        self.weight[np.arange(self.maxsize)] = 0.0


class PrioritizedReplayBuffer(_ResetPriorities, data.PrioritizedReplayBuffer, ReplayBuffer):
    """Tianshou's PrioritizedReplayBuffer with rows in a shared ring; Tianshou keeps the priorities."""


class PrioritizedVectorReplayBuffer(_ResetPriorities, data.PrioritizedVectorReplayBuffer, VectorReplayBuffer):
    """Tianshou's PrioritizedVectorReplayBuffer with rows in shared rings; Tianshou keeps the priorities."""
