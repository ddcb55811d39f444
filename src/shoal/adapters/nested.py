"""Values of Tianshou that may be nested Batches, as arrays by field name and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tianshou.data import Batch

from shoal.errors import SpaceError
from shoal.spaces.declare import escape_key

__all__ = ["leaves", "names_of", "rebuild", "tree_of"]


def leaves(path: str, value: Any) -> list[tuple[str, NDArray[Any]]]:
    """The arrays of a value that may be a Batch, with the names of their fields."""
    if isinstance(value, Mapping) or isinstance(value, Batch):
        return [
            leaf
            for key in value.keys()
            for leaf in leaves(f"{path}/{escape_key(key)}", value[key])  # noqa: SIM118
        ]
    array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise SpaceError(
            f"{path}: expected numbers of a fixed shape, found {array.dtype} {array.shape}; use Tianshou's "
            "own buffer for objects and observations of different lengths"
        )
    return [(path, array)]


def tree_of(path: str, value: Any) -> Any:
    if isinstance(value, Mapping) or isinstance(value, Batch):
        return {key: tree_of(f"{path}/{escape_key(key)}", value[key]) for key in value.keys()}  # noqa: SIM118
    return path


def names_of(tree: Any) -> list[str]:
    return [tree] if isinstance(tree, str) else [name for part in tree.values() for name in names_of(part)]


def rebuild(tree: Any, arrays: Mapping[str, Any]) -> Any:
    return arrays[tree] if isinstance(tree, str) else Batch({k: rebuild(v, arrays) for k, v in tree.items()})
