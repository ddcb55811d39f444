"""A learner to read: PPO in plain NumPy, the living example of rollouts in place."""

from shoal.learner.ppo import Learner, Settings

__all__ = ["Learner", "Settings"]
