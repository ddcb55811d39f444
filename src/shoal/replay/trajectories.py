"""Rows of a vector environment, linked into trajectories: transitions, n-step returns, sequences, stacks.

    row j:  obs j | action, reward, flags of the step that led to it | previous row | first of an episode?
            next [capacity]: the row after it, beside the records

An observation is stored once: the next observation of a transition is that of the row itself, the one before
it that of the previous row. So the true last observation of every episode is kept. A link is an id, and ids
are never used again: what a link leads to is that row or nothing. A link forward is believed only if the row
there links back: its writer may have been overtaken by a whole lap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.errors import ShoalError, SpaceError
from shoal.memory.layout import FieldSpec
from shoal.replay.buffer import Batch, PrioritizedBatch, ReplayBuffer
from shoal.replay.records import Durability, Records, records_for
from shoal.spaces import Declaration

__all__ = ["TrajectoryBuffer"]

_PREVIOUS, _FIRST = "previous", "first"
_TRIES = 10_000


class TrajectoryBuffer(ReplayBuffer):
    """What vector environments did, sampled as transitions. Made by `ReplayBuffer.for_env`.

    buffer = ReplayBuffer.for_env(envs, 100_000)
    buffer.begin(envs.reset(seed=0)[0])
    actions = ...
    buffer.add(actions, *envs.step(actions))
    batch = buffer.sample(256)  # obs, action, reward, next_obs, terminated, truncated
    """

    def __init__(
        self,
        capacity: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        num_envs: int,
        autoreset_mode: AutoresetMode,
        *,
        seed: int | None = None,
        path: Any = None,
        durability: Durability = "process",
    ) -> None:
        fields = {
            **_fields("obs", observation_space),
            **_fields("action", action_space),
            "reward": (np.float32, ()),
            "terminated": (np.bool_, ()),
            "truncated": (np.bool_, ()),
            _FIRST: (np.bool_, ()),
            _PREVIOUS: (np.uint64, ()),
        }
        facts = {"num_envs": num_envs, "autoreset_mode": autoreset_mode.name}
        kind = records_for(durability, path)
        records = kind(_checked(capacity), fields, path, links=True, facts=facts)
        self._begin(records, seed)

    def _begin(self, records: Records, seed: int | None) -> None:
        super()._begin(records, seed)
        self.num_envs = int(records.facts["num_envs"])
        self.autoreset_mode = AutoresetMode[records.facts["autoreset_mode"]]
        self._next: NDArray[np.uint64] = records.segment["next"]
        self._last = np.zeros(self.num_envs, np.uint64)  # each environment's newest row, its id + 1
        self._over = np.ones(self.num_envs, np.bool_)  # nothing to continue
        self._obs = [name for name in self.fields if name.split("/")[0] == "obs"]
        self._action = [name for name in self.fields if name.split("/")[0] == "action"]

    # -- writing --------------------------------------------------------------------------------------

    def begin(self, observations: Any, mask: NDArray[np.bool_] | None = None) -> None:
        """First observations of new episodes, of all environments or those of `mask`: what reset returned."""
        which = np.ones(self.num_envs, np.bool_) if mask is None else np.asarray(mask, np.bool_)
        if which.shape != (self.num_envs,):
            raise ValueError(f"mask must have shape ({self.num_envs},), got {which.shape}")
        self._append(self._parts("obs", observations), None, None, None, None, np.flatnonzero(which), True)
        self._over[which] = False
        self._records.sync()

    def add(
        self,
        actions: Any,
        next_observations: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        infos: Mapping[str, Any] | None = None,
    ) -> None:
        """One step of all environments: the actions, and what `step` returned, as it returned it.

        Rows of a replaced worker (`info["_fault"]`) begin an episode: what led to them is not known.
        """
        parts, acted = self._parts("obs", next_observations), self._parts("action", actions)
        rewards = np.asarray(rewards, np.float32)
        ended, cut = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        every = np.arange(self.num_envs)
        infos = infos or {}
        lost = np.asarray(infos.get("_fault", np.zeros(self.num_envs)), np.bool_)
        if lost.any():
            ended, cut = ended & ~lost, cut & ~lost
        done = ended | cut
        if done.shape != (self.num_envs,) or rewards.shape != (self.num_envs,):
            raise SpaceError(f"expected rewards and flags of shape ({self.num_envs},), found {rewards.shape}")
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            if self._over.any():
                raise ShoalError("call begin(observations) first, with what reset returned")
            last = self._with_finals(parts, done, infos)
            self._append(last, acted, rewards, ended, cut, every, lost)
            if done.any():
                self._append(parts, None, None, None, None, np.flatnonzero(done), True)
            self._records.sync()
            return
        if self.autoreset_mode == AutoresetMode.DISABLED and self._over.any():
            raise ShoalError("begin(observations, mask) the environments that were reset, then add")
        if not self._last.any():
            raise ShoalError("call begin(observations) first, with what reset returned")
        # NEXT_STEP: after the end of an episode the next step is a reset, and its action was not used.
        self._append(parts, acted, rewards, ended, cut, every, self._over | lost)
        self._over = done | lost  # which the next step, or the next reset, begins again
        self._records.sync()

    def _append(
        self,
        parts: list[NDArray[Any]],
        actions: list[NDArray[Any]] | None,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        envs: NDArray[np.int64],
        first: bool | NDArray[np.bool_],
    ) -> None:
        count, whole = len(envs), len(envs) == self.num_envs
        rows = self._records.empty(count)
        for name, part in zip(self._obs, parts, strict=True):
            rows[name] = part if whole else part[envs]
        for name, part in zip(self._action, actions or [rows[name] for name in self._action], strict=True):
            rows[name] = part if actions is not None else np.zeros_like(part)
        for name, part in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
            rows[name] = np.zeros(count, self.fields[name][0]) if part is None else part
        rows[_FIRST] = np.full(count, first) if isinstance(first, bool) else first
        rows[_PREVIOUS] = self._last[envs]
        ids = np.asarray(self._extended(rows, self._records.store), np.uint64)  # synced with its links
        linked = rows[_PREVIOUS] > 0
        self._next[(rows[_PREVIOUS][linked] - 1) % self.capacity] = ids[linked] + 1
        self._last[envs] = ids + 1

    def _parts(self, kind: str, value: Any) -> list[NDArray[Any]]:
        """A batched value's arrays, in the order of the fields."""
        names = self._obs if kind == "obs" else self._action
        found = _flat(kind, value)
        if set(found) != set(names):
            raise SpaceError(f"expected the parts {names}, found {sorted(found)}")
        parts = [self._converted(name, found[name]) for name in names]
        for name, part in zip(names, parts, strict=True):
            if len(part) != self.num_envs:
                raise SpaceError(
                    f"{name}: expected {self.num_envs} rows, one per environment, not {len(part)}"
                )
        return parts

    def _with_finals(
        self, parts: list[NDArray[Any]], done: NDArray[np.bool_], infos: Mapping[str, Any]
    ) -> list[NDArray[Any]]:
        if not done.any():
            return parts
        if "final_obs" not in infos:
            raise SpaceError('autoreset_mode SAME_STEP needs the infos of the step: they have no "final_obs"')
        whole = [part.copy() for part in parts]
        for env in np.flatnonzero(done):
            final = _flat("obs", infos["final_obs"][env])
            for name, part in zip(self._obs, whole, strict=True):
                part[env] = final[name]
        return whole

    # -- reading --------------------------------------------------------------------------------------

    def sample(self, n: int, out: Mapping[str, NDArray[Any]] | None = None, *, stack: int = 1) -> Batch:
        """`n` transitions: obs, action, reward, next_obs, terminated, truncated.

        With `stack`, an observation is that many, oldest first, the first of an episode repeated.
        """
        if out is not None:
            raise TypeError("out is for buffers of plain rows")
        return self._gathered(n, super().sample, partial(self._transitions, stack=_positive("stack", stack)))

    def sample_n_step(self, n: int, steps: int, gamma: float, *, stack: int = 1) -> Batch:
        """`n` transitions over up to `steps` steps, fewer where an episode or what is stored ends.

        `reward` is the discounted sum; `next_obs`, `terminated` and `truncated` are those of the last step;
        `discount` is what to multiply the value of `next_obs` with: gamma ** (steps taken).
        """
        complete = partial(
            self._n_steps, steps=_positive("steps", steps), gamma=gamma, stack=_positive("stack", stack)
        )
        return self._gathered(n, super().sample, complete)

    def sample_sequences(self, n: int, length: int, *, across_episodes: bool = False) -> Batch:
        """`n` stretches of up to `length` consecutive rows, [n, length, ...], `mask` says which are there.

        Row t holds `obs`, and `action`, `reward` and flags of the step that led to it; `first` marks the
        first of an episode, which no step led to. Without `across_episodes` a stretch ends with its episode.
        """
        length, n = _positive("length", length), _positive("n", n)
        ids = np.empty(n, np.uint64)
        if self._records.ring.sample(self._rng, n, (None,) * len(self.fields), ids) < n:
            raise ValueError("cannot sample from an empty buffer; push something first")
        names = tuple(name for name in self.fields if name != _PREVIOUS)
        whole = {name: np.zeros((n, length, *shape), dtype) for name, (dtype, shape) in self.fields.items()}
        mask = np.zeros((n, length), np.bool_)
        at, places = ids, np.arange(n)
        for t in range(length):
            values, keep = self._read(at, names)
            if t > 0 and not across_episodes:
                keep &= ~values[_FIRST]
            places, at = places[keep], at[keep]
            for name in names:
                whole[name][places, t] = values[name][keep]
            mask[places, t] = True
            at, there = self._after(at)
            at, places = at[there], places[there]
            if not len(at):
                break
        batch = Batch({name: whole[name] for name in names})
        batch["mask"], batch.ids = mask, ids
        return batch

    # -- inside ---------------------------------------------------------------------------------------

    def _prioritized(self, n: int, draw: Callable[[int], PrioritizedBatch]) -> PrioritizedBatch:
        whole = self._gathered(n, draw, partial(self._transitions, stack=1))
        assert isinstance(whole, PrioritizedBatch)
        return whole

    def _gathered(
        self,
        n: int,
        draw: Callable[[int], Batch],
        complete: Callable[[Batch], tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]],
    ) -> Batch:
        """Draws rows and completes them; those that cannot be are drawn again."""
        rows = draw(n)
        whole, fine = complete(rows)
        wrong = np.flatnonzero(~fine)
        for _ in range(_TRIES):
            if not len(wrong):
                break
            more = draw(len(wrong))
            parts, fine = complete(more)
            places = wrong[fine]
            for name, part in parts.items():
                whole[name][places] = part[fine]
            rows.ids[places] = more.ids[fine]
            if isinstance(rows, PrioritizedBatch) and isinstance(more, PrioritizedBatch):
                rows.weights[places] = more.weights[fine]
            wrong = wrong[~fine]
        else:
            raise ValueError("there is no whole transition in the buffer; add some steps first")
        batch = type(rows)(whole)
        batch.__dict__.update(rows.__dict__)
        return batch

    def _transitions(self, rows: Batch, stack: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Rows with the observation before them; which are whole: not the first, predecessors still there."""
        fine = ~rows[_FIRST] & (rows[_PREVIOUS] > 0)
        earlier, there = self._stacked(np.where(fine, rows[_PREVIOUS] - 1, 0), stack)
        whole: dict[str, NDArray[Any]] = dict(earlier)
        for name in self._obs:
            later = rows[name]
            if stack > 1:
                later = np.concatenate([earlier[name][:, 1:], later[:, None]], axis=1)
            whole[name.replace("obs", "next_obs", 1)] = later
        for name in (*self._action, "reward", "terminated", "truncated"):
            whole[name] = rows[name]
        return whole, fine & there

    def _n_steps(
        self, rows: Batch, steps: int, gamma: float, stack: int
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        whole, fine = self._transitions(rows, stack)
        total, at = rows["reward"].astype(np.float64), rows.ids.copy()
        discount = np.full(len(at), float(gamma))
        going = np.flatnonzero(fine & ~rows["terminated"] & ~rows["truncated"])
        for _ in range(steps - 1):
            ids, there = self._after(at[going])
            going, ids = going[there], ids[there]
            if not len(going):
                break
            values, found = self._read(ids, ("reward", "terminated", "truncated", *self._obs))
            fine[going[~found]] = False
            at[going] = ids
            total[going] += discount[going] * values["reward"]
            discount[going] *= gamma
            for name in ("terminated", "truncated"):
                whole[name][going] = values[name]
            for name in self._obs if stack == 1 else ():
                whole[name.replace("obs", "next_obs", 1)][going] = values[name]
            going = going[found & ~values["terminated"] & ~values["truncated"]]
        if stack > 1:
            later, there = self._stacked(at, stack)
            fine &= there
            for name in self._obs:
                whole[name.replace("obs", "next_obs", 1)] = later[name]
        whole["reward"], whole["discount"] = total.astype(np.float32), discount.astype(np.float32)
        return whole, fine

    def _stacked(
        self, ids: NDArray[np.uint64], stack: int
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Observations of rows, with `stack` those before them too, oldest first; which are all there."""
        names = tuple(self._obs)
        values, fine = self._read(ids, (*names, _FIRST, _PREVIOUS))
        if stack == 1:
            return {name: values[name] for name in names}, fine
        whole = {name: np.repeat(values[name][:, None], stack, axis=1) for name in names}
        places, going = np.arange(len(ids)), fine & ~values[_FIRST]
        for back in range(1, stack):
            places, at = places[going], values[_PREVIOUS][going] - 1
            if not len(places):
                break
            values, found = self._read(at, (*names, _FIRST, _PREVIOUS))
            fine[places[~found]] = False
            for name in names:  # and all before it, until they are known to be others
                whole[name][places, : stack - back] = values[name][:, None]
            going = found & ~values[_FIRST]
        return whole, fine

    def _after(self, ids: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The rows after these, and which of them are known."""
        links = self._next[ids % self.capacity]
        after = np.where(links > 0, links - 1, 0).astype(np.uint64)
        values, found = self._read(after, (_PREVIOUS,))
        return after, (links > 0) & found & (values[_PREVIOUS] == ids + 1)

    def _read(
        self, ids: NDArray[np.uint64], names: tuple[str, ...]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Some fields of rows, and which rows are there."""
        ids = np.ascontiguousarray(ids, np.uint64)
        columns = self._records.columns
        values = {name: np.zeros((len(ids), *columns[name].shape), columns[name].dtype) for name in names}
        found = np.zeros(len(ids), np.bool_)
        if len(ids):
            out = tuple(values.get(name) for name in columns)
            self._records.ring.fetch(ids, out, found.view(np.uint8))
        return values, found


def _fields(kind: str, space: Space[Any]) -> dict[str, FieldSpec]:
    declaration = Declaration()
    declaration.space(space, kind, 1)
    return {name: (dtype, tuple(shape)[1:]) for name, (dtype, shape) in declaration.fields.items()}


def _flat(path: str, value: Any) -> dict[str, Any]:
    """The arrays of a nested value, by path."""
    if isinstance(value, Mapping):
        return {n: p for key, item in value.items() for n, p in _flat(f"{path}/{key}", item).items()}
    if isinstance(value, tuple):
        return {n: p for i, item in enumerate(value) for n, p in _flat(f"{path}/{i}", item).items()}
    return {path: value}


def _checked(capacity: Any) -> int:
    if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)):
        raise TypeError(f"capacity must be an int, got {type(capacity).__name__}: {capacity!r}")
    if not 1 <= capacity < 2**40:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    return int(capacity)


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)
