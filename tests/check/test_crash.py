"""A crash and an endless loop are reported with the C function and line, and end the checks."""

import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from shoal import check
from shoal.check.crash import explain_signal, locate, read_report
from shoal.native.build import build
from tests.check.conftest import line_of, needs_compiler

needs_addr2line = pytest.mark.skipif(
    not any(map(shutil.which, ("addr2line", "llvm-addr2line"))), reason="machine: no addr2line to find lines"
)

CRASHES = {
    "SIGSEGV": ("*(volatile int *)0 = 1;", "it used memory that is not there"),
    "SIGFPE": ("volatile int64_t zero = 0; self->place /= zero;", "divided by zero"),
    "SIGILL": ("__builtin_trap();", "an instruction this processor does not have"),
    "SIGABRT": ("assert(self->place > 1000);", "a failed assert"),
}


@needs_compiler
@needs_addr2line
@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_names_signal_call_function_and_line_and_ends_the_checks(name, run_check):
    code, cause = CRASHES[name]
    status, report = run_check(GLOBAL="#include <assert.h>", STEP=code)
    assert status == 1
    lines = report.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["ok", "FAILED"]
    assert lines[2].startswith(f"        {name} in step: ") and cause in lines[2]
    assert re.fullmatch(rf" {{8}}in step_one, .*walk\.c:{line_of('STEP')}", lines[3]), report
    assert lines[-1] == f"        {len(check.CHECKS) - 2} checks were not run because of this"
    assert ("self->place > 1000" in report) == (name == "SIGABRT")  # what it printed


@needs_compiler
@needs_addr2line
def test_a_crash_in_reset_names_reset(run_check):
    _, report = run_check(RESET="*(volatile int *)8 = 1;")
    assert "SIGSEGV in reset: " in report and f"walk.c:{line_of('RESET')}" in report


@needs_compiler
@needs_addr2line
def test_a_crash_in_describe_names_describe(run_check):
    _, report = run_check(DESCRIBE="*(volatile int *)8 = 1;")
    assert "SIGSEGV in describe: " in report and f"walk.c:{line_of('DESCRIBE')}" in report


@needs_compiler
@needs_addr2line
@pytest.mark.skipif(sys.platform != "linux", reason="machine: what a handler learns differs by system")
def test_a_call_through_a_null_pointer_names_the_caller(run_check):
    _, report = run_check(STEP="void (*volatile missing)(void) = 0; missing();")
    assert f"walk.c:{line_of('STEP')}" in report and "SIGSEGV in step" in report


@needs_compiler
@needs_addr2line
def test_an_overflow_of_the_stack_is_named(run_check):
    deep = "static int64_t dig(volatile int64_t *b) { volatile int64_t a[64] = {*b}; return dig(a) + *a; }"
    _, report = run_check(GLOBAL=deep, STEP="int64_t at[1] = {1}; self->place += dig(at);")
    assert "SIGSEGV in step" in report
    assert re.search(rf"in dig, .*walk\.c:{line_of('GLOBAL')}", report), report


@needs_compiler
@needs_addr2line
@pytest.mark.parametrize("slot", ["STEP", "RESET", "DESCRIBE", "OBSERVE"])
def test_an_endless_loop_is_reported_with_its_function_and_ends_the_checks(slot, run_check, monkeypatch):
    monkeypatch.setattr("shoal.check.subject.CALL_LIMIT_S", 1)
    status, report = run_check(**{slot: "for (volatile int64_t i = 0;; i++) i ^= 1;"})
    assert status == 1
    call = slot.lower()
    function = call if slot == "DESCRIBE" else f"{call}_one"
    assert f"        {call} did not return within 1 s: is there an endless loop?\n" in report
    assert re.search(rf" in {function}, .*walk\.c:{line_of(slot)}\n", report), report
    assert "checks were not run because of this" in report


def test_a_call_may_take_ten_seconds():
    assert check.Subject(Path("library.so")).call_limit_s == 10


@needs_compiler
def test_a_library_without_debug_information_says_so(write_walk, capsys, tmp_path):
    library = build(write_walk(STEP="*(volatile int *)0 = 1;"), output=tmp_path / "walk.so", flags=["-s"])
    assert check.run(str(library)) == 1
    report = capsys.readouterr().out
    assert "SIGSEGV in step" in report
    assert "has no debug information; give its source file, or compile it with -g" in report


@needs_compiler
def test_without_addr2line_the_address_is_given_and_what_to_install(run_check, monkeypatch):
    monkeypatch.setattr("shoal.check.crash._PROGRAMS", ())
    _, report = run_check(STEP="*(volatile int *)0 = 1;")
    assert re.search(
        r"addr2line is not installed \(.*binutils\); the address is 0x[0-9a-f]+ in .*walk", report
    )


@needs_compiler
def test_an_environment_that_exits_is_named(run_check):
    status, report = run_check(GLOBAL="#include <stdlib.h>", STEP="exit(3);")
    assert status == 1
    assert "ended by itself with exit status 3: does the environment call exit()?" in report


@needs_compiler
def test_what_a_plug_in_prints_disturbs_nothing(run_check):
    noise = 'printf("hello %d\\n", 1); fprintf(stderr, "%0200d\\n", 1);'
    status, report = run_check(GLOBAL="#include <stdio.h>", STEP=noise)
    assert status == 0 and "hello" not in report


def test_frames_of_other_libraries_are_not_taken_for_the_environments():
    text = locate([Path("/nowhere/walk.so")], [("/usr/lib/libc.so.6", 16)])
    assert text == "the C function is unknown: the stack has no call in the environment's library"


def test_read_report_ignores_other_text():
    found = read_report("signal 11\ncall step\nframe 1a2b /a b/walk.so\nframe 0 /usr/lib/libc.so.6\n")
    assert found is not None
    assert (found.signal, found.call) == (11, "step")
    assert found.frames == [("/a b/walk.so", 0x1A2B), ("/usr/lib/libc.so.6", 0)]
    assert read_report("") is None
    assert explain_signal(signal.SIGKILL, "") == "SIGKILL"
