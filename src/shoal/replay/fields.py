"""The fields of a row: from a space, from a mapping that may hold spaces; and nested values by field."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gymnasium.spaces import Graph, OneOf, Sequence, Space, Text

from shoal.errors import LayoutError, SpaceError
from shoal.memory.layout import FieldSpec
from shoal.spaces import Declaration
from shoal.spaces.declare import escape_key

__all__ = ["by_field", "fields_of", "space_fields"]

_VALUE = "value"  # the field of a space that is one array


def fields_of(given: Any) -> dict[str, FieldSpec]:
    """The fields of a space, or of a mapping of names to (dtype, shape) or spaces."""
    if isinstance(given, Space):
        return {name[1:] or _VALUE: spec for name, spec in space_fields("", given).items()}
    if not isinstance(given, Mapping):
        raise LayoutError(
            f"fields must be a space, or a mapping of names to (dtype, shape) or spaces, got {given!r:.80}"
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
    """The fields of one value of a space under a path: `path/key` of a Dict, `path/0` of a Tuple."""
    declaration = Declaration(custom=_refused)
    declaration.space(space, path, 1)
    return {name: (dtype, tuple(shape)[1:]) for name, (dtype, shape) in declaration.fields.items()}


def _refused(space: Space[Any], path: str, rows: int) -> None:
    if isinstance(space, (Graph, OneOf, Sequence, Text)):
        raise SpaceError(
            f"{path.lstrip('/') or 'the space'}: {type(space).__name__} has no fixed size, so it cannot be "
            "a field; use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
        )


def by_field(path: str, value: Any, fields: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The parts of a nested value, each with the name of its field; path "": the whole row."""
    if path in fields:
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from by_field(_joined(path, key, fields), item, fields)
    elif isinstance(value, tuple) and (path or list(fields) != [_VALUE]):
        for place, item in enumerate(value):
            yield from by_field(_joined(path, str(place), fields), item, fields)
    else:
        yield path or _VALUE, value


def _joined(path: str, key: Any, fields: Collection[str]) -> str:
    name = escape_key(key)
    if path:
        return f"{path}/{name}"
    if name in fields or any(field.startswith(f"{name}/") for field in fields):
        return name
    return str(key)  # a name that somebody gave, "obs/camera" for one, and no key of a space
