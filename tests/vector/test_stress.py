"""The short version of `make stress`, in a process of its own: a crash is a failure like any other."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_threads_see_no_violation(seed):
    command = [sys.executable, "-m", "tests.vector.stress", "--seconds", "3", "--rounds", "3"]
    command += ["--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    counts = dict(part.rsplit(" ", 1) for part in done.stdout.strip().split(", "))
    assert int(counts["rounds"]) >= 3 and int(counts["refused"]) > 0 and int(counts["interrupted"]) > 0
