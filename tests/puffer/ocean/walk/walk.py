import gymnasium
import numpy as np
import pufferlib
from pufferlib.ocean.walk import binding

FIRST = 1


class Walk(pufferlib.PufferEnv):
    def __init__(
        self, num_envs=4, render_mode=None, size=7, bonus=0.0, trap=0, title="none", buf=None, seed=0
    ):
        if size < 3:
            raise pufferlib.APIUsageError("size must be at least 3")
        self.single_observation_space = gymnasium.spaces.Box(low=0, high=FIRST, shape=(size,), dtype=np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.num_agents = num_envs
        super().__init__(buf)
        self.c_envs = binding.vec_init(
            self.observations, self.actions, self.rewards, self.terminals, self.truncations, num_envs, seed,
            size=size, bonus=bonus, trap=trap, title=title,
        )  # fmt: skip
