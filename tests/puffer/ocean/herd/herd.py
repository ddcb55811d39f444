import gymnasium
import numpy as np
import pufferlib
from pufferlib.ocean.herd import binding


class Herd(pufferlib.PufferEnv):
    def __init__(self, num_envs=1, num_agents=3, buf=None, seed=0):
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape=(2,), dtype=np.float32)
        self.single_action_space = gymnasium.spaces.MultiDiscrete([4, 3])
        self.num_agents = num_envs * num_agents
        super().__init__(buf)
        self.c_state = binding.shared(entries=num_agents)
        self.c_envs = [
            binding.env_init(
                self.observations[i * num_agents : (i + 1) * num_agents], self.actions, self.rewards,
                self.terminals, self.truncations, seed, num_agents=num_agents, state=self.c_state,
            )
            for i in range(num_envs)
        ]  # fmt: skip
