"""Access to the exported state of environments: `state`, `state_arrays`, `state_schema`, `states`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ClosedError, ShoalError
from shoal.state.exports import describe_fields
from shoal.state.history import CURVES
from shoal.state.session import Hosted
from shoal.state.snapshot import Field
from shoal.vector import arguments

__all__ = ["StateAccess"]

_TAKEN = frozenset(CURVES)


class StateAccess:
    """A mixin of the vector environment. It reads between steps and changes nothing."""

    _hosted: Hosted | None = None
    _guard: _core.Guard
    _log: Callable[[dict[str, Any]], None]
    num_worlds: int
    closed: bool

    @property
    def session(self) -> str | None:
        """The name by which `shoal.attach` and `shoal watch` find this run; None if there is no session."""
        return None if self._hosted is None else self._hosted.name

    def log(self, /, **values: SupportsFloat) -> None:
        """Keeps numbers of your training, such as `envs.log(loss=loss, entropy=entropy)`.

        They are curves beside the returns in `shoal watch`, `shoal top`, `shoal metrics`, history files and
        TensorBoard files. A call with a few floats takes about a microsecond and never waits. Between two
        points of a curve (a quarter of a second at the finest) all values count: mean, lowest and highest.
        NaN and infinities leave a gap. It may be called from any thread, also without a session.

        Raises TypeError for a value that is not a number; ValueError for a name that is not printable text of
        up to 63 bytes, for a name that every history has (return, length, steps_per_s), and for more than 24
        different names. Then none of the values is kept.
        """
        if self.closed:
            raise ClosedError("these environments are closed, so nothing more can be logged")
        if not _TAKEN.isdisjoint(values):
            taken = ", ".join(sorted(_TAKEN & values.keys()))
            raise ValueError(f"every history has a curve {taken}; log yours by another name")
        self._log(values)

    def state(self, env_id: int = 0) -> dict[str, dict[str, Any]]:
        """Returns the exported state: `{name: {"data", "dtype", "shape"}}`; `{}` if nothing is exported.

        `data` is bytes. For a field that a C environment declares stable, it is a read-only memoryview of
        the environment's memory, which changes with the environment and stays valid after `close()`.
        """
        return describe_fields(self._world(env_id))

    def state_arrays(self, env_id: int = 0) -> dict[str, NDArray[Any]]:
        """Returns the exported state as read-only arrays."""
        return {name: field.data for name, field in self._world(env_id).items()}

    def state_schema(self, env_id: int = 0) -> dict[str, dict[str, Any]]:
        """Returns dtype, shape, role, columns, categories and stability of each exported field."""
        return {name: field.schema for name, field in self._world(env_id).items()}

    def states(self) -> dict[str, Any]:
        """Returns the fields of all environments: arrays `[environments, ...]`, or lists if shapes differ."""
        worlds = self._worlds()
        names = dict.fromkeys(name for world in worlds for name in world)
        found: dict[str, Any] = {}
        for name in names:
            parts = [world[name].data if name in world else None for world in worlds]
            alike = len({None if part is None else (part.dtype, part.shape) for part in parts}) == 1
            found[name] = np.stack(parts) if alike else parts  # type: ignore[arg-type]
        return found

    def _begin_read(self, name: str) -> _core.Operation:
        """Returns the operation of reading state. Raises in another thread than the one that steps, because
        a step at the same time would raise there."""
        last = self._guard.last_thread
        if last not in (0, get_ident()) and last in {thread.ident for thread in threading.enumerate()}:
            raise ShoalError(
                "another thread uses these environments, and only that thread can read their state; in this "
                f"thread use shoal.attach({self.session!r}).state_arrays(env_id)"
            )
        return _core.Operation(self._guard, name)

    def _world(self, env_id: int) -> dict[str, Field]:
        env = arguments.env_id(env_id, self.num_worlds)
        with self._begin_read("state"):
            return self._read_states(env)[0]

    def _worlds(self) -> list[dict[str, Field]]:
        with self._begin_read("states"):
            return self._read_states(None)

    def _read_states(self, env: int | None) -> list[dict[str, Field]]:
        raise NotImplementedError
