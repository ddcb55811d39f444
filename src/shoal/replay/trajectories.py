"""Rows of a vector environment, linked into trajectories: transitions, n-step returns, sequences, stacks.

    row j:  obs j | action, reward, flags of the step that led to it | previous row | first of an episode?
            next [capacity]: the row after it, beside the records

An observation is stored once: the next observation of a transition is that of the row itself, the one before
it that of the previous row. So the true last observation of every episode is kept. A link is an id, and ids
are never used again: what a link leads to is that row or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError, SpaceError
from shoal.replay.arguments import checked_capacity, checked_count, checked_fraction
from shoal.replay.batches import Batch, empty, put
from shoal.replay.buffer import Draw, ReplayBuffer
from shoal.replay.fields import by_field, space_fields
from shoal.replay.links import FIRST, PREVIOUS, Links
from shoal.replay.records import Durability, Records, records_for

__all__ = ["TrajectoryBuffer"]

_TRIES = 10_000


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
            "reward": (np.float32, ()),
            "terminated": (np.bool_, ()),
            "truncated": (np.bool_, ()),
            FIRST: (np.bool_, ()),
            PREVIOUS: (np.uint64, ()),
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

    def _begin(self, records: Records, seed: int | None) -> None:
        super()._begin(records, seed)
        self.num_envs = int(records.facts["num_envs"])
        self.autoreset_mode = AutoresetMode[records.facts["autoreset_mode"]]
        self._links = Links(records)
        self._last = np.zeros(self.num_envs, np.uint64)  # each environment's newest row, its id + 1
        self._over = np.ones(self.num_envs, np.bool_)  # nothing to continue
        self._raised = np.zeros(self.num_envs, np.bool_)  # SAME_STEP: whose next row is a reset's
        self._any_raised = False
        self._obs = [name for name in self.fields if name.split("/")[0] == "obs"]
        self._action = [name for name in self.fields if name.split("/")[0] == "action"]
        self._sampled, self._raw = self._transition(1), False
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
        self._any_raised = bool(self._raised.any())
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
        if self._obs != ["obs"] or self._action != ["action"]:
            return None
        names = list(self.fields)
        parts = ("obs", "action", "reward", "terminated", "truncated", FIRST, PREVIOUS)
        return _core.Steps(
            self._ring,
            self._records.segment["next"],
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
        self._links.set(rows[PREVIOUS], ids)
        self._last[envs] = ids + 1

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
        specs = self._sampled if checked_count("stack", stack) == 1 else self._transition(stack)
        fill = partial(self._fill_steps, stack=stack)
        return self._outputs.filled(Batch, n, specs, out, device, fill)

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
        discount = checked_fraction("gamma", gamma)
        specs = self._transition(checked_count("stack", stack)) | {"discount": (np.dtype(np.float32), ())}
        fill = partial(self._fill_steps, stack=stack, steps=checked_count("steps", steps), gamma=discount)
        return self._outputs.filled(Batch, n, specs, out, device, fill)

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
        length = checked_count("length", length)
        specs = {
            name: (dtype, (length, *shape))
            for name, (dtype, shape) in self.fields.items()
            if name != PREVIOUS
        }
        specs["mask"] = np.dtype(np.bool_), (length,)
        fill = partial(self._fill_sequences, across=across_episodes)
        return self._outputs.filled(Batch, n, specs, out, device, fill)

    # -- inside ---------------------------------------------------------------------------------------

    def _transition(self, stack: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """What a transition holds."""
        frames = () if stack == 1 else (stack,)
        seen = {name: (self.fields[name][0], (*frames, *self.fields[name][1])) for name in self._obs}
        later = {f"next_{name}": spec for name, spec in seen.items()}
        rest = (*self._action, "reward", "terminated", "truncated")
        return {**seen, **later, **{name: self.fields[name] for name in rest}}

    def _fill(self, batch: Batch, draw: Draw | None = None) -> None:
        self._fill_steps(batch, draw)

    def _fill_steps(
        self,
        batch: Batch,
        draw: Draw | None = None,
        stack: int = 1,
        steps: int = 1,
        gamma: float | None = None,
    ) -> None:
        """Draws transitions; those that are not whole are drawn again."""
        attempt = partial(self._drawn_steps, draw=draw or self._draw, stack=stack, steps=steps, gamma=gamma)
        wrong = np.flatnonzero(~attempt(batch))
        if not len(wrong):
            return
        specs = {name: (array.dtype, array.shape[1:]) for name, array in batch.items()}
        for _ in range(_TRIES):
            more = empty(type(batch), len(wrong), specs)
            fine = attempt(more)
            put(batch, wrong[fine], more, fine)
            wrong = wrong[~fine]
            if not len(wrong):
                return
        raise ValueError("there is no whole transition in the buffer; add some steps first")

    def _drawn_steps(
        self, batch: Batch, draw: Draw, stack: int, steps: int, gamma: float | None
    ) -> NDArray[np.bool_]:
        """Fills a batch with transitions; which are whole: not the first, the rows they need still there."""
        n = len(batch.ids)
        first, previous = np.empty(n, np.bool_), np.empty(n, np.uint64)
        rows = {**batch, FIRST: first, PREVIOUS: previous}
        for name in self._obs:
            rows[name] = batch[f"next_{name}"] if stack == 1 else None
        draw(batch, tuple(rows[name] for name in self.fields))
        fine: NDArray[np.bool_] = ~first & (previous > 0)
        before = self._links.stacks(np.where(fine, previous - 1, 0), stack)
        fine &= self._links.gather(before, {name: batch[name] for name in self._obs})
        if gamma is not None:
            after = self._links.stacks(self._advanced(batch, fine, steps, gamma), stack)
        elif stack > 1:
            after = np.concatenate([before[:, 1:], batch.ids[:, None]], axis=1)
        else:
            return fine
        return fine & self._links.gather(after, {name: batch[f"next_{name}"] for name in self._obs})

    def _advanced(
        self, batch: Batch, fine: NDArray[np.bool_], steps: int, gamma: float
    ) -> NDArray[np.uint64]:
        """Sums up the rewards of further steps; the ids of the last."""
        total, at = batch["reward"].astype(np.float64), np.array(batch.ids)
        discount = np.full(len(at), float(gamma))
        flags = ("terminated", "truncated")
        going = np.flatnonzero(fine & ~batch["terminated"] & ~batch["truncated"])
        for _ in range(steps - 1):
            ids, there, values = self._links.after(at[going], ("reward", *flags))
            going = going[there]
            if not len(going):
                break
            at[going] = ids[there]
            total[going] += discount[going] * values["reward"][there]
            discount[going] *= gamma
            for name in flags:
                batch[name][going] = values[name][there]
            going = going[~batch["terminated"][going] & ~batch["truncated"][going]]
        batch["reward"][:], batch["discount"][:] = total, discount
        return at

    def _fill_sequences(self, batch: Batch, across: bool) -> None:
        self._draw(batch, (None,) * len(self.fields))
        mask = batch["mask"]
        n, length = mask.shape
        rows = np.repeat(batch.ids[:, None], length, axis=1)
        mask[:], mask[:, 0] = False, True
        at, places = batch.ids, np.arange(n)
        for t in range(1, length):
            at, there, _ = self._links.after(at, (), across=across)
            at, places = at[there], places[there]
            if not len(at):
                break
            rows[places, t], mask[places, t] = at, True
        stored = {name: array for name, array in batch.items() if name != "mask"}
        mask &= self._links.gather_each(rows, stored)
        np.logical_and.accumulate(mask, axis=1, out=mask)
        for array in stored.values():
            array[~mask] = 0
