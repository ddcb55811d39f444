"""The schema of a snapshot: its fields without their data, and the offsets of the data in a window.

| length | JSON: list of fields | array | array | ... | error text |
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from shoal.memory.layout import parse_dtype
from shoal.state.snapshot import Category, Field, Snapshot

__all__ = ["Description", "Schema", "describe", "to_json"]

Description: TypeAlias = tuple[tuple[Any, ...], ...]
"""(part, name, dtype, shape, role, columns, categories, stable) of each field."""

_ALIGNMENT = 64


def describe(snapshot: Snapshot) -> Description:
    """Returns the fields without their data; equal for snapshots that can share a schema."""
    return tuple(
        (part, one.name, one.data.dtype, one.data.shape, one.role, one.columns, one.categories, one.stable)
        for part, fields in (("world", snapshot.world), ("step", snapshot.step))
        for one in fields.values()
    )


def to_json(description: Description) -> str:
    """Returns a JSON list with one object per field."""
    fields = [
        {
            "name": name,
            "part": part,
            "dtype": dtype.str,
            "shape": shape,
            "role": role,
            "columns": columns,
            "categories": [[one.value, one.name, one.color] for one in categories],
            "stable": stable,
        }
        for part, name, dtype, shape, role, columns, categories, stable in description
    ]
    return json.dumps(fields, separators=(",", ":"))


class Schema:
    """One generation of a window's schema: the arrays of its content and their offsets."""

    def __init__(self, generation: int, description: Description, json_bytes: int) -> None:
        self.generation, self.description = generation, description
        self.offsets: list[int] = []
        self.end = align(8 + json_bytes)
        """The offset of the error text."""
        for _, _, dtype, shape, *_ in description:
            self.offsets.append(self.end)
            self.end += align(dtype.itemsize * math.prod(shape))

    @classmethod
    def parse(cls, generation: int, content: bytearray) -> Schema:
        """Returns the schema in a window's content; raises one of UNREADABLE if there is none."""
        length = int.from_bytes(content[:8], "little")
        fields = json.loads(content[8 : 8 + length])
        return cls(generation, tuple(_read_field(one) for one in fields), length)

    def read(self, stamps: Sequence[int], content: bytearray) -> Snapshot:
        """Returns the snapshot in a content of this generation; raises one of UNREADABLE if it is short."""
        world: dict[str, Field] = {}
        step: dict[str, Field] = {}
        view = memoryview(content).toreadonly()
        for (part, name, dtype, shape, *look), offset in zip(self.description, self.offsets, strict=True):
            array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, view, offset)
            (world if part == "world" else step)[name] = Field(name, array, *look)
        error = bytes(view[self.end :]).decode("utf-8", "surrogatepass")
        return Snapshot(stamps[0], stamps[1], stamps[2], stamps[3], world, step, error)


def _read_field(entry: dict[str, Any]) -> tuple[Any, ...]:
    dtype, shape = parse_dtype(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if dtype.kind not in "biuf" or any(size < 0 for size in shape):
        raise ValueError(f"dtype {dtype} of shape {shape}")
    columns = tuple(map(str, entry["columns"]))
    categories = tuple(
        Category(int(value), str(name), str(color)) for value, name, color in entry["categories"]
    )
    look = str(entry["role"]), columns, categories, bool(entry["stable"])
    return "world" if entry["part"] == "world" else "step", str(entry["name"]), dtype, shape, *look


def align(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
