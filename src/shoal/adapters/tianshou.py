"""Shoal's environments as a Tianshou vector environment, and Tianshou's replay buffers in shared memory.

    make("CartPole-v1", 8)            # was: SubprocVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
    VectorReplayBuffer(20_000, 8)     # was: tianshou.data.VectorReplayBuffer(20_000, 8)

Tianshou resets an environment itself when its episode ends, so the autoreset mode is DISABLED. It may also
step only some of the environments. The others keep their state:

    in C        the adapter saves the state before the step, and restores it before the next use
    in Python   a wrapper in the worker returns the last observation (`shoal.adapters.held`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tianshou.env import BaseVectorEnv

from shoal.adapters.held import make_held
from shoal.adapters.infos import info_of_row
from shoal.adapters.tianshou_replay import (
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from shoal.errors import ShoalError
from shoal.native.plugin import bundled
from shoal.vector import VectorEnv as ShoalVectorEnv
from shoal.vector import arguments, make_vec

__all__ = [
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "VectorEnv",
    "VectorReplayBuffer",
    "make",
]

_IN_C = (".c", ".cc", ".cpp", ".so", ".dylib")
_SPACES = {"action_space": "single_action_space", "observation_space": "single_observation_space"}


def make(env: str | Path | EnvSpec | Callable[..., Any], num_envs: int = 1, **options: Any) -> VectorEnv:
    """Makes environments like `shoal.make_vec`, with autoreset mode DISABLED, for Tianshou."""
    mode = arguments.autoreset_mode(options.pop("autoreset_mode", AutoresetMode.DISABLED))
    if mode != AutoresetMode.DISABLED:
        raise ValueError(
            f'Tianshou needs autoreset_mode="DISABLED", got {mode.name}; leave autoreset_mode out'
        )
    if options.get("batch_size") is not None:
        raise ValueError("batch_size= is not for Tianshou's vector environment; leave it out")
    if not _is_in_c(env):
        taken = [name for name in ("max_episode_steps", "render_mode") if name in options]
        env = partial(make_held, env, **{name: options.pop(name) for name in taken})  # type: ignore[arg-type]
    envs = make_vec(env, num_envs, autoreset_mode=mode, **options)
    try:
        return VectorEnv(envs)
    except BaseException:
        envs.close()
        raise


def _is_in_c(env: Any) -> bool:
    path = str(env) if isinstance(env, (str, Path)) else ""
    return path.endswith(_IN_C) or path.startswith("puffer:") or path.removeprefix("shoal/") in bundled()


class VectorEnv(BaseVectorEnv):
    """Environments made with autoreset_mode="DISABLED", with Tianshou's methods."""

    def __init__(self, envs: ShoalVectorEnv) -> None:
        if not isinstance(envs, ShoalVectorEnv):
            raise TypeError(
                'VectorEnv takes what shoal.make_vec(..., autoreset_mode="DISABLED") returns, got '
                f"{type(envs).__name__}; shoal.adapters.tianshou.make(env, num_envs) makes both"
            )
        if envs.autoreset_mode != AutoresetMode.DISABLED:
            raise ValueError(
                'Tianshou resets environments itself; make them with autoreset_mode="DISABLED", not '
                f"{envs.autoreset_mode.name}, or by shoal.adapters.tianshou.make"
            )
        if envs.batch_size is not None or envs.buffers == "live":
            raise ValueError(
                'make the environments without batch_size= and with buffers="leased", the default'
            )
        if envs.agents_per_env > 1:
            raise ValueError(
                f"these environments have {envs.agents_per_env} agents each, and agents of one environment "
                "are reset together; this adapter is for environments with one agent"
            )
        # BaseVectorEnv.__init__ is not called, since it makes a worker for each environment.
        self.envs: Any = envs
        self.env_num = self.wait_num = envs.num_envs
        self.is_async, self.is_closed, self.timeout = False, False, None
        self.workers: list[Any] = []
        self.waiting_id: list[int] = []
        self.ready_id = list(range(self.env_num))
        self._spaces = {
            name: [deepcopy(getattr(envs, ours)) for _ in range(self.env_num)]
            for name, ours in _SPACES.items()
        }
        self._over = np.ones(self.env_num, np.bool_)  # needs a reset
        self._ended = np.ones(
            self.env_num, np.bool_
        )  # the same for `envs`, where paused environments continue
        self._held: dict[int, bytes | None] = {}
        self._actions: NDArray[Any] | None = None

    def __repr__(self) -> str:
        return f"<shoal.adapters.tianshou.VectorEnv of {self.envs!r}>"

    # -- stepping -------------------------------------------------------------------------------------

    def reset(self, env_id: Any = None, **kwargs: Any) -> tuple[Any, NDArray[Any]]:
        """Resets all environments, or `env_id`; returns the first observations and infos."""
        self._assert_is_not_closed()
        ids = self._parse_ids(env_id)
        self._release(ids)
        unknown = set(kwargs) - {"seed", "options"}
        if unknown:
            raise TypeError(f"reset has the keyword arguments seed and options, found {sorted(unknown)}")
        seed, options = kwargs.get("seed"), dict(kwargs.get("options") or {})
        if seed is not None and not isinstance(seed, (list, tuple)):
            seed = [int(seed)] * self.env_num  # like Tianshou, which gives each environment the same seed
        if len(ids) < self.env_num:
            mask = np.zeros(self.env_num, np.bool_)
            mask[ids] = True
            options["reset_mask"] = mask
        observations, infos = self.envs.reset(seed=seed, options=options or None)
        self._over[ids] = self._ended[ids] = False
        return _take_rows(observations, ids, self.env_num), self._split_infos(infos, ids, False)

    def step(self, action: Any, id: Any = None) -> tuple[Any, ...]:
        """Steps all environments, or those in `id`; the others keep their state."""
        self._assert_is_not_closed()
        ids = self._parse_ids(id)
        if action is None:
            raise ValueError("action must be an array with a row for each environment, got None")
        given = np.asarray(action.detach().cpu() if hasattr(action, "detach") else action)
        if given.ndim == 0 or len(given) != len(ids):
            raise ValueError(f"expected {len(ids)} actions, one for each id, found shape {given.shape}")
        if self._over[ids].any():
            over = ids[self._over[ids]].tolist()
            raise ShoalError(f"environments {over} need a reset before the next step: reset({over})")
        if len(ids) == self.env_num and (ids[:-1] < ids[1:]).all():
            self._release(ids)
            results = self.envs.step(given)
        else:
            self._hold(np.setdiff1d(np.arange(self.env_num), ids))
            self._release(ids)
            results = self.envs.step(self._scatter_actions(given, ids))
        observations, rewards, terminated, truncated, infos = results
        self._ended = terminated | truncated
        rewards, terminated, truncated = rewards[ids], terminated[ids], truncated[ids]
        self._over[ids] = terminated | truncated
        split = self._split_infos(infos, ids, True)
        return _take_rows(observations, ids, self.env_num), rewards, terminated, truncated, split

    def _parse_ids(self, given: Any) -> NDArray[np.int64]:
        if given is None:
            return np.arange(self.env_num)
        ids = np.atleast_1d(np.asarray(given))
        if ids.dtype.kind not in "iu" or ids.ndim != 1 or not len(ids):
            raise ValueError(f"id must be an int or a list of at least one int, got {given!r}")
        if ids.min() < 0 or ids.max() >= self.env_num or len(np.unique(ids)) != len(ids):
            raise ValueError(f"ids must be distinct and from 0 to {self.env_num - 1}, found {ids.tolist()}")
        return ids.astype(np.int64)

    def _scatter_actions(self, given: NDArray[Any], ids: NDArray[np.int64]) -> NDArray[Any]:
        """Returns actions for all environments; paused ones get any valid action."""
        if self._actions is None:
            space = self.envs.single_action_space
            first = np.asarray(getattr(space, "start", 0) if not space.shape else np.zeros(space.shape))
            if hasattr(space, "low"):
                first = np.clip(first, space.low, space.high)
            if hasattr(space, "nvec"):
                first = np.broadcast_to(space.start, space.shape)
            self._actions = np.broadcast_to(first, (self.env_num, *space.shape)).astype(space.dtype)
        whole = self._actions.astype(given.dtype)
        whole[ids] = given
        return whole

    def _split_infos(self, infos: Mapping[str, Any], ids: NDArray[np.int64], is_step: bool) -> NDArray[Any]:
        split = np.empty(len(ids), object)
        for place, row in enumerate(ids.tolist()):
            split[place] = info_of_row(infos, row) if infos else {}
            if is_step:
                split[place]["env_id"] = row
        return split

    # -- paused environments --------------------------------------------------------------------------

    def _hold(self, ids: NDArray[np.int64]) -> None:
        """Pauses environments: saves the state of those in C, since the next step would change it."""
        new = [env for env in ids.tolist() if env not in self._held]
        self._held.update({env: self._save_state(env) if self.envs.is_in_c else None for env in new})
        if new and not self.envs.is_in_c:
            self._send_held()
        if self._ended[ids].any():  # otherwise the step raises
            mask = np.isin(np.arange(self.env_num), ids) & self._ended
            self.envs.reset(options={"reset_mask": mask})
            self._ended[mask] = False

    def _save_state(self, env: int) -> bytes:
        if not self.envs.has_extension("shoal.checkpoint/1"):
            raise ShoalError(
                f"environment {env} is left out of this step, but this C environment cannot save its state "
                "(shoal.checkpoint/1); step all environments, or collect by steps, not by episodes"
            )
        data: bytes = self.envs.save_env(env)
        return data

    def _release(self, ids: NDArray[np.int64]) -> None:
        """Resumes paused environments with the state they had."""
        back = [env for env in ids.tolist() if env in self._held]
        for env in back:
            data = self._held.pop(env)
            if data is not None:
                self.envs.restore_env(env, data)
                self._ended[env] = self._over[env]
        if back and not self.envs.is_in_c:
            self._send_held()

    def _send_held(self) -> None:
        self.envs.set_attr("shoal_held", [env in self._held for env in range(self.env_num)])

    # -- single environments --------------------------------------------------------------------------

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """Returns an attribute of each environment; for environments in C, that of the vector environment."""
        self._assert_is_not_closed()
        if key in _SPACES:
            values = self._spaces[key]
        elif self.envs.is_in_c or key in ("metadata", "spec"):
            values = [getattr(self.envs, key)] * self.env_num
        else:
            values = list(self.envs.get_attr(key))
        return [values[env] for env in self._parse_ids(id)]

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Sets an attribute of environments in Python."""
        self._assert_is_not_closed()
        if self.envs.is_in_c:
            raise AttributeError(f"environments in C have no attributes to set, asked for {key!r}")
        ids = set(self._parse_ids(id).tolist())
        if len(ids) == self.env_num:
            self.envs.set_attr(key, [value] * self.env_num)
            return
        old = self.envs.get_attr(key)
        self.envs.set_attr(key, [value if env in ids else old[env] for env in range(self.env_num)])

    def seed(self, seed: int | list[int] | None = None) -> list[list[int] | None]:
        """Seeds the environments and their action spaces, and resets the environments, as Tianshou does."""
        self._assert_is_not_closed()
        if seed is None:
            return [None] * self.env_num
        seeds = [seed + env for env in range(self.env_num)] if isinstance(seed, int) else list(seed)
        if len(seeds) != self.env_num:
            raise ValueError(f"expected {self.env_num} seeds, one for each environment, found {len(seeds)}")
        for space, one in zip(self._spaces["action_space"], seeds, strict=True):
            space.seed(one)
        self.reset(seed=seeds)
        return [[one] for one in seeds]

    def render(self, **kwargs: Any) -> list[Any]:
        """Returns a picture of each environment."""
        self._assert_is_not_closed()
        return list(self.envs.render())

    def close(self) -> None:
        """Closes the environments."""
        self._assert_is_not_closed()
        self.envs.close()
        self.is_closed = True


def _take_rows(observations: Any, ids: NDArray[np.int64], count: int) -> Any:
    """Returns the observations of some environments; for all environments, the arrays themselves."""
    if isinstance(observations, tuple):
        raise TypeError("Tianshou does not support Tuple observations; use an array or a Dict space")
    if isinstance(observations, dict):
        rows = {key: _take_rows(value, ids, count) for key, value in observations.items()}
        each = np.empty(len(ids), object)
        for place in range(len(ids)):
            each[place] = {key: value[place] for key, value in rows.items()}
        return each
    whole = len(ids) == count and (ids[:-1] < ids[1:]).all()
    return observations if whole else observations[ids]
