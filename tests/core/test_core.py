"""Builds and runs each C test of the core, and checks the script that runs them under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.shared import make_once

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = "-std=c11 -Wall -Wextra -Werror -g -O1 -Icore -Iinclude -pthread".split()

compiler = shutil.which(os.environ.get("CC", "cc"))
pytestmark = pytest.mark.skipif(compiler is None, reason="no C compiler: install gcc or clang, or set CC")


@pytest.fixture(scope="module")
def core() -> list[str]:
    """The core, compiled once for all programs."""
    flags = [*FLAGS, f"-I{ROOT / 'core'}", f"-I{ROOT / 'include'}"]
    sources = sorted(map(str, (ROOT / "core").glob("*.c")))

    def compile_core(directory: Path) -> None:
        subprocess.run([str(compiler), *flags, "-c", *sources], cwd=directory, check=True)

    return sorted(map(str, make_once("core", compile_core).glob("*.o")))


@pytest.mark.parametrize("source", sorted(HERE.glob("test_*.c")), ids=lambda path: path.stem)
def test_the_c_program_builds_without_warnings_and_succeeds(
    source: Path, tmp_path: Path, core: list[str]
) -> None:
    program = tmp_path / source.stem
    for plugin in sorted(HERE.glob("plugins/*.c")) if source.stem == "test_plugin" else []:
        library = tmp_path / f"{plugin.stem}.so"
        subprocess.run(
            [str(compiler), *FLAGS, "-shared", "-fPIC", plugin, "-o", library], cwd=ROOT, check=True
        )
    build = [str(compiler), *FLAGS, str(source.relative_to(ROOT)), *core, "-lm", "-ldl", "-o", str(program)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("ok ") > 0


def small_tree(directory: Path, main: str) -> Path:
    """A tree of one core file and one test, and the real script."""
    for name in ("core", "include", "tests/core"):
        (directory / name).mkdir(parents=True)
    (directory / "core/nothing.c").write_text("int shoal_nothing;\n")
    (directory / "tests/core/test_small.c").write_text(main)
    return Path(shutil.copy(HERE / "run.sh", directory / "tests/core/run.sh"))


def run(script: Path, **env: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "SANITIZE": "", "CFLAGS": "", **env}
    return subprocess.run([script], env=everything, capture_output=True, text=True)


def test_the_script_succeeds_when_every_program_does(tmp_path: Path) -> None:
    done = run(small_tree(tmp_path, "int main(void) { return 0; }\n"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "build/core-plain/test_small").exists()


@pytest.mark.parametrize(
    "main",
    ["int main(void) { return 3; }\n", "int main(void) { int unused; return 0; }\n"],
    ids=["the program fails", "the compiler warns"],
)
def test_the_script_fails_when_a_program_fails_or_does_not_build(tmp_path: Path, main: str) -> None:
    done = run(small_tree(tmp_path, main))
    assert done.returncode == 1
    assert "FAILED: tests/core/test_small.c" in done.stderr


def test_the_script_hands_on_the_flags_it_is_given(tmp_path: Path) -> None:
    script = small_tree(tmp_path, "int main(void) { return STATUS; }\n")
    assert run(script, CFLAGS="-DSTATUS=0").returncode == 0
    assert run(script, CFLAGS="-DSTATUS=1").returncode == 1


def test_the_script_says_what_is_missing_when_the_compiler_has_no_such_sanitizer(tmp_path: Path) -> None:
    script = small_tree(tmp_path, "int main(void) { return 3; }\n")
    without = tmp_path / "cc-without-sanitizers"
    without.write_text(f'#!/bin/sh\ncase "$*" in *-fsanitize=*) exit 1;; esac\nexec "{compiler}" "$@"\n')
    without.chmod(0o755)
    done = run(script, CC=str(without), SANITIZE="thread")
    assert done.returncode == 0
    assert done.stdout.startswith("skipped: this compiler has no thread sanitizer runtime")
    assert "apt install" in done.stdout


def test_the_script_stops_at_undefined_behaviour(tmp_path: Path) -> None:
    overflow = "int main(int count, char **words) { (void)words; return 0x7fffffff + count == 0; }\n"
    script = small_tree(tmp_path, overflow)
    assert run(script).returncode == 0
    done = run(script, SANITIZE="undefined")
    if done.stdout.startswith("skipped:"):
        pytest.skip(f"machine: {done.stdout}")
    assert done.returncode == 1
    assert "overflow" in done.stderr
    assert (tmp_path / "build/core-undefined/test_small").exists()


def test_the_script_fails_without_a_compiler(tmp_path: Path) -> None:
    done = run(small_tree(tmp_path, ""), CC="no-such-compiler")
    assert done.returncode == 1
    assert "no C compiler 'no-such-compiler'" in done.stderr


def test_the_script_builds_the_libraries_of_tests_beside_the_programs(tmp_path: Path) -> None:
    script = small_tree(tmp_path, "int main(void) { return 0; }\n")
    (tmp_path / "tests/core/plugins").mkdir()
    (tmp_path / "tests/core/plugins/small.c").write_text("int small;\n")
    assert run(script).returncode == 0
    assert (tmp_path / "build/core-plain/small.so").exists()
    (tmp_path / "tests/core/plugins/small.c").write_text("not C\n")
    assert run(script).returncode == 1
