"""The command `shoal check`: prints a line for each check and warnings, and returns the exit status."""

from __future__ import annotations

import sys
from typing import Any

from shoal.check.child import Crashed, run_checks
from shoal.check.sanitize import sanitized_environment
from shoal.check.subject import find_mistake, prepare_subject
from shoal.check.suite import CHECKS
from shoal.compat.puffer import writable_globals
from shoal.errors import BuildError, ShoalError

__all__ = ["run"]


def run(env: str, options: dict[str, Any] | None = None, asan: bool = False) -> int:
    """Checks a C file, a compiled library or a bundled environment.

    Prints a line for each check. Returns 0 if all passed, 1 if one failed, 2 if the arguments are wrong.
    """
    flags: list[str] = ["-g"]
    variables: dict[str, str] = {}
    mistake = find_mistake(env, asan)
    if mistake is None and asan:
        try:
            flags, variables = sanitized_environment(env)
        except BuildError as error:
            mistake = str(error)
    if mistake is not None:
        print(f"shoal check: {mistake}", file=sys.stderr)
        return 2
    names = list(CHECKS)
    try:
        subject = prepare_subject(env, options or {}, flags)
    except (ShoalError, TypeError, ValueError) as error:
        _print_check(names[0], str(error))
        _print_rest(names[1:])
        return 1
    failures = 0
    for done, (name, problem) in enumerate(run_checks(subject, names, variables), 1):
        _print_check(name, problem)
        failures += problem is not None
        if isinstance(problem, Crashed) or (problem is not None and name == names[0]):
            _print_rest(names[done:])
            break
    shared = writable_globals(subject.library)
    if shared:
        _print_line(
            "warning",
            f"It has writable global variables: {', '.join(shared)}",
            "All environments of a process share them, on all threads. Move them into the struct, or make "
            "them const.",
        )
    return 1 if failures else 0


def _print_check(name: str, problem: str | None) -> None:
    sentence = (CHECKS[name].__doc__ or name).splitlines()[0].rstrip(".")
    _print_line("ok" if problem is None else "FAILED", sentence, problem)


def _print_rest(names: list[str]) -> None:
    if names:
        print(f"        {len(names)} checks were not run because of this", flush=True)


def _print_line(outcome: str, sentence: str, details: str | None) -> None:
    print(f"{outcome:7} {sentence}", flush=True)
    if details is not None:
        print("        " + details.replace("\n", "\n        "), flush=True)
