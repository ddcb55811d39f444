"""Little of something: /dev/shm, memory, descriptors, cores, /proc. It works, or says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.built import ROOT
from tests.memory.test_limits import small_cgroup  # noqa: F401  a fixture

ALL = "anonymous named native workers forked replay file session built".split()
MOST = ALL[:-1]  # a compiler takes its time
MB = 1 << 20


def run(*parts: str, inside: str = "", size: int = MB, **environment: str) -> dict[str, str]:
    """What each part said, run by a shell after `inside`; the process must end by itself, and well."""
    command = f"{inside} exec {sys.executable} -m tests.faults.workload {' '.join(parts)}"
    done = subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=ROOT,
        env={**os.environ, "WORKLOAD_BYTES": str(size), "OPENBLAS_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert list(said) == list(parts or ALL), done.stdout
    return said


def unshared(inside: str) -> str:
    """In a namespace of mounts of its own; skips where that is not allowed."""
    if shutil.which("unshare") is None:
        pytest.skip("machine: no unshare")
    quoted = inside.replace("'", "'\\''")
    tried = subprocess.run(["unshare", "-m", "/bin/sh", "-ec", inside], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"machine: cannot mount here: {tried.stderr.strip()}")
    return quoted


def run_unshared(inside: str, *parts: str, size: int = MB, **environment: str) -> dict[str, str]:
    unshared(inside)
    # The shell goes on in the namespace: `exec` replaces it, so the file is a script of its own.
    names = "unset SHOAL_NAME_DIR;" if "/dev/shm" in inside else ""  # the mount hides the run's own
    script = f'{names} exec unshare -m /bin/sh -ec \'{unshared(inside)} exec "$0" "$@"\' '
    command = f"{script} {sys.executable} -m tests.faults.workload {' '.join(parts)} #"
    return run(*parts, inside=command, size=size, **environment)


def test_everything_works_where_nothing_is_missing():
    assert set(run().values()) == {"works"}


def test_64_mb_of_shm_bound_named_segments_alone_and_say_so():
    mount = "mount -t tmpfs -o size=64m none /dev/shm;"
    assert set(run_unshared(mount, *MOST).values()) == {"works"}
    said = run_unshared(mount, "anonymous", "named", "replay", size=100 * MB)
    assert said["anonymous"] == said["replay"] == "works"
    assert re.search(
        r"ShmFullError: .*needs 1048\d+ bytes.*only 67\d+ .*/dev/shm;.*--shm-size", said["named"]
    )


def test_256_mb_of_memory_are_enough_and_more_is_refused(small_cgroup):  # noqa: F811
    name = "memory.max" if (small_cgroup / "memory.max").exists() else "memory.limit_in_bytes"
    (small_cgroup / name).write_text(str(256 * MB))
    enter = f"echo $$ > {small_cgroup}/cgroup.procs;"
    said = run("anonymous", "named", "native", "workers", "replay", inside=enter)
    assert set(said.values()) == {"works"}
    said = run("anonymous", "named", "replay", inside=enter, size=400 * MB)
    for part, words in said.items():
        assert re.search(rf"Error: .*needs 4\d+ bytes .*({small_cgroup}|/dev/shm)", words), (part, words)


def test_64_descriptors_are_enough_for_all_but_workers_which_say_so_first():
    said = run(*MOST, inside="ulimit -n 64;")
    for part in ("workers", "forked"):  # which may lend 64 results, each with a descriptor
        assert re.search(
            "WorkerError: 2 workers need about 7. file descriptors.* 64 .*ulimit -n", said.pop(part)
        )
    assert set(said.values()) == {"works"}
    assert set(run("workers", "forked", inside="ulimit -n 100;").values()) == {"works"}
    said = run("anonymous", "native", "replay", inside="ulimit -n 8;")
    for part, words in said.items():
        assert words == "works" or re.search("open files.*ulimit -n", words), (part, words)


def test_one_core():
    if shutil.which("taskset") is None:
        pytest.skip("machine: no taskset")
    core = min(os.sched_getaffinity(0))
    assert set(
        run(inside=f"exec taskset -c {core} {sys.executable} -m tests.faults.workload #").values()
    ) == {"works"}


def test_a_home_that_cannot_be_written(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    if os.geteuid() == 0:
        said = run_unshared(f"mount -t tmpfs -o ro none {home};", HOME=str(home), XDG_CACHE_HOME="")
    else:
        said = run(HOME=str(home), XDG_CACHE_HOME="")
    assert set(said.values()) == {"works"}


def test_without_proc_what_needs_it_says_so_and_nothing_hangs():
    said = run_unshared("mount -t tmpfs none /proc;", *MOST)
    for part, words in said.items():
        assert words == "works" or re.search(r"Error: .*(/proc|No such file|descriptor)", words), (
            part,
            words,
        )
    assert said["native"] == "works" and said["anonymous"] == "works"


def test_a_process_that_may_not_be_traced_says_what_it_cannot_do():
    """Not dumpable, and not root: /proc/self is root's, and descriptors cannot be opened again through it."""
    code = """
import ctypes, os, sys
from tests.faults import workload
workload.forked(), workload.replay(), workload.session()  # loads all while this user may read the files
os.rmdir(os.environ["SHOAL_SESSION_DIR"])
prctl = ctypes.CDLL(None).prctl
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
sys.argv = ["workload", "anonymous", "native", "replay", "forked", "session"]
workload.main()
"""
    place = Path("/tmp") / f"shoal-untraced-{os.getpid()}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "SHOAL_SESSION_DIR": str(place), "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        assert re.search(r"works$|Error: .*(Permission denied|cannot)", line), line
    assert "anonymous: works" in done.stdout and done.stdout.count("\n") == 5
