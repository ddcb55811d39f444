"""Environments that fail on command, closed after each test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.fragile import PRELUDE, SOON_S, make_fragile, wait_gone


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Makes `Fragile` environments; after the test they are closed, and none of their workers may be left."""
    made: list[Any] = []

    def start(*args: Any, **kwargs: Any) -> Any:
        made.append(make_fragile(*args, **kwargs))
        return made[-1]

    yield start
    for envs in made:
        pids = [pid for pid in envs.worker_pids if pid is not None]
        envs.close()
        wait_gone(pids, SOON_S)


@pytest.fixture
def run_script(tmp_path):
    """Starts a script in a session of its own; it is killed with all its processes after the test."""
    started = []

    def run(source, *args, path="."):
        script = tmp_path / f"script{len(started)}.py"
        script.write_text(PRELUDE + source)
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{path}:{os.getcwd()}"},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
