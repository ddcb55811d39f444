"""Shoal, the data plane of reinforcement learning."""

from importlib.metadata import version

from shoal.errors import ShoalError
from shoal.memory import Layout, Segment

__version__ = version("shoal")

__all__ = ["Layout", "Segment", "ShoalError", "__version__"]
