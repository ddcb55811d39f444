"""Shoal's environments as a PettingZoo ParallelEnv, and PettingZoo environments as a vector environment.

ParallelEnv("Snake-v0")                    one C environment with several agents, as a ParallelEnv
make_vec(fn, 8)                            PettingZoo environments in worker processes, with a row per agent
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pettingzoo
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

import shoal.vector
from shoal.adapters.agent_rows import AgentRows, make_vec

__all__ = ["AgentRows", "ParallelEnv", "make_vec"]


class ParallelEnv(pettingzoo.ParallelEnv[str, Any, Any]):
    """A C environment as a PettingZoo ParallelEnv; the options are those of `shoal.make_vec`.

    In Shoal, an agent that ends while others continue is respawned in the same step. PettingZoo's agents end
    only once: here such an agent is absent until `reset`, and the respawned one takes `idle_action` in each
    step.
    """

    def __init__(self, env_id: str | Path, *, idle_action: Any = None, **options: Any) -> None:
        self._envs: Any = shoal.vector.make_vec(
            env_id, 1, backend="native", autoreset_mode="DISABLED", **options
        )
        self.possible_agents = [f"agent_{row}" for row in range(self._envs.num_envs)]
        self.agents: list[str] = []
        self._rows = {agent: row for row, agent in enumerate(self.possible_agents)}
        spaces = self._envs.single_observation_space, self._envs.single_action_space
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces[0])
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces[1])
        idle = create_empty_array(spaces[1], 1, np.zeros) if idle_action is None else [idle_action]
        self._idle = next(iter(iterate(batch_space(spaces[1], 1), idle)))
        self.render_mode = self._envs.render_mode
        self.metadata = {
            "name": str(env_id),
            "is_parallelizable": True,
            "render_fps": 10,
            **self._envs.metadata,
        }
        self._empty: Any = create_empty_array(spaces[1], len(self.possible_agents))

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode with every agent. `options` has no effect on environments in C."""
        observations, _ = self._envs.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._each(observations), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(f"expected an action for every agent, found none for {', '.join(missing)}")
        space = self._envs.single_action_space
        given = [actions[one] if one in self.agents else self._idle for one in self.possible_agents]
        stepped = self._envs.step(concatenate(space, given, self._empty))
        observations, rewards, terminated, truncated = (self._each(one) for one in stepped[:4])
        flags = [{agent: bool(one[agent]) for agent in self.agents} for one in (terminated, truncated)]
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not flags[0][agent] and not flags[1][agent]]
        return observations, {agent: float(one) for agent, one in rewards.items()}, *flags, infos

    def state(self) -> NDArray[np.float64]:
        """Returns all exported fields, flattened and joined in the order of `state_fields`."""
        fields = self._envs.state_arrays().values()
        if not fields:
            raise NotImplementedError(
                "this environment exports no state; implement the extension shoal.state/1 in it"
            )
        return np.concatenate([np.asarray(field, np.float64).ravel() for field in fields])

    @property
    def state_fields(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the fields in `state()`. Reset the environment first."""
        return {name: field.shape for name, field in self._envs.state_arrays().items()}

    def render(self) -> Any:
        return None if self.render_mode is None else self._envs.render_env(0)

    def close(self) -> None:
        self._envs.close()

    def _each(self, values: Any) -> dict[str, Any]:
        """Returns the rows of the agents that are present."""
        return {agent: _row(values, self._rows[agent]) for agent in self.agents}


def _row(values: Any, row: int) -> Any:
    return {key: one[row] for key, one in values.items()} if isinstance(values, dict) else values[row]
