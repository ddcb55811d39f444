"""In CI a skipped test is a failure unless its reason says why CI cannot, or need not, run it here.

Two kinds of reason are allowed when `SHOAL_CI_TARGETS` lists the make targets of the run:

    machine: WHAT           what no target can install: a GPU, root, a kernel's facility, permission to mount
    needs WHAT: make NAME   CI runs that target too
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest


def complaint(reason: str, targets: set[str]) -> str | None:
    """Why CI does not accept this reason; None if it does."""
    text = reason.removeprefix("Skipped: ")
    if text.startswith("machine: "):
        return None
    named = set(re.findall(r"\bmake ([\w-]+)", text))
    if named & targets:
        return None
    return (
        f"skipped in CI: {text!r}\nA reason must begin with 'machine: ' (a GPU, root, a kernel's facility) "
        f"or end with ': make TARGET', where CI runs that target ({' '.join(sorted(targets))})"
    )


class StrictSkips:
    """Turns skips whose reason is not allowed into failures."""

    def __init__(self, targets: set[str]) -> None:
        self._targets = targets

    def _check(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
            return
        if found := complaint(report.longrepr[2], self._targets):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid}: {found}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        self._check(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report = yield
        self._check(report)
        return report
