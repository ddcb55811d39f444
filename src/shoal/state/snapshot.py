"""A snapshot of one environment between two steps: its world, and the last step's action and results."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROLES", "Category", "Field", "Snapshot"]

ROLES = ("", "grid", "entities", "scalar", "image")
"""How a field is drawn; the index is its number in C."""


@dataclass(frozen=True, slots=True)
class Category:
    """The name and colour of a value of a grid, or of a kind of entity.

    >>> Category(1, "water", "#2a6f97").name
    'water'
    """

    value: int
    name: str
    color: str
    """As "#rrggbb"."""


@dataclass(frozen=True, slots=True)
class Field:
    """A named array and how to draw it.

    >>> sea = Category(0, "sea", "#2a6f97")
    >>> field = Field("terrain", np.zeros((2, 2), np.int8), role="grid", categories=(sea,))
    >>> field.schema["role"], field.schema["shape"]
    ('grid', [2, 2])
    """

    name: str
    data: NDArray[Any]
    """Read-only."""
    role: str = ""
    columns: tuple[str, ...] = ()
    """Names along the last dimension."""
    categories: tuple[Category, ...] = ()
    stable: bool = False
    """Its address and shape never change while the environment exists; its content may."""
    live: bool = False
    """Whether `data` is the environment's own memory, which later steps change."""

    @property
    def schema(self) -> dict[str, Any]:
        """Everything but the data, as plain values."""
        return {
            "dtype": np.dtype(self.data.dtype).str,
            "shape": list(self.data.shape),
            "role": self.role,
            "columns": list(self.columns),
            "categories": [[one.value, one.name, one.color] for one in self.categories],
            "stable": self.stable,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """One environment between two steps; all parts are from the same moment.

    >>> envs = shoal.make_vec("Snake-v0", 4, session="snapshot-doc")
    >>> _ = envs.reset(seed=0)
    >>> with shoal.attach("snapshot-doc") as session:
    ...     session.watch([2])
    ...     while session.latest(2) is None:
    ...         _ = envs.step(np.zeros(envs.num_envs, np.int64))
    ...     snapshot = session.snapshot(2)
    >>> snapshot.env_id, sorted(snapshot.step)
    (2, ['action', 'observation', 'reward', 'terminated', 'truncated'])
    >>> envs.close()
    """

    env_id: int
    episode: int
    """Counted from 0."""
    tick: int
    """Steps of this episode."""
    time_ns: int
    """When it was taken, by time.monotonic_ns."""
    world: dict[str, Field] = field(default_factory=dict)
    """The fields that the environment exports; empty if it exports none."""
    step: dict[str, Field] = field(default_factory=dict)
    """`observation` (or `observation/KEY`), `action` (or `action/KEY`), `reward`, `terminated`, `truncated`,
    and `frame` if it renders; with several agents the first dimension is the agents."""
    error: str = ""
    """Why parts are missing, such as an export_state() that raised."""

    @property
    def age_s(self) -> float:
        """Seconds since it was taken."""
        return (time.monotonic_ns() - self.time_ns) * 1e-9

    def __repr__(self) -> str:
        names = ", ".join([*self.world, *self.step])
        error = f", error {self.error!r}" if self.error else ""
        where = f"environment {self.env_id}, episode {self.episode}, tick {self.tick}"
        return f"<Snapshot of {where}: {names}{error}>"
