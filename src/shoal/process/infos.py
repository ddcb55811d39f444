"""Infos that consist of numbers travel as rows of shared memory (`core/binding/infos.hpp`).

This module decides which infos do, and declares the fields of the board that hold them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from shoal import _core
from shoal.memory import Segment
from shoal.memory.layout import FieldSpec

__all__ = ["describe_info", "info_fields", "make_info_writer"]

_BOOL, _INT, _FLOAT, _SCALAR, _ARRAY, _DICT = _core.INFO_KINDS
_PYTHON = {bool: (_BOOL, "?", ()), int: (_INT, "i8", ()), float: (_FLOAT, "f8", ())}
_NUMBERS = "biufc"  # of np.dtype.kind
_MOST_LEVELS = 4

Description = tuple[tuple[str, int, str, Any], ...]


def info_fields(chunks: int, rows: int) -> dict[str, FieldSpec]:
    """Returns fields of the board: a word and a row per environment, a table of schemas per chunk."""
    return {
        "info_word": (np.uint64, (rows,)),
        "info_row": (np.uint8, (rows, _core.INFO_ROW_BYTES)),
        "info_table": (np.uint8, (chunks, _core.INFO_TABLE_BYTES)),
    }


def make_info_writer(board: Segment, plan: Any) -> _core.InfoWriter:
    words, rows, tables = board["info_word"], board["info_row"], board["info_table"]
    return _core.InfoWriter(words, rows, tables[plan.worker], plan.first, plan.count, describe_info)


def describe_info(info: dict[str, Any]) -> tuple[Description, bytes] | None:
    """Returns the schema of an info, also as JSON; None if the info holds anything but numbers."""
    description = _describe(info, _MOST_LEVELS)
    return None if description is None else (description, json.dumps(description).encode())


def _describe(info: Any, levels: int) -> Description | None:
    if type(info) is not dict or levels == 0:
        return None
    entries: list[tuple[str, int, str, Any]] = []
    for key, value in info.items():
        # Gymnasium batches "final_obs" differently, and a key "_x" could be the mask of a key "x".
        if type(key) is not str or key.startswith("_") or key == "final_obs":
            return None
        kind = type(value)
        if kind in _PYTHON:
            entries.append((key, *_PYTHON[kind]))
        elif kind is np.ndarray and value.dtype.kind in _NUMBERS and value.flags.c_contiguous:
            entries.append((key, _ARRAY, value.dtype.str, value.shape))
        elif issubclass(kind, np.generic) and value.dtype.kind in _NUMBERS:
            if np.dtype(value.dtype.str).type is not kind:  # such as np.longlong, beside np.int64
                return None
            entries.append((key, _SCALAR, value.dtype.str, ()))
        else:
            inner = _describe(value, levels - 1)
            if inner is None:
                return None
            entries.append((key, _DICT, "", inner))
    return tuple(entries)
