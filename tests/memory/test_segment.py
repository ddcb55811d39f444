"""Segments in one process: what the arrays are, how a segment ends, and what stays valid after that."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import stat
import threading

import numpy as np
import pytest

from shoal import _core
from shoal.errors import ClosedError, LayoutError, NameInUse, NoRoomError
from shoal.memory import Layout, Segment
from shoal.memory.names import name_directory

LAYOUT = Layout({"reward": (np.float64, (8,)), "done": (np.bool_, (8,)), "frame": (np.uint8, (2, 30, 30))})
PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture(params=["anonymous", "named", "file"])
def segment(request, name, tmp_path):
    if request.param == "anonymous":
        made = Segment(LAYOUT)
    elif request.param == "named":
        made = Segment.named(LAYOUT, name)
    else:
        made = Segment.file(LAYOUT, tmp_path / "ring.seg")
    with made:
        yield made


def _address(array) -> int:
    return array.__array_interface__["data"][0]


def _mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:shoal" in line or "/dev/shm/" in line or "ring.seg" in line for line in maps)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- arrays -------------------------------------------------------------------------------------------


def test_a_new_segment_is_all_zeros(segment):
    assert all(not segment[field].any() for field in segment)


def test_arrays_have_the_dtypes_and_shapes_of_the_layout(segment):
    assert {name: (a.dtype, a.shape) for name, a in segment.items()} == {
        name: (field.dtype, field.shape) for name, field in LAYOUT.items()
    }


def test_a_field_is_the_same_array_every_time(segment):
    assert segment["reward"] is segment["reward"]


def test_the_base_of_an_array_is_the_native_mapping(segment):
    assert isinstance(segment["reward"].base, _core.Mapping)
    assert segment["reward"].base is segment["done"].base


def test_fields_do_not_overlap(segment):
    for number, field in enumerate(segment, 1):
        segment[field][...] = number
    assert [segment[field].max() for field in segment] == [1, True, 3]
    assert [segment[field].min() for field in segment] == [1, True, 3]


def test_arrays_begin_on_cache_lines_and_the_segment_on_a_page(segment):
    assert segment["reward"].base.address % PAGE == 0
    assert _address(segment["reward"]) % PAGE == 0
    assert all(_address(array) % 64 == 0 for array in segment.values())


def test_a_large_segment_begins_on_a_huge_page():
    with Segment(Layout({"a": ("u1", (5 << 20,))})) as segment:
        assert segment["a"].base.address % (2 << 20) == 0


def test_a_segment_knows_which_arrays_are_its_own(segment):
    assert segment.shares_memory(segment["frame"][1:, 3])
    assert not segment.shares_memory(segment["frame"].copy())


@pytest.mark.parametrize("fields", [{}, {"a": ("f4", (0, 3))}, {"a": ("f4", ())}, {"é/ü": ("i8", (2,))}])
def test_empty_scalar_and_oddly_named_fields_work(fields):
    with Segment(Layout(fields)) as segment:
        assert {name: array.shape for name, array in segment.items()} == {
            n: s for n, (_, s) in fields.items()
        }


def test_an_unknown_field_is_a_key_error_that_lists_the_fields(segment):
    with pytest.raises(KeyError, match="no field 'rewards'; the layout has .*reward.*done.*frame"):
        segment["rewards"]


def test_a_segment_is_only_equal_to_itself(segment):
    with segment.reader() as reader:
        assert segment == segment and segment != reader and len({segment, reader}) == 2


def test_what_is_not_a_layout_is_a_type_error():
    with pytest.raises(TypeError, match="expected a Layout, got dict; make one with"):
        Segment({"a": ("f4", ())})


def test_huge_page_bytes_counts_memory_on_huge_pages():
    with Segment(Layout({"a": ("u1", (1000,))}), huge_pages=True) as small:
        assert small.huge_page_bytes == 0
    with Segment(Layout({"a": ("u1", (8 << 20,))}), huge_pages=True) as segment:
        segment["a"][:] = 1
        found = segment.huge_page_bytes
        assert 0 <= found <= segment.size_bytes and found % (2 << 20) == 0
        with open("/proc/self/smaps") as lines:  # the kernel's own sum over everything there is
            kinds = ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:")
            total = sum(int(line.split()[1]) << 10 for line in lines if line.startswith(kinds))
        assert found <= total
    with pytest.raises(ClosedError):
        _ = segment.huge_page_bytes


def test_huge_pages_give_a_segment_that_works():
    with Segment(Layout({"a": ("u1", (8 << 20,))}), huge_pages=True) as segment:
        assert not segment["a"].any()
        segment["a"][:] = 7
        assert segment["a"].min() == 7


# -- readers ------------------------------------------------------------------------------------------


def test_a_reader_sees_what_is_written_before_and_after_it_was_made(segment):
    segment["reward"][0] = 1.5
    with segment.reader() as reader:
        segment["reward"][1] = 2.5
        assert reader["reward"][:2].tolist() == [1.5, 2.5]
        assert reader.layout == LAYOUT and reader.readonly and not segment.readonly


def test_a_readers_arrays_cannot_be_written_or_made_writeable(segment):
    with segment.reader() as reader:
        with pytest.raises(ValueError, match="read-only"):
            reader["reward"][0] = 1
        with pytest.raises(ValueError):
            reader["reward"].flags.writeable = True


def test_a_readers_descriptor_cannot_be_mapped_for_writing(segment):
    writable = mmap.mmap(segment._handles.fd, PAGE)
    writable.close()
    with segment.reader() as reader:
        with pytest.raises(PermissionError):
            mmap.mmap(reader._handles.fd, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def test_a_reader_outlives_the_segment_it_came_from(segment):
    segment["reward"][0] = 4
    with segment.reader() as reader:
        segment.close()
        assert reader["reward"][0] == 4


# -- what the system sees -----------------------------------------------------------------------------


def test_only_the_owner_may_open_a_segment(segment):
    assert stat.S_IMODE(os.fstat(segment._handles.fd).st_mode) == 0o600


@pytest.mark.parametrize("change", [-PAGE, PAGE])
def test_nobody_can_shrink_or_grow_an_anonymous_segment(change):
    with Segment(LAYOUT) as segment:
        with pytest.raises(PermissionError):
            os.ftruncate(segment._handles.fd, segment.size_bytes + change)


def test_no_seal_can_be_added_to_an_anonymous_segment():
    with Segment(LAYOUT) as segment:
        with pytest.raises(PermissionError):
            fcntl.fcntl(segment._handles.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_an_anonymous_segment_has_no_name_in_the_file_system():
    before = set(os.listdir(name_directory()))
    with Segment(LAYOUT) as segment:
        segment["reward"][:] = 1
        assert not {entry for entry in set(os.listdir(name_directory())) - before if "shoal" in entry}
        assert segment.name is None and segment.path is None


def test_every_byte_of_a_segment_is_reserved(segment):
    assert os.fstat(segment._handles.fd).st_blocks * 512 >= segment.size_bytes


def test_descriptors_close_on_exec(segment):
    assert not os.get_inheritable(segment._handles.fd)
    with segment.reader() as reader:
        assert not os.get_inheritable(reader._handles.fd)


# -- the end of a segment -------------------------------------------------------------------------------


def test_close_may_be_called_again(segment):
    segment.close()
    segment.close()
    assert segment.closed


def test_close_from_many_threads_closes_the_descriptor_once(tmp_path):
    for round_ in range(30):
        segment = Segment.named(LAYOUT) if round_ % 2 else Segment(LAYOUT)
        barrier = threading.Barrier(8)
        raised = []

        def close(segment=segment, barrier=barrier, raised=raised):
            barrier.wait()
            try:
                segment.close()
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=close) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not raised


@pytest.mark.parametrize("use", [lambda s: s["reward"], lambda s: s.reader(), lambda s: list(s.values())])
def test_use_after_close_is_a_closed_error_that_says_so(segment, use):
    segment.close()
    with pytest.raises(ClosedError, match=r"<Segment .*, closed> is closed; arrays taken .* are still valid"):
        use(segment)


def test_a_segment_is_a_context_manager(segment):
    with segment as entered:
        assert entered is segment and not segment.closed
    assert segment.closed


def test_a_segment_closes_when_its_block_raises(segment):
    with pytest.raises(RuntimeError, match="from the block"), segment:
        raise RuntimeError("from the block")
    assert segment.closed


def test_a_view_used_after_close_reads_and_writes_the_last_bytes(segment):
    view = segment["reward"]
    view[0] = 3.5
    segment.close()
    assert view[0] == 3.5
    view[1] = 4.5
    assert view[1] == 4.5


def test_a_view_alone_keeps_the_memory():
    segment = Segment(LAYOUT)
    part = segment["frame"][1, 3:5]
    segment["frame"][:] = 9
    gc.collect()  # what other tests left in cycles goes now
    before = _mappings()
    segment.close()
    del segment
    gc.collect()
    assert _mappings() == before
    assert (part == 9).all()
    part[:] = 8
    assert (part == 8).all()


def test_memory_is_unmapped_with_the_last_view():
    before = _mappings()
    segment = Segment(LAYOUT)
    view = segment["reward"]
    segment.close()
    del segment
    assert _mappings() == before + 1
    del view
    assert _mappings() == before


def test_a_dropped_segment_closes_itself(name):
    segment = Segment.named(LAYOUT, name)
    path = segment.path
    assert path.exists()
    del segment
    assert not path.exists()


@pytest.mark.parametrize("kind", ["anonymous", "named", "file"])
def test_two_hundred_segments_leave_no_descriptor_and_no_mapping(kind, tmp_path):
    before = _descriptors(), _mappings()
    for number in range(200):
        if kind == "anonymous":
            segment = Segment(LAYOUT)
        elif kind == "named":
            segment = Segment.named(LAYOUT)
        else:
            segment = Segment.file(LAYOUT, tmp_path / f"{number}-ring.seg")
        segment.reader().close()
        segment.close()
    del segment
    assert (_descriptors(), _mappings()) == before


def test_large_segments_give_back_all_their_address_space():
    layout = Layout({"a": ("u1", (5 << 20,))})
    Segment(layout).close()

    def pages():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0])

    before = pages()
    for _ in range(50):
        Segment(layout).close()
    assert (pages() - before) * PAGE < 16 << 20


def test_segments_that_fail_leave_no_descriptor_and_no_mapping(tmp_path, name):
    Segment.file(LAYOUT, tmp_path / "ring.seg").close()
    huge, other = Layout({"a": ("u1", (10**15,))}), Layout({"a": ("u1", (3,))})
    with Segment.named(LAYOUT, name):
        before = _descriptors(), _mappings()
        for _ in range(50):
            for call, error in (
                (lambda: Segment(huge), NoRoomError),
                (lambda: Segment.named(huge), NoRoomError),
                (lambda: Segment.named(LAYOUT, name), NameInUse),
                (lambda: Segment.attach(name, other), LayoutError),
                (lambda: Segment.file(LAYOUT, tmp_path / "ring.seg"), NameInUse),
                (lambda: Segment.file(huge, tmp_path / "huge.seg"), NoRoomError),
                (lambda: Segment.open(tmp_path / "ring.seg", other), LayoutError),
            ):
                with pytest.raises(error):
                    call()
        assert (_descriptors(), _mappings()) == before
    assert os.listdir(tmp_path) == ["ring.seg"]


def test_a_segment_shows_what_it_is(tmp_path, name):
    with Segment(LAYOUT) as anonymous, Segment.named(LAYOUT, name) as named:
        assert repr(anonymous) == "<Segment anonymous, 3 fields, 8.0 KB>"
        assert repr(named) == f"<Segment named {name!r}, 3 fields, 8.0 KB>"
        with named.reader() as reader:
            assert repr(reader) == f"<Segment named {name!r}, 3 fields, 8.0 KB, read-only>"
    assert repr(anonymous) == "<Segment anonymous, 3 fields, 8.0 KB, closed>"
