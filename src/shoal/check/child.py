"""Runs checks in a separate process, which a plug-in may crash or stop, and reads its reports."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from shoal import _core
from shoal.check.crash import explain_signal, locate, read_report
from shoal.check.device import DEVICE_CHECKS, DeviceLost
from shoal.check.sanitize import explain_report
from shoal.check.subject import CheckDoubt, Region, Subject, Target
from shoal.check.suite import CHECKS
from shoal.errors import ShoalError

__all__ = ["Crashed", "Doubted", "run_checks", "serve"]

_CHECK_LIMIT_S = 300.0
_ALL = {**CHECKS, **DEVICE_CHECKS}
_PRINTED_LINES = 10


class Crashed(str):
    """Why the process of the checks ended before they were done."""


class Doubted(str):
    """A problem that is only a warning."""


_KINDS: dict[str, type[str]] = {"failure": str, "warning": Doubted, "end": Crashed}


def run_checks(
    subject: Subject, names: Sequence[str], variables: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Yields (check, problem or None) for each check; a Crashed problem is the last, a Doubted a warning.

    `variables` are added to the environment of the process; if there are any, a sanitizer reports crashes.
    """
    reading, writing = os.pipe()
    temporary = tempfile.TemporaryFile
    with temporary() as printed, temporary() as crash, open(reading, "rb", 0) as pipe:
        arguments = {
            "reports": writing,
            "crash": crash.fileno(),
            "sanitized": bool(variables),
            "library": str(subject.library),
            "options": subject.options,
            "names": list(names),
            "call_limit_s": subject.call_limit_s,
            "target": None if subject.target is None else asdict(subject.target),
        }
        # The plug-in prints to a file, because it would block on a full pipe.
        child = subprocess.Popen(
            [sys.executable, "-m", "shoal.check", json.dumps(arguments)],
            stdout=printed,
            stderr=printed,
            pass_fds=(writing, crash.fileno()),
            env={**os.environ, **variables},
        )
        os.close(writing)
        regions: list[Region] = []
        left = list(names)
        try:
            for message in _read_messages(pipe):
                if "regions" in message:
                    regions = [Region(*one) for one in message["regions"]]
                    continue
                left.pop(0)
                kind = _KINDS[message["kind"]]
                yield message["check"], None if message["problem"] is None else kind(message["problem"])
                if kind is Crashed:
                    return
            if left:
                yield left[0], Crashed(_explain_end(child, subject, regions, printed, crash))
        except TimeoutError:
            yield left[0], Crashed(f"this check did not finish in {_CHECK_LIMIT_S:.0f} s")
        finally:
            child.kill()
            child.wait()


def _read_messages(pipe: Any) -> Iterator[dict[str, Any]]:
    rest = b""
    while True:
        if not select.select([pipe], [], [], _CHECK_LIMIT_S)[0]:
            raise TimeoutError
        data = pipe.read(1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def _explain_end(
    child: subprocess.Popen[bytes],
    subject: Subject,
    regions: Sequence[Region],
    printed: BinaryIO,
    crash: BinaryIO,
) -> str:
    status = child.wait()
    output, report = (_read_all(file) for file in (printed, crash))
    found = read_report(report)
    sanitizer = explain_report(output, subject.libraries, regions)
    if found is not None and found.signal == signal.SIGALRM:
        cause = f"{found.call} did not return within {subject.call_limit_s} s: is there an endless loop?"
        if subject.target is not None and subject.target.device != "emulated":
            source = subject.target.source
            return f"{cause}\n`shoal check --device emulated {source}` runs it on the CPU and names the line"
        return f"{cause}\n{locate(subject.libraries, found.frames)}"
    if sanitizer is not None:
        return sanitizer
    if found is not None:
        cause = f"{explain_signal(found.signal, found.call)}\n{locate(subject.libraries, found.frames)}"
    elif status < 0:
        cause = f"the process was ended by {explain_signal(-status, '')}"
    else:
        cause = f"the process ended by itself with exit status {status}: does the environment call exit()?"
    lines = output.strip().splitlines()[-_PRINTED_LINES:]
    return "\n".join([cause, *(["it printed:", *lines] if lines else [])])


def _read_all(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def serve(arguments: dict[str, Any]) -> None:
    """Runs the checks in the child process and reports one line for each."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends a looping plug-in
    sanitized = arguments["sanitized"]
    _core.report_crashes_to(arguments["crash"], not sanitized)
    with open(arguments["reports"], "w") as reports:

        def report(message: dict[str, Any]) -> None:
            print(json.dumps(message), file=reports, flush=True)

        regions = (lambda found: report({"regions": found})) if sanitized else None
        target = arguments["target"]
        subject = Subject(
            Path(arguments["library"]),
            arguments["options"],
            regions,
            arguments["call_limit_s"],
            None if target is None else Target(**target),
        )
        for name in arguments["names"]:
            problem, kind = None, "failure"
            try:
                _ALL[name](subject)
            except CheckDoubt as error:
                problem, kind = str(error), "warning"
            except DeviceLost as error:
                problem, kind = str(error), "end"
            except (ShoalError, TypeError, ValueError, MemoryError) as error:
                problem = str(error)
            report({"check": name, "problem": problem, "kind": kind})
