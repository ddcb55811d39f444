"""Plans the rounds of a run and runs those that the record does not have."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shoal_lab.chaos.rounds import Outcome, Round, run_round

__all__ = ["plan_rounds", "run_rounds"]

SIZES = {"workers": (1.0, 200), "ring": (10.0, 2000), "parents": (0.1, 20)}
"""By part: kills for each kill of a worker, and the maximum number of kills of a round."""


def plan_rounds(parts: Sequence[str], kills: int, seed: int, *, exactly: bool) -> list[Round]:
    """Plans a run. The i-th round of a part has the seed `seed` + i, so that each can be run alone."""
    waiting = []
    for part in parts:
        share, most = SIZES[part]
        left = kills if exactly else max(1, round(kills * share))
        whole, rest = divmod(left, most)
        sizes = [most] * whole + [rest] * (rest > 0)
        waiting.append([Round(part, seed + number, size) for number, size in enumerate(sizes)])
    longest = max(map(len, waiting))
    # The parts alternate, so that a run that is cut short has rounds of each.
    order = [
        (number * longest / len(rounds), round_) for rounds in waiting for number, round_ in enumerate(rounds)
    ]
    return [round_ for _, round_ in sorted(order, key=lambda pair: pair[0])]


def run_rounds(
    rounds: Sequence[Round], deadline_s: float, until: float | None, record: Path | None, *, quiet: bool
) -> list[tuple[Round, Outcome]]:
    """Runs the rounds that the record does not have; returns every round with its outcome."""
    known = _read_record(record)
    found: list[tuple[Round, Outcome]] = []
    with _progress(sum(round_.kills for round_ in rounds), quiet) as show:
        done = 0
        for number, round_ in enumerate(rounds):
            outcome = known.get(round_.key)
            if outcome is None:
                if until is not None and time.monotonic() > until:
                    continue  # the record may have later rounds
                before = done
                outcome = run_round(round_, deadline_s, lambda kills: show(before + kills, round_.part, None))  # noqa: B023
                _write_record(record, round_, outcome)
                text = f"round {number + 1} of {len(rounds)}: {_format_outcome(round_, outcome)}"
            else:
                text = None
            done += round_.kills
            show(done, round_.part, text)
            found.append((round_, outcome))
    return found


def _format_outcome(round_: Round, outcome: Outcome) -> str:
    end = "all held" if not outcome.violations else f"{len(outcome.violations)} VIOLATIONS"
    what = f"{round_.part}, seed {round_.seed}: {outcome.kills} kills, {outcome.rows:,} rows"
    return f"{what}, {outcome.seconds:.1f} s: {end}"


def _read_record(record: Path | None) -> dict[str, Outcome]:
    if record is None or not record.exists():
        return {}
    lines = [json.loads(line) for line in record.read_text().splitlines() if line.endswith("}")]
    return {line["round"]: Outcome(**line["outcome"]) for line in lines}


def _write_record(record: Path | None, round_: Round, outcome: Outcome) -> None:
    outcome.facts["load"] = round(os.getloadavg()[0], 2)
    if record is not None:
        with record.open("a") as file:
            file.write(json.dumps({"round": round_.key, "outcome": asdict(outcome)}) + "\n")


Show = Callable[[int, str, "str | None"], None]


@contextlib.contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Show]:
    """Shows a progress bar in a terminal, or prints a line for each round."""
    if quiet:
        yield lambda done, part, text: None
        return
    with contextlib.suppress(ImportError):
        if sys.stdout.isatty():
            from rich.progress import Progress

            with Progress() as bar:
                task: Any = bar.add_task("chaos", total=total)

                def show(done: int, part: str, text: str | None) -> None:
                    bar.update(task, completed=done, description=part)
                    if text is not None and "VIOLATION" in text:
                        bar.console.print(text)

                yield show
            return

    def print_line(done: int, part: str, text: str | None) -> None:
        if text is not None:
            print(text, flush=True)

    yield print_line
