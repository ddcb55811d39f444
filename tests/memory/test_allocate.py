"""Making segments where there is no room for them: every limit is an error before, never a signal after."""

from __future__ import annotations

import errno
import os
import subprocess
import time

import numpy as np
import pytest

from shoal import _core
from shoal.errors import DiskFullError, NoRoomError, SegmentError, ShmFullError
from shoal.memory import Layout, Segment, allocate

LAYOUT = Layout({"reward": (np.float64, (8,)), "done": (np.bool_, (8,)), "frame": (np.uint8, (2, 30, 30))})
HUGE = Layout({"a": ("u1", (10**15,))})

# Runs before each script below; `refused` prints how a call fails, and that it did.
PRELUDE = """
import os, resource, sys
from shoal.errors import DiskFullError, NoRoomError, SegmentError, ShmFullError
from shoal.memory import Layout, Segment, allocate

MB = 1 << 20
small, large = Layout({"a": ("u1", (MB,))}), Layout({"a": ("u1", (64 * MB,))})

def refused(call, *args):
    before = len(os.listdir("/proc/self/fd"))
    try:
        call(*args)
    except SegmentError as error:
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"
        print(type(error).__name__, error)
        return error
    print("not refused")
"""


@pytest.fixture(scope="module")
def private_mounts():
    """A command that runs another one where /dev/shm is a tmpfs of 16 MB of its own."""
    mount = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && unset SHOAL_NAME_DIR && exec "$@"'
    said = "unshare is not installed"
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        command = (*unshare, "sh", "-c", mount, "sh")
        try:
            done = subprocess.run([*command, "true"], capture_output=True, text=True)
        except OSError:
            break
        if done.returncode == 0:
            return command
        said = done.stderr.strip()
    pytest.skip(f"machine: cannot mount a small /dev/shm: {said}")


# -- a full /dev/shm ----------------------------------------------------------------------------------


def test_a_named_segment_larger_than_dev_shm_is_an_error_with_need_and_free(private_mounts, run_python):
    source = """
error = refused(Segment.named, large)
assert isinstance(error, MemoryError)
assert error.need_bytes > 64 * MB and error.free_bytes == 16 * MB
assert os.listdir("/dev/shm") == []
"""
    out = run_python(PRELUDE + source, command=private_mounts)
    assert out.startswith("ShmFullError the segment needs ")
    assert (
        "only 16777216 (16.0 MB) are available, limited by the file system at /dev/shm; make it larger "
        "(docker run --shm-size=4g" in out
    )
    assert "or use an anonymous segment, which is not in /dev/shm" in out


def test_an_anonymous_segment_is_not_bounded_by_dev_shm(private_mounts, run_python):
    source = """
with Segment(large) as segment:
    segment["a"][:] = 1
print("written")
"""
    assert run_python(PRELUDE + source, command=private_mounts) == "written\n"


def test_a_named_segment_that_fits_the_small_dev_shm_can_be_filled(private_mounts, run_python):
    source = """
with Segment.named(Layout({"a": ("u1", (15 * MB,))})) as segment:
    segment["a"][:] = 1
print("written")
"""
    assert run_python(PRELUDE + source, command=private_mounts) == "written\n"


def test_dev_shm_that_fills_up_after_the_check_is_the_same_error_and_leaves_nothing(
    private_mounts, run_python
):
    source = """
truth, checks = allocate.space_limits, iter([[], []])  # both times there seems to be room
allocate.space_limits = lambda *args: next(checks, truth(*args))
error = refused(Segment.named, large)
assert error.need_bytes > 64 * MB and error.free_bytes <= 16 * MB
assert os.listdir("/dev/shm") == []
stats = os.statvfs("/dev/shm")
assert stats.f_bfree == stats.f_blocks, "space was not given back"
"""
    out = run_python(PRELUDE + source, command=private_mounts)
    assert out.startswith("ShmFullError the segment needs ")
    assert "ran out of space after 0 bytes ('No space left on device'" in out


@pytest.mark.parametrize("seems", ["short", "ample"])
def test_a_file_larger_than_its_file_system_is_a_disk_full_error_and_leaves_nothing(
    private_mounts, run_python, seems
):
    source = """
os.mkdir("/dev/shm/disk")
if sys.argv[1] == "ample":
    allocate.space_limits = lambda *args: []
refused(Segment.file, large, "/dev/shm/disk/ring.seg")
assert os.listdir("/dev/shm/disk") == []
"""
    assert run_python(PRELUDE + source, seems, command=private_mounts).startswith(
        "DiskFullError the segment needs "
    )


@pytest.mark.parametrize("readonly", [False, True])
def test_a_sparse_file_larger_than_the_free_space_is_refused_before_it_fills_the_disk(
    private_mounts, run_python, tmp_path, readonly
):
    source = """
Segment.file(large, sys.argv[1]).close()
with open(sys.argv[1], "rb") as whole, open("/dev/shm/sparse.seg", "wb") as sparse:
    sparse.write(whole.read(4096))
    sparse.truncate(os.fstat(whole.fileno()).st_size)
os.unlink(sys.argv[1])
allocate._RESERVE_STEP = 4 * MB
refused(lambda: Segment.open("/dev/shm/sparse.seg", readonly=sys.argv[2] == "True"))
assert os.stat("/dev/shm/sparse.seg").st_blocks * 512 < MB, "the disk was filled"
"""
    out = run_python(PRELUDE + source, tmp_path / "ring.seg", readonly, command=private_mounts)
    assert out.startswith("DiskFullError the segment needs ")


# -- limits of the process ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", ["Segment(large)", "Segment.named(large)", "Segment.file(large, sys.argv[1])"]
)
def test_a_limit_on_file_sizes_is_an_error_that_names_it(run_python, tmp_path, make):
    source = f"""
resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MB, resource.RLIM_INFINITY))
refused(lambda: {make})
"""
    out = run_python(PRELUDE + source, tmp_path / "ring.seg")
    assert (
        out.startswith("NoRoomError ")
        and "only 8388608 (8.0 MB) are available, limited by the file-size limit (RLIMIT_FSIZE); raise it "
        "with `ulimit -f"
        in out
    )


def test_a_limit_on_the_address_space_is_an_error_that_names_it(run_python):
    source = """
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + 32 * MB, resource.RLIM_INFINITY))
refused(Segment, large)
with Segment(small) as segment:
    segment["a"][:] = 1
"""
    out = run_python(PRELUDE + source)
    assert out.startswith("NoRoomError ") and "limited by the address-space limit (RLIMIT_AS);" in out


@pytest.mark.parametrize("call", ["reader()", "create"])
def test_an_address_space_too_small_to_map_is_an_error(run_python, call):
    source = f"""
segment = Segment(large)
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + 32 * MB, resource.RLIM_INFINITY))
allocate.memory_limits = lambda: []
error = refused(segment.reader if {call!r} == "reader()" else lambda: Segment(large))
assert error.need_bytes > 64 * MB
"""
    out = run_python(PRELUDE + source)
    assert out.startswith("NoRoomError ") and "of address space, which the system did not grant" in out


@pytest.mark.parametrize("kind", ["anonymous", "named", "file", "reader", "open", "attach"])
def test_running_out_of_descriptors_at_any_point_is_a_segment_error(run_python, tmp_path, name, kind):
    source = """
kind, path, name = sys.argv[1:]
anonymous, file, named = Segment(small), Segment.file(small, path), Segment.named(small, name)
makers = {
    "anonymous": lambda: Segment(small), "named": lambda: Segment.named(small),
    "file": lambda: Segment.file(small, path + "2"), "reader": anonymous.reader,
    "open": lambda: Segment.open(path), "attach": lambda: Segment.attach(name),
}
before = sorted(os.listdir("/proc/self/fd"))
messages = set()
for allowed in range(max(map(int, before)) + 6):
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        makers[kind]().close()
        print("made")
        if kind == "file":
            os.unlink(path + "2")
    except SegmentError as error:
        messages.add(str(error))
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
assert sorted(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"
print(*messages, sep="\\n")
"""
    said = set(run_python(PRELUDE + source, kind, tmp_path / "ring.seg", name).splitlines())
    assert "made" in said and len(said) > 1
    assert all("Too many open files" in message for message in said - {"made"})


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: Segment(HUGE), NoRoomError),
        (lambda path: Segment.named(HUGE), ShmFullError),
        (lambda path: Segment.file(HUGE, path), DiskFullError),
    ],
)
def test_a_petabyte_is_refused_at_once(tmp_path, make, error):
    begin = time.process_time()
    with pytest.raises(error) as info:
        make(tmp_path / "ring.seg")
    assert time.process_time() - begin < 0.1
    assert info.value.need_bytes > 10**15 > info.value.free_bytes
    assert os.listdir(tmp_path) == []


def test_limits_are_asked_again_before_every_step(monkeypatch):
    """Others allocate meanwhile, so a large segment must not take it all in one go."""
    steps = []
    monkeypatch.setattr(_core, "reserve", lambda fd, begin, length: steps.append((begin, length)))
    monkeypatch.setattr(allocate, "memory_limits", lambda: steps.append("asked") or [])
    handles = allocate.Handles(os.getpid())
    allocate.reserve_anonymous(handles, 150 << 20)
    handles.release()
    assert steps == [
        "asked", "asked", (0, 64 << 20), "asked", (64 << 20, 64 << 20), "asked", (128 << 20, 22 << 20)
    ]  # fmt: skip


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG])
def test_every_errno_for_a_full_system_is_no_room(monkeypatch, code):
    def fail(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_core, "reserve", fail)
    with pytest.raises(NoRoomError, match=os.strerror(code)):
        Segment(LAYOUT)


def test_another_failure_to_reserve_is_a_segment_error(monkeypatch):
    def fail(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_core, "reserve", fail)
    with pytest.raises(SegmentError, match="cannot reserve .* Input/output error") as info:
        Segment(LAYOUT)
    assert not isinstance(info.value, NoRoomError)
