"""Layouts: named, typed fields at fixed offsets, the same in every process that sees them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from shoal.errors import UNREADABLE, LayoutError

__all__ = ["ALIGNMENT", "ArrayField", "FieldSpec", "Layout", "array_fields"]

ALIGNMENT = 64
"""Every field starts on its own cache line, so writers of different fields never share one."""

_MAX_BYTES = 2**62
_MAX_NDIM = 32
_MAX_NAME = 65536  # a name can be the path of a value in a deeply nested space
_STORED_DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")

FieldSpec: TypeAlias = tuple[DTypeLike, Sequence[int]]


def parse_dtype(text: Any) -> np.dtype[Any]:
    """Returns the dtype that a file or another process names; raises ValueError for anything else."""
    if not isinstance(text, str) or not _STORED_DTYPE.fullmatch(text):  # np.dtype would parse far more
        raise ValueError(f"{text!r} is not a dtype of a field")
    return np.dtype(text)


@dataclass(frozen=True, slots=True)
class ArrayField:
    """One array of a layout: its name, dtype, shape and offset.

    >>> field = Layout({"reward": (np.float64, (8,)), "done": (np.bool_, (8,))})["done"]
    >>> field.offset, field.size_bytes, str(field)
    (64, 8, 'bool[8]')
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """The bytes of its values, without the padding after them."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise LayoutError(f"a field's name must be a str, got {type(name).__name__}: {name!r}")
    if not name or len(name) > _MAX_NAME or "\0" in name:
        raise LayoutError(
            f"a field's name must have 1 to {_MAX_NAME} characters and no NUL, got {name[:80]!r}"
        )
    return name


def _check_dtype(name: str, dtype: DTypeLike) -> np.dtype[Any]:
    try:
        checked = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError, OverflowError) as error:  # np.dtype parses strings
        raise LayoutError(f"field {name!r}: {dtype!r} is not a NumPy dtype") from error
    if checked.kind not in "biufc" or checked.subdtype is not None:
        raise LayoutError(
            f"field {name!r}: dtype {checked} cannot be stored in shared memory; "
            "use a bool, integer, float or complex dtype"
        )
    if not checked.isnative:
        raise LayoutError(
            f"field {name!r}: dtype {checked.str} is not in this machine's byte order; "
            f"use {checked.newbyteorder('=').str}"
        )
    return checked


def _check_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        checked = tuple(shape)
    except TypeError:
        hint = f"; write ({shape},)" if isinstance(shape, (int, np.integer)) else ""
        raise LayoutError(f"field {name!r}: a shape must be a tuple of ints, got {shape!r}{hint}") from None
    if len(checked) > _MAX_NDIM:
        raise LayoutError(f"field {name!r}: at most {_MAX_NDIM} dimensions, got {len(checked)}")
    for size in checked:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
            raise LayoutError(f"field {name!r}: every dimension must be an int of at least 0, got {size!r}")
        if size > _MAX_BYTES:  # the number may have too many digits to print
            raise LayoutError(
                f"field {name!r}: a dimension of 2**{int(size).bit_length() - 1} or more is more than any "
                "machine can address; check num_envs and the shape"
            )
    return tuple(int(size) for size in checked)


class Layout(Mapping[str, ArrayField]):
    """Fields in order, each at a 64-byte aligned offset from the start of the data.

    >>> layout = Layout({"reward": (np.float64, (8,)), "done": (np.bool_, (8,))})
    >>> layout["done"].offset, layout.size_bytes
    (64, 128)

    Two layouts are equal, and have the same `digest`, if their names, dtypes, shapes and order are equal.
    """

    def __init__(self, fields: Mapping[str, FieldSpec]) -> None:
        if not isinstance(fields, Mapping):
            raise LayoutError(
                f"a layout is made from a mapping of name to (dtype, shape), got {type(fields).__name__}"
            )
        self._fields: dict[str, ArrayField] = {}
        end = 0
        for key, spec in fields.items():
            name = _check_name(key)
            try:
                dtype_like, shape_like = spec
            except (TypeError, ValueError):
                raise LayoutError(
                    f"field {name!r}: expected (dtype, shape), for example (np.float32, (4,)), got {spec!r}"
                ) from None
            dtype = _check_dtype(name, dtype_like)
            field = ArrayField(name, dtype, _check_shape(name, shape_like), end)
            end += -(-field.size_bytes // ALIGNMENT) * ALIGNMENT
            # NumPy rejects a shape whose nonzero part is too large, even if a 0 makes the array empty.
            reach = max(end, dtype.itemsize * math.prod(filter(None, field.shape)))
            if reach > _MAX_BYTES:
                raise LayoutError(
                    f"field {name!r}: {field} reaches byte {reach}, more than any machine can "
                    "address; check num_envs and the shape"
                )
            self._fields[name] = field
        self.size_bytes = end
        """Bytes of all fields with their padding; the header is not counted."""
        specs = [[f.name, f.dtype.str, list(f.shape)] for f in self._fields.values()]
        self.schema = json.dumps({"fields": specs}, separators=(",", ":")).encode()
        """The layout as text, stored in every segment."""
        self.digest = hashlib.sha256(self.schema).digest()

    @classmethod
    def from_schema(cls, schema: bytes) -> Layout:
        """Rebuilds a layout from `schema`; raises LayoutError if it is not a schema."""
        try:
            specs = json.loads(schema.decode())["fields"]
            fields = {name: (dtype, shape) for name, dtype, shape in specs}
            for dtype, _ in fields.values():
                parse_dtype(dtype)
        except UNREADABLE as error:
            raise LayoutError(f"not the schema of a layout: {error}") from error
        layout = cls(fields)
        if layout.schema != schema:
            raise LayoutError("not the schema of a layout: it is not in the form that Layout writes")
        return layout

    def __getitem__(self, name: str) -> ArrayField:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.schema == other.schema

    def __hash__(self) -> int:
        return hash(self.schema)

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field}" for field in self._fields.values())
        return f"Layout({fields}; {self.size_bytes} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout.from_schema, (self.schema,)

    def difference(self, other: Layout) -> str:
        """Returns a text on how `other` differs from this layout; empty if it does not."""
        lines = [
            f"{name!r}: expected {self[name] if name in self else 'no such field'}, "
            f"found {other[name] if name in other else 'no such field'}"
            for name in dict.fromkeys((*self, *other))
            if name not in self or name not in other or str(self[name]) != str(other[name])
        ]
        if not lines and self != other:
            lines.append(f"expected the order {list(self)}, found {list(other)}")
        return "; ".join(lines)


def array_fields(
    table: Iterable[tuple[str, str, str, int]], instance_bytes: int = 0, **entries: int
) -> dict[str, FieldSpec]:
    """Returns the fields of a table such as `_core.STEPPER_ARRAYS`; `entries` has the rows of each kind."""
    return {
        name: (dtype, (entries[per],) if items == 1 else (entries[per], items or instance_bytes))
        for name, dtype, per, items in table
    }
