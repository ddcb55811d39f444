"""`shoal check` as a user types it: arguments, options, exit status."""

import subprocess
import sys

import pytest

from shoal import check
from shoal.cli import main
from tests.check.conftest import needs_compiler


@needs_compiler
def test_source_that_does_not_compile_fails_with_the_compilers_message(run_check):
    status, report = run_check(STEP="this is not C;")
    assert status == 1
    assert "walk.c" in report and "error:" in report
    assert f"{len(check.CHECKS) - 1} checks were not run because of this" in report


def test_options_reach_the_environment(capsys):
    assert check.run("Squared-v0", {"size": 4}) == 1
    report = capsys.readouterr().out
    assert "size must be odd" in report
    assert f"{len(check.CHECKS) - 1} checks were not run because of this" in report


@pytest.mark.parametrize(
    ("named", "said"), [("examples", "give the source file in it, such as"), ("CartPole-v2", "CartPole-v1")]
)
def test_a_name_that_cannot_be_checked_is_status_2_and_says_what_can(named, said, capfd):
    assert check.run(named) == 2
    assert said in capfd.readouterr().err


def test_the_command_passes_asan_on(capfd):
    assert main(["check", "--asan", "CartPole-v1"]) == 2
    assert "--asan needs the source file" in capfd.readouterr().err


def test_the_command_runs_all_checks():
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "check", "Squared-v0", "--option", "size=5"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok      ") == len(check.CHECKS)
