"""Extracts the infos of one environment from Gymnasium's batched infos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["info_of_row"]


def info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Returns one environment's infos from batched infos of the form `{key: array, _key: mask}`."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        is_mask = key.startswith("_") and key[1:] in infos
        if not is_mask and (f"_{key}" not in infos or infos[f"_{key}"][row]):
            found[key] = info_of_row(value, row) if isinstance(value, dict) else value[row]
    return found
