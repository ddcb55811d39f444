"""Which rounds there are, and running them one after the other, those that were not run before."""

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

from shoal_lab.chaos.rounds import Outcome, Round, perform

__all__ = ["planned", "played"]

SIZES = {"workers": (1.0, 200), "ring": (10.0, 2000), "parents": (0.1, 20)}
"""Kills for each worker's, and of one round at most."""


def planned(parts: Sequence[str], kills: int, seed: int, *, exactly: bool) -> list[Round]:
    """The rounds of a run: the i-th of a part has the seed `seed` + i, so that each can be run alone."""
    waiting = []
    for part in parts:
        share, most = SIZES[part]
        left = kills if exactly else max(1, round(kills * share))
        whole, rest = divmod(left, most)
        sizes = [most] * whole + [rest] * (rest > 0)
        waiting.append([Round(part, seed + number, size) for number, size in enumerate(sizes)])
    longest = max(map(len, waiting))
    # In turns, so that a run that is cut short has some of each.
    order = [
        (number * longest / len(rounds), round_) for rounds in waiting for number, round_ in enumerate(rounds)
    ]
    return [round_ for _, round_ in sorted(order, key=lambda pair: pair[0])]


def played(
    rounds: Sequence[Round], deadline_s: float, until: float | None, record: Path | None, *, quiet: bool
) -> list[tuple[Round, Outcome]]:
    """Every round with its outcome; those that the record has are taken from it."""
    known = _recorded(record)
    found: list[tuple[Round, Outcome]] = []
    with _progress(sum(round_.kills for round_ in rounds), quiet) as show:
        done = 0
        for number, round_ in enumerate(rounds):
            outcome = known.get(round_.key)
            if outcome is None:
                if until is not None and time.monotonic() > until:
                    continue  # the record may have later ones
                before = done
                outcome = perform(round_, deadline_s, lambda kills: show(before + kills, round_.part, None))  # noqa: B023
                _note(record, round_, outcome)
                said = f"round {number + 1} of {len(rounds)}: {_line(round_, outcome)}"
            else:
                said = None
            done += round_.kills
            show(done, round_.part, said)
            found.append((round_, outcome))
    return found


def _line(round_: Round, outcome: Outcome) -> str:
    end = "all held" if not outcome.violations else f"{len(outcome.violations)} VIOLATIONS"
    what = f"{round_.part}, seed {round_.seed}: {outcome.kills} kills, {outcome.rows:,} rows"
    return f"{what}, {outcome.seconds:.1f} s: {end}"


def _recorded(record: Path | None) -> dict[str, Outcome]:
    if record is None or not record.exists():
        return {}
    lines = [json.loads(line) for line in record.read_text().splitlines() if line.endswith("}")]
    return {line["round"]: Outcome(**line["outcome"]) for line in lines}


def _note(record: Path | None, round_: Round, outcome: Outcome) -> None:
    outcome.facts["load"] = round(os.getloadavg()[0], 2)
    if record is not None:
        with record.open("a") as file:
            file.write(json.dumps({"round": round_.key, "outcome": asdict(outcome)}) + "\n")


Show = Callable[[int, str, "str | None"], None]


@contextlib.contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Show]:
    """A bar in a terminal, a line for each round elsewhere."""
    if quiet:
        yield lambda done, part, said: None
        return
    with contextlib.suppress(ImportError):
        if sys.stdout.isatty():
            from rich.progress import Progress

            with Progress() as bar:
                task: Any = bar.add_task("chaos", total=total)

                def show(done: int, part: str, said: str | None) -> None:
                    bar.update(task, completed=done, description=part)
                    if said is not None and "VIOLATION" in said:
                        bar.console.print(said)

                yield show
            return

    def say(done: int, part: str, said: str | None) -> None:
        if said is not None:
            print(said, flush=True)

    yield say
