"""A few seconds of each fuzz target with the module as it is installed; `make fuzz` is for long, with ASan.

What a finding was is a file in tests/fuzz/corpus, which every run begins with.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.built import ROOT

SOME = ("arguments", "processes", "tables", "ring", "saved", "host", "session")
NAMES = ("segment", "schema", "checkpoint", "window", "recording", "http", "frames", "watch", *SOME)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a socket, which `tmp_path` may not."""
    with tempfile.TemporaryDirectory(prefix="shoal-fuzz-") as made:
        yield Path(made)


def run(directory: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.run", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "SHOAL_MODULE"}
    environment["FUZZ_DIRECTORY"] = str(directory)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)


@pytest.mark.skipif(sys.platform != "linux", reason="machine: no memfd_create and /dev/shm")
@pytest.mark.parametrize("part", range(3))
def test_mutated_inputs_are_refused_with_words_or_do_no_harm(part: int, short_path: Path) -> None:
    seed = 0 if os.environ.get("CI") else random.randrange(10**6)
    done = run(short_path, *NAMES[part::3], "--cases", 500, "--seconds", 2, "--seed", seed)
    assert done.returncode == 0, f"--seed {seed}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert done.stdout.count(" cases in ") == len(NAMES[part::3])
    assert not list(short_path.iterdir())


@pytest.mark.parametrize("how", ["raises", "dies", "hangs"])
def test_the_runner_notices_what_it_is_for(how: str, short_path: Path) -> None:
    ways = {"raises": "raise KeyError(3)", "dies": "os.kill(os.getpid(), 11)", "hangs": "time.sleep(99)"}
    code = ways[how]
    source = f"""
import os, pathlib, sys, time
from tests.fuzz import run
run.KEPT = pathlib.Path(sys.argv[1])
from tests.fuzz.targets import Target
def target(data):
    if len(data) == 3:
        {code}
run._HANG_S = 0.5
count, wrong = run.run("runner", Target(target, lambda: [b"ab", b"abc", b"a"], ()), 3, 0, 9)
print(count, wrong)
"""
    done = subprocess.run(
        [sys.executable, "-c", source, str(short_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "3 1", done.stdout + done.stderr
    kept = short_path / "runner-0-1.bin"
    assert kept.read_bytes() == b"abc" and str(kept) in done.stdout


def test_the_same_seed_is_the_same_cases() -> None:
    source = "import random; from tests.fuzz.mutate import mutated; "
    source += "print(mutated(random.Random('x 7'), [b'abcdef' * 9]))"
    found = {
        subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True).stdout for _ in range(3)
    }
    assert len(found) == 1 and b"abc" in found.pop()
