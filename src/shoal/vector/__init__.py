"""Vector environments: many environments that step together."""

from shoal.vector.async_vector import ProcessVectorEnv
from shoal.vector.env import VectorEnv
from shoal.vector.make import make_vec
from shoal.vector.rollout import Rollout

__all__ = ["ProcessVectorEnv", "Rollout", "VectorEnv", "make_vec"]
