"""`shoal doctor` on this machine, and on machines that lack something: really so where a test can do that."""

from __future__ import annotations

import ctypes
import importlib.util
import io
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal import _core, doctor
from shoal.doctor import Finding, examine, report
from shoal.errors import ShoalError
from shoal.memory import list_names

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="machine: not Linux")


def finding(name: str, root: Path = Path("/")) -> Finding:
    """What one probe says, through the same door as `examine`."""
    return doctor._run_probe(name, doctor._PROBES[name], root)


def is_warning(found: Finding, *words: str) -> bool:
    line = f"{found.found}; {found.advice}"
    return found.status == "warning" and bool(found.advice) and all(word in line for word in words)


def is_failure(found: Finding, *words: str) -> bool:
    line = f"{found.found}; {found.advice}"
    return found.status == "failure" and bool(found.advice) and all(word in line for word in words)


# -- the report ------------------------------------------------------------------------------------

OK = Finding("ok", "4 of 4 usable", name="cores")
WARNING = Finding("warning", "64.0 MB", "make it larger", name="shm")
FAILURE = Finding("failure", "refused:\nnot  permitted", "allow it", name="memfd")


def reported(*findings: Finding, strict: bool = False, tty: bool = False) -> tuple[int, str]:
    file = io.StringIO()
    file.isatty = lambda: tty  # type: ignore[method-assign]
    return report(findings, file, strict=strict), file.getvalue()


def test_each_finding_is_one_aligned_line_with_advice() -> None:
    _, text = reported(OK, WARNING, FAILURE)
    assert text.splitlines() == [
        "ok       cores  4 of 4 usable",
        "warning  shm    64.0 MB; make it larger",
        "failure  memfd  refused: not permitted; allow it",
        "3 checks: ok 1, warning 1, failure 1",
    ]


@pytest.mark.parametrize(
    "findings, strict, status",
    [
        ([], False, 0),
        ([OK], False, 0),
        ([OK], True, 0),
        ([OK, WARNING], False, 0),
        ([OK, WARNING], True, 1),
        ([OK, FAILURE], False, 1),
        ([FAILURE, WARNING], True, 1),
    ],
)
def test_the_status_is_1_for_failures_and_for_warnings_only_if_strict(
    findings: list[Finding], strict: bool, status: int
) -> None:
    assert reported(*findings, strict=strict)[0] == status


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[" not in reported(OK, WARNING, FAILURE)[1]
    coloured = reported(OK, WARNING, FAILURE, tty=True)[1]
    assert "\033[33mwarning\033[0m  shm    64.0 MB" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in reported(OK, tty=True)[1]


def test_report_is_ascii() -> None:
    assert "gcc \\xe9" in reported(Finding("ok", "gcc \u00e9", name="compiler"))[1]


def test_a_probe_that_raises_becomes_a_failure_that_names_the_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(root: Path) -> Finding:
        raise ZeroDivisionError("by surprise")

    monkeypatch.setitem(doctor._PROBES, "cores", broken)
    findings = {found.name: found for found in examine()}
    assert list(findings) == list(doctor._PROBES)  # the others ran
    assert is_failure(findings["cores"], "ZeroDivisionError: by surprise")
    assert findings["system"].status == "ok"


# -- the real thing --------------------------------------------------------------------------------


def test_report_has_a_line_for_each_probe(capsys: pytest.CaptureFixture[str]) -> None:
    status = doctor.run()
    lines = capsys.readouterr().out.splitlines()
    assert [line[9:].split("  ")[0] for line in lines[:-1]] == list(doctor._PROBES)
    assert {line.split()[0] for line in lines[:-1]} <= {"ok", "warning", "failure"}
    assert status == (1 if any(line.startswith("failure") for line in lines) else 0)
    assert not any("the check itself failed" in line for line in lines)


def test_probes_find_what_the_tests_need() -> None:
    # These tests could not have begun without them.
    for name in ("system", "python", "numpy", "gymnasium", "anonymous memory", "named memory"):
        assert finding(name).status != "failure", finding(name)


def test_run_passes_strict_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_PROBES", {"shm": lambda root: WARNING})
    assert doctor.run() == 0
    assert doctor.run(strict=True) == 1


def test_examining_leaves_no_descriptor_open() -> None:
    examine()
    files = len(os.listdir("/dev/fd"))
    for _ in range(3):
        examine()
    assert len(os.listdir("/dev/fd")) == files


@pytest.mark.usefixtures("default_names")
def test_examine_works_for_an_ordinary_user() -> None:
    if os.getuid() != 0:
        pytest.skip("machine: not root, so all tests run as an ordinary user")
    # All is imported before: an ordinary user may not be able to read the installation under test.
    script = (
        "import email.parser, os, gymnasium; from shoal import doctor; os.setuid(65534);"
        "raise SystemExit(doctor.run())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].endswith("failure 0"), done.stdout + done.stderr
    assert done.returncode == 0


# -- cores and memory ------------------------------------------------------------------------------


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


QUOTAS: dict[str, tuple[dict[str, str], float | None]] = {
    "v2": ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, 1.5),
    "v2 unlimited": ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "max 100000\n"}, None),
    "v2 parent": (
        {
            "proc/self/cgroup": "0::/slice/box\n",
            "sys/fs/cgroup/slice/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/slice/box/cpu.max": "400000 100000\n",
        },
        0.5,
    ),
    "v2 inside a container": (
        {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"},
        2.0,
    ),
    "v1": (
        {
            "proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/box\n1:cpuset:/\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    "v1 unlimited": (
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "only cpusets": ({"proc/self/cgroup": "1:cpuset:/\n", "sys/fs/cgroup/cpuset/cpu.max": "1 1\n"}, None),
    "no period": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 0\n"}, None),
    "nonsense": ({"proc/self/cgroup": "what\n\n::\n", "sys/fs/cgroup/cpu.max": "0 zero\n"}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("files, quota", QUOTAS.values(), ids=QUOTAS)
def test_the_cpu_quota_is_read_from_both_kinds_of_cgroup(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert doctor._cpu_quota(tree(tmp_path, files)) == quota


@linux_only
def test_a_quota_below_the_cores_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert finding("cores", tmp_path) == Finding("ok", "8 of 64 usable", name="cores")
    tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"})
    assert is_warning(finding("cores", tmp_path), "8 of 64 usable, cgroup quota 2.5", "at most 2 threads")
    tree(tmp_path, {"sys/fs/cgroup/cpu.max": "800000 100000\n"})
    assert finding("cores", tmp_path).status == "ok"


@linux_only
def test_a_single_core_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert is_warning(finding("cores", tmp_path), "1 of", "share one core")


def test_a_tight_memory_cgroup_is_a_warning_that_names_it(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/box\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/meminfo": "MemAvailable: 16000000 kB\n",
        "sys/fs/cgroup/box/memory.max": str(100 << 20),
        "sys/fs/cgroup/box/memory.current": str(40 << 20),
        "sys/fs/cgroup/box/memory.stat": "",
    }
    found = finding("memory", tree(tmp_path, files))
    assert is_warning(found, "60.0 MB free, bounded by the memory cgroup /sys/fs/cgroup/box", "raise")
    tree(tmp_path, {"sys/fs/cgroup/box/memory.max": "max"})
    found = finding("memory", tmp_path)
    assert (found.status, found.found) == ("ok", "15.3 GB free, bounded by this machine's free memory")


@linux_only
@pytest.mark.parametrize(
    "enabled, shmem, words",
    [
        ("always [madvise] never", "always within_size [advise] never deny force", "shmem_enabled advise"),
        (
            "[always] madvise never",
            "always within_size advise [never] deny force",
            "only with huge_pages=True",
        ),
        (None, None, "this kernel has none"),
    ],
)
def test_huge_pages_are_described_and_never_a_warning(
    enabled: str | None, shmem: str | None, words: str, tmp_path: Path
) -> None:
    base = "sys/kernel/mm/transparent_hugepage"
    if enabled and shmem:
        tree(tmp_path, {f"{base}/enabled": enabled, f"{base}/shmem_enabled": shmem})
    found = finding("huge pages", tmp_path)
    assert found.status == "ok" and words in found.found


# -- shared memory ---------------------------------------------------------------------------------


def refuse(*args: Any) -> Any:
    raise PermissionError(1, "Operation not permitted")


def test_memory_that_is_refused_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "memory_create", refuse)
    assert is_failure(finding("anonymous memory"), "refused:", "not permitted", "seccomp")


def test_seals_that_are_refused_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "seal", refuse)
    assert is_failure(finding("anonymous memory"), "refused:", "seals")


@linux_only
def test_seals_that_do_not_hold_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "seal", lambda fd: None)
    assert is_failure(finding("anonymous memory"), "could be shrunk")


SECCOMP = """
import ctypes, struct, sys
from shoal import doctor
number = int(sys.argv[1])
# if (system call == number) return EPERM; return ALLOW;
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *line) for line in code)
buffer = ctypes.create_string_buffer(program)
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
whole = Filter(len(code), ctypes.addressof(buffer))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(whole), 0, 0):
    sys.exit(77)
sys.exit(doctor.run())
"""


@linux_only
@pytest.mark.parametrize("name, call", [("anonymous memory", "memfd_create"), ("pidfd", "pidfd_open")])
def test_a_sandbox_that_forbids_the_call_is_a_failure(name: str, call: str) -> None:
    numbers = {"memfd_create": {"x86_64": 319, "aarch64": 279}, "pidfd_open": {"x86_64": 434, "aarch64": 434}}
    number = numbers[call].get(platform.machine())
    if number is None:
        pytest.skip(f"machine: the number of {call} on {platform.machine()} is not known here")
    done = subprocess.run([sys.executable, "-c", SECCOMP, str(number)], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("machine: this system does not let a process filter its own calls")
    assert done.returncode == 1, done.stderr
    failures = [line for line in done.stdout.splitlines() if line.startswith("failure")]
    assert [line for line in failures if line.startswith(f"failure  {name}") and call in line]


def file_system(size: int, free: int) -> Callable[[Any], Any]:
    stats = SimpleNamespace(f_blocks=size // 4096, f_bavail=free // 4096, f_frsize=4096)
    return lambda path: stats


@linux_only
@pytest.mark.usefixtures("default_names")
def test_the_small_dev_shm_of_a_container_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", file_system(64 << 20, 64 << 20))
    assert is_warning(finding("named memory"), "/dev/shm: 64.0 MB, 64.0 MB free", "--shm-size", "anonymous")


@linux_only
@pytest.mark.usefixtures("default_names")
def test_a_large_dev_shm_is_a_warning_only_when_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", file_system(8 << 30, 1 << 20))
    assert is_warning(finding("named memory"), "8.0 GB, 1.0 MB free")
    monkeypatch.setattr(os, "statvfs", file_system(8 << 30, 1 << 30))
    assert finding("named memory").status == "ok"
    monkeypatch.setattr(os, "statvfs", file_system(0, 0))
    assert finding("named memory").found == "/dev/shm: no fixed size"


@pytest.mark.usefixtures("default_names")
def test_a_full_or_missing_directory_of_names_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_core, "name_directory", lambda: str(tmp_path / "missing"))
        assert is_failure(finding("named memory"), "missing", "must be a writable file system")
    monkeypatch.setattr(os, "statvfs", file_system(8 << 30, 0))
    assert is_failure(finding("named memory"), "only 0 (")


DEAD_OWNER = """
import os, signal, sys
import numpy as np
from shoal.memory import Layout, Segment
segment = Segment.named(Layout({"x": (np.uint8, (1,))}), sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_segment_of_a_killed_owner_is_a_warning_until_it_is_cleaned(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", DEAD_OWNER, name])
    assert done.returncode == -signal.SIGKILL
    (entry,) = (entry for entry in list_names() if entry.name == name)
    try:
        assert is_warning(finding("leftovers"), "named segments of dead owners", "run `shoal clean`")
    finally:
        entry.path.unlink()


def test_segments_of_live_owners_are_not_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [SimpleNamespace(name=f"run-{i}", size_bytes=1 << 20, alive=i > 0) for i in range(3)]
    monkeypatch.setattr(doctor, "list_names", lambda: entries[1:])
    assert finding("leftovers") == Finding("ok", "none; 2 named segments in use", name="leftovers")
    monkeypatch.setattr(doctor, "list_names", lambda: entries)
    assert is_warning(finding("leftovers"), "1 named segments of dead owners (1.0 MB): run-0")


# -- system calls ----------------------------------------------------------------------------------


@linux_only
def test_a_futex_that_is_refused_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding("futex").status == "ok"
    monkeypatch.setitem(doctor._FUTEX_NUMBERS, platform.machine(), 100_000)  # no such call: ENOSYS
    assert is_failure(finding("futex"), "refused: Function not implemented", "allow futex")


@linux_only
def test_futex_on_an_unknown_machine_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    found = finding("futex")
    assert found.status == "ok" and "not tested" in found.found and "pdp11" in found.found


@linux_only
def test_a_pidfd_that_is_refused_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert is_failure(finding("pidfd"), "refused:", "Linux 5.3")
    monkeypatch.delattr(os, "pidfd_open")
    assert is_warning(finding("pidfd"), "built without it")


def test_macos_report_names_the_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for missing in ("sched_getaffinity", "pidfd_open"):
        monkeypatch.delattr(os, missing, raising=False)
    for name in ("futex", "pidfd", "anonymous memory", "huge pages", "cores"):
        assert finding(name).status == "ok", finding(name)
    assert "macOS has no memfd" in finding("anonymous memory").found
    assert "instead" in finding("futex").found and "instead" in finding("pidfd").found


def test_another_system_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert is_failure(finding("system"), "Linux and macOS")


# -- limits and software ---------------------------------------------------------------------------


@pytest.fixture
def few_files() -> Iterator[None]:
    """Really lowers this process's limit, and raises it again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_low_limit_on_open_files_is_a_warning(few_files: None) -> None:
    assert is_warning(finding("open files"), "at most 200")


@pytest.mark.parametrize(
    "limits, status, words",
    [
        ((64, 64), "warning", "ask an administrator"),
        ((64, 4096), "warning", "`ulimit -u 256`"),
        ((64, resource.RLIM_INFINITY), "warning", "`ulimit -u 256`"),
        ((256, 256), "ok", "at most 256"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", "no limit"),
    ],
)
def test_low_limit_on_processes_is_a_warning_with_advice(
    limits: tuple[int, int], status: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    found = finding("processes")
    assert found.status == status and words in f"{found.found}; {found.advice}"


def test_no_compiler_on_the_path_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_zig", lambda: None)
    assert is_warning(finding("compiler"), "no cc, gcc or clang", 'pip install "shoal[compiler]"')


def test_the_package_ziglang_is_found_where_there_is_no_other_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zig = tmp_path / "ziglang" / "zig"
    zig.parent.mkdir()
    zig.write_text(f"#!{shutil.which('sh')}\n[ $1 = cc ] && echo clang of zig\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_zig", lambda: zig)
    assert is_warning(finding("compiler"), "no cc, gcc or clang", "install")  # it cannot be run
    zig.chmod(0o755)
    assert finding("compiler") == Finding("ok", "ziglang: clang of zig", name="compiler")


def test_compiler_that_does_not_run_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shell = shutil.which("sh")
    for name, body in [
        ("cc", "echo stub; exit 1"),
        ("gcc", "exit 127"),
        ("clang", "echo clang 19; echo more"),
    ]:
        (tmp_path / name).write_text(f"#!{shell}\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert finding("compiler") == Finding("ok", "clang: clang 19", name="compiler")


class OneDriver:
    """A driver with these GPUs."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def count(self) -> int:
        return len(self._names)

    def name(self, device: int) -> str:
        return self._names[device]

    def version(self) -> str:
        return "12.4"


def no_driver(*args: Any) -> Any:
    raise ShoalError("the NVIDIA driver cannot be used: cuInit failed: CUDA_ERROR_NO_DEVICE (100)")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the doctor find these GPUs; none: a driver without one."""

    def use(*names: str) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
        monkeypatch.setattr(doctor, "open_driver", (lambda: OneDriver(*names)) if names else no_driver)

    return use


def test_no_nvidia_driver_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **options: Any) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    found = finding("cuda")
    assert found.status == "ok" and found.found.startswith("no NVIDIA driver (libcuda.so.1)")


def test_gpus_are_named_with_the_versions_of_the_driver(gpus: Callable[..., None], tmp_path: Path) -> None:
    gpus("NVIDIA H200")
    assert finding("cuda", tmp_path) == Finding("ok", "NVIDIA H200; CUDA 12.4", name="cuda")
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\nGCC version: 12\n"
    tree(tmp_path, {"proc/driver/nvidia/version": version})
    gpus("NVIDIA H200", "NVIDIA H200", "NVIDIA L4")
    assert finding("cuda", tmp_path).found == "2 x NVIDIA H200, NVIDIA L4; driver 550.54.14, CUDA 12.4"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1.2  Release Build\n"
    tree(tmp_path, {"proc/driver/nvidia/version": opened})
    assert "driver 570.1.2, CUDA 12.4" in finding("cuda", tmp_path).found


def test_a_driver_that_cannot_be_used_is_a_warning_with_its_error(gpus: Callable[..., None]) -> None:
    gpus()
    assert is_warning(finding("cuda"), "cuInit failed: CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_missing_gpu_compiler_is_a_warning_only_beside_a_gpu(
    has_gpu: bool, gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(*["NVIDIA H200"] * has_gpu)
    zig = tmp_path / "zig"
    zig.write_text(f"#!{shutil.which('sh')}\n[ $1 = version ] && echo 0.17.1\n")
    zig.chmod(0o755)
    monkeypatch.setattr(doctor, "find_zig", lambda: zig)
    monkeypatch.setattr(doctor, "find_libdevice", lambda: Path("/nvvm/libdevice.10.bc"))
    found = finding("cuda compiler")
    assert found == Finding("ok", "ziglang 0.17.1, libdevice at /nvvm/libdevice.10.bc", name="cuda compiler")
    status = "warning" if has_gpu else "ok"
    monkeypatch.setattr(doctor, "find_libdevice", lambda: None)
    found = finding("cuda compiler")
    assert found.status == status and "ziglang 0.17.1, no libdevice" in found.found
    monkeypatch.setattr(doctor, "find_zig", lambda: None)
    found = finding("cuda compiler")
    assert found.status == status and "no package ziglang" in found.found
    assert 'pip install "shoal[cuda]"' in found.advice
    zig.chmod(0o644)
    monkeypatch.setattr(doctor, "find_zig", lambda: zig)
    assert "zig does not run" in finding("cuda compiler").found


def array_libraries(monkeypatch: pytest.MonkeyPatch, *installed: str, sees_gpu: bool = True) -> None:
    real = importlib.util.find_spec
    libraries = ("torch", "cupy", "jax")

    def find_spec(name: str, *rest: Any) -> Any:
        return (name if name in installed else None) if name in libraries else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    torch = SimpleNamespace(
        __version__="2.13.0",
        cuda=SimpleNamespace(is_available=lambda: sees_gpu),
        version=SimpleNamespace(cuda="12.8"),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]


def test_the_library_of_results_on_a_gpu_is_named(
    gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus("NVIDIA H200")
    array_libraries(monkeypatch, "torch")
    assert finding("cuda arrays") == Finding("ok", "torch 2.13.0 with CUDA 12.8", name="cuda arrays")
    array_libraries(monkeypatch, "torch", sees_gpu=False)
    assert is_warning(finding("cuda arrays"), "torch 2.13.0 does not see the GPU", "CUDA build")
    array_libraries(monkeypatch, "cupy")
    assert finding("cuda arrays").status == "ok" and 'array="cupy"' in finding("cuda arrays").found
    array_libraries(monkeypatch)
    assert is_warning(finding("cuda arrays"), "neither torch, CuPy nor JAX", "pip install torch")


def test_without_a_gpu_torch_is_not_imported(
    gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus()
    array_libraries(monkeypatch, "torch")
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    found = finding("cuda arrays")
    assert (found.status, found.found) == ("ok", "torch; not tested without a GPU")


@pytest.mark.parametrize(
    "version, status", [("1.0.0", "failure"), ("1.1", "ok"), ("1.9.3", "ok"), ("2.0.0", "failure")]
)
def test_a_package_outside_its_bounds_is_a_failure(
    version: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", SimpleNamespace(__version__=version))  # type: ignore[arg-type]
    found = finding("gymnasium")
    assert (found.status, found.found) == (status, version)
    assert status == "ok" or found.advice.startswith("pip install 'gymnasium")


def test_a_package_that_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)  # type: ignore[arg-type]
    assert is_failure(finding("gymnasium"), "cannot be imported", "pip install 'gymnasium")


def test_an_instruction_set_that_the_user_chose_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor._core, "INSTRUCTION_SETS", ("default", "avx2"))
    monkeypatch.setattr(doctor._core, "INSTRUCTION_SET", "avx2")
    assert finding("instruction set") == Finding("ok", "avx2", name="instruction set")
    monkeypatch.setattr(doctor._core, "INSTRUCTION_SET", "default")
    assert is_warning(finding("instruction set"), "default, chosen by SHOAL_ISA", "to use avx2")
