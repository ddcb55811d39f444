"""Shoal, the data plane of reinforcement learning."""

import atexit as _atexit
import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if "free-threading" in _sys.version and not _os.environ.get("SHOAL_FREE_THREADED"):
    raise ImportError(
        f"Shoal has not been tested with free-threaded Python, and this is {_sys.version.split(' (')[0]}; "
        "use a Python with the GIL, or set SHOAL_FREE_THREADED=1 to try it"
    )

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
