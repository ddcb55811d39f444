"""Infos of one environment from those that Gymnasium has batched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["info_of_row"]


def info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """One environment's part of infos that Gymnasium has batched: `{key: array, _key: mask}`."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        is_mask = key.startswith("_") and key[1:] in infos
        if not is_mask and (f"_{key}" not in infos or infos[f"_{key}"][row]):
            found[key] = info_of_row(value, row) if isinstance(value, dict) else value[row]
    return found
