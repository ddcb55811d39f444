"""File segments: they stay, they are never half there, and their holes are filled before anybody writes."""

from __future__ import annotations

import fcntl
import os
import threading

import numpy as np
import pytest

from shoal import _core
from shoal.errors import LayoutError, NameInUse, SegmentError
from shoal.memory import Layout, Segment, list_names

LAYOUT = Layout({"reward": (np.float64, (8,)), "done": (np.bool_, (8,)), "frame": (np.uint8, (2, 30, 30))})


def test_a_file_segment_keeps_its_data(tmp_path):
    path = tmp_path / "ring.seg"
    with Segment.file(LAYOUT, path) as segment:
        segment["frame"][:] = 5
    with Segment.open(path, LAYOUT) as segment:
        assert (segment["frame"] == 5).all()
        segment["frame"][0, 0, 0] = 6
    with Segment.open(str(path), readonly=True) as segment:
        assert segment["frame"][0, 0, 0] == 6 and segment.path == path


def test_a_path_that_exists_is_in_use_and_stays_as_it_was(tmp_path):
    path = tmp_path / "ring.seg"
    path.write_text("mine")
    with pytest.raises(NameInUse, match="exists; open it with Segment.open, or remove it first") as info:
        Segment.file(LAYOUT, path)
    assert info.value.pid is None and isinstance(info.value, FileExistsError)
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["ring.seg"]


@pytest.mark.parametrize("parent", ["absent", "file"])
def test_parent_that_is_not_a_directory_is_an_error(tmp_path, parent):
    (tmp_path / "file").write_text("")
    with pytest.raises(SegmentError, match="ot a directory"):
        Segment.file(LAYOUT, tmp_path / parent / "ring.seg")


@pytest.mark.parametrize("opener", ["open", "attach"])
def test_another_layout_is_an_error_that_names_the_field(tmp_path, name, opener):
    other = Layout({"reward": (np.float32, (8,)), "done": (np.bool_, (8,)), "frame": (np.uint8, (2, 30, 30))})
    message = r"another layout than expected: 'reward': expected float32\[8\], found float64\[8\]; pass the"
    made = Segment.file(LAYOUT, tmp_path / "ring.seg") if opener == "open" else Segment.named(LAYOUT, name)
    with made, pytest.raises(LayoutError, match=message):
        Segment.open(made.path, other) if opener == "open" else Segment.attach(name, other)


def test_the_holes_of_a_sparse_copy_are_reserved_when_it_is_opened_for_writing(tmp_path):
    layout = Layout({"a": ("u1", (4 << 20,))})
    with Segment.file(layout, tmp_path / "ring.seg") as segment:
        segment["a"][-3:] = 9
        size = segment.size_bytes
    with open(tmp_path / "ring.seg", "rb") as whole, open(tmp_path / "sparse.seg", "wb") as sparse:
        sparse.write(whole.read(os.sysconf("SC_PAGESIZE")))
        sparse.seek(size - 3)
        sparse.write(b"\7\7\7")
    assert os.stat(tmp_path / "sparse.seg").st_blocks * 512 < size
    with Segment.open(tmp_path / "sparse.seg") as segment:
        assert os.stat(tmp_path / "sparse.seg").st_blocks * 512 >= size
        assert segment["a"].sum() == 21


def test_a_whole_file_is_opened_without_reserving_anything(tmp_path, monkeypatch):
    """Where the system cannot reserve, the C library rewrites bytes that another process may be changing."""
    Segment.file(LAYOUT, tmp_path / "ring.seg").close()
    calls = []
    monkeypatch.setattr(_core, "reserve", lambda *args: calls.append(args))
    Segment.open(tmp_path / "ring.seg").close()
    assert not calls


# -- file systems that cannot make a file without a name ------------------------------------------------


@pytest.fixture
def no_unnamed_files(monkeypatch):
    made = []

    def create(directory):
        made.append(f"{directory}/.shoal-{os.getpid()}-abcdef")
        return os.open(made[-1], os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), made[-1]

    monkeypatch.setattr(_core, "file_create", create)
    return made


def test_a_temporary_name_is_gone_once_the_segment_has_its_own(no_unnamed_files, tmp_path, name):
    with Segment.file(LAYOUT, tmp_path / "ring.seg"), Segment.named(LAYOUT, name):
        assert os.listdir(tmp_path) == ["ring.seg"]
        assert len(no_unnamed_files) == 2 and not any(map(os.path.exists, no_unnamed_files))
        assert name in [entry.name for entry in list_names()]


def test_a_temporary_name_is_gone_when_the_segment_fails(no_unnamed_files, tmp_path, name):
    with Segment.file(LAYOUT, tmp_path / "ring.seg"), Segment.named(LAYOUT, name):
        with pytest.raises(NameInUse):
            Segment.file(LAYOUT, tmp_path / "ring.seg")
        with pytest.raises(NameInUse):
            Segment.named(LAYOUT, name)
        assert len(no_unnamed_files) == 4 and not any(map(os.path.exists, no_unnamed_files))


def test_listing_does_not_break_an_unfinished_segment(no_unnamed_files, monkeypatch, name):
    create = _core.file_create

    def create_and_look(directory):
        fd, temporary = create(directory)
        looking = open(temporary)
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.02, looking.close).start()
        return fd, temporary

    monkeypatch.setattr(_core, "file_create", create_and_look)
    with Segment.named(LAYOUT, name):
        assert [entry.alive for entry in list_names() if entry.name == name] == [True]


@pytest.mark.parametrize("count", [-1, 9, 10**9])
def test_rows_outside_a_field_are_refused(count):
    with Segment(Layout({"a": ("f4", (8,)), "b": ("f4", (8,))})) as segment:
        with pytest.raises(ValueError, match="asked for its first"):
            segment.rows("a", count)
        assert np.shares_memory(segment.rows("a", 3), segment["a"])
