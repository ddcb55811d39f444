"""Files that the first test that needs them makes, for all processes of a test run."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lenience import PROGRAM_S

_root: Path | None = None


def use(root: Path) -> None:
    global _root
    _root = root / "shared"
    _root.mkdir(exist_ok=True)


def make_once(name: str, make: Callable[[Path], None]) -> Path:
    """The directory `name` of the test run, in which `make` was called by whoever came first."""
    assert _root is not None
    directory, done = _root / name, _root / f"{name}.done"
    with (_root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            directory.mkdir(exist_ok=True)
            make(directory)
            done.touch()
    return directory


def run_example(path: Path) -> subprocess.CompletedProcess[str]:
    """What an example does without arguments; some take long, and several tests look at what they say."""

    def run(directory: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(path)],
            env={**os.environ, "TMPDIR": str(directory)},  # where some of them draw pictures
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
        )
        (directory / "done.json").write_text(json.dumps([done.returncode, done.stdout, done.stderr]))

    directory = make_once(f"example-{path.stem}", run)
    return subprocess.CompletedProcess([str(path)], *json.loads((directory / "done.json").read_text()))
