"""A C environment is compiled when something it depends on changed, into a place nobody else can write."""

from __future__ import annotations

import ctypes
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import BuildError
from shoal.native.build import build, include_directory
from tests.native.conftest import REAL, SOURCE, answer

SQUARED = Path(__file__).resolve().parents[2] / "envs" / "squared" / "squared.c"

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")


def test_an_environment_becomes_a_library_with_its_entry(cache):
    library = build(SQUARED)
    assert library.is_absolute()
    assert library.parent == cache
    assert list((ctypes.c_uint32 * 2).in_dll(ctypes.CDLL(str(library)), "shoal_entry")) == [1, 0]


def test_it_is_compiled_again_only_when_its_text_changes(source, compiler):
    first = build(source, compiler=str(compiler.path))
    runs = compiler.runs()
    assert build(source, compiler=str(compiler.path)) == first
    assert compiler.runs() == runs

    source.write_text(SOURCE % 2)
    second = build(source, compiler=str(compiler.path))
    assert (answer(first), answer(second)) == (1, 2)
    assert compiler.runs() == 2 * runs

    source.write_text(SOURCE % 1)
    assert build(source, compiler=str(compiler.path)) == first


@pytest.mark.parametrize("name", ["mine.h", "sub/mine.h", "shoal/ext/render.h"])
def test_it_is_compiled_again_when_a_header_of_its_own_changes(source, name):
    header = source.parent / name
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text("#define ANSWER 3\n")
    source.write_text(f'#include "{name}"\n' + SOURCE % "ANSWER")
    assert answer(build(source)) == 3
    header.write_text("#define ANSWER 4\n")
    assert answer(build(source)) == 4


def test_it_is_compiled_again_when_a_new_header_takes_the_place_of_another(source):
    source.write_text("#include <shoal/ext/render.h>\n" + SOURCE % "sizeof SHOAL_EXT_RENDER")
    assert answer(build(source)) == len("shoal.render/1") + 1
    own = source.parent / "shoal" / "ext" / "render.h"
    own.parent.mkdir(parents=True)
    own.write_text('#define SHOAL_EXT_RENDER ""\n')
    assert answer(build(source)) == 1


def test_it_is_compiled_again_for_other_headers_of_shoal(source, tmp_path, monkeypatch):
    include = tmp_path / "include"
    shutil.copytree(include_directory(), include)
    monkeypatch.setattr("shoal.native.build.include_directory", lambda: include)
    first = build(source)
    assert build(source) == first
    with (include / "shoal" / "env.h").open("a") as header:
        header.write("/* changed */\n")
    assert build(source) != first


def test_it_is_compiled_again_with_other_flags_or_another_compiler(source, compiler):
    source.write_text(SOURCE % "ANSWER")
    first, second = build(source, compiler="cc -DANSWER=5"), build(source, compiler="cc -DANSWER=6")
    assert (answer(first), answer(second)) == (5, 6)
    third = build(source, compiler=f"{compiler.path} -DANSWER=5")
    assert third not in (first, second)
    compiler.path.write_text(
        f'#!/bin/sh\n[ "$2" = --version ] && echo newer && exit\nexec "{REAL}" -DNEWER "$@"\n'
    )
    assert build(source, compiler=f"{compiler.path} -DANSWER=5") not in (first, second, third)


def test_a_file_saved_while_the_compiler_runs_is_compiled_as_saved(source, tmp_path):
    newer = tmp_path / "newer.c"
    newer.write_text(SOURCE % 8)
    saving = tmp_path / "saving-cc"
    # Compiles the old text, then saves the new one, once.
    saving.write_text(
        f'#!/bin/sh\n"{REAL}" "$@" || exit 1\n'
        f'case "$*" in *-lm*) if [ -e "{newer}" ]; then mv "{newer}" "{source}"; fi;; esac\n'
    )
    saving.chmod(0o755)
    before = source.read_text()
    assert answer(build(source, compiler=str(saving))) == 8
    source.write_text(before)
    assert answer(build(source, compiler=str(saving))) == 1


def test_file_names_with_spaces_and_signs_work(tmp_path, compiler):
    work = tmp_path / "my envs $1 #2 ü"
    work.mkdir()
    (work / "a b$#.h").write_text("#define ANSWER 7\n")
    (work / "an env.c").write_text('#include "a b$#.h"\n' + SOURCE % "ANSWER")
    library = build(work / "an env.c", compiler=str(compiler.path))
    assert answer(library) == 7
    runs = compiler.runs()
    assert build(work / "an env.c", compiler=str(compiler.path)) == library
    assert compiler.runs() == runs
    (work / "a b$#.h").write_text("#define ANSWER 8\n")
    assert answer(build(work / "an env.c")) == 8


def test_cpp_sources_are_compiled_as_cpp17(tmp_path, cache):
    for suffix in (".cpp", ".cc"):
        source = tmp_path / f"my_env{suffix}"
        source.write_text(
            "#include <shoal/env.h>\nSHOAL_EXPORT int answer;\nint answer = __cplusplus / 100;\n"
        )
        assert answer(build(source)) == 2017


def test_flags_that_results_depend_on_are_given(source, compiler):
    build(source, compiler=str(compiler.path))
    flags = compiler.log.read_text().split()
    for flag in (
        "-std=c11",
        "-O3",
        "-ffp-contract=off",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-Wextra",
    ):
        assert flag in flags
    assert f"-I{source.parent}" in flags
    assert f"-I{include_directory()}" in flags


def test_many_processes_may_build_at_once(source, cache, tmp_path):
    script = "import sys, shoal.native.build as b; sys.stdin.read(1); print(b.build(sys.argv[1]))"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for child in children:
        child.stdin.write("x")
        child.stdin.flush()
    paths = {child.communicate(timeout=90)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0] * 6
    assert paths == {str(build(source))}
    assert answer(paths.pop()) == 1
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".so"]


# ---- Errors


def test_build_error_has_the_compilers_message_and_the_command(source, cache):
    source.write_text("#include <shoal/env.h>\nint first = wrong;\n" + "\n" * 50 + "int second = wronger;\n")
    with pytest.raises(BuildError) as caught:
        build(source)
    message = str(caught.value)
    for part in (f"{source}:2:", "wrong", f"{source}:53:", "wronger", "-ffp-contract=off", REAL):
        assert part in message
    assert caught.value.compiler_output in message
    assert caught.value.command in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message
    assert [path.suffix for path in cache.iterdir()] == [".json"]


def test_missing_header_is_a_build_error(source):
    source.write_text('#include "nowhere.h"\n')
    with pytest.raises(BuildError, match="nowhere.h"):
        build(source)


def test_a_function_that_is_not_declared_is_refused_before_the_library_is_loaded(source):
    source.write_text(SOURCE % 1 + "void step(void) { stepp(); }\n")
    with pytest.raises(BuildError, match="stepp.*implicit-function-declaration"):
        build(source)


def test_warnings_are_shown_and_the_library_is_built(source, capfd):
    source.write_text(SOURCE % 1 + "static int unused;\n")
    assert answer(build(source)) == 1
    assert "unused" in capfd.readouterr().err
    build(source)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("variable", ["argument", "CC"])
def test_a_compiler_that_is_not_there_is_named(source, variable, monkeypatch):
    if variable == "CC":
        monkeypatch.setenv("CC", "no-such-cc -O3")
    with pytest.raises(BuildError, match="no-such-cc.*apt install build-essential"):
        build(source, compiler="no-such-cc" if variable == "argument" else None)


def test_without_any_compiler_the_message_says_what_to_install(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("shoal.native.compilers.find_zig", lambda: None)
    expected = r"cc, gcc, clang.*ziglang.*pip install \"shoal\[compiler\]\".*apt install build-essential"
    with pytest.raises(BuildError, match=expected):
        build(source)


def test_invalid_compiler_command_is_an_error(source, monkeypatch):
    monkeypatch.setenv("CC", "cc 'unbalanced")
    with pytest.raises(BuildError, match="CC is not a valid command"):
        build(source)


def test_compiler_argument_overrides_the_variable_and_the_path(source, monkeypatch):
    source.write_text(SOURCE % "ANSWER")
    monkeypatch.setenv("CC", "cc -DANSWER=1")
    assert answer(build(source)) == 1
    assert answer(build(source, compiler="cc -DANSWER=2")) == 2


def test_a_compiler_in_a_directory_with_a_space_is_found(source, compiler, tmp_path):
    (tmp_path / "my tools").mkdir()
    moved = compiler.path.rename(tmp_path / "my tools" / "cc")
    assert answer(build(source, compiler=str(moved))) == 1


def test_file_that_is_not_a_source_is_an_error(source, tmp_path):
    with pytest.raises(BuildError, match="there is no file .*absent.c"):
        build(tmp_path / "absent.c")
    with pytest.raises(BuildError, match="is a directory.*work.c"):
        build(source.parent)
    with pytest.raises(BuildError, match=r"must end in one of \.c, \.cc, \.cpp, found \.py"):
        build(tmp_path / "env.py")
    with pytest.raises(BuildError, match="must end in"):
        build("CartPole-v1")


# ---- Output of one's own


def test_an_output_is_written_each_time_and_keeps_its_name(source, tmp_path, cache):
    library = tmp_path / "out.so"
    assert build(source, output=library) == library
    before = library.stat().st_ino
    build(source, output=library)
    assert library.stat().st_ino != before, "a library that someone has loaded must not be written over"
    assert answer(library) == 1
    assert not cache.exists()


def test_a_relative_output_is_returned_as_an_absolute_path(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert build("work/my_env.c", output=Path("out.so")) == tmp_path / "out.so"


def test_a_refused_source_leaves_the_old_output_as_it_was(source, tmp_path):
    library = build(source, output=tmp_path / "out.so")
    before = library.read_bytes()
    source.write_text("wrong")
    with pytest.raises(BuildError):
        build(source, output=library)
    assert library.read_bytes() == before
    assert not list(tmp_path.glob(".out*"))


def test_an_output_that_cannot_be_written_is_refused(source, tmp_path):
    with pytest.raises(BuildError, match="cannot write beside .*absent"):
        build(source, output=tmp_path / "absent" / "out.so")
    with pytest.raises(BuildError, match="is a directory"):
        build(source, output=tmp_path)
