"""Renames the symbols of an object file, so that one source, compiled for several instruction sets, fits into
one library.

    default.o   shoal_entry           step    helper
    avx2.o      shoal_entry_avx2      step    helper.avx2        static functions keep their names
    avx512.o    shoal_entry_avx512    step    helper.avx512      renamed ones are hidden, the entries are not

Only names change: indices, relocations and sections stay as the compiler wrote them. The new names are
appended to the string table, which moves to the end of the file.
"""

from __future__ import annotations

import struct

__all__ = ["separate"]

_SYMTAB, _GROUP = 2, 17  # types of sections
_LOCAL, _IFUNC, _HIDDEN = 0, 10, 2  # binding, type and visibility of a symbol
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, ...
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
# Code in the first four runs when the library is loaded, whatever the CPU; the last has no machine code yet.
_REFUSED = (b".init_array", b".fini_array", b".preinit_array", b".ctors", b".gnu.lto_")


def separate(content: bytes, isa: str) -> bytes | None:
    """Returns the object with `isa` behind the names of everything that it defines for others.

    Returns None if the object cannot be one of several: it is not an ELF file of 64 bits, it has no
    `shoal_entry`, or some of its code runs when the library is loaded.
    """
    try:
        return _separate(content, isa)
    except (struct.error, IndexError, ValueError):
        return None  # not a file that a compiler writes for this machine


def _separate(content: bytes, isa: str) -> bytes | None:
    if content[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", content, 0x3A)
    sections = [_SECTION.unpack_from(content, table + i * size) for i in range(count)]
    section_names = _section_bytes(content, sections[names_index])
    if any(_string(section_names, section[0]).startswith(_REFUSED) for section in sections):
        return None
    (symtab,) = [section for section in sections if section[1] == _SYMTAB]
    strings = _section_bytes(content, sections[symtab[6]])
    groups = {section[7] for section in sections if section[1] == _GROUP}  # their names identify them

    changed, added, has_entry = bytearray(content), bytearray(), False
    for number in range(symtab[5] // _SYMBOL.size):
        at = symtab[4] + number * _SYMBOL.size
        name, info, other, section, value, length = _SYMBOL.unpack_from(content, at)
        if info & 0xF == _IFUNC or (number in groups and 0 in (name, section)):
            return None
        if section == 0 or name == 0 or (info >> 4 == _LOCAL and number not in groups):
            continue
        text = _string(strings, name)
        is_entry = text == b"shoal_entry"
        has_entry |= is_entry
        if not is_entry:
            other = other & ~3 | _HIDDEN
        renamed = len(strings) + len(added)
        added += text + (b"_" if is_entry else b".") + isa.encode() + b"\0"
        _SYMBOL.pack_into(changed, at, renamed, info, other, section, value, length)
    if not has_entry:
        return None
    header = table + symtab[6] * size
    struct.pack_into("<QQ", changed, header + 24, len(changed), len(strings) + len(added))
    return bytes(changed + strings + added)


def _section_bytes(content: bytes, section: tuple[int, ...]) -> bytes:
    return content[section[4] : section[4] + section[5]]


def _string(strings: bytes, at: int) -> bytes:
    return strings[at : strings.index(b"\0", at)]
