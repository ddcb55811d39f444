"""`shoal build --device cuda`: PTX in the cache or in a file, and clear errors for what a GPU cannot run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import shoal
from shoal.cli import main
from shoal.cuda import build as cuda_build
from shoal.cuda.ahead import build_ahead
from shoal.cuda.build import LIBM_MARK, build_library, find_libdevice, write_ptx
from shoal.errors import BuildError
from shoal.native.build import _prune, cache_directory
from shoal.native.plugin import bundled, load
from tests.cuda.conftest import needs_zig

needs_libdevice = pytest.mark.skipif(find_libdevice() is None, reason="needs nvidia-nvvm: make cuda")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def compiles(monkeypatch):
    """A list that gets one entry for each time that the compiler makes PTX."""
    runs: list[str] = []
    real = cuda_build._compile_ptx

    def count(command, source, header, name):
        runs.append(name)
        return real(command, source, header, name)

    monkeypatch.setattr(cuda_build, "_compile_ptx", count)
    return runs


@needs_zig
def test_the_command_prints_the_path_of_ptx_in_the_cache(write_walk, capsys):
    assert main(["build", "--device", "cuda", str(write_walk())]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.parent == cache_directory() and path.suffix == ".ptx"
    text = path.read_text()
    assert all(f".entry {kernel}(" in text for kernel in ("shoal_init", "shoal_reset", "shoal_step"))


@needs_zig
def test_nothing_is_compiled_again_until_source_or_options_change(write_walk, compiles):
    source = str(write_walk())
    first = build_ahead(source, {})
    assert build_ahead(source, {}) == first and len(compiles) == 1
    write_walk(STEP="self->place += 0 * 3;")
    assert build_ahead(source, {}) != first and len(compiles) == 2
    one, other = (build_ahead("Squared-v0", {"size": size}) for size in (5, 7))
    assert one != other and len(compiles) == 4


@needs_zig
def test_an_output_is_written_and_in_a_directory_it_has_the_name_of_the_cache(write_walk, tmp_path, capsys):
    source = str(write_walk())
    cached = build_ahead(source, {})
    assert main(["build", "--device", "cuda", source, "-o", str(tmp_path / "my.ptx")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "my.ptx")
    assert (tmp_path / "my.ptx").read_text() == cached.read_text()
    (tmp_path / "ahead").mkdir()
    assert build_ahead(source, {}, output=tmp_path / "ahead") == tmp_path / "ahead" / cached.name
    with pytest.raises(BuildError, match="cannot write .*missing/my.ptx: No such file or directory"):
        build_ahead(source, {}, output=tmp_path / "missing" / "my.ptx")


@needs_zig
def test_ptx_of_another_machine_is_used_where_there_is_no_compiler(write_walk, tmp_path, monkeypatch):
    source = str(write_walk())
    path = build_ahead(source, {})
    copied = path.rename(tmp_path / path.name)
    monkeypatch.setattr(cuda_build, "find_zig", lambda: None)
    with pytest.raises(BuildError, match=r"no PTX of walk\.c .*pip install \"shoal\[cuda\]\""):
        build_ahead(source, {})
    copied.rename(path)
    assert build_ahead(source, {}) == path
    write_walk(STEP="self->place += 1;")  # that of another source is not
    with pytest.raises(BuildError, match=r"no PTX of walk\.c"):
        build_ahead(source, {})


@needs_zig
def test_options_are_part_of_the_ptx(capsys):
    assert main(["build", "--device", "cuda", "Squared-v0", "--option", "size=4"]) == 1
    assert "size must be odd" in capsys.readouterr().err


@needs_zig
@pytest.mark.parametrize(
    "code, named",
    [
        ({"STEP": "self->place += rand() % 3;"}, "rand"),
        ({"RESET": "free(malloc((size_t)self->place));"}, "malloc"),
        ({"STEP": 'if (self->place == 77777) printf("far away");'}, "printf"),
    ],
    ids=["rand", "malloc", "printf"],
)
def test_a_function_that_a_gpu_does_not_have_is_named(code, named, write_walk):
    source = write_walk(GLOBAL='_Pragma("GCC poison nothing")', **code)
    source.write_text(f"#include <stdio.h>\n#include <stdlib.h>\n{source.read_text()}")
    with pytest.raises(BuildError, match=rf"Walk-v0 cannot run on a GPU: .*\b{named}\b.* does not have"):
        build_ahead(str(source), {})


@needs_zig
def test_a_header_that_a_gpu_does_not_have_is_named_with_those_it_has(write_walk):
    with pytest.raises(BuildError) as caught:
        build_ahead(str(write_walk(GLOBAL="#include <pthread.h>")), {})
    message = str(caught.value)
    assert "it includes <pthread.h>, which a GPU does not have. It has assert.h, " in message
    assert "string.h" in message and "#ifndef SHOAL_GRID" in message and "\n" not in message
    assert "file not found" in caught.value.compiler_output


@needs_zig
def test_code_for_the_cpu_alone_can_be_left_out(write_walk):
    source = write_walk()
    source.write_text(f"#ifndef SHOAL_GRID\n#include <pthread.h>\n#endif\n{source.read_text()}")
    assert build_ahead(str(source), {}).is_file()


@needs_zig
@pytest.mark.parametrize("header", [*cuda_build._HEADERS, "math.h", "stdio.h", "stdlib.h", "time.h"])
def test_the_headers_that_the_message_names_are_there(header, write_walk):
    assert build_ahead(str(write_walk(GLOBAL=f"#include <{header}>")), {}).is_file()


@needs_zig
@needs_libdevice
def test_ptx_that_calls_libm_is_marked_and_needs_libdevice(write_walk, monkeypatch):
    source = str(write_walk(GLOBAL="#include <math.h>", SHOW="row[1] = sin(row[0]);"))
    assert build_ahead(source, {}).read_text().startswith(LIBM_MARK)
    assert not build_ahead("CartPole-v1", {}).read_text().startswith(LIBM_MARK)
    monkeypatch.setattr(cuda_build, "find_libdevice", lambda: None)
    with pytest.raises(BuildError, match="libdevice: pip install nvidia-nvvm"):
        build_ahead(source, {})


def test_without_a_compiler_the_package_to_install_is_named(capsys, monkeypatch):
    monkeypatch.setattr(cuda_build, "find_zig", lambda: None)
    assert main(["build", "--device", "cuda", "CartPole-v1"]) == 1
    assert 'pip install "shoal[cuda]" brings one (the package ziglang)' in capsys.readouterr().err


@pytest.mark.parametrize(
    "env, message",
    [
        ("walk.cpp", "walk.cpp is C++, and a GPU needs an environment in C"),
        ("walk.so", "a GPU needs the C source of the environment, and walk.so is not one"),
        ("CartPole-v2", "'CartPole-v2' is neither a C file nor the id of a bundled environment (Acrobot-v1,"),
        ("puffer:ocean/walk", "PufferLib's environments allocate memory in init"),
        ("missing.c", "there is no file"),
    ],
)
def test_what_is_not_c_source_is_refused(env, message):
    with pytest.raises(BuildError) as caught:
        build_ahead(env, {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--option", "size=5", "Squared-v0"], "--option is for --device cuda"),
        (["--device", "cuda", "--compiler", "gcc", "CartPole-v1"], "--compiler is for libraries"),
        (["--device", "cuda", "--puffer", "ocean/walk"], "puffer:ocean/walk cannot run on a GPU"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, message, capsys):
    assert main(["build", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_puffer_environment_on_a_device_says_why_not():
    ocean = Path(__file__).parents[1] / "puffer" / "ocean" / "walk"
    with pytest.raises(BuildError, match="cannot run on a GPU: PufferLib's environments allocate"):
        shoal.make_vec(f"puffer:{ocean}", 2, device="emulated")


def test_a_sanitized_library_has_no_tile(monkeypatch):
    """AddressSanitizer does not see writes past a tile."""
    library = bundled()["Squared-v0"]
    info = load(library, {})
    headers = []
    real = cuda_build.bake
    monkeypatch.setattr(cuda_build, "bake", lambda *a, **k: headers.append(real(*a, **k)) or headers[-1])
    source = cuda_build.find_source(library, "Squared-v0")
    build_library(info, source)
    build_library(info, source, flags=["-fsanitize=undefined"])
    assert "#define GRID_TILE_BYTES 0\n" not in headers[0] and "#define GRID_TILE_BYTES 0\n" in headers[1]


@needs_zig
def test_ptx_that_was_not_used_for_a_long_time_is_removed(write_walk):
    info = load(bundled()["CartPole-v1"], {})
    path = write_ptx(info, cuda_build.find_source(bundled()["CartPole-v1"], "CartPole-v1"))
    _prune(path.parent)
    assert path.exists()
    os.utime(path, (time.time() - 100 * 86400,) * 2)
    _prune(path.parent)
    assert not path.exists()
