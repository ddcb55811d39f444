"""Environments that fail on command, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.fragile import SOON_S, make_fragile, wait_gone


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
