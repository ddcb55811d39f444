"""The contract of C environments is frozen: its layout, its exported symbol and what it depends on."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
ALONE = sorted(path for path in INCLUDE.rglob("*.h") if "compat" not in path.parts)
HEADERS = [path for path in ALONE if path.name != "draw.h"]  # which a plug-in compiles into itself
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
LIBRARY = [*STRICT, "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
C_COMPILERS = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
CPP_COMPILERS = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
LANGUAGES = [(name, "c11", "abi_c.c") for name in C_COMPILERS]
LANGUAGES += [(name, "c++17", "abi_cpp.cpp") for name in CPP_COMPILERS]

pytestmark = pytest.mark.skipif(not C_COMPILERS or not CPP_COMPILERS, reason="no C and C++ compiler")


def compiled(compiler, standard, source, output, include=INCLUDE):
    command = [compiler, f"-std={standard}", *LIBRARY, f"-I{include}", str(HERE / source), "-o", str(output)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(("compiler", "standard", "source"), LANGUAGES)
def test_every_size_and_offset_is_the_frozen_one(compiler, standard, source, tmp_path):
    done = compiled(compiler, standard, source, tmp_path / "abi.so")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("compiler", "standard", "source"), LANGUAGES)
def test_the_entry_is_exported_under_its_c_name_and_nothing_else_is(compiler, standard, source, tmp_path):
    assert compiled(compiler, standard, source, tmp_path / "abi.so").returncode == 0
    library = ctypes.CDLL(str(tmp_path / "abi.so"))
    version = (ctypes.c_uint32 * 2).in_dll(library, "shoal_entry")
    assert list(version) == [1, 0]
    assert not hasattr(library, "a_symbol_nobody_exports")


@pytest.mark.parametrize("header", ALONE, ids=lambda path: path.stem)
@pytest.mark.parametrize(("compiler", "standard", "source"), LANGUAGES)
def test_each_header_compiles_alone_and_twice(compiler, standard, source, header, tmp_path):
    text = f"#include <{header.relative_to(INCLUDE)}>\n" * 2
    alone = tmp_path / f"alone{Path(source).suffix}"
    alone.write_text(text)
    command = [compiler, f"-std={standard}", *STRICT, f"-I{INCLUDE}", "-fsyntax-only", str(alone)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CHANGES = {
    "a struct grows": ("shoal/env.h", "const uint8_t *reset;", "const uint8_t *reset; void *more;"),
    "a member is narrower": ("shoal/env.h", "int64_t max_episode_steps;", "int32_t max_episode_steps;"),
    "two members change places": (
        "shoal/env.h",
        "uint64_t state_high, state_low,",
        "uint64_t state_low, state_high,",
    ),
    "the version moves": ("shoal/env.h", "#define SHOAL_ABI_MAJOR 1u", "#define SHOAL_ABI_MAJOR 2u"),
    "a constant changes": ("shoal/env.h", "SHOAL_DISCRETE = 1", "SHOAL_DISCRETE = 4"),
    "a function takes more": (
        "shoal/env.h",
        "(*init)(shoal_envs *envs, uint64_t env);",
        "(*init)(shoal_envs *envs, uint64_t env, int more);",
    ),
    "an extension loses a function": (
        "shoal/ext/render.h",
        "void (*draw)(shoal_envs *envs, uint64_t env, uint8_t *rgb);",
        "",
    ),
    "an extension changes a type": (
        "shoal/ext/checkpoint.h",
        "uint64_t (*size)(shoal_envs",
        "uint32_t (*size)(shoal_envs",
    ),
    "an extension takes another range": (
        "shoal/ext/observe.h",
        "void (*observe)(shoal_envs *envs, uint64_t begin, uint64_t end);",
        "void (*observe)(shoal_envs *envs, uint64_t env);",
    ),
    "an extension grows": (
        "shoal/ext/observe.h",
        "} shoal_observe_v1;",
        "    void *more;\n} shoal_observe_v1;",
    ),
    "an extension's field moves": (
        "shoal/ext/state.h",
        "    uint64_t num_columns;\n",
        "    uint32_t num_columns;\n",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("compiler", "standard", "source"), [LANGUAGES[0], LANGUAGES[-1]])
def test_a_change_of_the_contract_does_not_compile(compiler, standard, source, change, tmp_path):
    header, before, after = CHANGES[change]
    shutil.copytree(INCLUDE, tmp_path / "include")
    text = (tmp_path / "include" / header).read_text()
    assert text.count(before) == 1
    (tmp_path / "include" / header).write_text(text.replace(before, after))
    done = compiled(compiler, standard, source, tmp_path / "abi.so", tmp_path / "include")
    assert done.returncode != 0
    assert "error" in done.stderr


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.stem)
def test_every_struct_of_the_headers_has_its_size_frozen(header):
    layout = (HERE / "abi_layout.h").read_text()
    assert f"#include <{header.relative_to(INCLUDE)}>" in layout
    structs = re.findall(r"^typedef (?:struct|union) (\w+)", header.read_text(), re.MULTILINE)
    assert structs
    assert [name for name in structs if f"SIZE({name}, " not in layout] == []


def test_the_header_depends_on_stdint_only_and_an_extension_on_the_header_only():
    for header in ALONE:
        included = re.findall(r"^\s*#\s*include\s*(\S+)", header.read_text(), re.MULTILINE)
        assert included == (["<stdint.h>"] if header.name in ("env.h", "draw.h") else ["<shoal/env.h>"]), (
            header.name
        )


def test_the_ids_of_extensions_are_frozen():
    ids = {}
    for header in HEADERS:
        ids |= dict(re.findall(r'^#define (SHOAL_EXT_\w+) "([^"]+)"', header.read_text(), re.MULTILINE))
    assert ids["SHOAL_EXT_CHECKPOINT"] == "shoal.checkpoint/1"
    assert ids["SHOAL_EXT_INFO"] == "shoal.info/1"
    assert ids["SHOAL_EXT_OBSERVE"] == "shoal.observe/1"
    assert ids["SHOAL_EXT_RENDER"] == "shoal.render/1"
    assert ids["SHOAL_EXT_STATE"] == "shoal.state/1"


def test_header_has_fewer_than_250_lines():
    assert len((INCLUDE / "shoal" / "env.h").read_text().splitlines()) < 250


def test_the_structs_that_shoal_check_uses_are_those_of_the_header(tmp_path):
    from shoal.check import abi

    structs = {"shoal_envs": abi.Envs, "shoal_entry_v1": abi.Entry, "shoal_value": abi.Value}
    structs["shoal_observe_v1"] = abi.Observe
    lines = [f'_Static_assert(sizeof(shoal_rng) == {abi.RNG_BYTES}, "shoal_rng");']
    for name, struct in structs.items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "{name}");')
        for field, _ in struct._fields_:
            offset = getattr(struct, field).offset
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");')
    source = tmp_path / "same.c"
    source.write_text("#include <shoal/ext/observe.h>\n#include <stddef.h>\n" + "\n".join(lines) + "\n")
    command = [C_COMPILERS[0], "-std=c11", f"-I{INCLUDE}", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
