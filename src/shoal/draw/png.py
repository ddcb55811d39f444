"""Writes pictures as PNG files."""

from __future__ import annotations

import struct
import zlib
from os import PathLike
from pathlib import Path

import numpy as np

from shoal.draw.pixels import Pixels

__all__ = ["to_png", "write_png"]


def to_png(pixels: Pixels) -> bytes:
    """Returns the picture as the bytes of a PNG file.

    >>> to_png(np.zeros((4, 4, 3), np.uint8))[:4]
    b'\\x89PNG'
    """
    if not isinstance(pixels, np.ndarray):
        raise TypeError(
            f"a picture must be an array, such as shoal.state.render(snapshot), got {type(pixels).__name__}"
        )
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ValueError(
            f"a picture must be uint8 [height, width, 3], got {pixels.dtype} {list(pixels.shape)}"
        )

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = np.zeros((pixels.shape[0], 1 + pixels.shape[1] * 3), np.uint8)  # byte 0: no filter
    rows[:, 1:] = pixels.reshape(len(pixels), -1)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def write_png(path: str | PathLike[str], pixels: Pixels) -> None:
    """Writes the picture as a PNG file.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "black.png")
    >>> write_png(path, np.zeros((4, 4, 3), np.uint8))
    >>> os.path.getsize(path) > 50
    True
    """
    Path(path).write_bytes(to_png(pixels))
