"""The command `shoal check`: prints a line for each check and warnings, and returns the exit status."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from shoal.check.child import Crashed, Doubted, run_checks
from shoal.check.device import DEVICE_CHECKS
from shoal.check.sanitize import sanitized_environment
from shoal.check.subject import Subject, find_mistake, prepare_subject
from shoal.check.suite import CHECKS
from shoal.check.target import COMPILES, GPU_IS_MISSING, compile_for_gpu, make_target, require_gpu
from shoal.compat.puffer import writable_globals
from shoal.errors import BuildError, ShoalError

__all__ = ["run"]

_ALL = {**CHECKS, **DEVICE_CHECKS}


def run(env: str, options: dict[str, Any] | None = None, asan: bool = False, device: str = "cpu") -> int:
    """Checks a C file, a compiled library or a bundled environment.

    With `device`, checks that "cuda" or "emulated" gives the CPU's bytes. Prints a line for each check.
    Returns 0 if all passed, 1 if one failed, 2 if the arguments are wrong.
    """
    flags: list[str] = ["-g"]
    variables: dict[str, str] = {}
    mistake = find_mistake(env, asan, device)
    if mistake is None and asan:
        try:
            flags, variables = sanitized_environment(env)
        except BuildError as error:
            mistake = str(error)
    if mistake is not None:
        print(f"shoal check: {mistake}", file=sys.stderr)
        return 2
    names = list(CHECKS if device == "cpu" else ["loads", *DEVICE_CHECKS])
    try:
        # For a device, the sanitizer is for its kernels; the CPU's results are only compared with.
        subject = prepare_subject(env, options or {}, flags if device == "cpu" else ["-g"])
    except (ShoalError, TypeError, ValueError) as error:
        _print_check(names[0], str(error))
        _print_rest(len(names) - 1)
        return 1
    if device == "cpu":
        failures = _run(subject, names, variables)
    else:
        failures = _run_on_device(subject, names, variables, env, device, flags)
    shared = writable_globals(subject.library)
    if shared:
        _print_line(
            "warning",
            f"It has writable global variables: {', '.join(shared)}",
            "All environments of a process share them, on all threads. Move them into the struct, or make "
            "them const.",
        )
    return 1 if failures else 0


def _run_on_device(
    subject: Subject, names: list[str], variables: dict[str, str], env: str, device: str, flags: list[str]
) -> int:
    """Runs what needs no device, compiles for it, and runs the rest there; returns the number of failures."""
    failures = _run(subject, names[:2], {})  # loads, pointers: without a device, so without a sanitizer
    if failures:
        _print_rest(len(names) - 1)
        return failures
    missing = require_gpu(device)
    if missing is not None:
        _print_line("warning", GPU_IS_MISSING, missing)
        device = "emulated"
    if variables:
        device = "emulated"  # AddressSanitizer runs on the CPU alone
    try:
        compiled = compile_for_gpu(subject, env)
        _print_line(*compiled.line)
        target = make_target(subject, env, device, flags, compiled)
    except (ShoalError, TypeError, ValueError) as error:
        _print_line("FAILED", COMPILES, str(error))
        _print_rest(len(names) - 2)
        return 1
    return _run(replace(subject, target=target), names[2:], variables)


def _run(subject: Subject, names: list[str], variables: dict[str, str]) -> int:
    """Runs these checks in a child process; returns how many failed."""
    failures = 0
    for done, (name, problem) in enumerate(run_checks(subject, names, variables), 1):
        _print_check(name, problem)
        failures += problem is not None and not isinstance(problem, Doubted)
        if isinstance(problem, Crashed) or (problem is not None and name == "loads"):
            _print_rest(len(names) - done)
            break
    return failures


def _print_check(name: str, problem: str | None) -> None:
    sentence = (_ALL[name].__doc__ or name).splitlines()[0].rstrip(".")
    outcome = "ok" if problem is None else "warning" if isinstance(problem, Doubted) else "FAILED"
    _print_line(outcome, sentence, problem)


def _print_rest(count: int) -> None:
    if count:
        print(f"        {count} checks were not run because of this", flush=True)


def _print_line(outcome: str, sentence: str, details: str | None) -> None:
    print(f"{outcome:7} {sentence}", flush=True)
    if details is not None:
        print("        " + details.replace("\n", "\n        "), flush=True)
