"""Reads the fields that environments export: in C by shoal.state/1, in Python by export_state()."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.state.snapshot import ROLES, Category, Field

__all__ = ["describe_fields", "from_native", "from_python", "has_export", "named_arrays"]

_KNOWN = ("role", "columns", "categories", "stable")


def from_native(raw: Sequence[Any], instances: NDArray[np.uint8]) -> dict[str, Field]:
    """Returns the fields of a plug-in's environment; stable fields inside `instances` are views of it."""
    fields: dict[str, Field] = {}
    memory = instances.reshape(-1)
    for name, dtype, shape, role, columns, categories, stable, offset, data in raw:
        if name in fields:
            raise ValueError(f"the environment exports two state fields called {name!r}")
        kind = np.dtype(dtype)
        if data is None:
            count = kind.itemsize * math.prod(shape)
            array = memory[offset : offset + count].view(kind).reshape(shape)
            array.flags.writeable = False  # only this view
        else:
            array = np.frombuffer(data, kind).reshape(shape)
        named = tuple(_native_category(*one) for one in categories)
        fields[name] = Field(name, array, ROLES[role], tuple(columns), named, stable, data is None)
    return fields


@lru_cache(maxsize=1024)
def _native_category(value: int, label: str, rgb: int) -> Category:
    return Category(value, label, f"#{rgb & 0xFFFFFF:06x}")


def has_export(env: Any) -> bool:
    """Returns whether a Python environment, or one that it wraps, has export_state()."""
    return _find_attribute(env, "export_state") is not None


def from_python(env: Any) -> dict[str, Field]:
    """Returns copies of a Python environment's fields; raises TypeError or ValueError for wrong ones."""
    export = _find_attribute(env, "export_state")
    if export is None:
        return {}
    exported = export()
    if not isinstance(exported, Mapping):
        raise TypeError(
            f"export_state() must return a dict of names and arrays, it returned {type(exported).__name__}"
        )
    schema_of = _find_attribute(env, "state_schema")
    schema = {} if schema_of is None else schema_of()
    if not isinstance(schema, Mapping):
        raise TypeError(
            f"state_schema() must return a dict of names and dicts, it returned {type(schema).__name__}"
        )
    unknown = sorted(str(name) for name in set(schema) - set(exported))
    if unknown:
        raise ValueError(
            f"state_schema() describes {unknown}, which export_state() does not return; it returns "
            f"{sorted(map(str, exported))}"
        )
    return {name: _field(name, value, schema.get(name, {})) for name, value in exported.items()}


def _find_attribute(env: Any, name: str) -> Any:
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return getattr(env, name, None)


def _field(name: Any, value: Any, schema: Any) -> Field:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise TypeError(f"export_state(): a field's name must be a printable str, got {name!r}")
    try:
        array = np.array(value, order="C")  # a copy, because the environment changes its own
    except ValueError as error:
        raise ValueError(f"export_state()[{name!r}] cannot be converted to an array: {error}") from None
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise TypeError(
            f"export_state()[{name!r}] must be an array of numbers or bools, got {array.dtype} "
            f"({type(value).__name__})"
        )
    array.flags.writeable = False
    if not isinstance(schema, Mapping) or not set(schema) <= set(_KNOWN):
        found = sorted(map(str, schema)) if isinstance(schema, Mapping) else type(schema).__name__
        raise ValueError(f"state_schema()[{name!r}] must be a dict with some of {list(_KNOWN)}, got {found}")
    role = schema.get("role", "")
    if role not in ROLES:
        raise ValueError(f"state_schema()[{name!r}]: role must be one of {ROLES[1:]}, got {role!r}")
    columns = tuple(str(column) for column in schema.get("columns", ()))
    if columns and (array.ndim == 0 or len(columns) != array.shape[-1]):
        raise ValueError(
            f"state_schema()[{name!r}]: {len(columns)} columns must name the last dimension of {array.shape}"
        )
    _require_drawable(name, array, role, columns)
    categories = tuple(_category(name, item) for item in schema.get("categories", ()))
    return Field(name, array, role, columns, categories, bool(schema.get("stable", False)))


def _require_drawable(name: str, array: NDArray[Any], role: str, columns: tuple[str, ...]) -> None:
    picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3))
    wanted = {
        "grid": ("[height, width] of integers", array.ndim == 2 and array.dtype.kind in "biu"),
        "entities": ("[count, columns] with names for the columns", array.ndim == 2 and bool(columns)),
        "image": ("[height, width] or [height, width, 3] of uint8", array.dtype == np.uint8 and picture),
        "scalar": ("one number, or a few", array.ndim < 2),
    }
    if role and not wanted[role][1]:
        raise ValueError(
            f"state_schema()[{name!r}]: role {role!r} is for {wanted[role][0]}, found {array.dtype} of shape "
            f"{array.shape}{'' if columns or role != 'entities' else ' without columns'}"
        )


def _category(name: str, item: Any) -> Category:
    try:
        value, label, color = item
        number = int(value)
        digits = color.lstrip("#")
        valid = len(digits) == 6 and int(digits, 16) >= 0
    except (TypeError, ValueError, AttributeError):
        valid = False
    if not valid:
        raise ValueError(
            f"state_schema()[{name!r}]: a category is (value, name, '#rrggbb'), such as "
            f"(0, 'water', '#2060a0'), got {item!r}"
        )
    return Category(number, str(label), f"#{digits.lower()}")


def describe_fields(fields: Mapping[str, Field]) -> dict[str, dict[str, Any]]:
    """Returns fields in the form of `envs.state`: bytes, or for stable fields a view of the instance."""
    return {
        name: {
            "data": field.data.data if field.live else field.data.tobytes(),
            "dtype": field.data.dtype.str,
            "shape": field.data.shape,
        }
        for name, field in fields.items()
    }


def named_arrays(prefix: str, value: Any) -> dict[str, Field]:
    """Returns one field for each array in a nested value of a space."""
    if isinstance(value, Mapping):
        parts = {f"{prefix}/{key}": part for key, part in value.items()}
    elif isinstance(value, (tuple, list)):
        parts = {f"{prefix}/{number}": part for number, part in enumerate(value)}
    else:
        try:
            array = np.array(value)
        except ValueError:
            return {}
        return {prefix: Field(prefix, array)} if array.dtype.kind in "biuf" else {}
    found: dict[str, Field] = {}
    for name, part in parts.items():
        found |= named_arrays(name, part)
    return found
