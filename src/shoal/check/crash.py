"""Finds where in the C source a process crashed, looped or was stopped by a sanitizer."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Report", "explain_signal", "locate", "read_report"]

_SHOWN = 6
_PROGRAMS = ("addr2line", "llvm-addr2line")
_CAUSES = {
    signal.SIGSEGV: "it used memory that is not there: a bad pointer or index, or too deep a recursion",
    signal.SIGBUS: "it used memory that is not there",
    signal.SIGFPE: "an integer was divided by zero",
    signal.SIGILL: "an instruction this processor does not have, or a function without a return",
    signal.SIGABRT: "a failed assert, or a damaged heap",
}


@dataclass(frozen=True)
class Report:
    """A report of core/crash.c: the signal, the call in progress, and (library, offset), innermost first."""

    signal: int
    call: str
    frames: list[tuple[str, int]]


def read_report(text: str) -> Report | None:
    """Parses a report; returns None if there is none."""
    number = re.search(r"^signal (\d+)$", text, re.MULTILINE)
    if number is None:
        return None
    call = re.search(r"^call (.*)$", text, re.MULTILINE)
    frames = re.findall(r"^frame ([0-9a-f]+) (.+)$", text, re.MULTILINE)
    return Report(
        int(number[1]), call[1] if call is not None else "", [(path, int(at, 16)) for at, path in frames]
    )


def explain_signal(number: int, call: str) -> str:
    """Returns a text with the signal that ended a process, the call in progress and the usual cause."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    cause = _CAUSES.get(number)  # type: ignore[call-overload]
    return f"{name}{f' in {call}' if call else ''}{f': {cause}' if cause else ''}"


def locate(libraries: Sequence[Path], frames: Sequence[tuple[str, int]]) -> str:
    """Returns the C functions and lines of the frames in the first library that has some, or why not."""
    for library in libraries:
        offsets = [offset for path, offset in frames if os.path.realpath(path) == os.path.realpath(library)]
        if offsets:
            break
    else:
        return "the C function is unknown: the stack has no call in the environment's library"
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        return (
            "the C function and line are unknown: addr2line is not installed (Debian: apt install binutils); "
            f"the address is {offsets[0]:#x} in {library}"
        )
    places = []
    for offset in offsets[:_SHOWN]:
        done = subprocess.run(
            [program, "-f", "-i", "-C", "-e", str(library), hex(offset)],
            capture_output=True,
            text=True,
            errors="replace",
        )
        lines = done.stdout.splitlines()
        places += list(zip(lines[::2], lines[1::2], strict=False))
    if not places or places[0][0] == "??":
        return (
            f"the C function and line are unknown: {library} has no debug information; give its source file, "
            "or compile it with -g"
        )
    shown = [_format_place(function, place) for function, place in places[:_SHOWN] if function != "??"]
    text = "in " + "\ncalled by ".join(shown)
    if places[0][1].startswith("??"):
        text += (
            f"\nthe line is unknown: {library} has no debug information; give its source file, or compile it "
            "with -g"
        )
    return text


def _format_place(function: str, place: str) -> str:
    file, _, line = place.split(" (discriminator")[0].rpartition(":")
    if file.startswith("??") or not line.isdecimal():
        return function
    relative = os.path.relpath(file)
    return f"{function}, {file if relative.startswith('..') else relative}:{line}"
