"""Each constructor and save path with its n-th call failing: a clean exception, nothing left, retry works."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import _core
from tests.built import ROOT, build, core_library

NAMES = re.findall(r"@scenario\ndef (\w+)", (ROOT / "tests/faults/scenarios.py").read_text())
SLOW = ("processes_launched", "launcher", "processes_session", "processes_forked", "built", "viewer")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="machine: the linker's --wrap and /proc are Linux's"),
    pytest.mark.skipif(shutil.which("nm") is None, reason="machine: no binutils"),
    pytest.mark.timeout(600),  # the first test compiles the whole core, a minute on a busy machine
]

# What the core calls that is not in the table, because it cannot fail, or nothing could be done about it.
CANNOT_FAIL = set(
    """memcpy memset memmove memcmp memchr bcmp strlen strnlen strcmp strncmp strchr strrchr strtoull strtod
    strerror snprintf vsnprintf fmin fmax ldexp qsort free close unlink _exit getpid geteuid getenv sysconf
    clock_gettime nanosleep pthread_sigmask pthread_join pthread_detach pthread_once pthread_atfork
    pthread_mutexattr_init pthread_mutexattr_setpshared pthread_mutexattr_setrobust
    pthread_mutexattr_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock
    pthread_self pthread_setschedparam nice sigfillset sched_yield sched_getcpu sched_getaffinity
    sched_setaffinity dlsym dlclose dlerror dladdr backtrace raise sigemptyset sigaction sigaltstack setitimer
    strncpy _GLOBAL_OFFSET_TABLE_""".split()
)


@pytest.fixture(scope="session")
def failing_module() -> Path:
    return build("faults")


def run(module: Path, directory: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    sessions = directory / "s"
    sessions.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "tests.built", module, "tests.faults.driver", *arguments]
    return subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env={**os.environ, "SHOAL_SESSION_DIR": str(sessions)},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("slow", [False, True], ids=["in-this-process", "with-others"])
def test_the_nth_call_may_fail_everywhere(failing_module: Path, tmp_path: Path, slow: bool) -> None:
    first = 1 if os.environ.get("CI") else random.randrange(1, 6)  # over some runs every call fails
    names = [name for name in NAMES if (name in SLOW) == slow]
    where = ["--first", first, "--stride", 5, "--seconds", 1 if slow else 0.25]
    done = run(failing_module, tmp_path, *names, *where)
    assert done.returncode == 0, f"--first {first}\n{done.stdout}{done.stderr}"
    assert done.stdout.count(" cases, ") == len(names)
    cases = [int(number) for number in re.findall(r": (\d+) cases", done.stdout)]
    assert all(cases), done.stdout


def test_a_leak_a_wrong_class_and_a_bare_message_are_noticed(failing_module: Path, tmp_path: Path) -> None:
    done = run(failing_module, tmp_path, "--mutants")
    assert done.returncode == 1, done.stdout + done.stderr
    wrong = [line for line in done.stdout.splitlines() if "WRONG" in line]
    for word in (
        "left ['descriptor",
        "KeyError is none of ours",
        "a bare OSError",
        "the next try",
        "threads",
    ):
        assert any(word in line for line in wrong), (word, wrong)


def test_a_release_has_no_trace_of_it() -> None:
    found = Path(_core.__file__).read_bytes()
    assert b"shoal_faults" not in found and b"__wrap_" not in found


def test_every_call_of_the_core_that_can_fail_is_in_the_table(failing_module: Path) -> None:
    text = subprocess.run(
        ["nm", "-u", core_library(failing_module)], capture_output=True, text=True, check=True
    ).stdout
    called = {line.split()[-1] for line in text.splitlines() if " U " in line}
    called = {name for name in called if not name.startswith(("shoal_", "__"))}
    source = (ROOT / "CMakeLists.txt").read_text()
    (listed,) = re.findall(r"foreach\(call ([^)]*)\)", source)
    assert not called - set(listed.split()) - CANNOT_FAIL
