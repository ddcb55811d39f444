"""Named segments: which names there are, who owns one, and that exactly one process can."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal import _core
from shoal.errors import CorruptFileError, NameInUse, SegmentError, SegmentNotFound
from shoal.memory import Layout, Segment, list_names, names

LAYOUT = Layout({"numbers": (np.int64, (8,))})
OWNER_PID, OWNER_START = 96, 104  # in shoal_segment_header

# A process that owns the name it is given until its input ends.
OWNER = """
import sys
import numpy as np
from shoal.memory import Layout, Segment
segment = Segment.named(Layout({"numbers": (np.int64, (8,))}), sys.argv[1])
segment["numbers"][0] = 41
print("ready", flush=True)
sys.stdin.read()
"""

READER = """
import sys
from shoal.memory import Segment
segment = Segment.attach(sys.argv[1])
segment["numbers"][0] += 1
print("ready", flush=True)
sys.stdin.read()
"""


def _entry(name):
    [entry] = [entry for entry in list_names() if entry.name == name]
    return entry


def _patch(path: Path, at: int, value: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, value, at)
    os.close(fd)


# -- which names there are ------------------------------------------------------------------------------

BAD_NAMES = [
    "",
    "/",
    "a/b",
    "../a",
    "..",
    ".",
    ".hidden",
    "-a",
    "_a",
    "a\0b",
    "a\n",
    "a b",
    "a*",
    "é",
    "名",
    "٣",
]
BAD_NAMES += ["n" * 65, "n" * 300]


@pytest.mark.parametrize("bad", BAD_NAMES, ids=repr)
@pytest.mark.parametrize(
    "call", [lambda bad: Segment.named(LAYOUT, bad), Segment.attach], ids=["named", "attach"]
)
def test_a_bad_name_is_a_value_error_and_makes_nothing(call, bad):
    before = os.listdir(names.name_directory())
    with pytest.raises(ValueError, match="must have 1 to 64 letters, digits, '.', '_' or '-'"):
        call(bad)
    assert os.listdir(names.name_directory()) == before


@pytest.mark.parametrize("bad", [b"bytes", 7, 1.5, ["a"], Path("a")])
@pytest.mark.parametrize(
    "call", [lambda bad: Segment.named(LAYOUT, bad), Segment.attach], ids=["named", "attach"]
)
def test_a_name_that_is_not_a_str_is_a_type_error(call, bad):
    with pytest.raises(TypeError, match="a segment's name must be a str, got "):
        call(bad)


def test_a_long_bad_name_is_not_repeated_in_full():
    with pytest.raises(ValueError) as info:
        Segment.attach("x/" * 10**6)
    assert len(str(info.value)) < 300 and "2000000 characters" in str(info.value)


@given(st.text(max_size=70))
def test_any_text_is_a_name_in_its_directory_or_a_value_error(text):
    try:
        path = names.name_path(text)
    except ValueError:
        return
    assert str(path.parent) == names.name_directory()
    assert path.name == f"shoal-{os.getuid()}-{text}" and text.isascii() and 0 < len(text) <= 64


@pytest.mark.parametrize("end", ["", "a.b_c-d", "9" * 30])
def test_a_good_name_can_be_attached_to(name, end):
    with Segment.named(LAYOUT, name + end) as segment, Segment.attach(name + end, LAYOUT) as other:
        segment["numbers"][0] = 7
        assert other["numbers"][0] == 7
        other["numbers"][1] = 8
        assert segment["numbers"][1] == 8
        assert stat.S_IMODE(segment.path.stat().st_mode) == 0o600


def test_without_a_name_each_segment_gets_another_one():
    with Segment.named(LAYOUT) as first, Segment.named(LAYOUT) as second:
        assert first.name != second.name
        with Segment.attach(first.name) as other:
            assert other.layout == LAYOUT


def test_unknown_name_is_not_found(name):
    with pytest.raises(SegmentNotFound, match=f"there is no named segment '{name}'") as info:
        Segment.attach(name)
    assert isinstance(info.value, FileNotFoundError)


def test_an_attached_reader_cannot_write(name):
    with Segment.named(LAYOUT, name), Segment.attach(name, readonly=True) as reader:
        with pytest.raises(ValueError, match="read-only"):
            reader["numbers"][0] = 1


# -- who owns one ---------------------------------------------------------------------------------------


def test_a_name_with_a_living_owner_is_in_use_and_names_its_process(start_python, name):
    owner = start_python(OWNER, name)
    assert owner.read() == "ready"
    with pytest.raises(NameInUse, match=f"{name!r} is in use by process {owner.pid}; attach to it") as info:
        Segment.named(LAYOUT, name)
    assert info.value.pid == owner.pid
    with Segment.attach(name) as segment:
        assert segment["numbers"][0] == 41, "the owner's segment was touched"
    assert owner.end() == 0


def test_a_name_this_process_owns_is_in_use(name):
    with Segment.named(LAYOUT, name):
        with pytest.raises(NameInUse) as info:
            Segment.named(LAYOUT, name)
        assert info.value.pid == os.getpid()


def test_a_closed_name_can_be_taken_again(name):
    for number in range(5):
        with Segment.named(LAYOUT, name) as segment:
            assert segment["numbers"][0] == 0
            segment["numbers"][0] = number + 1


def test_name_is_removed_when_its_owner_ends_without_close(start_python, name):
    owner = start_python(OWNER, name)
    assert owner.read() == "ready" and _entry(name).alive
    assert owner.end() == 0
    assert name not in [entry.name for entry in list_names()]


def test_name_is_removed_when_its_owner_ends_by_an_exception(start_python, name):
    owner = start_python(OWNER + "sys.stderr = open('/dev/null', 'w')\nraise RuntimeError\n", name)
    assert owner.read() == "ready"
    assert owner.end() == 1
    assert name not in [entry.name for entry in list_names()]


def test_a_reader_that_ends_leaves_the_name(start_python, name):
    with Segment.named(LAYOUT, name) as segment:
        for ending in ("", "segment.close()"):
            child = start_python(READER + ending, name)
            assert child.read() == "ready"
            assert child.end() == 0
            assert segment.path.exists() and _entry(name).alive
        assert segment["numbers"][0] == 2


def test_an_attached_segment_is_usable_after_its_owner_closed(start_python, name):
    owner = start_python(OWNER, name)
    assert owner.read() == "ready"
    with Segment.attach(name) as segment:
        assert owner.end() == 0
        with pytest.raises(SegmentNotFound):
            Segment.attach(name)
        assert segment["numbers"][0] == 41
        segment["numbers"][:] = 5
        assert (segment["numbers"] == 5).all()


def test_a_name_removed_by_another_program_is_not_missed(name):
    with Segment.named(LAYOUT, name) as segment:
        segment.path.unlink()
        segment["numbers"][0] = 1
    with Segment.named(LAYOUT, name) as first:
        first.path.unlink()
        with Segment.named(LAYOUT, name) as second:
            first.close()
            assert second.path.exists(), "closing the first removed the name of the second"


def test_listing_shows_owner_size_and_whether_the_owner_is_alive(name):
    with Segment.named(LAYOUT, name) as segment:
        entry = _entry(name)
        assert entry == names.NameEntry(name, segment.path, segment.size_bytes, os.getpid(), True)


def test_listing_does_not_mistake_another_listing_for_an_owner(start_python, name):
    owner = start_python(OWNER, name)
    assert owner.read() == "ready"
    owner.kill()
    with open(names.name_path(name)) as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not _entry(name).alive
    Segment.named(LAYOUT, name).close()


def test_a_claim_waits_for_another_process_that_is_removing_the_dead_name(start_python, name, monkeypatch):
    owner = start_python(OWNER, name)
    assert owner.read() == "ready"
    owner.kill()
    other = open(names.name_path(name))
    fcntl.flock(other, fcntl.LOCK_EX)
    monkeypatch.setattr(names.time, "sleep", lambda seconds: other.close())
    with Segment.named(LAYOUT, name) as segment:
        assert other.closed and not segment["numbers"].any()


def test_a_claim_does_not_wait_for_ever_for_another_process(start_python, name, monkeypatch):
    owner = start_python(OWNER, name)
    assert owner.read() == "ready"
    owner.kill()
    monkeypatch.setattr(names, "_REAP_WAIT_S", 0.05)
    with open(names.name_path(name)) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(NameInUse) as info:
            Segment.named(LAYOUT, name)
        assert info.value.pid == owner.pid
    Segment.named(LAYOUT, name).close()


# -- files that others put at a name ----------------------------------------------------------------------


@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink("/dev/null", path)], ids=["dir", "link"])
def test_name_of_a_non_file_is_in_use_and_is_not_removed(name, make):
    path = names.name_path(name)
    make(path)
    try:
        with pytest.raises(NameInUse, match="in use by an unknown process"):
            Segment.named(LAYOUT, name)
        with pytest.raises(SegmentError):
            Segment.attach(name)
        assert path.lstat()
    finally:
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.timeout(10)
def test_a_fifo_at_a_name_is_an_error_and_is_not_waited_for(name):
    os.mkfifo(names.name_path(name))
    with pytest.raises(CorruptFileError):
        Segment.attach(name)
    Segment.named(LAYOUT, name).close()


def test_a_file_that_no_owner_locks_does_not_block_its_name(name):
    names.name_path(name).write_bytes(b"not a segment")
    with pytest.raises(CorruptFileError):
        Segment.attach(name)
    with Segment.named(LAYOUT, name) as segment:
        assert segment["numbers"].sum() == 0


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=16, max_size=16))
def test_a_damaged_owner_in_a_header_does_not_break_listing_or_claiming(name, owner):
    with Segment.named(LAYOUT, name) as segment:
        _patch(segment.path, OWNER_PID, owner)
        assert _entry(name).alive
        names._REAP_WAIT_S, wait = 0.0, names._REAP_WAIT_S
        try:
            with pytest.raises(NameInUse):
                Segment.named(LAYOUT, name)
        finally:
            names._REAP_WAIT_S = wait


@pytest.mark.skipif(os.getuid() != 0, reason="machine: only root can give a file to another user")
def test_a_segment_of_another_user_is_refused(name):
    with Segment.named(LAYOUT, name) as segment:
        os.chown(segment.path, 65534, 65534)
        with pytest.raises(SegmentError, match="belongs to user 65534, expected 0"):
            Segment.attach(name)
        assert name not in [entry.name for entry in list_names()]


# -- the directory of names --------------------------------------------------------------------------


def test_names_in_another_directory_do_not_meet_those_here(monkeypatch, tmp_path, name):
    with Segment.named(LAYOUT, name) as here:
        monkeypatch.setenv("SHOAL_NAME_DIR", str(tmp_path))
        assert list_names() == []
        with pytest.raises(SegmentNotFound):
            Segment.attach(name)
        with Segment.named(LAYOUT, name) as there:
            assert there.path.parent == tmp_path != here.path.parent
            assert [entry.path for entry in list_names()] == [there.path]
        assert list(tmp_path.iterdir()) == [] and here.path.exists()


def test_an_empty_variable_means_the_directory_of_the_system(monkeypatch):
    monkeypatch.setenv("SHOAL_NAME_DIR", "")
    assert names.name_directory() == _core.name_directory()


@pytest.mark.parametrize("bad", ["names", "/no/such/directory", "/dev/null"])
def test_a_directory_that_cannot_hold_names_is_an_error(monkeypatch, bad):
    monkeypatch.setenv("SHOAL_NAME_DIR", bad)
    for call in (Segment.attach, lambda name: Segment.named(LAYOUT, name), lambda name: list_names()):
        with pytest.raises(SegmentError, match=f"SHOAL_NAME_DIR must be the absolute path .*found '{bad}'"):
            call("any")
