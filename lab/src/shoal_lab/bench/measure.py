"""One run: the rivals, the duration and the rounds."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ShoalError
from shoal_lab.bench.compile import NoCompiler
from shoal_lab.bench.interleave import Burst, interleave_bursts, undisturbed
from shoal_lab.bench.interpreter import Interpreter, PeerError
from shoal_lab.bench.load import Watch
from shoal_lab.bench.loops import Loops
from shoal_lab.bench.progress import Progress
from shoal_lab.bench.results import Case, Role, Row

__all__ = ["SMOKE", "Bench", "Pace", "Planned", "Rival", "RivalFailed", "Roster", "name_errors"]


@dataclass(frozen=True)
class Pace:
    """How often and how long each rival is timed; without `burst_s`, one call each time."""

    bursts: int
    burst_s: float | None

    def seconds(self, rivals: int) -> float:
        """Estimates the duration: warm-ups and pauses between bursts add half of the time."""
        return rivals * (self.bursts + 4) * (self.burst_s or 0.2) * 1.5

    def __str__(self) -> str:
        length = "one call each" if self.burst_s is None else f"{self.burst_s * 1e3:g} ms each"
        return f"{self.bursts} {'burst' if self.bursts == 1 else 'bursts'}, {length}, in turns"


SMOKE = Pace(1, None)
"""The pace of `--smoke`: every rival is called once."""


@dataclass(frozen=True)
class Rival:
    """A rival to be timed; `amount` is the work of a call: steps, bytes or 1."""

    name: str
    role: Role
    amount: float
    burst: Burst
    parameters: str = ""


class RivalFailed(Exception):
    """A rival failed while it was timed: its name and the reason."""


def name_errors(name: str, burst: Burst) -> Burst:
    """Returns a burst that raises the rival's name with its error."""

    def named(calls: int) -> float:
        try:
            return burst(calls)
        except PeerError as error:
            raise RivalFailed(name, str(error)) from error

    return named


@dataclass(frozen=True)
class Planned:
    """A case to be measured, and its estimated duration."""

    title: str
    seconds: float
    run: Callable[[], Case]


class Roster:
    """The rivals of one case; each library runs in its own Python process."""

    def __init__(self, bench: Bench, group: str) -> None:
        self._bench, self._group = bench, group
        self.rivals: list[Rival] = []

    def add(
        self,
        library: str,
        maker: str,
        *arguments: Any,
        name: str | None = None,
        role: Role = "peer",
        how: str = "",
    ) -> None:
        """Adds a rival if its library is installed. A peer that fails is left out; Shoal's fails the run."""
        try:
            interpreter = self._bench.interpreter(library, self._group)
            if interpreter is not None:
                amount, burst = interpreter.make(maker, *arguments)
                self.rivals.append(Rival(name or maker, role, amount, name_errors(name or maker, burst), how))
        except PeerError as error:
            self._bench.leave_out(name or maker, library == "shoal", error)

    def add_bare(self, name: str, amount: float, burst: Burst, how: str = "") -> None:
        self.rivals.append(Rival(name, "limit", amount, undisturbed(burst), how))


@dataclass
class Bench:
    """A run: the Python of each peer's library, the progress display and the open interpreters."""

    pythons: dict[str, str]
    full: bool = False
    smoke: bool = False
    """Runs every case as short as possible, to check that it works."""
    progress: Progress = field(default_factory=lambda: Progress(1.0, enabled=False))
    repeats: int = 24
    """Disturbed rounds that may still be done again: on a machine that is never quiet a run ends, too."""
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """The errors of Shoal, with their case; a run with failures exits with status 1."""
    versions: dict[str, str] = field(default_factory=dict)
    _open: dict[tuple[str, str], Interpreter | None] = field(default_factory=dict)
    _loops: Loops | None = None
    _estimate_s: float = 0.0
    _title: str = "before the first case"

    def pace(self, quick: Pace, full: Pace) -> Pace:
        """Returns how often and how long rivals are timed in this run."""
        return SMOKE if self.smoke else full if self.full else quick

    @property
    def every_case(self) -> bool:
        """Whether to measure the cases that a quick run leaves out."""
        return self.full or self.smoke

    def interpreter(self, library: str, group: str) -> Interpreter | None:
        """Returns the library's interpreter, started on the first call; None if it takes no part."""
        python = sys.executable if library == "shoal" else self.pythons.get(library)
        if python is None:
            return None
        key = library, group
        if key not in self._open:
            if library != "shoal":
                self._open[key] = None  # a peer that fails once is not started again
            self._open[key] = Interpreter(python, library, group)
        found = self._open[key]
        if found is not None:
            self.versions[library] = found.version
        return found

    @property
    def loops(self) -> Loops | None:
        """The C loops; None without a compiler, which is noted once."""
        if self._loops is None and "loops" not in self.versions:
            self.versions["loops"] = ""
            try:
                self._loops = Loops()
            except NoCompiler as error:
                self.note(f"without limits in C: {error}")
        return self._loops

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def fail(self, text: str) -> None:
        """Records an error of Shoal in the current case."""
        self.failures.append(f"{self._title}: {text}")

    def leave_out(self, name: str, is_ours: bool, error: object) -> None:
        """Continues without a rival: a peer's error is noted, Shoal's error is a failure."""
        if is_ours:
            self.fail(f"{name}: {error}")
        else:
            self.note(f"without {name}: {error}")

    @contextmanager
    def roster(self, group: str, keep: bool = False) -> Iterator[Roster]:
        """Makes a roster whose rivals end with the body, unless the next roster needs them too (`keep`)."""
        try:
            yield Roster(self, group)
        finally:
            for (library, _), interpreter in self._open.items():
                if interpreter is not None and not keep:
                    try:
                        interpreter.drop()
                    except PeerError as error:
                        name = f"{library}, which did not close what it made"
                        self.leave_out(name, library == "shoal", error)
            if self._loops is not None:
                self._loops.release()

    def close(self) -> None:
        """Ends the interpreters; Shoal's must end by itself and without an error."""
        for (library, group), interpreter in self._open.items():
            if interpreter is not None:
                status = interpreter.close()
                if library == "shoal" and status != 0:
                    self.failures.append(f"{group}: the process of Shoal's rivals ended with status {status}")
        self._open.clear()

    def go(self, planned: list[Planned], done: Callable[[Case], object], suite: str = "") -> list[Case]:
        """Measures the cases one after the other; a case that raises is recorded in `failures`."""
        cases = []
        for one in planned:
            self.begin(one.title, one.seconds, suite)
            with self.record_failures():
                case = one.run()
                cases.append(case)
                done(case)
            self.progress.end(one.seconds)
        return cases

    @contextmanager
    def record_failures(self) -> Iterator[None]:
        """Records an exception of the body as a failure of the current case; the run continues."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (ShoalError, PeerError)):
                traceback.print_exc()
            self.fail(f"{type(error).__name__}: {error}")

    def begin(self, title: str, estimate_s: float, suite: str = "") -> None:
        self.progress.begin(title)
        self._estimate_s = estimate_s
        self._title = f"{suite}: {title}" if suite else title

    def done(self, part: float) -> None:
        """Reports that this part of the current case is done."""
        self.progress.advance(part, self._estimate_s)

    def timed(
        self,
        suite: str,
        title: str,
        unit: str,
        rivals: list[Rival],
        pace: Pace,
        value: Callable[[float, float], float],
        parameters: str = "",
        more_is_better: bool = True,
    ) -> Case:
        """Times the rivals in rounds; `value` computes the result from a call's amount and seconds.

        If a rival fails, the others start again without it.
        """
        try:
            return self._rounds(suite, title, unit, rivals, pace, value, parameters, more_is_better)
        except RivalFailed as gone:
            name, why = gone.args
            is_ours = any(rival.name == name and rival.role != "peer" for rival in rivals)
            self.leave_out(name if is_ours else f"{name} in {title!r}", is_ours, why)
            left = [rival for rival in rivals if rival.name != name]
            return self.timed(suite, title, unit, left, pace, value, parameters, more_is_better)

    def _rounds(
        self,
        suite: str,
        title: str,
        unit: str,
        rivals: list[Rival],
        pace: Pace,
        value: Callable[[float, float], float],
        parameters: str,
        more_is_better: bool,
    ) -> Case:
        watch = Watch(repeats=min(self.repeats, max(1, pace.bursts // 2)))
        rounds = 0

        def after_round() -> None:
            nonlocal rounds
            rounds += 1
            if suite != "sweep":  # in a sweep, a case is one point of many
                self.done((rounds + 2) / (pace.bursts + 2))

        bursts = {rival.name: rival.burst for rival in rivals}
        times = interleave_bursts(bursts, pace.bursts, pace.burst_s, watch, after_round)
        self.repeats -= watch.repeated
        rows = tuple(
            Row(
                rival.name,
                rival.role,
                tuple(value(rival.amount, seconds) for seconds in times[rival.name].turns_s),
                rival.parameters,
            )
            for rival in rivals
        )
        how = f"{parameters}; {pace}" if parameters else str(pace)
        return Case(
            suite, title, unit, rows, how, more_is_better, watch.repeated, watch.disturbed, watch.lost_cores
        )
