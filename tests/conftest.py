"""What every test shares: Python processes that talk in lines, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import shared
from tests.lenience import TEST_S
from tests.quick import SlowTests
from tests.skips import StrictSkips

# One cache of compiled environments for the tests of this checkout: no other program writes or empties it.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).resolve().parents[1] / "build" / "test-cache")

# Likewise for the parts of a C library that zig compiles when it is first used.
os.environ.setdefault(
    "ZIG_GLOBAL_CACHE_DIR", str(Path(__file__).resolve().parents[1] / "build" / "zig-cache")
)

os.environ.setdefault("PYTEST_TIMEOUT", str(TEST_S))  # read by pytest-timeout when it is configured

# No deadline: machines run other things too. The same examples each time under CI.
settings.register_profile("shoal", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("shoal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the tests that tests/slow.txt names")
    parser.addoption("--record-slow", action="store_true", help="rewrite tests/slow.txt from this run")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SlowTests(config), "slow-tests")
    if targets := os.environ.get("SHOAL_CI_TARGETS"):
        config.pluginmanager.register(StrictSkips(set(targets.split())), "strict-skips")


def pytest_sessionstart(session: pytest.Session) -> None:
    """With RERUNS=1, each test asks the first process; TCP would hold a question back for 40 ms."""
    asked = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if hasattr(session.config, "workerinput") and asked is not None:
        asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_collection_finish() -> None:
    """Tests collect garbage often: what is here by now is not looked at each time."""
    gc.collect()
    gc.freeze()


_SHM = Path("/dev/shm")
_DESCRIPTORS = Path("/proc/self/fd")
_OWNER_PID_AT = 96
_counter = itertools.count()


class Child:
    """A Python process that runs `source` and talks with the test in lines."""

    def __init__(self, source: str, *args: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def read(self) -> str:
        """The next line it says; the test fails if it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the child ended with {self._process.wait()}"
        return line.rstrip("\n")

    def read_rest(self) -> str:
        """All it says until every process that holds its output has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.read()

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hang_up(self) -> None:
        """Ends its input, and that of everything it forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Ends its input and waits; its exit status."""
        self.hang_up()
        return self._process.wait(60)

    def clear(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start_python() -> Iterator[Callable[..., Child]]:
    """Starts `python -c source args...`; whatever still runs after the test is killed and reaped."""
    children: list[Child] = []

    def start(source: str, *args: object) -> Child:
        children.append(Child(source, *args))
        return children[-1]

    yield start
    for child in children:
        child.clear()


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Runs `source` as a script to its end and returns what it printed; fails if it did not exit with 0."""

    def run(source: str, *args: object, command: tuple[str, ...] = ()) -> str:
        script = tmp_path / "script.py"
        script.write_text(source)
        process = subprocess.Popen(
            [*command, sys.executable, str(script), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                out, err = process.communicate(timeout=90)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # with all it started
                raise
        assert process.returncode == 0, f"exit status {process.returncode}\n{out}{err}"
        return out

    return run


@pytest.fixture
def name() -> str:
    """A segment name that no other test and no other run uses."""
    return f"test-{os.getpid()}-{next(_counter)}"


def _owner_is_alive(path: Path) -> bool:
    """Whether another process that runs owns the named segment: the test's children may still be ending."""
    try:
        with path.open("rb") as file:
            pid = struct.unpack_from("=Q", file.read(128), _OWNER_PID_AT)[0]
    except (OSError, struct.error):
        return False
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()


def _left_over(before: set[Path], directory: Path) -> list[str]:
    new = set(directory.iterdir()) - before
    return sorted(path.name for path in new if not _owner_is_alive(path))


def _segment_descriptors(names: Path) -> set[tuple[str, str]]:
    found = set()
    for entry in os.listdir(_DESCRIPTORS) if _DESCRIPTORS.is_dir() else []:
        try:
            target = os.readlink(_DESCRIPTORS / entry)
        except OSError:
            continue
        if target.startswith(("/memfd:shoal", f"{names}/")):
            found.add((entry, target))
    return found


@pytest.fixture(autouse=True, scope="session")
def shared_files(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the processes of this test run make once for all of them is in one directory."""
    mine = tmp_path_factory.getbasetemp()
    shared.use(mine.parent if hasattr(pytestconfig, "workerinput") else mine)


@pytest.fixture(autouse=True, scope="session")
def own_sessions() -> Iterator[Path]:
    """Sessions of this test run are in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as directory:
        os.environ["SHOAL_SESSION_DIR"] = directory
        yield Path(directory)


@pytest.fixture(autouse=True, scope="session")
def own_names() -> Iterator[Path]:
    """Named segments of this test run are in a directory of its own: no other run sees or removes them."""
    memory = _SHM if _SHM.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=f"shoal-tests-{os.getpid()}-", dir=memory) as directory:
        os.environ["SHOAL_NAME_DIR"] = directory
        yield Path(directory)


@pytest.fixture
def default_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named segments are where they are for users: the test is about that place."""
    monkeypatch.delenv("SHOAL_NAME_DIR")


@pytest.fixture(autouse=True)
def nothing_left_behind(own_sessions: Path, own_names: Path) -> Iterator[None]:
    """Every test leaves named segments, sessions and this process's segment descriptors as they were."""
    names, descriptors = set(own_names.iterdir()), _segment_descriptors(own_names)
    sessions = set(own_sessions.iterdir())
    yield
    mine = {path for path in own_sessions.iterdir() if f"-{os.getpid()}" in path.name} - sessions
    if mine:
        gc.collect()
    mine = {path.name for path in own_sessions.iterdir() if path in mine}
    assert not mine, f"sessions left: {sorted(mine)}"
    if left := _left_over(names, own_names):
        gc.collect()
        left = _left_over(names, own_names)
    assert not left, f"named segments left: {left}"
    if _segment_descriptors(own_names) - descriptors:
        gc.collect()  # a caught exception's traceback may still hold the frame that held a segment
    assert not _segment_descriptors(own_names) - descriptors, "segment descriptors left open"
