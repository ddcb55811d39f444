"""What the test suite promises of itself: quick tests are quick, and CI skips nothing unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import function_of, is_slow, updated
from tests.skips import complaint

HERE = Path(__file__).resolve().parent


CONFTEST = """
import os, types
from tests import quick
from tests.quick import SlowTests
from tests.skips import StrictSkips
quick.time = types.SimpleNamespace(now=0.0)  # goes when a test says so, whatever the machine does
quick.time.monotonic = lambda: quick.time.now
def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true")
    parser.addoption("--record-slow", action="store_true")
def pytest_configure(config):
    config.pluginmanager.register(SlowTests(config))
    if targets := os.environ.get("SHOAL_CI_TARGETS"):
        config.pluginmanager.register(StrictSkips(set(targets.split())))
"""


@pytest.fixture
def suite(tmp_path):
    """A small suite under this project's own plugins, with a clock that tests move."""
    (tmp_path / "tests").mkdir()
    for name in ("__init__.py", "lenience.py", "quick.py", "skips.py"):
        shutil.copy(HERE / name, tmp_path / "tests" / name)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)

    def run(source, *options, listed=(), targets=""):
        (tmp_path / "tests" / "test_some.py").write_text(source)
        (tmp_path / "tests" / "slow.txt").write_text("".join(f"{one}\n" for one in listed))
        environment = {**os.environ, "SHOAL_TEST_LENIENCE": "1", "SHOAL_CI_TARGETS": targets}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        kept = [line for line in (tmp_path / "tests/slow.txt").read_text().splitlines() if line[:1] != "#"]
        return done.returncode, done.stdout, kept

    return run


TWO = """
import pytest
from tests.quick import time
def test_quick(): pass
@pytest.mark.parametrize("seconds", [0, 2])
def test_slow(seconds): time.now += seconds
"""
SLOW = "tests/test_some.py::test_slow"


GONE = ["tests/test_some.py::test_gone", "tests/test_gone.py::test_slow"]


@pytest.mark.parametrize("parallel", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "two processes"])
def test_slow_tests_that_are_not_listed_and_entries_without_a_test_are_reported(suite, parallel):
    status, said, _ = suite(TWO, *parallel, listed=GONE)
    assert status == 0 and "3 passed" in said and "make slow-list" in said
    assert f"of processor  {SLOW}\n" in said and "test_quick" not in said
    assert all(f"\n{one}\n" in said for one in GONE)


@pytest.mark.parametrize("gone", GONE)
def test_an_entry_without_a_test_fails_the_quick_run(suite, gone):
    status, said, _ = suite(TWO, "--quick", listed=[SLOW, gone])
    assert status == 1 and "1 passed" in said and f"\n{gone}\n" in said


def test_a_list_that_is_right_is_not_mentioned(suite):
    status, said, _ = suite(TWO, listed=[SLOW])
    assert status == 0 and "3 passed" in said and "slow" not in said


def test_the_quick_run_leaves_out_what_is_listed(suite):
    assert "1 passed, 2 deselected" in suite(TWO, "--quick", listed=[SLOW])[1]


@pytest.mark.parametrize("options", [("-k", "quick"), ("tests/test_some.py::test_quick",)])
def test_a_run_of_some_tests_does_not_miss_the_others(suite, options):
    assert suite(TWO, *options, listed=[SLOW])[0] == 0


def test_recording_adds_the_slow_and_removes_the_quick_and_the_gone(suite):
    listed = ["tests/test_some.py::test_quick", "tests/test_some.py::test_gone"]
    assert suite(TWO, "--record-slow", listed=listed)[2] == [SLOW]


def test_what_was_not_run_stays_recorded():
    assert updated({"a", "b", "c"}, slow={"d"}, quick={"a"}, gone={"b"}) == {"c", "d"}


def test_slow_is_by_the_clock_and_by_processor_time_where_the_clock_is_lenient():
    assert is_slow((1.1, 0.1), 1, 1) and is_slow((1.1, 1.1), 1, 5)
    assert not is_slow((4.9, 0.9), 1, 5) and not is_slow((0.9, 4.9), 1, 5)
    assert function_of("tests/a.py::test_b[x[0]-y]") == "tests/a.py::test_b"


SKIPS = """
import pytest
def test_gpu(): pytest.skip("machine: no CUDA device")
def test_torch(): pytest.importorskip("no_such_library", reason="needs it: make torch")
@pytest.mark.skip(reason="for now")
def test_lazy(): pass
@pytest.mark.xfail
def test_known(): assert 0
"""


def test_ci_fails_on_a_skip_that_names_no_target_and_no_hardware(suite):
    status, said, _ = suite(SKIPS, targets="test torch")
    assert status == 1 and "2 skipped, 1 xfailed, 1 error" in said
    assert "skipped in CI: 'for now'" in said and "make TARGET" in said


def test_elsewhere_a_skip_is_a_skip(suite):
    status, said, _ = suite(SKIPS)
    assert status == 0 and "3 skipped, 1 xfailed" in said


@pytest.mark.parametrize(("reason", "status"), [("not today", 2), ("needs ray: make test-cluster", 5)])
def test_ci_fails_on_a_file_that_is_skipped_for_no_such_reason(suite, reason, status):
    source = f'import pytest\npytest.skip("{reason}", allow_module_level=True)\n'
    assert suite(source, targets="test-cluster")[0] == status  # 5: no test was left to run


def test_a_target_that_ci_does_not_run_is_no_reason():
    assert complaint("Skipped: needs torch: make torch", {"torch"}) is None
    assert complaint("Skipped: needs torch: make torch", {"test"}) is not None
    assert complaint("Skipped: needs torch: make torch-all", {"torch"}) is not None
