"""`state` and its kin: what environments export, for whoever holds them."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError
from shoal.state.exports import describe_fields
from shoal.state.session import Hosted
from shoal.state.snapshot import Field
from shoal.vector import arguments

__all__ = ["Looking"]


class Looking:
    """Part of the vector environment; pure reads, between steps."""

    _hosted: Hosted | None = None
    _guard: _core.Guard
    num_worlds: int

    @property
    def session(self) -> str | None:
        """The name by which `shoal.attach` and `shoal watch` find this run; None: they do not."""
        return None if self._hosted is None else self._hosted.name

    def state(self, env_id: int = 0) -> dict[str, dict[str, Any]]:
        """What an environment exports: `{name: {"data", "dtype", "shape"}}`; `{}` if it exports nothing.

        `data` is bytes; of a field that a C environment flags stable, a read-only memoryview of the
        environment's own memory, which changes with it and stays valid after `close()`.
        """
        return describe_fields(self._world(env_id))

    def state_arrays(self, env_id: int = 0) -> dict[str, NDArray[Any]]:
        """The same as read-only arrays."""
        return {name: field.data for name, field in self._world(env_id).items()}

    def state_schema(self, env_id: int = 0) -> dict[str, dict[str, Any]]:
        """Of each exported field dtype, shape, role, columns, categories, and whether it is stable."""
        return {name: field.schema for name, field in self._world(env_id).items()}

    def states(self) -> dict[str, Any]:
        """Every environment's fields: stacked, `[environments, ...]`, where shapes agree, else in a list."""
        worlds = self._worlds()
        names = dict.fromkeys(name for world in worlds for name in world)
        found: dict[str, Any] = {}
        for name in names:
            parts = [world[name].data if name in world else None for world in worlds]
            alike = len({None if part is None else (part.dtype, part.shape) for part in parts}) == 1
            found[name] = np.stack(parts) if alike else parts  # type: ignore[arg-type]
        return found

    def _look(self, name: str) -> _core.Operation:
        """The operation of looking. Not for another thread than the one that steps: that one would be refused
        if it stepped meanwhile."""
        last = self._guard.last_thread
        if last not in (0, get_ident()) and last in {thread.ident for thread in threading.enumerate()}:
            raise ShoalError(
                "another thread uses these environments, and only it may ask for their state; elsewhere, in "
                f"this process too, use shoal.attach({self.session!r}).state_arrays(env_id)"
            )
        return _core.Operation(self._guard, name)

    def _world(self, env_id: int) -> dict[str, Field]:
        env = arguments.env_id(env_id, self.num_worlds)
        with self._look("state"):
            return self._look_at(env)[0]

    def _worlds(self) -> list[dict[str, Field]]:
        with self._look("states"):
            return self._look_at(None)

    def _look_at(self, env: int | None) -> list[dict[str, Field]]:
        raise NotImplementedError
