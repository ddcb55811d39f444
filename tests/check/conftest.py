"""A plug-in that keeps the contract, and ways to break it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal import check
from shoal.check.subject import prepare_subject
from shoal.errors import ShoalError

WALK = Path(__file__).parent / "plugins" / "walk.c"

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler to build plug-ins"
)


@pytest.fixture
def write_walk(tmp_path: Path) -> Callable[..., Path]:
    """Writes plugins/walk.c with code in place of its comments in capitals; line numbers stay."""

    def write(**changes: str) -> Path:
        text = WALK.read_text()
        for slot, code in changes.items():
            assert f"/* {slot} */" in text and "\n" not in code
            text = text.replace(f"/* {slot} */", code)
        path = tmp_path / "walk.c"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def find_problem(write_walk) -> Callable[..., str | None]:
    """What one check finds in walk.c with changes; in this process, so only for what cannot crash."""

    def find(name: str, /, **changes: str) -> str | None:
        try:
            check.CHECKS[name](prepare_subject(str(write_walk(**changes)), {}, ["-g"]))
        except ShoalError as error:
            return str(error)
        return None

    return find


@pytest.fixture
def run_check(write_walk, capsys) -> Callable[..., tuple[int, str]]:
    """Checks walk.c with changes; the exit status and what was printed."""

    def run(*, asan: bool = False, **changes: str) -> tuple[int, str]:
        status = check.run(str(write_walk(**changes)), asan=asan)
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def line_of(slot: str) -> int:
    """The line of walk.c that has a comment in capitals."""
    lines = WALK.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if f"/* {slot} */" in line)
