"""`shoal check --asan` names the C function and line of a bad read or write, and of undefined behaviour."""

import re
from pathlib import Path

import pytest

from shoal import check
from shoal.check.sanitize import explain_report, sanitized_environment
from shoal.check.subject import Region
from shoal.errors import BuildError
from shoal.native.build import build
from shoal.native.plugin import bundled
from shoal.native.template import new
from tests.check.conftest import line_of, needs_compiler

ROOT = Path(__file__).resolve().parents[2]


def is_available() -> bool:
    try:
        sanitized_environment("any.c")
    except BuildError:
        return False
    return True


needs_asan = pytest.mark.skipif(not is_available(), reason="machine: the compiler has no AddressSanitizer")

# What is done -> (the code, its slot, what is said of it, the function it is in).
FOUND = {
    "a read past the struct": (
        "envs->rewards[env] = (double)self[env == 7].place;",
        "STEP",
        r"AddressSanitizer: use-after-poison, a read of 8 bytes; the first byte out of bounds is at offset 8 "
        r"of its struct \(environment 7\), which has 8 bytes\n",
        "step_one",
    ),
    "a write past the struct": (
        "if (env == 7) ((char *)self)[sizeof *self + 2] = 1;",
        "STEP",
        r"AddressSanitizer: use-after-poison, a write of 1 byte; the first byte out of bounds is at offset "
        r"10 of its struct \(environment 7\), which has 8 bytes\n",
        "step_one",
    ),
    "a write past an observation": (
        "if (env == 3) memset(row, 0, 19);",
        "SHOW",
        r"AddressSanitizer: use-after-poison, a write of 19 bytes; the first byte out of bounds is at offset "
        r"16 of observation field 'place' \(environment 3\), which has 16 bytes\n",
        "show",
    ),
    "a write across the end of the struct": (
        "int64_t one = 1; if (env == 7) memcpy((char *)self + 4, &one, 8);",
        "STEP",
        r"AddressSanitizer: \S+, a write of 8 bytes; the first byte out of bounds is at offset 8 of "
        r"its struct \(environment 7\), which has 8 bytes\n",
        "step_one",
    ),
    "undefined behaviour": (
        "volatile int32_t large = INT32_MAX; large = large + 1;",
        "RESET",
        "undefined behaviour: signed integer overflow",
        "reset_one",
    ),
    "a heap overflow": (
        "char *text = malloc(3); volatile int at = 3; text[at] = 1; self->place += text[0]; free(text);",
        "STEP",
        "AddressSanitizer: heap-buffer-overflow, a write of 1 byte\n",
        "step_one",
    ),
}


@needs_asan
@pytest.mark.parametrize("name", FOUND)
def test_asan_names_what_was_touched_and_the_line(name, run_check):
    code, slot, message, function = FOUND[name]
    status, report = run_check(asan=True, GLOBAL="#include <stdlib.h>", **{slot: code})
    assert status == 1
    assert re.search(rf"FAILED  It writes every byte.*\n {{8}}{message}", report), report
    assert re.search(rf" in {function}, .*walk\.c:{line_of(slot)}\n", report), report
    assert "checks were not run because of this" in report


@needs_asan
def test_asan_reports_an_endless_loop_too(run_check, monkeypatch):
    monkeypatch.setattr("shoal.check.subject.CALL_LIMIT_S", 2)
    status, report = run_check(asan=True, STEP="for (volatile int64_t i = 0;; i++) self->place ^= 1;")
    assert status == 1
    assert "step did not return within 2 s" in report and f"walk.c:{line_of('STEP')}" in report


@needs_asan
def test_a_crash_under_asan_has_its_line(run_check):
    _, report = run_check(asan=True, STEP="*(volatile int *)0 = 1;")
    assert f"walk.c:{line_of('STEP')}" in report, report


@needs_asan
@pytest.mark.parametrize("source", ["envs/snake/snake.c", "envs/cartpole/cartpole.c", "examples/my_env.c"])
def test_environments_pass_under_asan(source, capsys):
    assert check.run(str(ROOT / source), asan=True) == 0, capsys.readouterr().out


@needs_asan
def test_the_template_passes_under_asan(tmp_path, capsys):
    assert check.run(str(new("my_env", tmp_path)[0]), asan=True) == 0, capsys.readouterr().out


@needs_compiler
def test_a_compiled_library_is_not_checked_under_asan(write_walk, tmp_path, capsys):
    library = build(write_walk(), output=tmp_path / "walk.so")
    for env in (str(library), next(iter(bundled()))):
        assert check.run(env, asan=True) == 2
        error = capsys.readouterr().err
        assert f"--asan needs the source file to compile it with AddressSanitizer; {env} is compiled" in error


def test_a_compiler_without_the_runtime_is_named(write_walk, tmp_path, capsys, monkeypatch):
    compiler = tmp_path / "bare-cc"
    compiler.write_text('#!/bin/sh\necho "${1#*=}"\n')  # -print-file-name= of a file that it does not have
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr("shoal.check.sanitize.sys.platform", "linux")
    assert check.run(str(write_walk()), asan=True) == 2
    error = capsys.readouterr().err
    assert f"{compiler} has no AddressSanitizer runtime: there is no libasan.so. Install it" in error


def test_another_system_is_named(monkeypatch):
    monkeypatch.setattr("shoal.check.sanitize.sys.platform", "darwin")
    with pytest.raises(BuildError, match="--asan needs Linux; this is darwin"):
        sanitized_environment("any.c")


def test_an_address_is_named_by_the_nearest_memory_and_one_far_away_is_not():
    regions = [Region("its struct", f"environment {i}", 0x10000 * i, 0x10000 * i + 64) for i in (16, 32)]
    for address, text in (
        (16 * 0x10000 + 64, "; the first byte out of bounds is at offset 64 of its struct (environment 16)"),
        (16 * 0x10000 + 61, "; the first byte out of bounds is at offset 64 of its struct (environment 16)"),
        (32 * 0x10000 - 4, "; the first byte out of bounds is 4 bytes before its struct (environment 32)"),
        (0x7FFF00000000, ""),
    ):
        report = f"ERROR: AddressSanitizer: use-after-poison on address {address:#x}\nWRITE of size 4 at\n"
        found = explain_report(report, [Path("/walk.so")], regions)
        assert found is not None
        size = ", which has 64 bytes" if text else ""
        assert found.splitlines()[0] == f"AddressSanitizer: use-after-poison, a write of 4 bytes{text}{size}"
    assert explain_report("hello", [Path("/walk.so")], regions) is None
