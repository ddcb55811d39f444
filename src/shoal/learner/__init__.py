"""PPO in plain NumPy: a small learner that is easy to read, and an example of rollouts in place."""

from shoal.learner.ppo import Learner, Settings

__all__ = ["Learner", "Settings"]
