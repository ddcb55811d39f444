"""Shoal, the data plane of reinforcement learning."""

from importlib.metadata import version

from shoal.errors import ShoalError
from shoal.memory import Layout, Segment
from shoal.vector import VectorEnv, make_vec
from shoal.vector.make import register_bundled

__version__ = version("shoal")

__all__ = ["Layout", "Segment", "ShoalError", "VectorEnv", "__version__", "make_vec"]

register_bundled()
