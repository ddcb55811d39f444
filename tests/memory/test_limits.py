"""The limits on memory: which are read, what counts as free, and that no file content breaks the reading."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import DiskFullError, NoRoomError
from shoal.memory import limits
from shoal.memory.limits import Limit, format_bytes, memory_limits, require_room, space_limits

MB = 1 << 20
V2_MOUNT = "31 23 0:28 {part} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 {part} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"


@pytest.fixture(autouse=True)
def no_address_space_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Root:
    """A made-up file system root with the files that limits are read from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def version_2(self, directory: str, limit: object, used: int, stat: str = "") -> None:
        self.write(f"{directory}/memory.max", f"{limit}\n")
        self.write(f"{directory}/memory.current", f"{used}\n")
        self.write(f"{directory}/memory.stat", stat)

    def version_1(self, directory: str, limit: int, used: int, stat: str = "") -> None:
        self.write(f"{directory}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{directory}/memory.usage_in_bytes", f"{used}\n")
        self.write(f"{directory}/memory.stat", stat)

    def mounted(self, cgroup: str, mountinfo: str) -> None:
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", f"22 1 0:21 / /proc rw - proc proc rw\n{mountinfo}\n")

    def limits(self) -> dict[str, int]:
        return {limit.name: limit.free_bytes for limit in memory_limits(self.path)}


@pytest.fixture
def root(tmp_path) -> Root:
    return Root(tmp_path)


# -- cgroups ----------------------------------------------------------------------------------------


def test_a_version_2_cgroup_leaves_its_limit_less_its_use(root):
    root.mounted("0::/job\n", V2_MOUNT.format(part="/"))
    root.version_2("sys/fs/cgroup/job", 100 * MB, 30 * MB)
    assert root.limits() == {"the memory cgroup /sys/fs/cgroup/job": 70 * MB}


def test_a_version_1_cgroup_leaves_its_limit_less_its_use(root):
    root.mounted("5:cpu,cpuacct:/\n4:memory:/job\n0::/\n", V1_MOUNT.format(part="/"))
    root.version_1("sys/fs/cgroup/memory/job", 100 * MB, 30 * MB)
    assert root.limits() == {"the memory cgroup /sys/fs/cgroup/memory/job": 70 * MB}


def test_memory_mounted_with_other_controllers_is_found(root):
    mount = "35 31 0:32 / /sys/fs/cgroup/both rw - cgroup cgroup rw,cpu,memory"
    root.mounted("4:cpu,memory:/job\n", mount)
    root.version_1("sys/fs/cgroup/both/job", 100 * MB, 0)
    assert list(root.limits().values()) == [100 * MB]


def test_a_hierarchy_that_does_not_count_memory_is_no_limit(root):
    root.mounted("4:cpu:/job\n", "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu")
    root.version_1("sys/fs/cgroup/cpu/job", 100 * MB, 0)
    assert root.limits() == {}


def test_both_versions_side_by_side_are_both_read(root):
    root.mounted(
        "4:memory:/a\n0::/b\n",
        V1_MOUNT.format(part="/") + "\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    root.version_1("sys/fs/cgroup/memory/a", 100 * MB, 0)
    root.version_2("sys/fs/cgroup/unified/b", 50 * MB, 0)
    assert sorted(root.limits().values()) == [50 * MB, 100 * MB]


def test_limits_of_all_ancestors_apply(root):
    root.mounted("0::/slice/service/job\n", V2_MOUNT.format(part="/"))
    root.version_2("sys/fs/cgroup/slice/service/job", "max", 1 * MB)
    root.version_2("sys/fs/cgroup/slice/service", 100 * MB, 90 * MB)
    root.version_2("sys/fs/cgroup/slice", 500 * MB, 100 * MB)
    assert root.limits() == {
        "the memory cgroup /sys/fs/cgroup/slice/service": 10 * MB,
        "the memory cgroup /sys/fs/cgroup/slice": 400 * MB,
    }


def test_limit_of_the_mounted_top_applies(root):
    root.mounted("0::/\n", V2_MOUNT.format(part="/"))
    root.version_2("sys/fs/cgroup", 64 * MB, 4 * MB)
    assert root.limits() == {"the memory cgroup /sys/fs/cgroup": 60 * MB}


@pytest.mark.parametrize("version", [1, 2])
def test_unlimited_cgroup_is_not_a_limit(root, version):
    root.mounted("4:memory:/job\n0::/job\n", (V1_MOUNT if version == 1 else V2_MOUNT).format(part="/"))
    root.version_2("sys/fs/cgroup/job", "max", 5)
    root.version_1("sys/fs/cgroup/memory/job", 9223372036854771712, 5)
    assert root.limits() == {}


@pytest.mark.parametrize("path", ["/docker/abc", "/docker/abc/job"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_sees_the_path_of_its_host_finds_its_own_limit(root, version, path):
    """Docker without a cgroup namespace: the host's path, and only the container's part mounted."""
    mount, top = (V1_MOUNT, "sys/fs/cgroup/memory") if version == 1 else (V2_MOUNT, "sys/fs/cgroup")
    root.mounted(f"4:memory:{path}\n0::{path}\n", mount.format(part="/docker/abc"))
    make = root.version_1 if version == 1 else root.version_2
    make(top, 64 * MB, 4 * MB)
    make(f"{top}/job", 32 * MB, 4 * MB)
    assert sorted(root.limits().values()) == ([60 * MB] if path == "/docker/abc" else [28 * MB, 60 * MB])


def test_a_mounted_part_that_is_only_the_start_of_a_word_is_not_cut_off(root):
    root.mounted("0::/abc\n", V2_MOUNT.format(part="/ab"))
    root.version_2("sys/fs/cgroup/c", 10 * MB, 0)
    root.version_2("sys/fs/cgroup", 64 * MB, 0)
    assert list(root.limits().values()) == [64 * MB]


@pytest.mark.parametrize("path", ["/gone", "/../../etc", "/../job", "/" + "n" * 5000])
def test_a_path_that_is_not_there_falls_back_to_the_top(root, path):
    root.mounted(f"0::{path}\n", V2_MOUNT.format(part="/"))
    root.version_2("sys/fs/cgroup", 64 * MB, 0)
    root.version_2("sys/fs/job", 1 * MB, 0)
    assert root.limits() == {"the memory cgroup /sys/fs/cgroup": 64 * MB}


def test_the_page_cache_counts_as_free_in_version_2(root):
    root.mounted("0::/job\n", V2_MOUNT.format(part="/"))
    stat = f"anon 5\nfile 999\ninactive_file {20 * MB}\nactive_file {10 * MB}\nshmem {7 * MB}\n"
    root.version_2("sys/fs/cgroup/job", 100 * MB, 90 * MB, stat)
    assert list(root.limits().values()) == [40 * MB]


def test_the_page_cache_counts_as_free_in_version_1(root):
    root.mounted("4:memory:/job\n", V1_MOUNT.format(part="/"))
    stat = f"inactive_file 1\ntotal_inactive_file {20 * MB}\ntotal_active_file {10 * MB}\n"
    root.version_1("sys/fs/cgroup/memory/job", 100 * MB, 90 * MB, stat)
    assert list(root.limits().values()) == [40 * MB]


def test_a_cgroup_over_its_limit_leaves_nothing_not_less(root):
    root.mounted("0::/job\n", V2_MOUNT.format(part="/"))
    root.version_2("sys/fs/cgroup/job", 10 * MB, 30 * MB)
    assert list(root.limits().values()) == [0]


# -- the machine and the process ----------------------------------------------------------------------


def test_the_machines_available_memory_and_swap_are_a_limit(root):
    root.write("proc/meminfo", "MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\nSwapFree: 50 kB\n")
    assert root.limits() == {"this machine's free memory": 350 * 1024}


def test_the_address_space_left_is_a_limit(root, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100 * MB, 200 * MB))
    root.write("proc/self/status", f"Name:\tpython\nVmSize:\t{30 * 1024} kB\n")
    assert root.limits() == {"the address-space limit (RLIMIT_AS)": 70 * MB}


def test_the_largest_file_allowed_is_a_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (5 * MB, 200 * MB))
    assert [(limit.name, limit.free_bytes) for limit in limits.file_size_limits()] == [
        ("the file-size limit (RLIMIT_FSIZE)", 5 * MB)
    ]


def test_this_machines_own_limits_can_be_read():
    found = memory_limits()
    assert "this machine's free memory" in [limit.name for limit in found]
    assert all(limit.free_bytes > 0 for limit in found)


def test_the_free_space_of_a_file_system_is_a_limit_with_the_error_asked_for(tmp_path):
    stats = os.statvfs(tmp_path)
    [limit] = space_limits(str(tmp_path), DiskFullError)
    assert limit.name == f"the file system at {tmp_path}" and limit.error is DiskFullError
    assert 0 < limit.free_bytes <= stats.f_blocks * stats.f_frsize


def test_a_file_system_without_a_size_is_no_limit():
    assert space_limits("/proc", DiskFullError) == []


# -- broken content -----------------------------------------------------------------------------------

FILES = ["proc/self/cgroup", "proc/self/mountinfo", "proc/meminfo", "proc/self/status"] + [
    f"sys/fs/cgroup/{name}" for name in ("memory.max", "memory.current", "memory.stat")
]
GARBAGE = [
    b"", b":", b"::", b"0::", b"0::/\0", b"0::/../..", b"0::/" + b"n" * 300, b" - ", b" - cgroup2", b"\xff",
    b"a b - cgroup2 x y", b"a b c d e - cgroup2 x rw", b"1 2 3 / /\0 - cgroup2 c rw", b"-5", b"max",
    b"1 2 3 / /.. - cgroup2 c rw", b"9" * 5000, b"MemAvailable:", b"MemAvailable: " + b"9" * 5000,
    "MemAvailable: ²".encode(), "²".encode(),
]  # fmt: skip


def _safe_limits(root: Root) -> None:
    for limit in memory_limits(root.path):
        assert limit.free_bytes >= 0


@pytest.mark.parametrize("broken", FILES)
def test_one_broken_file_is_never_an_error(root, broken):
    root.mounted("0::/\n", V2_MOUNT.format(part="/"))
    root.version_2("sys/fs/cgroup", 64 * MB, 4 * MB)
    root.write("proc/meminfo", "MemAvailable: 300 kB\n")
    root.write("proc/self/status", "VmSize: 300 kB\n")
    assert len(root.limits()) == 2
    for content in GARBAGE:
        (root.path / broken).write_bytes(content)
        _safe_limits(root)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FILES), st.binary(max_size=60) | st.sampled_from(GARBAGE)))
def test_no_content_of_any_files_is_an_error(root, contents):
    for name in FILES:
        root.write(name, "")
        (root.path / name).write_bytes(contents.get(name, b""))
    _safe_limits(root)


def test_a_mount_point_that_is_not_text_does_not_hide_the_others(root):
    root.mounted("0::/\n", V2_MOUNT.format(part="/"))
    root.version_2("sys/fs/cgroup", 64 * MB, 4 * MB)
    mountinfo = root.path / "proc/self/mountinfo"
    mountinfo.write_bytes(b"24 1 8:1 / /mnt/\xff\x0b rw - ext4 /dev/sda1 rw\n" + mountinfo.read_bytes())
    assert root.limits() == {"the memory cgroup /sys/fs/cgroup": 60 * MB}


def test_a_system_without_any_of_the_files_has_no_limits(root):
    assert root.limits() == {}


# -- asking -------------------------------------------------------------------------------------------


def test_exactly_the_free_bytes_fit():
    require_room(100, [Limit("a", 100, "")])


def test_one_byte_more_than_a_limit_is_its_error_with_need_free_and_advice():
    small = Limit("the small one", 2 * MB, "make it larger", DiskFullError)
    with pytest.raises(DiskFullError) as info:
        require_room(2 * MB + 1, [Limit("the large one", 3 * MB, "no"), small])
    assert str(info.value) == (
        "the segment needs 2097153 bytes (2.0 MB), but only 2097152 (2.0 MB) are available, "
        "limited by the small one; make it larger"
    )
    assert (info.value.need_bytes, info.value.free_bytes) == (2 * MB + 1, 2 * MB)


def test_no_room_is_a_memory_error():
    with pytest.raises(MemoryError):
        require_room(2, [Limit("a", 1, "")])
    assert issubclass(DiskFullError, NoRoomError)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KB"), (64 * MB, "64.0 MB"), (2**50, "1.0 PB")],
)
def test_bytes_are_shown_with_a_unit(count, text):
    assert format_bytes(count) == text


# -- a real cgroup ------------------------------------------------------------------------------------


@pytest.fixture
def small_cgroup():
    """A memory cgroup of 64 MB, made for the test and removed after it."""
    refused = "no memory cgroup is mounted"
    for version, own, top in limits._memory_cgroups(Path("/")):
        limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
        for parent in (top, own):
            directory = parent / f"shoal-test-{os.getpid()}"
            try:
                directory.mkdir()
            except OSError as error:
                refused = str(error)
                continue
            try:
                (directory / limit).write_text(str(64 * MB))
            except OSError as error:
                refused = str(error)
                directory.rmdir()
                continue
            yield directory
            directory.rmdir()
            return
    pytest.skip(f"machine: cannot make a memory cgroup: {refused}")


@pytest.mark.parametrize("make", ["Segment(layout)", "Segment.named(layout)"])
def test_a_segment_larger_than_the_cgroup_is_an_error_and_the_process_lives(small_cgroup, run_python, make):
    source = f"""
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
from shoal.errors import NoRoomError
from shoal.memory import Layout, Segment
layout = Layout({{"a": ("u1", (256 << 20,))}})
try:
    {make}
except NoRoomError as error:
    assert isinstance(error, MemoryError)
    print(error.need_bytes >> 20, error.free_bytes < 64 << 20, error)
layout = Layout({{"a": ("u1", (8 << 20,))}})
with {make} as segment:
    segment["a"][:] = 1
print("lives")
"""
    try:
        refused, lives = run_python(source, small_cgroup).splitlines()
    except subprocess.TimeoutExpired:
        pytest.fail("the process hung at the limit")
    assert refused.startswith("256 True the segment needs ")
    assert f"the memory cgroup {small_cgroup}" in refused
    assert lives == "lives"
