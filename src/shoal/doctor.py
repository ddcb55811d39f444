"""`shoal doctor`: tests what Shoal needs from this machine, and prints one line for each test.

ok       it works; the line says what was found
warning  it works, but slowly or not for every size; the line says what to do
failure  it does not work; the line says what to do
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TextIO, TypeAlias

import numpy as np

from shoal import _core
from shoal.cuda.build import find_libdevice
from shoal.cuda.driver import open_driver
from shoal.errors import NoRoomError, ShmFullError, ShoalError
from shoal.memory import Layout, Segment, list_names
from shoal.memory.limits import file_size_limits, format_bytes, memory_limits, space_limits
from shoal.memory.names import name_directory
from shoal.native.compilers import find_zig

__all__ = ["Finding", "examine", "report", "run"]

Status: TypeAlias = Literal["ok", "warning", "failure"]

_SMALL_MEMORY = 512 << 20
_SMALL_SHM = 64 << 20  # Docker's default
_ENOUGH_FILES = 1024
_ENOUGH_PROCESSES = 256
_FUTEX_WAKE = 1
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_COLOURS = {"ok": "\033[32m", "warning": "\033[33m", "failure": "\033[31m"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `examine` fills in the name."""

    status: Status
    found: str
    advice: str = ""
    name: str = ""


def run(strict: bool = False) -> int:
    """Examines this machine and prints the report; returns 1 after a failure (if strict, also a warning)."""
    return report(examine(), sys.stdout, strict=strict)


def examine(root: Path = Path("/")) -> list[Finding]:
    """Runs every probe. `root` is the directory that contains proc and sys."""
    return [_run_probe(name, probe, root) for name, probe in _PROBES.items()]


def report(findings: Iterable[Finding], file: TextIO, *, strict: bool = False) -> int:
    """Writes aligned lines and a summary to `file`; returns the exit status."""
    findings = list(findings)
    width = max((len(finding.name) for finding in findings), default=0)
    coloured = file.isatty() and not os.environ.get("NO_COLOR")
    count = dict.fromkeys(_COLOURS, 0)
    for finding in findings:
        count[finding.status] += 1
        status = f"{finding.status:7}"
        if coloured:
            status = f"{_COLOURS[finding.status]}{status}\033[0m"
        text = f"{finding.found}; {finding.advice}" if finding.advice else finding.found
        text = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
        print(f"{status}  {finding.name:{width}}  {text}", file=file)
    counts = ", ".join(f"{status} {number}" for status, number in count.items())
    print(f"{len(findings)} checks: {counts}", file=file)
    return 1 if count["failure"] or (strict and count["warning"]) else 0


def _run_probe(name: str, probe: Callable[[Path], Finding], root: Path) -> Finding:
    try:
        return replace(probe(root), name=name)
    except Exception as error:  # a probe must not hide the others
        found = f"the check itself failed with {type(error).__name__}: {error}"
        return Finding("failure", found, "please report this line", name)


# -- machine -----------------------------------------------------------------------------------------


def _system(root: Path) -> Finding:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.platform in ("linux", "darwin"):
        return Finding("ok", found)
    return Finding("failure", found, "Shoal runs on Linux and macOS")


def _instruction_set(root: Path) -> Finding:
    found, most = _core.INSTRUCTION_SET, _core.INSTRUCTION_SETS[-1]
    if found != most:
        return Finding("warning", f"{found}, chosen by SHOAL_ISA", f"remove the variable to use {most}")
    return Finding("ok", found)


def _cores(root: Path) -> Finding:
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
    quota = _cpu_quota(root)
    found = f"{usable} of {cores} usable"
    if quota is not None:
        found += f", cgroup quota {quota:g}"
        if quota < usable:
            most = max(1, int(quota))
            advice = f"start at most {most} threads and workers: the kernel pauses more than that"
            return Finding("warning", found, advice)
    if usable == 1:
        return Finding("warning", found, "threads and workers share one core; give this process more cores")
    return Finding("ok", found)


def _cpu_quota(root: Path) -> float | None:
    """Returns the cores that the cgroups (version 1 and 2, with all ancestors) allow; None if unlimited."""
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for top in (root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup/cpu"):
            directory = top / path.lstrip("/")
            # In a container the path can be the host's, of which only `top` is mounted.
            for level in (directory, *directory.parents):
                words = _read(level / "cpu.max").split() or [
                    *_read(level / "cpu.cfs_quota_us").split(),
                    *_read(level / "cpu.cfs_period_us").split(),
                ]
                if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
                    quotas.append(int(words[0]) / int(words[1]))
                if level == top:
                    break
    return min(quotas, default=None)


def _memory(root: Path) -> Finding:
    limits = memory_limits(root) + file_size_limits()
    if not limits:
        return Finding("ok", "this system states no limit")
    tightest = min(limits, key=lambda limit: limit.free_bytes)
    found = f"{format_bytes(tightest.free_bytes)} free, bounded by {tightest.name}"
    enough = tightest.free_bytes >= _SMALL_MEMORY
    return Finding("ok", found) if enough else Finding("warning", found, tightest.advice)


def _huge_pages(root: Path) -> Finding:
    if sys.platform != "linux":
        return Finding("ok", "not available on macOS; ordinary pages are used")
    settings = root / "sys/kernel/mm/transparent_hugepage"
    chosen = {name: re.search(r"\[(\w+)\]", _read(settings / name)) for name in ("enabled", "shmem_enabled")}
    words = {name: match[1] if match else "absent" for name, match in chosen.items()}
    found = ", ".join(f"{name} {word}" for name, word in words.items())
    if words["enabled"] == "absent":
        return Finding("ok", "this kernel has none; ordinary pages are used")
    if words["shmem_enabled"] in ("never", "deny", "absent"):
        # This is the default of most systems and nothing fails, so it is not a warning.
        found += " (large segments get 2 MB pages only with huge_pages=True)"
    return Finding("ok", found)


# -- shared memory -----------------------------------------------------------------------------------


def _anonymous_memory(root: Path) -> Finding:
    advice = "allow memfd_create and its seals in the container's or sandbox's system call filter (seccomp)"
    try:
        with Segment(Layout({"probe": (np.uint8, (1,))})) as segment:
            segment["probe"][0] = 1
        fd = _core.memory_create()
        try:
            _core.reserve(fd, 0, 4096)
            _core.seal(fd)
            if sys.platform != "linux":
                return Finding("ok", "shm_open, unlinked at once; macOS has no memfd and no seals")
            try:
                os.ftruncate(fd, 0)
            except PermissionError:
                return Finding("ok", "memfd, sealed against shrinking")
            return Finding("failure", "memfd works, but sealed memory could be shrunk", advice)
        finally:
            os.close(fd)
    except NoRoomError as error:
        return Finding("failure", f"not enough memory: {error}", "end other programs or raise that limit")
    except (OSError, ShoalError) as error:
        return Finding("failure", f"refused: {error}", advice)


def _named_memory(root: Path) -> Finding:
    directory = os.environ.get("SHOAL_NAME_DIR") or _core.name_directory()
    try:
        directory = name_directory()
        stats, limits = os.statvfs(directory), space_limits(directory, ShmFullError)
        with Segment.named(Layout({"probe": (np.uint8, (1,))})) as segment:
            Segment.attach(str(segment.name), readonly=True).close()
    except (OSError, ShoalError) as error:
        advice = f"{directory} must be a writable file system; named segments do not work without it"
        return Finding("failure", f"{directory}: {error}", advice)
    size, free = stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
    found = f"{directory}: {format_bytes(size)}, {format_bytes(free)} free"
    if size and (size <= _SMALL_SHM or free < _SMALL_SHM):
        return Finding("warning", found, limits[0].advice)
    return Finding("ok", found if size else f"{directory}: no fixed size")


def _leftovers(root: Path) -> Finding:
    entries = list_names()
    dead = [entry for entry in entries if not entry.alive]
    if dead:
        size = format_bytes(sum(entry.size_bytes for entry in dead))
        names = ", ".join(entry.name for entry in dead[:3]) + (", ..." if len(dead) > 3 else "")
        found = f"{len(dead)} named segments of dead owners ({size}): {names}"
        return Finding("warning", found, "run `shoal clean`")
    return Finding("ok", f"none; {len(entries)} named segments in use")


# -- system calls ------------------------------------------------------------------------------------


def _futex(root: Path) -> Finding:
    if sys.platform != "linux":
        return Finding("ok", "not available on macOS; its own wait-on-address is used instead")
    number = _FUTEX_NUMBERS.get(platform.machine())
    if number is None or sys.maxsize < 2**32:
        return Finding("ok", f"not tested: its system call number on {platform.machine()} is unknown")
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    # Workers wait on shared memory, so the test uses a word of shared memory.
    word = ctypes.c_uint32.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))
    if call(*map(ctypes.c_long, (number, ctypes.addressof(word), _FUTEX_WAKE, 1, 0, 0, 0))) != 0:
        found = f"refused: {os.strerror(ctypes.get_errno())}"
        return Finding("failure", found, "allow futex in the container's or sandbox's system call filter")
    return Finding("ok", "works on shared memory")


def _pidfd(root: Path) -> Finding:
    if sys.platform != "linux":
        return Finding("ok", "not available on macOS; kqueue reports the end of a process instead")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError:
        return Finding("warning", "this Python was built without it", "use one built for Linux 5.3 or newer")
    except OSError as error:
        advice = "needs Linux 5.3 or newer, and pidfd_open allowed in the system call filter"
        return Finding("failure", f"refused: {error.strerror}", advice)
    return Finding("ok", "works")


# -- limits of this process --------------------------------------------------------------------------


def _limit(which: int, enough: int, flag: str) -> Finding:
    soft, hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY:
        return Finding("ok", "no limit")
    if soft >= enough:
        return Finding("ok", f"at most {soft}")
    found = f"at most {soft}"
    if hard != resource.RLIM_INFINITY and hard < enough:
        return Finding("warning", found, f"the hard limit is {hard}; ask an administrator for {enough}")
    return Finding("warning", found, f"raise it with `ulimit {flag} {enough}`")


# -- software ----------------------------------------------------------------------------------------


def _python(root: Path) -> Finding:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return Finding("ok", f"{python}, shoal {importlib.metadata.version('shoal')}")


def _package(name: str) -> Finding:
    needs = importlib.metadata.requires("shoal") or []
    wanted = next(need for need in needs if re.match(rf"{name}\b", need))
    try:
        version = str(importlib.import_module(name).__version__)
    except ImportError as error:
        return Finding("failure", f"cannot be imported: {error}", f"pip install '{wanted}'")
    for operator, bound in re.findall(r"(>=|<)([\d.]+)", wanted):
        if (_numbers(version) >= _numbers(bound)) != (operator == ">="):
            return Finding("failure", version, f"pip install '{wanted}'")
    return Finding("ok", version)


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)]


def _compiler(root: Path) -> Finding:
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        line = _first_line(path, "--version") if path else None
        if line is not None:
            return Finding("ok", f"{name}: {line}")
    zig = find_zig()
    line = _first_line(str(zig), "cc", "--version") if zig is not None else None
    if line is not None:
        return Finding("ok", f"ziglang: {line}")
    advice = (
        'install one to write environments in C (pip install "shoal[compiler]"; Debian: apt install gcc; '
        "macOS: xcode-select --install)"
    )
    return Finding("warning", "no cc, gcc or clang that runs, and no Python package ziglang", advice)


def _cuda(root: Path) -> Finding:
    """The driver and its GPUs, by the library that device="cuda" uses."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        found = 'no NVIDIA driver (libcuda.so.1); all works but device="cuda" and copies to a GPU'
        return Finding("ok", found)
    try:
        driver = open_driver()
        names = [driver.name(device) for device in range(driver.count())]
        version = f"CUDA {driver.version()}"
    except ShoalError as error:
        return Finding("warning", str(error), "reinstall the NVIDIA driver, or check CUDA_VISIBLE_DEVICES")
    kernel_module = re.search(r"Module +(?:for \S+ +)?([\d.]+)", _read(root / "proc/driver/nvidia/version"))
    if kernel_module is not None:
        version = f"driver {kernel_module[1]}, {version}"
    counted = [f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in names]
    return Finding("ok", f"{', '.join(dict.fromkeys(counted))}; {version}")


def _has_gpu() -> bool:
    try:
        open_driver()
    except ShoalError:
        return False
    return True


def _cuda_compiler(root: Path) -> Finding:
    """What device="cuda" compiles with: clang of the package ziglang, and NVIDIA's libdevice."""
    zig, libdevice = find_zig(), find_libdevice()
    line = _first_line(str(zig), "version") if zig is not None else None
    missing = []
    if line is None:
        missing.append("no package ziglang" if zig is None else f"{zig} does not run")
    if libdevice is None:
        missing.append("no libdevice, for environments that call sin, exp, ... (package nvidia-nvvm)")
    found = [] if line is None else [f"ziglang {line}"]
    found += [] if libdevice is None else [f"libdevice at {libdevice}"]
    if not missing:
        return Finding("ok", ", ".join(found))
    advice = 'to compile environments for a GPU: pip install "shoal[cuda]"'
    return Finding("warning" if _has_gpu() else "ok", ", ".join([*found, *missing]), advice)


def _cuda_arrays(root: Path) -> Finding:
    """The library whose arrays the results of device="cuda" are."""
    installed = [name for name in ("torch", "cupy", "jax") if importlib.util.find_spec(name) is not None]
    names = ", ".join(installed) or "neither torch, CuPy nor JAX"
    if not _has_gpu():
        return Finding("ok", f"{names}; not tested without a GPU")
    if "torch" in installed:
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            return Finding("ok", f"torch {torch.__version__} with CUDA {torch.version.cuda}")
        advice = "install a CUDA build of torch; results on a GPU are its tensors by default"
        return Finding("warning", f"torch {torch.__version__} does not see the GPU", advice)
    if "cupy" in installed:
        return Finding("ok", f'{names}; make_vec needs array="cupy" or "jax", because there is no torch')
    return Finding("warning", names, 'device="cuda" returns tensors of torch: pip install torch, or cupy')


def _first_line(*command: str) -> str | None:
    """Returns the first line that a command prints; None if it cannot run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


_PROBES: dict[str, Callable[[Path], Finding]] = {
    "system": _system,
    "python": _python,
    "numpy": lambda root: _package("numpy"),
    "gymnasium": lambda root: _package("gymnasium"),
    "instruction set": _instruction_set,
    "cores": _cores,
    "memory": _memory,
    "anonymous memory": _anonymous_memory,
    "named memory": _named_memory,
    "leftovers": _leftovers,
    "huge pages": _huge_pages,
    "futex": _futex,
    "pidfd": _pidfd,
    "open files": lambda root: _limit(resource.RLIMIT_NOFILE, _ENOUGH_FILES, "-n"),
    "processes": lambda root: _limit(resource.RLIMIT_NPROC, _ENOUGH_PROCESSES, "-u"),
    "compiler": _compiler,
    "cuda": _cuda,
    "cuda compiler": _cuda_compiler,
    "cuda arrays": _cuda_arrays,
}
