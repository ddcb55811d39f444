"""Finds how much memory this process may still allocate; read before anything is allocated.

The kernel kills a process that exceeds the limit of its memory cgroup instead of failing the allocation, so
every limit is read first: cgroups (version 1 and 2, with all ancestors), the machine's memory, the process's
rlimits and the free space.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shoal.errors import NoRoomError

__all__ = [
    "Limit",
    "file_size_limits",
    "format_bytes",
    "memory_limits",
    "oom_counters",
    "oom_kills",
    "require_room",
    "space_limits",
]

_UNLIMITED = 2**60  # cgroup v1 writes a number near 2**63 for "no limit"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit on the bytes that may be allocated now."""

    name: str
    free_bytes: int
    advice: str
    error: type[NoRoomError] = NoRoomError


def format_bytes(count: int) -> str:
    """Returns `count` with a unit: 64.0 MB, 3.2 GB (powers of 1024).

    >>> format_bytes(64 * 1024 * 1024)
    '64.0 MB'
    """
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if abs(size) < 1024:
            return f"{int(size)} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PB"


def require_room(need_bytes: int, limits: Iterable[Limit]) -> None:
    """Raises the error of the first limit that is smaller than `need_bytes`."""
    for limit in limits:
        if need_bytes > limit.free_bytes:
            raise limit.error(
                f"the segment needs {need_bytes} bytes ({format_bytes(need_bytes)}), but only "
                f"{limit.free_bytes} ({format_bytes(limit.free_bytes)}) are available, "
                f"limited by {limit.name}; {limit.advice}",
                need_bytes=need_bytes,
                free_bytes=limit.free_bytes,
            )


def memory_limits(root: Path = Path("/")) -> list[Limit]:
    """Returns the limits on memory of any kind: cgroups, the machine, the address space."""
    limits = _cgroup_limits(root)
    meminfo = _read_table(root / "proc/meminfo")
    if "MemAvailable:" in meminfo:
        available = 1024 * (meminfo["MemAvailable:"] + meminfo.get("SwapFree:", 0))
        advice = "use fewer environments or a smaller buffer, or end other programs"
        limits.append(Limit("this machine's free memory", available, advice))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        mapped = 1024 * _read_table(root / "proc/self/status").get("VmSize:", 0)
        advice = "raise it with `ulimit -v unlimited`"
        limits.append(Limit("the address-space limit (RLIMIT_AS)", max(0, soft - mapped), advice))
    return limits


def space_limits(directory: str, error: type[NoRoomError]) -> list[Limit]:
    """Returns the limits on a file in `directory`: free space and the maximum file size."""
    limits = []
    stats = os.statvfs(directory)
    if stats.f_blocks:  # 0 means the file system has no fixed size
        if Path(directory).is_relative_to("/dev/shm"):
            advice = (
                "make it larger (docker run --shm-size=4g; mount -o remount,size=4g /dev/shm) "
                "or use an anonymous segment, which is not in /dev/shm"
            )
        else:
            advice = "free some space or choose another directory"
        free = stats.f_bavail * stats.f_frsize
        limits.append(Limit(f"the file system at {directory}", free, advice, error))
    return limits + file_size_limits()


def file_size_limits() -> list[Limit]:
    """Returns the limit on the size of a file, which also applies to anonymous memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY:
        return []
    advice = "raise it with `ulimit -f unlimited`"
    return [Limit("the file-size limit (RLIMIT_FSIZE)", soft, advice)]


def oom_counters(root: Path = Path("/")) -> list[Path]:
    """Returns the files in which the kernel counts out-of-memory kills in this process's cgroups."""
    names = {2: "memory.events", 1: "memory.oom_control"}
    return [directory / names[version] for version, directory, _ in _memory_cgroups(root)]


def oom_kills(counters: Iterable[Path]) -> int:
    """Returns the number of out-of-memory kills; 0 if it is unknown."""
    return sum(_read_table(counter).get("oom_kill", 0) for counter in counters)


def huge_page_bytes(begin: int, end: int) -> int:
    """Returns the bytes between two addresses of this process that are mapped by huge pages."""
    found, within = 0, False
    for line in _read_lines(Path("/proc/self/smaps")):
        name, *rest = line.split(None, 2) or [""]
        if name.endswith(":"):
            if within and name in ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"):
                found += int(rest[0]) << 10
        elif "-" in name:
            first, _, last = name.partition("-")
            within = int(first, 16) < end and begin < int(last, 16)
    return found


def _cgroup_limits(root: Path) -> list[Limit]:
    limits = []
    for version, directory, top in _memory_cgroups(root):
        while True:
            free = _cgroup_free(version, directory)
            if free is not None:
                shown = "/" + str(directory.relative_to(root))
                advice = "raise the container's memory limit or use a smaller segment"
                limits.append(Limit(f"the memory cgroup {shown}", free, advice))
            if directory == top:
                break
            directory = directory.parent
    return limits


def _memory_cgroups(root: Path) -> list[tuple[int, Path, Path]]:
    """Returns (version, this process's cgroup, its mount point) for each hierarchy that limits memory."""
    paths: dict[int, str] = {}
    for line in _read_lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    return _find_mounts(root, tuple(paths.items()))


@lru_cache(maxsize=4)  # the table of mounts can be long, and cgroup mounts do not change
def _find_mounts(root: Path, paths_of: tuple[tuple[int, str], ...]) -> list[tuple[int, Path, Path]]:
    paths, found = dict(paths_of), []
    for line in _read_lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        kind, _, options = system.partition(" ")
        version = 2 if kind == "cgroup2" else 1
        is_memory = kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(" ")[-1].split(","))
        words = mount.split(" ")
        if not is_memory or version not in paths or len(words) < 5:
            continue
        mounted_part, mount_point = words[3:5]
        top = root / mount_point.lstrip("/")
        path = paths[version]
        # In a container the path may be the host's although only our own part is mounted.
        if mounted_part != "/" and (path + "/").startswith(mounted_part + "/"):
            path = path[len(mounted_part) :]
        directory = top / path.lstrip("/")
        if ".." in directory.parts or not os.path.isdir(directory):
            directory = top
        found.append((version, directory, top))
    return found


def _cgroup_free(version: int, directory: Path) -> int | None:
    """Returns the bytes left below this cgroup's limit, with the page cache as free; None without a limit."""
    if version == 2:
        names = ("memory.max", "memory.current", "inactive_file", "active_file")
    else:
        names = (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
            "total_active_file",
        )
    limit = _read_int(directory / names[0])
    used = _read_int(directory / names[1])
    if limit is None or used is None or limit >= _UNLIMITED:
        return None
    stat = _read_table(directory / "memory.stat")
    cache = stat.get(names[2], 0) + stat.get(names[3], 0)
    return max(0, limit - max(0, used - cache))


def _read_lines(path: Path) -> list[str]:
    try:
        with open(path, "rb", buffering=0) as file:  # faster; each new segment reads a dozen files
            return (file.readall() or b"").decode(errors="replace").split("\n")
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []


def _read_int(path: Path) -> int | None:
    lines = _read_lines(path)
    return int(lines[0]) if lines and _is_number(lines[0]) else None  # v2 writes "max"


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 25


def _read_table(path: Path) -> dict[str, int]:
    """Returns a table of each line's first word and the number after it."""
    table = {}
    for line in _read_lines(path):
        words = line.split()
        if len(words) > 1 and _is_number(words[1]):
            table[words[0]] = int(words[1])
    return table
