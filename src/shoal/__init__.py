"""Shoal, the data plane of reinforcement learning."""

import atexit as _atexit
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from shoal import _core, errors, memory, replay, spaces, state, vector
from shoal.errors import ShoalError
from shoal.memory import Layout, Segment
from shoal.replay import ReplayBuffer, SharedCircularBuffer
from shoal.state import attach
from shoal.vector import VectorEnv, make_vec
from shoal.vector.make import register_bundled as _register_bundled

if _TYPE_CHECKING:
    from shoal import reference

__version__ = _core.__version__

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


def __getattr__(name: str) -> _Any:
    if name == "reference":  # it imports what few programs need
        import importlib

        return importlib.import_module("shoal.reference")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_register_bundled()
_atexit.register(_core.leave)  # daemon threads may be stepping while the interpreter goes
