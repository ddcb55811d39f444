"""EnvPool's interface for Shoal's environments. EnvPool need not be installed.

    import shoal.adapters.envpool as envpool  # was: import envpool

The autoreset mode is NEXT_STEP, as in EnvPool: the step after the end of an episode ignores its action, and
returns reward 0 and the first observation of the new episode.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.native.plugin import bundled, load
from shoal.vector import VectorEnv, make_vec

__all__ = ["EnvPool", "list_all_envs", "make", "make_gym", "make_gymnasium"]

_FIXED_ARGUMENTS = ("env", "vectorization_mode", "vector_kwargs", "autoreset_mode")
"""Arguments of make_vec that this interface fixes."""


def list_all_envs() -> list[str]:
    """Returns the ids that `make` takes: the bundled environments with one agent, then those of Gymnasium.

    >>> import shoal.adapters.envpool as envpool
    >>> envpool.list_all_envs()[:3]
    ['Acrobot-v1', 'CartPole-v1', 'MountainCar-v0']
    """
    native = [name for name, library in bundled().items() if load(library, {}).agents == 1]
    others = {name for name in gymnasium.registry if not name.startswith("shoal/")}
    return [*sorted(native), *sorted(others - set(bundled()))]


def make(
    task_id: str,
    env_type: str,
    *,
    num_envs: int = 1,
    batch_size: int = 0,
    num_threads: int = 0,
    seed: int | Sequence[int] | NDArray[np.integer[Any]] = 42,
    thread_affinity_offset: int = -1,
    gym_reset_return_info: bool = True,
    **options: Any,
) -> EnvPool:
    """Makes environments like `envpool.make`, from any id that `shoal.make_vec` takes.

    For Python environments, `num_threads` is the number of worker processes. `thread_affinity_offset` has no
    effect: the operating system assigns the cores. Other keywords are arguments of `make_vec` or options of
        the
    environment; unknown ones raise TypeError.
    """
    if env_type not in ("gym", "gymnasium"):
        raise ValueError(f'env_type must be "gym" or "gymnasium" (they are the same), got {env_type!r}')
    if not gym_reset_return_info:
        raise ValueError(
            "gym_reset_return_info must be True: reset returns observations and info; leave it out"
        )
    _require_known_options(task_id, options)
    if num_threads:
        native = task_id.removeprefix("shoal/") in bundled() and options.get("backend") != "process"
        options["num_threads" if native else "num_workers"] = num_threads
    batch = None if batch_size in (0, num_envs) else batch_size
    envs = make_vec(task_id, num_envs, batch_size=batch, autoreset_mode="NEXT_STEP", **options)
    known = envs.spec or gymnasium.registry.get(task_id) or gymnasium.registry.get(f"shoal/{task_id}")
    config = {
        "max_episode_steps": None if known is None else known.max_episode_steps,
        "reward_threshold": None if known is None else known.reward_threshold,
        "thread_affinity_offset": thread_affinity_offset,
        "gym_reset_return_info": gym_reset_return_info,
        **options,
        "num_envs": num_envs,
        "batch_size": batch_size or num_envs,
        "num_threads": num_threads,
        "seed": np.asarray(seed).tolist(),
    }
    if envs.agents_per_env > 1:
        envs.close()
        raise ValueError(
            f"{task_id} has several agents; this interface is for environments with one; use shoal.make_vec"
        )
    return EnvPool(envs, config, task_id)


make_gymnasium = make_gym = partial(make, env_type="gymnasium")


def _require_known_options(task_id: str, options: Mapping[str, Any]) -> None:
    """Raises TypeError for options that neither `make`, nor make_vec, nor the environment has."""
    here = set(signature(make).parameters) - {"task_id", "env_type", "options"}
    known = here | set(signature(make_vec).parameters) - {*_FIXED_ARGUMENTS, "options"}
    unknown = set(options) - known
    of_env = _list_options(task_id) if unknown else ()
    if of_env is None or unknown <= set(of_env):
        return
    wrong = sorted(unknown - set(of_env))
    close = [match for name in wrong for match in get_close_matches(name, {*known, *of_env}, 1)]
    advice = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
    raise TypeError(
        f"{task_id} has no option {', '.join(map(repr, wrong))}; its own options are {sorted(of_env)}, and "
        f"those of every environment {sorted(known)}{advice}"
    )


def _list_options(task_id: str) -> Sequence[str] | None:
    """Returns the names of the environment's own options, or None if only making it can tell."""
    library = bundled().get(task_id.removeprefix("shoal/"))
    if library is not None:
        return list(load(library, {}).options)
    spec = gymnasium.registry.get(task_id)
    if spec is None or spec.entry_point is None:
        return None
    try:
        creator: Any = spec.entry_point
        creator = (
            gymnasium.envs.registration.load_env_creator(creator) if isinstance(creator, str) else creator
        )
        parameters = signature(creator).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        return None  # making it raises a clear error
    if any(parameter.kind == Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return [*parameters, "disable_env_checker"]


class EnvPool(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environments with EnvPool's methods, made by `make`. Its spaces are those of a single environment."""

    def __init__(self, envs: VectorEnv, config: dict[str, Any], task_id: str) -> None:
        self.envs, self.config, self._task_id = envs, config, task_id
        self.num_envs, self.metadata, self.render_mode = envs.num_envs, envs.metadata, envs.render_mode
        self.observation_space = self.single_observation_space = envs.single_observation_space
        self.action_space = self.single_action_space = envs.single_action_space
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        threshold = config["reward_threshold"]
        self.spec: Any = SimpleNamespace(
            config=SimpleNamespace(**config), reward_threshold=threshold, **spaces
        )
        self.is_async = envs.batch_size is not None
        self.all_env_ids = np.arange(self.num_envs, dtype=np.int32)
        self._seed: Any = config["seed"]
        self._elapsed = np.zeros(self.num_envs, np.int32)
        self._ended = np.ones(self.num_envs, np.bool_)  # the next result is the first of an episode
        self._stepping, self._results = False, cast(Any, None)

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.config.items())
        return f"EnvPool({self._task_id!r}, {settings})"

    __str__ = __repr__

    def async_reset(self) -> None:
        """Resets every environment; `recv` returns their first observations."""
        seed, self._seed = self._seed, None  # later resets continue the same generators
        if self.is_async:
            self.envs.async_reset(seed)
        else:
            self._require_nothing_sent("async_reset")
            observations, info = self.envs.reset(seed=seed)
            zeros = np.zeros(self.num_envs)
            self._results = observations, zeros, zeros != 0, zeros != 0, info
        self._ended[:] = True

    def send(self, action: Any, env_id: Any = None) -> None:
        """Sends actions to the environments `env_id`, or to all."""
        if isinstance(action, Mapping) and not isinstance(self.action_space, gymnasium.spaces.Dict):
            action, env_id = action["action"], action.get("env_id", env_id)
        if self.is_async:
            self.envs.send(action, self.all_env_ids if env_id is None else env_id)
            return
        self._require_nothing_sent("send")
        if env_id is not None:
            action = self._sort_actions(action, np.asarray(env_id))
        if self.envs.backend == "process":
            self.envs.step_async(action)
            self._stepping = True
        else:
            self._results = self.envs.step(action)

    def recv(self, reset: bool = False, return_info: bool = True) -> Any:
        """Returns the results of the first `batch_size` environments that are ready; see `info["env_id"]`."""
        if self.is_async:
            results = self.envs.recv()
        elif self.envs.backend == "process" and self._stepping:
            self._stepping = False
            results = self.envs.step_wait()
        elif self._results is not None:
            results, self._results = self._results, None
        else:
            raise ShoalError("recv has no results to return: call async_reset() or send() first")
        observations, rewards, terminated, truncated, info = results
        ids = info["env_id"].astype(np.int32) if self.is_async else self.all_env_ids.copy()
        self._elapsed[ids] = np.where(self._ended[ids], 0, self._elapsed[ids] + 1)
        self._ended[ids] = terminated | truncated
        info = {**info, **self._make_info(ids)}
        if reset:
            return observations, info
        return observations, rewards.astype(np.float32), terminated, truncated, info

    def step(self, action: Any, env_id: Any = None) -> Any:
        """Calls `send`, then `recv`."""
        try:
            self.send(action, env_id)
        except ResetNeeded:
            raise ResetNeeded("call reset() before step()") from None
        return self.recv()

    def reset(self, env_id: Any = None, *, seed: Any = None, options: Any = None) -> Any:
        """Resets all environments, or `env_id`; returns their first observations and the info."""
        if seed is not None:
            warnings.warn("reset(seed=) has no effect: EnvPool is seeded by make(..., seed=)", stacklevel=2)
        if options and options.get("reset_mask") is not None:
            env_id = np.flatnonzero(options["reset_mask"])
        if env_id is None:
            self.async_reset()
            return self.recv(reset=True)
        if self.is_async or self._seed is not None:
            raise ShoalError(
                "the first reset, and every reset with batch_size, resets all environments: use reset()"
            )
        self._require_nothing_sent("reset")
        ids = np.asarray(env_id, np.int32)
        results = self.envs.reset(options={"reset_mask": np.isin(self.all_env_ids, ids)})
        self._elapsed[ids], self._ended[ids] = 0, False
        observations, info = _take_rows(results, ids)
        return observations, {**info, **self._make_info(ids)}

    def render(self, env_ids: Any = 0) -> NDArray[np.uint8]:  # type: ignore[override]
        """Returns pictures of the environments `env_ids`, [environments, height, width, 3]."""
        frames: Any = self.envs.render()
        return np.stack([frames[int(env)] for env in np.atleast_1d(env_ids)])

    def close(self, **kwargs: Any) -> None:
        self.envs.close()

    def _make_info(self, ids: NDArray[np.int32]) -> dict[str, Any]:
        return {"env_id": ids, "players": {"env_id": ids}, "elapsed_step": self._elapsed[ids]}

    def _require_nothing_sent(self, name: str) -> None:
        if self._stepping or self._results is not None:
            raise ShoalError(f"{name}: results are waiting; recv() them first")

    def _sort_actions(self, action: Any, ids: NDArray[Any]) -> Any:
        """Returns the actions of all environments, sorted by environment."""
        if not np.array_equal(np.sort(ids), self.all_env_ids):
            expected = f"env_id must be each of {self.num_envs} environments once, found {ids.tolist()}"
            raise ShoalError(f"{expected}; to step some at a time, make them with batch_size=")
        return _take_rows(action, np.argsort(ids))


def _take_rows(value: Any, ids: NDArray[Any]) -> Any:
    """Returns these rows of every array of a nested value."""
    if isinstance(value, Mapping):
        return {key: _take_rows(one, ids) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_take_rows(one, ids) for one in value)
    return np.asarray(value)[ids]
