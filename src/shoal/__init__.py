"""Shoal, the data plane of reinforcement learning."""

import atexit as _atexit
from importlib.metadata import version as _version

from shoal import _core, errors, memory, reference, replay, spaces, state, vector
from shoal.errors import ShoalError
from shoal.memory import Layout, Segment
from shoal.replay import ReplayBuffer, SharedCircularBuffer
from shoal.state import attach
from shoal.vector import VectorEnv, make_vec
from shoal.vector.make import register_bundled as _register_bundled

__version__ = _version("shoal")

__all__ = [
    "Layout",
    "ReplayBuffer",
    "Segment",
    "SharedCircularBuffer",
    "ShoalError",
    "VectorEnv",
    "__version__",
    "attach",
    "errors",
    "make_vec",
    "memory",
    "reference",
    "replay",
    "spaces",
    "state",
    "vector",
]

_register_bundled()
_atexit.register(_core.leave)  # daemon threads may be stepping while the interpreter goes
