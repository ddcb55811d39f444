"""Rows of a vector environment, linked into trajectories: transitions, n-step returns, sequences, stacks.

    row j:  obs j | action, reward, flags of the step that led to it | previous row | first of an episode?
            next [capacity]: the row after it, beside the records

An observation is stored once: the next observation of a transition is that of the row itself, the one before
it that of the previous row. So the true last observation of every episode is kept. A link is an id, and ids
are never used again: what a link leads to is that row or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import CorruptFileError, ShoalError, SpaceError
from shoal.replay.arguments import checked_capacity, checked_count, checked_fraction
from shoal.replay.batches import Batch
from shoal.replay.buffer import ReplayBuffer
from shoal.replay.fields import by_field, space_fields
from shoal.replay.links import FIRST, LINKED, PREVIOUS, links_of
from shoal.replay.records import Durability, Records, records_for
from shoal.replay.resume import Resumable
from shoal.replay.sampling import Part

__all__ = ["TrajectoryBuffer"]

_ENDS: tuple[tuple[str, Literal["obs", "next_obs"]], ...] = (("", "obs"), ("next_", "next_obs"))
"""Of a transition: before the names of the observations, and what they are."""


class TrajectoryBuffer(ReplayBuffer):
    """What vector environments did, sampled as transitions. Made by `ReplayBuffer.for_env`.

    >>> envs = shoal.make_vec("CartPole-v1", 8)
    >>> buffer = ReplayBuffer.for_env(envs, 1000)
    >>> buffer.begin(envs.reset(seed=0)[0])
    >>> for _ in range(20):
    ...     actions = envs.action_space.sample()
    ...     buffer.add(actions, *envs.step(actions))
    >>> list(buffer.sample(32))
    ['obs', 'next_obs', 'action', 'reward', 'terminated', 'truncated']
    >>> envs.close(), buffer.close()
    (None, None)
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
            **space_fields("obs", observation_space),
            **space_fields("action", action_space),
            **LINKED,
        }
        if checked_capacity(capacity) < 2 * num_envs:
            raise ValueError(
                f"capacity must be at least {2 * num_envs}, two rows for each of {num_envs} environments, "
                f"got {capacity}"
            )
        facts = {"num_envs": num_envs, "autoreset_mode": autoreset_mode.name}
        kind = records_for(durability, path)
        records = kind(checked_capacity(capacity), fields, path, links=True, facts=facts)
        self._begin(records, seed)
        self._keep_draws_beside(path, is_new=True)

    def _begin(self, records: Records, seed: int | None) -> None:
        self._obs = [name for name in records.columns if name.split("/")[0] == "obs"]
        self._action = [name for name in records.columns if name.split("/")[0] == "action"]
        super()._begin(records, seed)
        self.num_envs = int(records.facts["num_envs"])
        self.autoreset_mode = AutoresetMode[records.facts["autoreset_mode"]]
        self._last = np.zeros(self.num_envs, np.uint64)  # each environment's newest row, its id + 1
        self._over = np.ones(self.num_envs, np.bool_)  # nothing to continue
        self._raised = np.zeros(self.num_envs, np.bool_)  # SAME_STEP: whose next row is a reset's
        self._any_raised = False
        self._plain = self._plain_steps()

    # -- writing --------------------------------------------------------------------------------------

    def begin(self, observations: Any, mask: NDArray[np.bool_] | None = None) -> None:
        """First observations of new episodes, of all environments or those of `mask`: what reset returned.

        Also after steps whose results were not added: with the observations there are now.
        """
        if isinstance(observations, tuple) and len(observations) == 2 and isinstance(observations[1], dict):
            raise TypeError("begin takes the observations that reset returned, not the infos too: reset()[0]")
        which = np.ones(self.num_envs, np.bool_) if mask is None else np.asarray(mask, np.bool_)
        if which.shape != (self.num_envs,):
            raise ValueError(f"mask must have shape ({self.num_envs},), got {which.shape}")
        self._append(self._parts("obs", observations), None, None, None, None, np.flatnonzero(which), True)
        self._over[which] = self._raised[which] = False
        self._saved_episodes = {}
        self._any_raised = bool(self._raised.any())
        self._records.sync()

    def resume_episodes(self) -> None:
        """In place of `begin`: the episodes go on that were under way when the buffer was saved.

        Only for environments that were restored to where they were then: the next `add` is taken for the step
        that follows.
        """
        saved = self._saved_episodes
        if not saved:
            raise ShoalError(
                "nothing is known of episodes that go on: resume_episodes is for a buffer that load or open "
                "gave, before the first begin or add; call begin(observations)"
            )
        for name, array in (("last", self._last), ("over", self._over), ("raised", self._raised)):
            if name not in saved or saved[name].shape != array.shape or saved[name].dtype != array.dtype:
                raise CorruptFileError(f"what was saved of the episodes has no {name!r} for each environment")
        self._last[:], self._over[:], self._raised[:] = saved["last"], saved["over"], saved["raised"]
        self._any_raised = bool(self._raised.any())
        self._saved_episodes = {}

    def _resumable(self, token: str) -> Resumable:
        state = super()._resumable(token)
        state.episodes = {"last": self._last, "over": self._over, "raised": self._raised}
        return state

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

        Rows of a replaced worker, or of an environment that raised (`info["_fault"]`, also in
        `error.results`), begin an episode: what led to them is not known.
        """
        plain = None if self._any_raised else self._plain
        if infos:
            self._require_own_mode(infos)
            plain = None if "_fault" in infos else plain
        if plain is not None:
            if plain.add(actions, next_observations, rewards, terminated, truncated):
                if self._synced:
                    self._records.sync()
                return
        parts, acted = self._parts("obs", next_observations), self._parts("action", actions)
        rewards = self._converted("reward", rewards)
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
            last = self._with_finals(parts, done & ~self._raised, infos)
            self._append(last, acted, rewards, ended, cut, every, lost | self._raised)
            # An environment that raised is reset by the next step; one made anew has been already.
            self._raised = lost & ~np.asarray(infos.get("_final_obs", np.zeros(self.num_envs)), np.bool_)
            self._any_raised = bool(self._raised.any())
            if done.any():
                self._append(parts, None, None, None, None, np.flatnonzero(done), True)
            self._records.sync()
            return
        if self.autoreset_mode == AutoresetMode.DISABLED and self._over.any():
            raise ShoalError(
                f"the episodes of environments {np.flatnonzero(self._over).tolist()} are over: reset them, "
                "and call begin(observations, mask) with what that returned, then add"
            )
        if not self._last.any():
            raise ShoalError("call begin(observations) first, with what reset returned")
        # NEXT_STEP: after the end of an episode the next step is a reset, and its action was not used.
        self._append(parts, acted, rewards, ended, cut, every, self._over | lost)
        self._over[:] = done | lost  # which the next step, or the next reset, begins again
        self._records.sync()

    def _require_own_mode(self, infos: Mapping[str, Any]) -> None:
        if "final_obs" in infos and self.autoreset_mode != AutoresetMode.SAME_STEP:
            raise ShoalError(
                f"this buffer was made for environments with autoreset_mode {self.autoreset_mode.name}, and "
                'the infos have "final_obs", so these are SAME_STEP; make it with for_env of such ones'
            )

    def _plain_steps(self) -> _core.Steps | None:
        """Adds steps with nothing to be said of them, where observation and action are one array each."""
        if self._links is None or self._obs != ["obs"] or self._action != ["action"]:
            return None
        names = list(self.fields)
        parts = ("obs", "action", "reward", "terminated", "truncated", FIRST, PREVIOUS)
        return _core.Steps(
            self._links,
            self._last,
            self._over,
            [names.index(name) for name in parts],
            self.autoreset_mode == AutoresetMode.NEXT_STEP,
        )

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
        rows[FIRST] = np.full(count, first) if isinstance(first, bool) else first
        rows[PREVIOUS] = self._last[envs]
        ids = np.asarray(self._extended(rows), np.uint64)  # synced with its links
        assert self._links is not None
        self._links.set(rows[PREVIOUS], ids)  # which become the rows after those
        self._last[envs] = rows[PREVIOUS]

    def _parts(self, kind: str, value: Any) -> list[NDArray[Any]]:
        """A batched value's arrays, in the order of the fields."""
        names = self._obs if kind == "obs" else self._action
        found = dict(by_field(kind, value, names))
        if set(found) != set(names):
            raise SpaceError(f"expected the parts {names}, found {sorted(found)}")
        parts = [self._converted(name, found[name]) for name in names]
        for name, part in zip(names, parts, strict=True):
            if len(part) != self.num_envs:
                raise SpaceError(
                    f"{name}: expected {self.num_envs} rows, one for each environment that the buffer was "
                    f"made for, not {len(part)}; every process that adds to it steps as many"
                )
        return parts

    def _with_finals(
        self, parts: list[NDArray[Any]], done: NDArray[np.bool_], infos: Mapping[str, Any]
    ) -> list[NDArray[Any]]:
        if not done.any():
            return parts
        if "final_obs" not in infos:
            raise SpaceError(
                'the buffer was made for autoreset_mode SAME_STEP, and the infos have no "final_obs"; give '
                "add the infos of the step too, or make the buffer with for_env of the environments it is for"
            )
        whole = [part.copy() for part in parts]
        for env in np.flatnonzero(done):
            final = dict(by_field("obs", infos["final_obs"][env], self._obs))
            for name, part in zip(self._obs, whole, strict=True):
                part[env] = final[name]
        return whole

    # -- reading --------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        stack: int = 1,
        device: Any = None,
    ) -> Batch:
        """`n` transitions: obs, action, reward, next_obs, terminated, truncated.

        With `stack`, an observation is that many, oldest first, the first of an episode repeated. `out` and
        `device` are those of every buffer: arrays to fill, or where to have tensors.
        """
        if type(stack) is int and stack == 1:
            return super().sample(n, out, device=device)
        return self._ways.transitions(checked_count("stack", stack)).sample(n, out, device)

    def sample_n_step(
        self,
        n: int,
        steps: int,
        gamma: float,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        stack: int = 1,
        device: Any = None,
    ) -> Batch:
        """`n` transitions over up to `steps` steps, fewer where an episode or what is stored ends.

        `reward` is the discounted sum; `next_obs`, `terminated` and `truncated` are those of the last step;
        `discount` is what to multiply the value of `next_obs` with: gamma ** (steps taken).
        """
        way = self._ways.n_step(checked_count("stack", stack))
        taken, discount = checked_count("steps", steps), checked_fraction("gamma", gamma)
        return way.sample(n, out, device, taken, discount)

    def sample_sequences(
        self,
        n: int,
        length: int,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        across_episodes: bool = False,
        device: Any = None,
    ) -> Batch:
        """`n` stretches of up to `length` consecutive rows, [n, length, ...], `mask` says which are there.

        Row t holds `obs`, and `action`, `reward` and flags of the step that led to it; `first` marks the
        first of an episode, which no step led to. Without `across_episodes` a stretch ends with its episode.
        """
        way = self._ways.sequences(checked_count("length", length))
        return way.sample(n, out, device, 1, 1.0, bool(across_episodes))

    # -- inside ---------------------------------------------------------------------------------------

    def _linked(self) -> _core.Links:
        return links_of(self._records)

    def _parts_of(self, way: str, size: int) -> list[Part]:
        if way == "sequences":
            stored = [(name, *spec) for name, spec in self.fields.items() if name != PREVIOUS]
            rows = [Part(name, dtype, (size, *shape), "row", name) for name, dtype, shape in stored]
            return [*rows, Part("mask", np.dtype(np.bool_), (size,), "mask")]
        frames = () if size == 1 else (size,)
        parts = []
        for prefix, role in _ENDS:
            for name in self._obs:
                dtype, shape = self.fields[name]
                parts.append(Part(prefix + name, dtype, (*frames, *shape), role, name))
        for name in (*self._action, "reward", "terminated", "truncated"):
            parts.append(Part(name, *self.fields[name], "row", name))
        return [*parts, Part("discount", np.dtype(np.float32), (), "discount")] if way == "n_step" else parts
