"""PettingZoo's parallel environments in worker processes, as a vector environment with a row per agent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiBinary
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

import shoal.vector
from shoal.vector import VectorEnv

__all__ = ["AgentRows", "make_vec"]


def make_vec(fn: Callable[[], Any], num_envs: int = 1, **options: Any) -> AgentRows:
    """Makes `num_envs` PettingZoo parallel environments in worker processes, with a row per possible agent.

    `possible_agents` must be fixed, and all of them must have the same observation space and the same action
    space. The options are those of `shoal.make_vec` for Python environments.
    """
    envs = shoal.vector.make_vec(partial(_make_stacked, fn), num_envs, autoreset_mode="NEXT_STEP", **options)
    return AgentRows(envs)


class AgentRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment whose rows are agents; a world is one PettingZoo environment.

    An agent has row `world * agents_per_env + agent`. Worlds reset as a whole, in autoreset mode NEXT_STEP.
    An agent that ends before its world is absent until the world ends: `info["alive"]` is False, its
    observation and reward are 0, and `terminated` stays True, so that no value is bootstrapped from such
    rows. Infos of the environments are under the agents' names, and `info["fault"]` has an entry per world.
    """

    def __init__(self, envs: VectorEnv) -> None:
        self.envs = envs
        self.possible_agents: list[str] = list(envs.get_attr("possible_agents")[0])
        self.num_worlds, self.agents_per_env = envs.num_envs, len(self.possible_agents)
        self.num_envs = self.num_worlds * self.agents_per_env
        self.single_observation_space, self.single_action_space = envs.get_attr("single_spaces")[0]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = envs.render_mode

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Resets all worlds; a list of seeds has one seed per world."""
        results, info = self.envs.reset(seed=seed, options=options)
        rows = self._to_rows(results)
        return rows["observation"], {**info, "alive": rows["alive"] != 0}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        worlds = _reshape(actions, (self.num_envs,), (self.num_worlds, self.agents_per_env))
        results, _, _, faults, info = self.envs.step(worlds)  # only a fault truncates a world
        rows = self._to_rows(results)
        cut_off = (rows["truncated"] != 0) | np.repeat(faults, self.agents_per_env)
        flags = rows["terminated"] != 0, cut_off
        return rows["observation"], rows["reward"], *flags, {**info, "alive": rows["alive"] != 0}

    def render(self) -> Any:
        return self.envs.render()

    def close(self, **kwargs: Any) -> None:
        self.envs.close()

    def _to_rows(self, results: Any) -> Any:
        return _reshape(results, (self.num_worlds, self.agents_per_env), (self.num_envs,))


class _StackedEnv(gymnasium.Env[Any, Any]):
    """A parallel environment as one environment: its observation stacks the results of all agents."""

    def __init__(self, env: Any) -> None:
        self.env, self.possible_agents = env, list(env.possible_agents)
        self.metadata, self.render_mode = env.metadata, getattr(env, "render_mode", None)
        first, *others = self.possible_agents
        for of in (env.observation_space, env.action_space):
            for other in others:
                if of(other) != of(first):
                    both = f"{of(first)} of {first} and {of(other)} of {other}"
                    raise ValueError(
                        f"expected the same spaces for all agents, found {both}; make the spaces equal"
                    )
        self.single_spaces = env.observation_space(first), env.action_space(first)
        count = len(self.possible_agents)
        flags = {name: MultiBinary(count) for name in ("terminated", "truncated", "alive")}
        rewards = Box(-np.inf, np.inf, (count,), np.float64)
        seen = batch_space(self.single_spaces[0], count)
        self.observation_space = gymnasium.spaces.Dict({"observation": seen, "reward": rewards, **flags})
        self.action_space = batch_space(self.single_spaces[1], count)
        self._absent = next(iter(iterate(seen, create_empty_array(self.single_spaces[0], count))))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._pack(observations, {}, {}, {}, set(observations)), _drop_empty_infos(infos)

    def step(self, actions: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        living = set(self.env.agents)
        given = dict(zip(self.possible_agents, iterate(self.action_space, actions), strict=True))
        results = self.env.step({agent: given[agent] for agent in self.env.agents})
        observations, rewards, terminated, truncated, infos = results
        packed = self._pack(observations, rewards, terminated, truncated, living | set(observations))
        reward = float(sum(rewards.values()))
        return packed, reward, not self.env.agents, False, _drop_empty_infos(infos)

    def _pack(
        self, seen: dict[str, Any], rewards: Any, terminated: Any, truncated: Any, alive: set[str]
    ) -> dict[str, Any]:
        agents = self.possible_agents
        stacked: Any = create_empty_array(self.single_spaces[0], len(agents))
        rows = [seen.get(agent, self._absent) for agent in agents]
        ended = [terminated.get(agent, agent not in alive) for agent in agents]
        return {
            "observation": concatenate(self.single_spaces[0], rows, stacked),
            "reward": np.array([rewards.get(agent, 0.0) for agent in agents], np.float64),
            "terminated": np.array(ended, np.int8),
            "truncated": np.array([truncated.get(agent, False) for agent in agents], np.int8),
            "alive": np.array([agent in alive for agent in agents], np.int8),
        }

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _make_stacked(fn: Callable[[], Any]) -> _StackedEnv:
    return _StackedEnv(fn())


def _drop_empty_infos(infos: dict[str, Any]) -> dict[str, Any]:
    return {agent: info for agent, info in infos.items() if info}


def _reshape(value: Any, old: tuple[int, ...], new: tuple[int, ...]) -> Any:
    """Returns views of all arrays of a nested value, with `new` instead of `old` as the first dimensions."""
    if isinstance(value, dict):
        return {key: _reshape(one, old, new) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_reshape(one, old, new) for one in value)
    array = np.asarray(value)
    if array.shape[: len(old)] != old:
        raise ValueError(f"expected rows of shape {old}, found an array of shape {array.shape}")
    return array.reshape(new + array.shape[len(old) :])
