"""Writes the options and sizes of a plug-in into a header, so that the compiler sees constants."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from shoal.native.plugin import PluginInfo

__all__ = ["LAST_ROWS", "bake"]

LAST_ROWS = 4096
"""The rows whose last episodes the kernels record, for the histogram of returns."""

_TILE_BYTES = 48 * 1024 - 512
"""The shared memory that every GPU gives a block without being asked, less the kernel's own."""
_BLOCKS = (128, 64, 32)
"""Threads of a block, the most first."""
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


def bake(info: PluginInfo, source: Path, *, has_tile: bool = True) -> str:
    """Returns the text of baked.h. Without a tile, the plug-in writes its rows where the results are."""
    facts = info.plugin.describe(info.values)
    rows = [_row_bytes(field) for field in facts["observations"]]
    block, offsets, tile = _plan_tile(rows, info.agents)
    tile *= has_tile
    lines = [
        f"#define GRID_PLUGIN {_text(str(source))}",
        f"#define GRID_VALUES {{{', '.join(map(_value, info.values)) or '{.i = 0}'}}}",
        f"#define GRID_LANES {info.lanes}",
        f"#define GRID_AGENTS {info.agents}",
        f"#define GRID_INSTANCE_BYTES {info.instance_bytes}u",
        f"#define GRID_BLOCK {block}",
        f"#define GRID_LAST_ROWS {LAST_ROWS}u",
        f"#define GRID_OBSERVATIONS {len(rows)}",
        f"#define GRID_OBSERVATION_BYTES {_list(rows)}",
        f"#define GRID_ACTIONS {len(facts['actions'])}",
        f"#define GRID_ACTION_BYTES {_list([_row_bytes(field) for field in facts['actions']])}",
        f"#define GRID_HAS_OBSERVE {int(info.plugin.has_extension('shoal.observe/1'))}",
        f"#define GRID_TILE_BYTES {tile}",
        f"#define GRID_TILE_OFFSETS {_list(offsets)}",
    ]
    checks = []
    for number, field in enumerate(facts["actions"]):
        lows, highs = field["lows"], field["highs"]
        count = max(len(lows), len(highs))
        for name, bounds in (("LOWS", lows), ("HIGHS", highs)):
            values = bounds * count if len(bounds) == 1 else bounds
            joined = ", ".join(map(_real, values))
            lines.append(f"static const double GRID_{name}_{number}[] = {{{joined}}};")
        names = f"GRID_LOWS_{number}, GRID_HIGHS_{number}"
        checks.append(
            f"GRID_FIELD({number}, {_type(field)}, {field['kind']}, {_elements(field)}, {names}, {count})"
        )
    lines.append(f"#define GRID_ACTION_FIELDS {' '.join(checks)}")
    seen = [
        f"GRID_FIELD({number}, {_type(field)}, {_elements(field)})"
        for number, field in enumerate(facts["observations"])
    ]
    lines.append(f"#define GRID_OBSERVATION_FIELDS {' '.join(seen)}")
    return "\n".join(lines) + "\n"


def _plan_tile(rows: list[int], agents: int) -> tuple[int, list[int], int]:
    """Returns the threads of a block, where each field's rows begin in the tile, and its bytes (0: none)."""
    for block in _BLOCKS:
        offsets, end = [], 0
        for row in rows:
            offsets.append(end)
            end += -(-row * agents * block // 16) * 16
        if end <= _TILE_BYTES:
            return block, offsets, end
    return _BLOCKS[0], [0] * len(rows), 0


def _elements(field: dict[str, Any]) -> int:
    return math.prod(field["shape"])


def _row_bytes(field: dict[str, Any]) -> int:
    return _elements(field) * int(field["dtype"][1:])


def _type(field: dict[str, Any]) -> str:
    """Returns DLPack's code and bits."""
    return f"{_CODES[field['dtype'][0]]}, {8 * int(field['dtype'][1:])}"


def _list(values: list[int]) -> str:
    return f"{{{', '.join(f'{value}u' for value in values)}}}"


def _real(value: float) -> str:
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    return float(value).hex()


def _value(value: int | float | str) -> str:
    if isinstance(value, str):
        return f"{{.s = {_text(value)}}}"
    if isinstance(value, float):
        return f"{{.f = {_real(value)}}}"
    return f"{{.i = {value}ll}}" if value > -(2**63) else "{.i = -9223372036854775807ll - 1}"


def _text(value: str) -> str:
    """Returns a C string; what is not plain is written in octal, which ends after three digits."""
    plain = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in value.encode())
    return f'"{plain}"'
