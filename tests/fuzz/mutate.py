"""Mutations of bytes, seeded: whatever reads bytes from outside is given almost-right ones.

Almost right matters: a checksum that does not hold ends a parser before anything interesting is read, so a
target may bring a `repair` that makes sums and sizes agree again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

EDGES = (0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536)
EDGES += tuple(2**bits + more for bits in (31, 32, 40, 62, 63, 64) for more in (-1, 0, 1))
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORDS = (
    b"null",
    b"true",
    b"NaN",
    b"-1",
    b"1e999",
    b"[]",
    b"{}",
    b'""',
    b"[" * 3000,
    b"9" * 5000,
    b"\\ud800",
)
_WORDS += (b"<f4", b"|O", b"|V0", b"<U9", b"object", b"\0", b"\r\n", b"\xff", b"..", b"/", b"%00", b"\\ud800")


def mutated(chooser: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of `seeds` with one to six changes."""
    data = bytearray(chooser.choice(seeds))
    for _ in range(chooser.choice((1, 1, 1, 2, 3, 6))):
        _CHANGES[chooser.randrange(len(_CHANGES))](chooser, data, seeds)
    return bytes(data)


def _place(chooser: random.Random, data: bytearray) -> int:
    """Heads are where the meaning is."""
    end = len(data) + 1
    return chooser.randrange(min(end, 200) if chooser.random() < 0.6 else end)


def _flip(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[_place(chooser, data) % len(data)] ^= 1 << chooser.randrange(8)


def _byte(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[_place(chooser, data) % len(data)] = chooser.randrange(256)


def _integer(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    size = chooser.choice((1, 2, 4, 8))
    at = _place(chooser, data) // size * size
    value = chooser.choice(EDGES) if chooser.random() < 0.7 else chooser.getrandbits(64)
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, chooser.choice(("little", "big")))


def _near(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """A number that is there, one more or less: off by one is the likeliest mistake."""
    size = chooser.choice((2, 4, 8))
    at = _place(chooser, data) // size * size
    old = int.from_bytes(data[at : at + size], "little")
    data[at : at + size] = ((old + chooser.choice((-1, 1, 64, -64))) % (1 << 8 * size)).to_bytes(
        size, "little"
    )


def _remove(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = _place(chooser, data)
    del data[at : at + chooser.choice((1, 4, 16, 64, 4096))]


def _truncate(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    del data[chooser.randrange(len(data) + 1) :]


def _repeat(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at, size = _place(chooser, data), chooser.choice((1, 8, 40, 400))
    data[at:at] = data[at : at + size] * chooser.choice((1, 1, 3))


def _splice(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = chooser.choice(seeds)
    at, begin, size = _place(chooser, data), chooser.randrange(len(other) + 1), chooser.choice((4, 30, 300))
    data[at : at + size] = other[begin : begin + size]


def _text_number(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """A number in a text, such as JSON; what follows stays where it is, or moves."""
    found = list(_NUMBER.finditer(data[:4096]))
    if not found:
        return _integer(chooser, data, seeds)
    number = chooser.choice(found)
    new = chooser.choice((-1, "1e999", "NaN", "0.5", *EDGES))
    text = str(new).encode()
    data[number.start() : number.end() if chooser.random() < 0.5 else number.start() + len(text)] = text


def _word(chooser: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = _place(chooser, data)
    data[at : at + chooser.choice((0, 0, 1, 4))] = chooser.choice(_WORDS)


_Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]
_CHANGES: tuple[_Change, ...] = (
    *(_flip, _byte, _integer, _integer, _near, _remove, _truncate, _repeat, _splice),
    *(_text_number, _text_number, _word),
)
