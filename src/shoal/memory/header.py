"""Reads a segment's header; raises a clear error for anything but a complete segment of this format."""

from __future__ import annotations

import os

from shoal import _core
from shoal.errors import CorruptFileError, LayoutError, VersionError
from shoal.memory.layout import Layout

__all__ = ["HEADER_BYTES", "read_header"]

HEADER_BYTES = 128
_MAX_SCHEMA = 64 << 20

# The statuses of shoal_segment_inspect, in core/segment.h.
_TOO_SHORT, _FOREIGN, _BYTE_ORDER, _FORMAT_NEW, _WRONG_SIZE, _BOUNDS = range(1, 7)


def read_header(fd: int, what: str) -> tuple[Layout, int, int]:
    """Returns (layout, size, offset of the data) of an open segment; raises an error for anything else."""
    try:
        status, header = _core.inspect(fd)
    except OSError as error:
        raise CorruptFileError(f"the {what} cannot be read: {error.strerror}") from error
    size, schema_bytes = header["size_bytes"], header["schema_bytes"]
    if status == _FOREIGN:
        raise CorruptFileError(
            f"the {what} is not a Shoal segment: expected it to begin with b'SHOALSEG', "
            f"found {header['magic']!r}; check the path or the name"
        )
    if status == _TOO_SHORT or status == _WRONG_SIZE:
        expected = f"{size}" if status == _WRONG_SIZE else f"at least {HEADER_BYTES}"
        raise CorruptFileError(
            f"the {what} is incomplete or changed: expected {expected} bytes, found {header['file_bytes']}; "
            "another program truncated or extended it, so restore it or write it again"
        )
    if status == _BYTE_ORDER:
        raise VersionError(
            f"the {what} was written on a machine with the other byte order; write it again on this one",
            found=header["format"],
            expected=1,
        )
    if status == _FORMAT_NEW:
        raise VersionError(
            f"the {what} has segment format {header['format']} and needs a reader of format "
            f"{header['min_reader']} or newer, this Shoal reads format 1; install the version of "
            "Shoal that wrote it",
            found=header["format"],
            expected=1,
        )
    if status == _BOUNDS or schema_bytes > _MAX_SCHEMA:
        raise CorruptFileError(f"the {what} is damaged: the sizes in its header are inconsistent; restore it")
    try:
        schema = os.pread(fd, schema_bytes, HEADER_BYTES)
        layout = Layout.from_schema(schema)
    except (OSError, LayoutError) as error:
        raise CorruptFileError(f"the {what} is damaged: {error}") from error
    if layout.digest != header["digest"]:
        raise CorruptFileError(f"the {what} is damaged: its layout does not match its digest; restore it")
    if header["data_offset"] + layout.size_bytes > size:
        raise CorruptFileError(
            f"the {what} is damaged: its fields need {layout.size_bytes} bytes after the header, "
            f"but it has {size - header['data_offset']}; restore it"
        )
    return layout, size, header["data_offset"]
