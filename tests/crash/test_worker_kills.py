"""Workers killed and stopped at random moments: every row that comes back is exact or says that it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kills.py")


def run_kills(*options: object) -> str:
    """The script checks everything itself, and has a watchdog."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, options)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("autoreset", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_no_row_is_wrong_while_workers_are_killed_at_random(autoreset):
    out = run_kills("--kills", 25, "--seed", 1, "--autoreset", autoreset)
    assert out.startswith("25 KILLs") and "nothing left behind" in out


def test_no_row_is_wrong_while_workers_are_killed_in_asynchronous_stepping():
    out = run_kills("--kills", 50, "--seed", 2, "--mode", "async")
    assert out.startswith("50 KILLs") and "nothing left behind" in out


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_no_row_is_wrong_while_workers_are_stopped_and_killed_for_it(mode):
    out = run_kills("--kills", 4, "--seed", 3, "--mode", mode, "--signal", "STOP")
    assert out.startswith("4 STOPs") and "nothing left behind" in out


def test_a_death_is_known_and_mended_in_milliseconds():
    known, revived = run_kills("--deaths", 20).splitlines()
    assert known.startswith("from the kill to WorkerDied: p50") and "(20)" in known
    assert float(known.split("p50 ")[1].split()[0]) < 100  # the promise is p99; this machine may be busy
    assert float(revived.split("p50 ")[1].split()[0]) < 1000
