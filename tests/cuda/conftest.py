"""Plug-ins to compile for a GPU, and what is skipped where the compiler is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal import check
from shoal.native.compilers import find_zig
from tests.check.conftest import write_walk  # noqa: F401  a fixture

needs_zig = pytest.mark.skipif(find_zig() is None, reason="needs the package ziglang: make cuda")


@pytest.fixture
def run_check(
    write_walk: Callable[..., Path],  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Checks walk.c with changes on a device; the exit status and what was printed."""

    def run(*, asan: bool = False, device: str = "emulated", **changes: str) -> tuple[int, str]:
        status = check.run(str(write_walk(**changes)), asan=asan, device=device)
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run
