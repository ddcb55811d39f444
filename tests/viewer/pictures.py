"""Readers of PNG and GIF files, written from their specifications: independent of what writes them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np


def decode_png(data: bytes) -> Any:
    """[height, width, 3 or 4] of an 8-bit PNG without interlacing; every checksum is checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, head = 8, b"", ()
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + body)
        at += 12 + size
        if name == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        elif name == b"IDAT":
            packed += body
    assert name == b"IEND"
    width, height, bits, kind, *rest = head
    assert bits == 8 and kind in (2, 6) and rest == [0, 0, 0]
    each = 3 if kind == 2 else 4
    long = width * each
    raw, before, rows = zlib.decompress(packed), bytes(long), []
    assert len(raw) == height * (1 + long)
    for at in range(0, len(raw), 1 + long):
        before = _unfilter(raw[at], bytearray(raw[at + 1 : at + 1 + long]), before, each)
        rows.append(np.frombuffer(before, np.uint8).reshape(width, each))
    return np.stack(rows)


def _unfilter(kind: int, row: bytearray, up: bytes, each: int) -> bytes:
    """One row as it was: bytes are relative to those to the left (a), above (b) and above left (c)."""
    if kind == 2:
        return (np.frombuffer(bytes(row), np.uint8) + np.frombuffer(up, np.uint8)).tobytes()
    for i in range(len(row) if kind else 0):
        a, c = (row[i - each], up[i - each]) if i >= each else (0, 0)
        b = up[i]
        if kind == 1:
            guess = a
        elif kind == 3:
            guess = (a + b) // 2
        else:
            pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
            guess = a if pa <= pb and pa <= pc else b if pb <= pc else c
        row[i] = (row[i] + guess) & 255
    return bytes(row)


def decode_gif(data: bytes) -> tuple[list[Any], list[int]]:
    """The frames, each as it is seen [height, width, 3], and their hundredths of a second."""
    assert data[:6] == b"GIF89a"
    width, height, flags = struct.unpack("<HHB", data[6:11])
    at = 13 + (3 << (1 + (flags & 7)) if flags & 0x80 else 0)
    seen, frames, delays, clear = np.zeros((height, width, 3), np.uint8), [], [], None
    while data[at] != 0x3B:
        if data[at] == 0x21:
            if data[at + 1] == 0xF9:
                packed, delay, index = struct.unpack("<BHB", data[at + 3 : at + 7])
                clear = index if packed & 1 else None
                delays.append(delay)
            at = _skip(data, at + 2)[1]
            continue
        assert data[at] == 0x2C
        left, top, w, h, flags = struct.unpack("<HHHHB", data[at + 1 : at + 10])
        assert (left, top, w, h) == (0, 0, width, height) and flags & 0x80
        colors = 3 << (1 + (flags & 7))
        table = np.frombuffer(data[at + 10 : at + 10 + colors], np.uint8).reshape(-1, 3)
        least = data[at + 10 + colors]
        body, at = _skip(data, at + 11 + colors)
        values = np.frombuffer(_unpack(body, least), np.uint8)
        assert len(values) == w * h
        grid = values.reshape(h, w)
        shown = np.ones((h, w), bool) if clear is None else grid != clear
        seen = np.where(shown[..., None], table[grid], seen)
        frames.append(seen)
    assert at == len(data) - 1
    return frames, delays


def _skip(data: bytes, at: int) -> tuple[bytes, int]:
    """The blocks from here on as one, and where they end."""
    parts = []
    while data[at]:
        parts.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    return b"".join(parts), at + 1


def _unpack(body: bytes, least: int) -> bytes:
    clear, end = 1 << least, (1 << least) + 1
    bits = held = place = 0
    width, table, before, out = least + 1, [], None, bytearray()
    while True:
        while bits < width:
            held |= body[place] << bits
            place, bits = place + 1, bits + 8
        code, held, bits = held & ((1 << width) - 1), held >> width, bits - width
        if code == end:
            return bytes(out)
        if code == clear:
            table, width, before = [bytes([i]) for i in range(clear)] + [b"", b""], least + 1, None
            continue
        if before is not None and len(table) < 4096:
            table.append(before + (table[code] if code < len(table) else before)[:1])
            if len(table) == 1 << width and width < 12:
                width += 1
        before = table[code]
        out += before
