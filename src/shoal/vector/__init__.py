"""Vector environments: what users hold."""

from shoal.vector.env import VectorEnv
from shoal.vector.make import make_vec
from shoal.vector.rollout import Rollout

__all__ = ["Rollout", "VectorEnv", "make_vec"]
