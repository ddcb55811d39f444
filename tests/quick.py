"""Which tests `make quick` runs: every test that tests/slow.txt does not name and that needs no browser.

The list is recorded, not written: `--record-slow` rewrites it from the times of the run. It cannot become
outdated unseen:

- a test is quick until it is recorded, so the summary of every run reports a slow test that is not listed;
- an entry that names no test is reported too, and fails `make quick`.

A quick test takes less than a second (`REPORT_S`). Recording is stricter (`RECORD_S`), so that all quick
tests together take under a minute on two cores, and a test near the limit is not reported now and then.

Time is that of a clock. On a machine that is shared, `SHOAL_TEST_LENIENCE=5` allows five times as much; there
a test is also slow if both the clock and the processor say so. Processor time is not enough alone: it is of
the processes that the test reaped too, and those may have worked for earlier tests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lenience import LENIENCE

LIST = Path(__file__).with_name("slow.txt")
REPORT_S = 1.0
RECORD_S = 0.1
_HEADER = "# Tests that are not quick, written by `make slow-list`; `make quick` leaves them out.\n"


def function_of(nodeid: str) -> str:
    """The test function: one slow parameter makes all of them slow, so that ids of parameters can change."""
    return nodeid.split("[", 1)[0]


def read_list(path: Path = LIST) -> set[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def is_slow(cost: tuple[float, float], limit_s: float, lenience: float) -> bool:
    seconds, processor_seconds = cost
    return min(seconds, processor_seconds) > limit_s or seconds > limit_s * lenience


def updated(listed: set[str], slow: set[str], quick: set[str], gone: set[str]) -> set[str]:
    """The list after a run: what was slow is in, what was quick or is gone is out, the rest stays."""
    return (listed - quick - gone) | slow


def _processor_seconds() -> float:
    return sum(os.times()[:4])


class SlowTests:
    """Leaves slow tests out (`--quick`), measures the others, reports and records."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._listed = read_list()
        self._lenience = LENIENCE
        self._costs: dict[str, tuple[float, float]] = {}
        self._gone: set[str] = set()

    @pytest.hookimpl(tryfirst=True)  # before -k and -m take items away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        files = {item.nodeid.split("::", 1)[0] for item in items}
        found = {function_of(item.nodeid) for item in items}
        if any("::" in argument for argument in config.args):
            files = set()  # files that were not collected whole
        for entry in self._listed - found:
            # A file that exists and has no test here is skipped as a whole: its library is missing.
            file = entry.split("::", 1)[0]
            if file in files or not (config.rootpath / file).exists():
                self._gone.add(entry)
        if config.option.quick:
            slow = [item for item in items if self._is_left_out(item)]
            items[:] = [item for item in items if not self._is_left_out(item)]
            config.hook.pytest_deselected(items=slow)

    def _is_left_out(self, item: pytest.Item) -> bool:
        # A browser takes seconds to start, which no single test is charged with.
        return function_of(item.nodeid) in self._listed or "browser" in getattr(item, "fixturenames", ())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._begin = (time.monotonic(), _processor_seconds())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if call.when == "teardown":
            cost = (time.monotonic() - self._begin[0], _processor_seconds() - self._begin[1])
            report.user_properties.append(
                ("cost", cost)
            )  # which reaches the controller of parallel workers too
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, cost in report.user_properties:
            if key == "cost":
                name = function_of(report.nodeid)
                self._costs[name] = max(self._costs.get(name, (0.0, 0.0)), (cost[0], cost[1]), key=max)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workeroutput"):  # a parallel worker: the controller reports
            self._config.workeroutput["gone"] = sorted(self._gone)
            return
        if self._config.option.record_slow:
            slow = {name for name, cost in self._costs.items() if is_slow(cost, RECORD_S, self._lenience)}
            new = updated(self._listed, slow, set(self._costs) - slow, self._gone)
            LIST.write_text(_HEADER + "".join(f"{name}\n" for name in sorted(new)))
        elif self._gone and self._config.option.quick and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._gone |= set(getattr(node, "workeroutput", {}).get("gone", ()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.option.record_slow:
            terminalreporter.write_line(f"{LIST.name}: {len(read_list())} slow tests recorded")
            return
        late = {
            name: cost
            for name, cost in self._costs.items()
            if name not in self._listed and is_slow(cost, REPORT_S, self._lenience)
        }
        if late:
            terminalreporter.section("slow tests that tests/slow.txt does not name: make slow-list")
        for name, (seconds, processor_seconds) in sorted(late.items()):
            terminalreporter.write_line(f"{seconds:6.1f} s, {processor_seconds:5.1f} s of processor  {name}")
        if self._gone:
            terminalreporter.section("entries of tests/slow.txt that name no test: make slow-list")
            for name in sorted(self._gone):
                terminalreporter.write_line(name)
