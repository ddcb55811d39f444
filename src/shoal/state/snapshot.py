"""What is seen of one environment at one step boundary: its world, and what went in and out of the step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROLES", "Category", "Field", "Snapshot"]

ROLES = ("", "grid", "entities", "scalar", "image")
"""How a field is drawn; by its number in C."""


@dataclass(frozen=True, slots=True)
class Category:
    """What a value of a grid, or a kind of entity, means.

    >>> Category(1, "water", "#2a6f97").name
    'water'
    """

    value: int
    name: str
    color: str
    """As "#rrggbb"."""


@dataclass(frozen=True, slots=True)
class Field:
    """One named array, and how to draw it.

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
    """Its shape holds for the environment's life, and it seldom changes."""
    live: bool = False
    """`data` is the environment's own memory, and changes with it."""

    @property
    def schema(self) -> dict[str, Any]:
        """All but the data, as plain values."""
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
    """One environment between two steps; every part is of the same boundary.

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
    """When it was taken, of time.monotonic_ns."""
    world: dict[str, Field] = field(default_factory=dict)
    """What the environment exports; empty without the hook."""
    step: dict[str, Field] = field(default_factory=dict)
    """`observation` (or `observation/KEY`), `action` likewise, `reward`, `terminated`, `truncated`, `frame`
    where it renders; with several agents the first dimension is the agents."""
    error: str = ""
    """Why parts are missing, such as an export_state() that raised."""

    @property
    def age_s(self) -> float:
        """How long ago it was taken."""
        return (time.monotonic_ns() - self.time_ns) * 1e-9

    def __repr__(self) -> str:
        names = ", ".join([*self.world, *self.step])
        error = f", error {self.error!r}" if self.error else ""
        where = f"environment {self.env_id}, episode {self.episode}, tick {self.tick}"
        return f"<Snapshot of {where}: {names}{error}>"
