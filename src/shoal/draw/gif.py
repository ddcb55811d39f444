"""Writes pictures as an animated GIF, without other libraries.

A frame has up to 255 colours of its own. Index 255 is transparent: pixels that are as in the frame before.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.draw.pixels import Pixels

__all__ = ["to_gif", "write_gif"]

_SAME = 255
_CLEAR, _END, _FIRST, _MOST_CODES = 256, 257, 258, 4096


def to_gif(pictures: Sequence[Pixels], seconds: float = 0.1) -> bytes:
    """Returns pictures of one size as the bytes of a GIF file that repeats; each is shown for `seconds`.

    >>> to_gif([np.zeros((4, 4, 3), np.uint8), np.ones((4, 4, 3), np.uint8)])[:6]
    b'GIF89a'
    """
    if not len(pictures):
        raise ValueError("a GIF needs at least one picture")
    for one in pictures:
        if not isinstance(one, np.ndarray) or one.dtype != np.uint8 or one.ndim != 3 or one.shape[2] != 3:
            raise ValueError("pictures must be arrays of uint8 [height, width, 3]")
        if one.shape != pictures[0].shape or 0 in one.shape or max(one.shape) > 65535:
            raise ValueError(
                f"pictures must have one size, of 1 to 65535 pixels; got {one.shape} and {pictures[0].shape}"
            )
    if not 0.02 <= seconds <= 655:
        raise ValueError(f"seconds must be from 0.02 to 655, got {seconds!r}")
    height, width = pictures[0].shape[:2]
    parts = [b"GIF89a", struct.pack("<HHBBB", width, height, 0x70, 0, 0)]
    parts.append(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0")  # repeats forever
    before: NDArray[np.uint32] | None = None
    for one in pictures:
        packed = _pack(one)
        colors, indices = _choose_colors(packed)
        if before is not None:
            indices[packed == before] = _SAME
        control = 0x05 if before is not None else 0x04  # keep the frame before; 1: one index is transparent
        parts.append(b"\x21\xf9\x04" + struct.pack("<BHBB", control, round(seconds * 100), _SAME, 0))
        parts.append(b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0x87))
        table = np.zeros((256, 3), np.uint8)
        for channel, shift in enumerate((16, 8, 0)):
            table[: len(colors), channel] = colors >> shift & 255
        parts += [table.tobytes(), b"\x08", *_split(_compress(indices.tobytes())), b"\0"]
        before = packed
    return b"".join([*parts, b"\x3b"])


def write_gif(path: str | PathLike[str], pictures: Sequence[Pixels], seconds: float = 0.1) -> None:
    """Writes pictures of one size as a GIF file that repeats; each is shown for `seconds`.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "blink.gif")
    >>> write_gif(path, [np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 255, np.uint8)], seconds=0.5)
    >>> os.path.getsize(path) > 50
    True
    """
    Path(path).write_bytes(to_gif(pictures, seconds))


def _pack(picture: Pixels) -> NDArray[np.uint32]:
    wide = picture.reshape(-1, 3).astype(np.uint32)
    packed: NDArray[np.uint32] = wide @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    return packed


def _choose_colors(packed: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Returns at most 255 colours, and the index of a colour for each pixel.

    With more colours than that, the most frequent ones stay as they are, and each other one becomes the
    nearest of these.
    """
    found = np.unique(packed, return_inverse=True, return_counts=True)
    colors, indices, counts = found[0], found[1].reshape(-1), found[2]
    if len(colors) <= _SAME:
        return colors, indices.astype(np.uint8)
    # Colours that differ only in their lowest bits count together, so that a gradient does not take all.
    cells, cell_of = np.unique(colors & 0xF8F8F8, return_inverse=True)
    weights = np.bincount(cell_of.reshape(-1), weights=counts)
    order = np.lexsort((-counts, cell_of.reshape(-1)))  # in each cell, the most frequent colour first
    firsts = order[np.searchsorted(cell_of.reshape(-1)[order], np.arange(len(cells)))]
    chosen = colors[np.sort(firsts[np.argsort(-weights, kind="stable")[:_SAME]])]
    nearest = np.empty(len(colors), np.uint8)
    parts = [
        np.stack([one >> shift & 255 for shift in (16, 8, 0)], -1).astype(int) for one in (colors, chosen)
    ]
    for begin in range(0, len(colors), 4096):
        apart = parts[0][begin : begin + 4096, None] - parts[1][None]
        nearest[begin : begin + 4096] = (apart * apart).sum(-1).argmin(1)
    return chosen, nearest[indices]


def _compress(indices: bytes) -> bytes:
    """Compresses with GIF's LZW: codes of 9 to 12 bits, lowest bits first."""
    out = bytearray()
    codes: dict[int, int] = {}
    find, held, bits, width, following = codes.get, _CLEAR, 9, 9, _FIRST
    prefix = indices[0]
    for value in memoryview(indices)[1:]:
        key = prefix << 8 | value
        found = find(key)
        if found is not None:
            prefix = found
            continue
        held |= prefix << bits
        bits += width
        while bits >= 8:
            out.append(held & 255)
            held >>= 8
            bits -= 8
        if following == _MOST_CODES:
            held |= _CLEAR << bits
            bits += width
            codes.clear()
            width, following = 9, _FIRST
        else:
            codes[key] = following
            if following == 1 << width:
                width += 1
            following += 1
        prefix = value
    for code in (prefix, _END):
        held |= code << bits
        bits += width
    out += held.to_bytes(-(-bits // 8), "little")
    return bytes(out)


def _split(data: bytes) -> list[bytes]:
    """Returns the data in blocks of at most 255 bytes, each after its length."""
    blocks = []
    for begin in range(0, len(data), 255):
        block = data[begin : begin + 255]
        blocks += [bytes([len(block)]), block]
    return blocks
