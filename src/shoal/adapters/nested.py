"""Converts values of Tianshou, which may be nested Batches, to arrays by field name and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tianshou.data import Batch

from shoal.errors import SpaceError
from shoal.spaces.declare import escape_key

__all__ = ["list_leaves", "list_names", "make_tree", "rebuild"]


def list_leaves(path: str, value: Any) -> list[tuple[str, NDArray[Any]]]:
    """Returns the arrays of a value that may be a Batch, with the names of their fields."""
    if isinstance(value, Mapping) or isinstance(value, Batch):
        return [
            leaf
            for key in value.keys()
            for leaf in list_leaves(f"{path}/{escape_key(key)}", value[key])  # noqa: SIM118
        ]
    array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise SpaceError(
            f"{path}: expected numbers of a fixed shape, found {array.dtype} {array.shape}; use Tianshou's "
            "own buffer for objects and observations of different lengths"
        )
    return [(path, array)]


def make_tree(path: str, value: Any) -> Any:
    """Returns the structure of a value: the name of its field, or a dict of structures by key."""
    if isinstance(value, Mapping) or isinstance(value, Batch):
        return {key: make_tree(f"{path}/{escape_key(key)}", value[key]) for key in value.keys()}  # noqa: SIM118
    return path


def list_names(tree: Any) -> list[str]:
    """Returns the names of all fields of a structure."""
    return [tree] if isinstance(tree, str) else [name for part in tree.values() for name in list_names(part)]


def rebuild(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Returns the value with this structure from arrays by field name."""
    return arrays[tree] if isinstance(tree, str) else Batch({k: rebuild(v, arrays) for k, v in tree.items()})
