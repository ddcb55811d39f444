"""Finds the fields of a row from a space or a mapping, and splits nested values by field."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gymnasium.spaces import Graph, OneOf, Sequence, Space, Text

from shoal.errors import LayoutError, SpaceError
from shoal.memory.layout import FieldSpec
from shoal.spaces import Declaration
from shoal.spaces.declare import escape_key

__all__ = ["parse_fields", "space_fields", "split_by_field"]

_VALUE = "value"  # the name of the field if a space is one array


def parse_fields(given: Any) -> dict[str, FieldSpec]:
    """Returns the fields of a space, or of a mapping from names to (dtype, shape) or spaces."""
    if isinstance(given, Space):
        return {name[1:] or _VALUE: spec for name, spec in space_fields("", given).items()}
    if not isinstance(given, Mapping):
        raise LayoutError(
            f"fields must be a space, or a mapping from names to (dtype, shape) or spaces, got {given!r:.80}"
        )
    fields: dict[str, FieldSpec] = {}
    for name, spec in given.items():
        whole = space_fields(name, spec) if isinstance(spec, Space) and isinstance(name, str) else None
        for part, kind in ({name: spec} if whole is None else whole).items():
            if part in fields:
                raise LayoutError(f"two fields have the name {part!r}; rename one of them")
            fields[part] = kind
    return fields


def space_fields(path: str, space: Space[Any]) -> dict[str, FieldSpec]:
    """Returns the fields of one value of a space: `path/key` for a Dict, `path/0` for a Tuple."""
    declaration = Declaration(custom=_reject_variable_size)
    declaration.space(space, path, 1)
    return {name: (dtype, tuple(shape)[1:]) for name, (dtype, shape) in declaration.fields.items()}


def _reject_variable_size(space: Space[Any], path: str, rows: int) -> None:
    if isinstance(space, (Graph, OneOf, Sequence, Text)):
        raise SpaceError(
            f"{path.lstrip('/') or 'the space'}: {type(space).__name__} has no fixed size, so it cannot be "
            "a field; use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
        )


def split_by_field(path: str, value: Any, fields: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yields (name of the field, part) for each part of a nested value. The path of a whole row is ""."""
    if path in fields:
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from split_by_field(_join_path(path, key, fields), item, fields)
    elif isinstance(value, tuple) and (path or list(fields) != [_VALUE]):
        for place, item in enumerate(value):
            yield from split_by_field(_join_path(path, str(place), fields), item, fields)
    else:
        yield path or _VALUE, value


def _join_path(path: str, key: Any, fields: Collection[str]) -> str:
    name = escape_key(key)
    if path:
        return f"{path}/{name}"
    if name in fields or any(field.startswith(f"{name}/") for field in fields):
        return name
    return str(key)  # the user's own name of a field, such as "obs/camera", not a key of a space
