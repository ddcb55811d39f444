"""Opening what may not be a segment: a working segment or a clear error, whatever the bytes are."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import CorruptFileError, LayoutError, SegmentError, SegmentNotFound, VersionError
from shoal.memory import Layout, Segment
from shoal.memory.header import HEADER_BYTES

# Where the members of shoal_segment_header lie, in core/segment.h.
MAGIC, FORMAT, MIN_READER, BYTE_ORDER, SIZE, DATA_OFFSET, SCHEMA_BYTES, DIGEST = 0, 8, 12, 16, 24, 32, 40, 48

LAYOUT = Layout({"reward": (np.float64, (8,)), "done": (np.bool_, (8,)), "frame": (np.uint8, (3, 50))})
PAGE = os.sysconf("SC_PAGESIZE")
HEADER_AND_SCHEMA = HEADER_BYTES + len(LAYOUT.schema)
FRAME = np.arange(150, dtype=np.uint8).reshape(3, 50)

many = settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """The bytes of a good segment file."""
    path = tmp_path_factory.mktemp("whole") / "ring.seg"
    with Segment.file(LAYOUT, path) as segment:
        segment["frame"][:] = FRAME
    return path.read_bytes()


def _written(directory: Path, data: bytes) -> Path:
    path = directory / "try.seg"
    path.write_bytes(data)
    return path


def _patched(data: bytes, *patches: tuple[int, bytes]) -> bytes:
    changed = bytearray(data)
    for at, value in patches:
        changed[at : at + len(value)] = value
    return bytes(changed)


def _open_must_be_safe(path: Path) -> None:
    """What opens has its data where it was; what does not says so in one of three ways."""
    for readonly in (True, False):
        try:
            segment = Segment.open(path, readonly=readonly)
        except (CorruptFileError, VersionError, LayoutError):
            continue
        with segment:
            assert segment.layout == LAYOUT
            np.testing.assert_array_equal(segment["frame"], FRAME)


# -- bytes ------------------------------------------------------------------------------------------


def test_the_file_these_tests_damage_is_good(whole, tmp_path):
    with Segment.open(_written(tmp_path, whole), LAYOUT) as segment:
        np.testing.assert_array_equal(segment["frame"], FRAME)


@many
@given(st.integers(0, HEADER_AND_SCHEMA - 1), st.integers(1, 255))
def test_a_changed_byte_of_header_or_schema_is_an_error_or_harmless(whole, tmp_path, at, mask):
    _open_must_be_safe(_written(tmp_path, _patched(whole, (at, bytes([whole[at] ^ mask])))))


@many
@given(
    st.lists(st.tuples(st.integers(8, HEADER_AND_SCHEMA - 8), st.binary(min_size=1, max_size=8)), max_size=6)
)
def test_many_changed_bytes_are_an_error_or_harmless(whole, tmp_path, patches):
    _open_must_be_safe(_written(tmp_path, _patched(whole, *patches)))


@many
@given(
    st.sampled_from([SIZE, DATA_OFFSET, SCHEMA_BYTES]),
    st.integers(0, 2**64 - 1) | st.integers(0, 20_000) | st.integers(2**63 - 100, 2**63 + 100),
)
def test_any_number_in_a_size_of_the_header_is_an_error_or_the_true_one(whole, tmp_path, at, value):
    _open_must_be_safe(_written(tmp_path, _patched(whole, (at, struct.pack("=Q", value)))))


def test_a_truncated_file_is_corrupt_at_every_length(whole, tmp_path):
    path = _written(tmp_path, whole)
    for length in (*range(len(whole) - 1, HEADER_AND_SCHEMA, -97), *range(HEADER_AND_SCHEMA, -1, -1)):
        os.truncate(path, length)
        with pytest.raises(
            CorruptFileError, match=f"incomplete or changed: expected .* bytes, found {length};"
        ):
            Segment.open(path)


@many
@given(st.binary(max_size=300))
def test_a_file_of_any_other_bytes_is_corrupt(tmp_path, data):
    with pytest.raises(CorruptFileError):
        Segment.open(_written(tmp_path, data))


@pytest.mark.parametrize("extra", [1, 64, 4096])
def test_a_grown_file_is_corrupt(whole, tmp_path, extra):
    path = _written(tmp_path, whole + bytes(extra))
    with pytest.raises(CorruptFileError, match=f"expected {len(whole)} bytes, found {len(whole) + extra}"):
        Segment.open(path)


def test_an_empty_file_is_corrupt(tmp_path):
    with pytest.raises(CorruptFileError, match="expected at least 128 bytes, found 0"):
        Segment.open(_written(tmp_path, b""))


def test_a_foreign_file_is_named_as_such(tmp_path):
    with pytest.raises(CorruptFileError, match="is not a Shoal segment: .* found b'#!/bin/s'"):
        Segment.open(_written(tmp_path, b"#!/bin/sh\necho hello\n"))


def test_a_segment_that_was_never_finished_is_not_a_segment(whole, tmp_path):
    with pytest.raises(CorruptFileError, match="is not a Shoal segment"):
        Segment.open(_written(tmp_path, _patched(whole, (MAGIC, bytes(8)))))


def test_a_segment_that_needs_a_newer_reader_is_a_version_error(whole, tmp_path):
    path = _written(tmp_path, _patched(whole, (FORMAT, struct.pack("=II", 9, 7))))
    with pytest.raises(
        VersionError, match="format 9 and needs a reader of format 7 or newer, .* format 1"
    ) as info:
        Segment.open(path)
    assert (info.value.found, info.value.expected) == (9, 1)


def test_a_newer_format_that_this_reader_understands_opens(whole, tmp_path):
    path = _written(tmp_path, _patched(whole, (FORMAT, struct.pack("=II", 9, 1))))
    with Segment.open(path) as segment:
        np.testing.assert_array_equal(segment["frame"], FRAME)


def test_format_zero_is_a_version_error(whole, tmp_path):
    with pytest.raises(VersionError):
        Segment.open(_written(tmp_path, _patched(whole, (FORMAT, bytes(4)))))


def test_the_other_byte_order_is_a_version_error(whole, tmp_path):
    path = _written(tmp_path, _patched(whole, (BYTE_ORDER, whole[BYTE_ORDER : BYTE_ORDER + 4][::-1])))
    with pytest.raises(VersionError, match="the other byte order"):
        Segment.open(path)


def test_a_wrong_digest_is_corrupt(whole, tmp_path):
    with pytest.raises(CorruptFileError, match="its layout does not match its digest"):
        Segment.open(_written(tmp_path, _patched(whole, (DIGEST, bytes(32)))))


def test_a_schema_that_needs_more_than_the_file_is_corrupt(whole, tmp_path):
    large = Layout({"reward": (np.float64, (8000,))})
    head = struct.pack("=Q", len(large.schema)) + large.digest
    path = _written(tmp_path, _patched(whole, (SCHEMA_BYTES, head), (HEADER_BYTES, large.schema)))
    with pytest.raises(
        CorruptFileError, match=f"its fields need 64000 bytes after the header, but it has {PAGE}"
    ):
        Segment.open(path)


def test_data_that_does_not_begin_at_a_page_is_corrupt(whole, tmp_path):
    path = _written(tmp_path, _patched(whole, (DATA_OFFSET, struct.pack("=Q", PAGE + 64))))
    with pytest.raises(CorruptFileError, match="sizes in its header are inconsistent"):
        Segment.open(path)


def test_a_schema_longer_than_the_space_before_the_data_is_corrupt(whole, tmp_path):
    path = _written(tmp_path, _patched(whole, (SCHEMA_BYTES, struct.pack("=Q", PAGE - HEADER_BYTES + 1))))
    with pytest.raises(CorruptFileError, match="sizes in its header are inconsistent"):
        Segment.open(path)


def test_a_failed_open_leaves_no_descriptor(whole, tmp_path):
    path = _written(tmp_path, whole[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        with pytest.raises(CorruptFileError):
            Segment.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


# -- things that are not regular files ----------------------------------------------------------------


@pytest.mark.parametrize("readonly", [False, True])
def test_a_directory_is_an_error(tmp_path, readonly):
    with pytest.raises(SegmentError, match="Is a directory"):
        Segment.open(tmp_path, readonly=readonly)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("readonly", [False, True])
def test_a_fifo_is_an_error_and_is_not_waited_for(tmp_path, readonly):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CorruptFileError):
        Segment.open(tmp_path / "fifo", readonly=readonly)


def test_a_socket_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(SegmentError):
            Segment.open("socket")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_not_a_segment(device):
    with pytest.raises(CorruptFileError):
        Segment.open(device, readonly=True)


def test_a_symbolic_link_is_refused(whole, tmp_path):
    link = tmp_path / "link.seg"
    link.symlink_to(_written(tmp_path, whole))
    with pytest.raises(SegmentError, match="cannot be opened"):
        Segment.open(link)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(SegmentNotFound, match="there is no segment file .*absent.seg"):
        Segment.open(tmp_path / "absent.seg")


def test_a_path_with_a_nul_is_refused_and_not_cut_there(tmp_path):
    for call in (Segment.open, lambda path: Segment.file(LAYOUT, path)):
        with pytest.raises(ValueError):
            call(f"{tmp_path}/a\0b")
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_user_is_a_clear_error(whole, tmp_path, run_python):
    path = _written(tmp_path, whole)
    path.chmod(0)
    source = """
import os, sys
from shoal.errors import SegmentError
from shoal.memory import Segment
fd = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
os.fchdir(fd)
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
for readonly in (True, False):
    try:
        Segment.open(os.path.basename(sys.argv[1]), readonly=readonly)
    except SegmentError as error:
        print(error)
"""
    out = run_python(source, path)
    assert out.count("cannot be opened: Permission denied") == 2
