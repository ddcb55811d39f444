"""Stable-Baselines3's replay buffers with their rows in a shared ring of Shoal.

    SB3 index (step, environment)  ->  slot = step * n_envs + environment  ->  row of the ring
    add       one native push of n_envs rows
    sample    SB3 draws indices from NumPy's global generator, as its own buffers do;
              one native gather into new arrays, which become the tensors

SB3's code draws the indices, so a run with a seed has the same results as with SB3's buffers. `observations`,
`rewards` and the other arrays are views of the ring's memory, since SB3 writes into some of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from shoal.errors import ShoalError
from shoal.memory.layout import FieldSpec
from shoal.replay import ReplayBuffer as SharedRows
from shoal.spaces.declare import escape_key

__all__ = ["DictReplayBuffer", "NStepReplayBuffer", "ReplayBuffer"]

_CHUNK = 16_384
"""How many rows are pushed at once when a saved buffer is loaded."""
_VIEWS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class _RingStorage:
    """The storage of an SB3 buffer: rows of a ring instead of arrays."""

    # SB3's BaseBuffer sets these.
    buffer_size: int
    n_envs: int
    action_dim: int
    observation_space: Any
    action_space: Any
    obs_shape: Any
    device: Any
    pos: int
    full: bool

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        if optimize_memory_usage and isinstance(observation_space, spaces.Dict):
            raise ValueError(
                "optimize_memory_usage=True is for observations of one array, got a Dict space; leave it out"
            )
        if optimize_memory_usage and handle_timeout_termination:
            raise ValueError(
                "optimize_memory_usage=True does not keep the last observation of an episode, which "
                "handle_timeout_termination=True needs; pass replay_buffer_kwargs="
                "{'handle_timeout_termination': False}, or leave optimize_memory_usage out"
            )
        for name, value in (("buffer_size", buffer_size), ("n_envs", n_envs)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} must be an int of at least 1, got {value!r}")
        buffers.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(int(buffer_size) // int(n_envs), 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self._newest_next_obs: NDArray[Any] | None = None
        self._allocate()

    # -- writing --------------------------------------------------------------------------------------

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]
    ) -> None:
        """Stores one step of all environments."""
        rows = self._convert_observations("obs", obs)
        next_rows = self._convert_observations("next_obs", next_obs)
        if not self.optimize_memory_usage:
            rows.update(next_rows)
        rows["action"] = self._convert_rows("action", action, (self.action_dim,), self.actions.dtype)
        rows["reward"] = self._convert_rows("reward", reward, (), np.dtype(np.float32))
        rows["done"] = self._convert_rows("done", done, (), np.dtype(np.float32))
        rows["timeout"] = np.zeros(self.n_envs, np.float32)
        if self.handle_timeout_termination:
            if isinstance(infos, Mapping) or len(infos) != self.n_envs:
                found = f"{len(infos)} entries" if not isinstance(infos, Mapping) else "one dict"
                raise ValueError(
                    f"infos must be a list of {self.n_envs} dicts, one for each environment, found {found}"
                )
            rows["timeout"][:] = [info.get("TimeLimit.truncated", False) for info in infos]
        self._push(rows)
        if self.optimize_memory_usage:
            self._newest_next_obs = next_rows["next_obs"].copy()
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def reset(self) -> None:
        """Removes every row.

        The buffer gets a new ring; other processes that opened the old one still have it.
        """
        buffers.BaseBuffer.reset(self)
        self._newest_next_obs = None
        self._allocate()

    def _convert_observations(self, name: str, value: Any) -> dict[str, NDArray[Any]]:
        shapes = self.obs_shape
        if not isinstance(shapes, dict):
            return {name: self._convert_rows(name, value, shapes, self.observation_space.dtype)}
        if not isinstance(value, Mapping) or not shapes.keys() <= value.keys():
            found = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{name} must be a dict with the keys {sorted(shapes)}, found {found}")
        return {
            f"{name}/{escape_key(key)}": self._convert_rows(
                f"{name}[{key!r}]", value[key], shape, self.observation_space[key].dtype
            )
            for key, shape in shapes.items()
        }

    def _convert_rows(self, name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Returns one value per environment in the dtype of the ring."""
        array = np.asarray(value)
        if array.size != self.n_envs * math.prod(shape):
            raise ValueError(
                f"{name} must have shape {(self.n_envs, *shape)}, one row for each of {self.n_envs} "
                f"environments, found {array.shape}"
            )
        return np.ascontiguousarray(array.reshape(self.n_envs, *shape), dtype)

    def _push(self, rows: dict[str, NDArray[Any]]) -> None:
        ids = self.shared.extend(rows)
        if int(ids[0]) != self._pushed or int(ids[-1]) != self._pushed + len(ids) - 1:
            raise ShoalError(
                f"expected the next row of this buffer to be {self._pushed}, found {int(ids[0])}: another "
                "process pushed rows into `shared`; other processes may only read it"
            )
        self._pushed += len(ids)

    # -- reading --------------------------------------------------------------------------------------

    def _gather(self, batch_inds: Any, env_indices: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Returns the rows of these steps and environments in new arrays by field, with `next_obs`."""
        steps = np.asarray(batch_inds, np.int64)
        rows = self._fetch(steps, env_indices, self.shared.fields)
        if self.optimize_memory_usage:
            # The next observation is stored with the next step; for the newest step it is stored separately.
            newest = np.flatnonzero(steps == (self.pos - 1) % self.buffer_size)
            after = (steps + 1) % self.buffer_size
            after[newest] = steps[newest]
            spec = {"obs": self.shared.fields["obs"]}
            following = rows["next_obs"] = self._fetch(after, env_indices, spec)["obs"]
            if len(newest) and self._newest_next_obs is not None:
                following[newest] = self._newest_next_obs[env_indices[newest]]
        return rows

    def _fetch(
        self, steps: NDArray[np.int64], env_indices: NDArray[Any], specs: Mapping[str, Any]
    ) -> dict[str, NDArray[Any]]:
        ring = self.shared._records.ring
        ids = (steps * self.n_envs + env_indices).astype(np.uint64)  # slots
        ring.ids_in(ids)
        into = {
            name: self._allocate_array((len(ids), *shape), dtype) for name, (dtype, shape) in specs.items()
        }
        found = np.empty(len(ids), np.bool_)
        columns = tuple(into.get(name) for name in self.shared.fields)
        if ring.fetch(ids, columns, found.view(np.uint8)) != len(ids):
            raise ShoalError(
                f"rows {ids[~found][:8].tolist()} are not in the ring: another process pushes into `shared`; "
                "other processes may only read it"
            )
        return into

    def _allocate_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if self.device.type != "cuda":
            return np.empty(shape, dtype)
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        pinned: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
        return pinned  # copies from page-locked memory are asynchronous

    def _make_samples(self, batch_inds: Any, env: Any, kind: Any) -> Any:
        env_indices = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        rows = self._gather(batch_inds, env_indices)
        rows["done"] *= 1 - rows["timeout"]  # SB3 bootstraps at the end of a truncated episode
        reward = rows["reward"].reshape(-1, 1)
        return kind(
            observations=self._make_observations("obs", rows, env),
            actions=self.to_torch(rows["action"]),
            next_observations=self._make_observations("next_obs", rows, env),
            dones=self.to_torch(rows["done"].reshape(-1, 1)),
            rewards=self.to_torch(buffers.BaseBuffer._normalize_reward(reward, env)),
        )

    def _make_observations(self, name: str, rows: dict[str, NDArray[Any]], env: Any) -> Any:
        if not isinstance(self.obs_shape, dict):
            return self.to_torch(rows[name] if env is None else env.normalize_obs(rows[name]))
        parts = {key: rows[f"{name}/{escape_key(key)}"] for key in self.obs_shape}
        if env is not None:
            parts = env.normalize_obs(parts)
        return {key: self.to_torch(part) for key, part in parts.items()}

    def to_torch(self, array: NDArray[Any], copy: bool = True) -> Any:
        """Returns a tensor of an array. The array is new for this batch, so the CPU needs no copy."""
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device, non_blocking=True)

    # -- storage --------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        for name in (*_VIEWS, "shared"):
            self.__dict__.pop(name, None)  # free their memory before the new memory is reserved
        fields = self._list_fields()
        self.shared = SharedRows(self.buffer_size * self.n_envs, fields)
        """The rows. Other processes that get this object may read it, but not push."""
        self._pushed = 0
        self.observations = self._make_observation_views("obs")
        if not self.optimize_memory_usage:
            self.next_observations = self._make_observation_views("next_obs")
        self.actions, self.rewards = self._make_view("action"), self._make_view("reward")
        self.dones, self.timeouts = self._make_view("done"), self._make_view("timeout")

    def _list_fields(self) -> dict[str, FieldSpec]:
        fields: dict[str, FieldSpec] = {}
        for name in ("obs",) if self.optimize_memory_usage else ("obs", "next_obs"):
            if isinstance(self.obs_shape, dict):
                for key, shape in self.obs_shape.items():
                    fields[f"{name}/{escape_key(key)}"] = self.observation_space[key].dtype, shape
            else:
                fields[name] = self.observation_space.dtype, self.obs_shape
        dtype = buffers.ReplayBuffer._maybe_cast_dtype(self.action_space.dtype)
        fields["action"] = dtype, (self.action_dim,)
        return {**fields, **dict.fromkeys(("reward", "done", "timeout"), (np.float32, ()))}

    def _make_observation_views(self, name: str) -> Any:
        if not isinstance(self.obs_shape, dict):
            return self._make_view(name)
        return {key: self._make_view(f"{name}/{escape_key(key)}") for key in self.obs_shape}

    def _make_view(self, name: str) -> NDArray[Any]:
        """Returns a field of the ring in SB3's shape [buffer_size, n_envs, ...]."""
        rows = self.shared._records.view(name)
        return rows.reshape(self.buffer_size, self.n_envs, *rows.shape[1:])  # a view

    # -- files ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state that save_replay_buffer writes: the rows, not a handle on shared memory."""
        left_out = {*_VIEWS, "shared", "_pushed"}
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        used = (self.buffer_size if self.full else self.pos) * self.n_envs
        view = self.shared._records.view
        state["rows"] = {name: np.ascontiguousarray(view(name)[:used]) for name in self.shared.fields}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state.pop("rows")
        self.__dict__.update(state)
        self._allocate()
        used = len(rows["reward"])
        # In a full ring the next row must go to `pos`, so the rows before it are pushed once more.
        for end in (used, self.pos * self.n_envs if self.full else 0):
            for begin in range(0, end, _CHUNK):
                chunk = slice(begin, min(begin + _CHUNK, end))
                self._push({name: array[chunk] for name, array in rows.items()})


class ReplayBuffer(_RingStorage, buffers.ReplayBuffer):
    """SB3's ReplayBuffer with its rows in a shared ring: `replay_buffer_class=ReplayBuffer`.

    `shared` is the `shoal.ReplayBuffer` that holds the rows; other processes may read it.
    """

    def _get_samples(self, batch_inds: Any, env: Any = None) -> ReplayBufferSamples:
        return self._make_samples(batch_inds, env, ReplayBufferSamples)


class DictReplayBuffer(_RingStorage, buffers.DictReplayBuffer):
    """SB3's DictReplayBuffer, for Dict observations, with its rows in a shared ring."""

    def __init__(self, buffer_size: int, observation_space: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise TypeError(
                f"DictReplayBuffer is for Dict observation spaces, got {observation_space}; use ReplayBuffer"
            )
        super().__init__(buffer_size, observation_space, *args, **kwargs)

    def _get_samples(self, batch_inds: Any, env: Any = None) -> DictReplayBufferSamples:
        return self._make_samples(batch_inds, env, DictReplayBufferSamples)


class NStepReplayBuffer(buffers.NStepReplayBuffer, ReplayBuffer):
    """SB3's NStepReplayBuffer with its rows in a shared ring; `n_steps` and `gamma` are arguments of SB3."""
