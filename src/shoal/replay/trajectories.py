"""Rows of a vector environment, linked into trajectories: transitions, n-step returns, sequences, stacks.

    row j:  obs j | action, reward, flags of the step that led to it | previous row | first of an episode?
            next [capacity]: the row after it, stored outside the records

Each observation is stored once. In a transition, `next_obs` is the observation of the row itself, and `obs`
is that of the previous row. So the true last observation of every episode is stored. A link is an id, and ids
are never reused, so a link finds the right row or none.
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
from shoal.replay.arguments import require_capacity, require_count, require_fraction
from shoal.replay.batches import Batch
from shoal.replay.buffer import ReplayBuffer
from shoal.replay.fields import space_fields, split_by_field
from shoal.replay.links import FIRST, LINKED, PREVIOUS, make_links
from shoal.replay.records import Durability, Records, choose_records
from shoal.replay.resume import Resumable
from shoal.replay.sampling import Part

__all__ = ["TrajectoryBuffer"]

_ENDS: tuple[tuple[str, Literal["obs", "next_obs"]], ...] = (("", "obs"), ("next_", "next_obs"))
"""The observations of a transition: the prefix of their names, and their role."""


class TrajectoryBuffer(ReplayBuffer):
    """The steps of a vector environment, sampled as transitions. `ReplayBuffer.for_env` makes it.

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
        if require_capacity(capacity) < 2 * num_envs:
            raise ValueError(
                f"capacity must be at least {2 * num_envs}, two rows for each of {num_envs} environments, "
                f"got {capacity}"
            )
        facts = {"num_envs": num_envs, "autoreset_mode": autoreset_mode.name}
        kind = choose_records(durability, path)
        records = kind(require_capacity(capacity), fields, path, links=True, facts=facts)
        self._begin(records, seed)
        self._keep_draws(path, is_new=True)

    def _begin(self, records: Records, seed: int | None) -> None:
        self._obs = [name for name in records.columns if name.split("/")[0] == "obs"]
        self._action = [name for name in records.columns if name.split("/")[0] == "action"]
        super()._begin(records, seed)
        self._n_step_plan = self._samplings.n_step(1).plan  # kept, as `_plan` is
        self.num_envs = int(records.facts["num_envs"])
        self.autoreset_mode = AutoresetMode[records.facts["autoreset_mode"]]
        self._last = np.zeros(self.num_envs, np.uint64)  # the id + 1 of each environment's newest row
        self._over = np.ones(self.num_envs, np.bool_)  # the episode is over or has not begun
        self._raised = np.zeros(
            self.num_envs, np.bool_
        )  # SAME_STEP: the environment raised, so its next row starts an episode
        self._any_raised = False
        self._plain = self._make_plain_steps()

    # -- writing --------------------------------------------------------------------------------------

    def begin(self, observations: Any, mask: NDArray[np.bool_] | None = None) -> None:
        """Starts new episodes with the observations of a reset, of all environments or those in `mask`.

        Call it also after steps that you did not add, with the current observations.
        """
        if isinstance(observations, tuple) and len(observations) == 2 and isinstance(observations[1], dict):
            raise TypeError("begin takes the observations of reset without the infos: begin(envs.reset()[0])")
        which = np.ones(self.num_envs, np.bool_) if mask is None else np.asarray(mask, np.bool_)
        if which.shape != (self.num_envs,):
            raise ValueError(f"mask must have shape ({self.num_envs},), got {which.shape}")
        self._append(self._parts("obs", observations), None, None, None, None, np.flatnonzero(which), True)
        self._over[which] = self._raised[which] = False
        self._saved_episodes = {}
        self._any_raised = bool(self._raised.any())
        self._records.sync()

    def resume_episodes(self) -> None:
        """Continues the episodes that were unfinished when the buffer was saved, instead of `begin`.

        Use it only if the environments were restored to the state they had then: the next `add` must be the
        step that follows.
        """
        saved = self._saved_episodes
        if not saved:
            raise ShoalError(
                "there are no saved episodes: resume_episodes is for a buffer that load or open returned, "
                "before the first begin or add; call begin(observations)"
            )
        for name, array in (("last", self._last), ("over", self._over), ("raised", self._raised)):
            if name not in saved or saved[name].shape != array.shape or saved[name].dtype != array.dtype:
                raise CorruptFileError(
                    f"the saved episodes are damaged: expected {name!r} with a value for each environment"
                )
        self._last[:], self._over[:], self._raised[:] = saved["last"], saved["over"], saved["raised"]
        self._any_raised = bool(self._raised.any())
        self._saved_episodes = {}

    def _capture_state(self, token: str) -> Resumable:
        state = super()._capture_state(token)
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
        """Adds one step of all environments: the actions, and the results of `step` unchanged.

        A row of a replaced worker, or of an environment that raised (`info["_fault"]`, also in
        `error.results`), starts an episode, since the step that led to it is unknown.
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
        rewards = self._convert("reward", rewards)
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
                raise ShoalError("call begin(observations) first, with the observations that reset returned")
            last = self._replace_finals(parts, done & ~self._raised, infos)
            self._append(last, acted, rewards, ended, cut, every, lost | self._raised)
            # The next step resets an environment that raised; a replaced one has been reset already.
            self._raised = lost & ~np.asarray(infos.get("_final_obs", np.zeros(self.num_envs)), np.bool_)
            self._any_raised = bool(self._raised.any())
            if done.any():
                self._append(parts, None, None, None, None, np.flatnonzero(done), True)
            self._records.sync()
            return
        if self.autoreset_mode == AutoresetMode.DISABLED and self._over.any():
            raise ShoalError(
                f"the episodes of environments {np.flatnonzero(self._over).tolist()} are over: reset them, "
                "call begin(observations, mask) with the observations that reset returned, then add"
            )
        if not self._last.any():
            raise ShoalError("call begin(observations) first, with the observations that reset returned")
        # NEXT_STEP: after the end of an episode the next step is a reset, and its action was not used.
        self._append(parts, acted, rewards, ended, cut, every, self._over | lost)
        self._over[:] = done | lost  # the next step or the next reset starts a new episode
        self._records.sync()

    def _require_own_mode(self, infos: Mapping[str, Any]) -> None:
        if "final_obs" in infos and self.autoreset_mode != AutoresetMode.SAME_STEP:
            raise ShoalError(
                f"this buffer was made for environments with autoreset_mode {self.autoreset_mode.name}, but "
                'the infos have "final_obs", so these are SAME_STEP; make the buffer with for_env(envs, '
                "capacity)"
            )

    def _make_plain_steps(self) -> _core.Steps | None:
        """Returns the fast path of `add`, if the observation and the action are one array each."""
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
        ids = np.asarray(self._extend_unsynced(rows), np.uint64)  # the caller syncs after the links are set
        assert self._links is not None
        self._links.set(rows[PREVIOUS], ids)  # changes rows[PREVIOUS] to the new rows
        self._last[envs] = rows[PREVIOUS]

    def _parts(self, kind: str, value: Any) -> list[NDArray[Any]]:
        """Returns the arrays of a batched value in the order of the fields."""
        names = self._obs if kind == "obs" else self._action
        found = dict(split_by_field(kind, value, names))
        if set(found) != set(names):
            raise SpaceError(f"expected the parts {names}, found {sorted(found)}; nothing stored")
        parts = [self._convert(name, found[name]) for name in names]
        for name, part in zip(names, parts, strict=True):
            if len(part) != self.num_envs:
                raise SpaceError(
                    f"{name}: expected {self.num_envs} rows, one for each environment that the buffer was "
                    f"made for, found {len(part)}; each process that adds to it must step that many"
                )
        return parts

    def _replace_finals(
        self, parts: list[NDArray[Any]], done: NDArray[np.bool_], infos: Mapping[str, Any]
    ) -> list[NDArray[Any]]:
        if not done.any():
            return parts
        if "final_obs" not in infos:
            raise SpaceError(
                'the buffer was made for autoreset_mode SAME_STEP, but the infos have no "final_obs"; pass '
                "the infos of the step to add, or make the buffer with for_env(envs, capacity)"
            )
        whole = [part.copy() for part in parts]
        for env in np.flatnonzero(done):
            final = dict(split_by_field("obs", infos["final_obs"][env], self._obs))
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
        """Returns `n` transitions: obs, action, reward, next_obs, terminated, truncated.

        With `stack`, an observation is a stack of that many frames, oldest first; before the start of an
        episode, its first frame is repeated. `out` and `device` are those of `ReplayBuffer.sample`.
        """
        if type(stack) is int and stack == 1:
            return super().sample(n, out, device=device)
        return self._samplings.transitions(require_count("stack", stack)).sample(n, out, device)

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
        """Returns `n` transitions over up to `steps` steps, fewer at the end of an episode or of the buffer.

        `reward` is the discounted sum of rewards. `next_obs`, `terminated` and `truncated` are those of the
        last step. `discount`, gamma ** (steps taken), is the factor for the value of `next_obs`.
        """
        taken, discount = require_count("steps", steps), require_fraction("gamma", gamma)
        if out is None and device is None and type(stack) is int and stack == 1:
            batch: Batch | None = self._n_step_plan.lease(self._draws.words, n, taken, discount)
            if batch is not None:
                return batch
        sampling = self._samplings.n_step(require_count("stack", stack))
        return sampling.sample(n, out, device, taken, discount)

    def sample_sequences(
        self,
        n: int,
        length: int,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        across_episodes: bool = False,
        device: Any = None,
    ) -> Batch:
        """Returns `n` sequences of up to `length` rows, [n, length, ...]; `mask` marks the valid rows.

        Row t holds `obs`, and the `action`, `reward` and flags of the step that led to it. `first` marks the
        first row of an episode, which has no such step. Without `across_episodes`, a sequence ends with its
        episode.
        """
        sampling = self._samplings.sequences(require_count("length", length))
        return sampling.sample(n, out, device, 1, 1.0, bool(across_episodes))

    # -- inside ---------------------------------------------------------------------------------------

    def _make_links(self) -> _core.Links:
        return make_links(self._records)

    def _list_parts(self, kind: str, size: int) -> list[Part]:
        if kind == "sequences":
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
        return [*parts, Part("discount", np.dtype(np.float32), (), "discount")] if kind == "n_step" else parts
