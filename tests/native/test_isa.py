"""One library has the code for several instruction sets; they differ in speed, not in results."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import _core
from shoal.native.build import build, include_directory
from shoal.native.describe import bundled
from shoal.native.elf import separate
from tests.native.conftest import REAL

ISAS = ("default", "avx2", "avx512")
HAS_SEVERAL = sys.platform == "linux" and platform.machine() == "x86_64"
several = pytest.mark.skipif(not HAS_SEVERAL, reason=f"machine: {platform.machine()} has one instruction set")
compiles = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

# The observation says for which set the code was compiled. The function and the variable are not static.
WHICH = r"""
#include <shoal/env.h>
#if defined(__AVX512F__)
#define WHICH 2
#elif defined(__AVX2__)
#define WHICH 1
#else
#define WHICH 0
#endif
int64_t compiled_for = WHICH;
int64_t which(void) { return compiled_for; }
typedef struct One { int64_t unused; } One;
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    shoal_field seen = {0, SHOAL_INT64, SHOAL_DISCRETE, 0, 0, {0}, 0, 9, 0, 0};
    (void)options;
    spec->instance_bytes = sizeof(One);
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &seen);
    return 0;
}
static void reset_one(One *self, shoal_envs *envs, uint64_t env) {
    (void)self;
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = which();
}
static void step_one(One *self, shoal_envs *envs, uint64_t env) {
    reset_one(self, envs, env);
    envs->rewards[env] = 0;
    envs->terminated[env] = 0;
}
SHOAL_BATCH(One, reset_one, step_one)
SHOAL_EXPORT const shoal_entry_v1 shoal_entry;
const shoal_entry_v1 shoal_entry = {1, 0, "Which-v0", 0, 0, describe, 0, One_reset, One_step, 0, 0};
"""

ASK = """
import sys, shoal
envs = shoal.make_vec(sys.argv[1], 2)
print(envs.reset(seed=0)[0][1])
envs.close()
"""

STEPS = """
import hashlib, sys
import numpy as np
import shoal
from shoal.native.describe import bundled

for name in sorted(bundled()):
    envs = shoal.make_vec(name, 70, episode_stats=True)
    digest = hashlib.sha256()
    envs.action_space.seed(1)
    results = envs.reset(seed=3)
    for step in range(230):
        leaves = [results]
        while leaves:
            leaf = leaves.pop()
            if isinstance(leaf, np.ndarray):
                digest.update(leaf.tobytes())
            elif isinstance(leaf, (dict, tuple)):
                leaves += list(leaf.values() if isinstance(leaf, dict) else leaf)
        results = envs.step(envs.action_space.sample())
    envs.close()
    print(name, digest.hexdigest())
"""


def run(source: str, *arguments: object, isa: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        env={**os.environ, "SHOAL_ISA": isa},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def entries(library: Path) -> list[str]:
    loaded = ctypes.CDLL(str(library))
    names = {"default": "shoal_entry", **{isa: f"shoal_entry_{isa}" for isa in ISAS[1:]}}
    return [isa for isa, name in names.items() if hasattr(loaded, name)]


def need(isa: str) -> None:
    if isa not in _core.INSTRUCTION_SETS:
        pytest.skip(f"machine: this CPU has no {isa}")


@pytest.fixture
def which(source: Path) -> Path:
    source.write_text(WHICH)
    return source


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="machine: no /proc/cpuinfo")
@several
def test_the_sets_of_this_machine_are_those_that_the_kernel_reports() -> None:
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    v3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
    v4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    count = 1 + (v3 <= flags) + (v3 | v4 <= flags)
    assert _core.INSTRUCTION_SETS == ISAS[:count]
    assert run("from shoal import _core; print(_core.INSTRUCTION_SET)") == ISAS[count - 1]


@pytest.mark.parametrize("isa", ISAS[1:])
def test_bundled_environments_and_the_core_give_the_same_bytes_with_every_set(isa: str) -> None:
    need(isa)
    plain = run(STEPS, isa="default")
    assert len(plain.splitlines()) == len(bundled())
    assert run(STEPS, isa=isa) == plain


@several
def test_bundled_environments_have_an_entry_for_each_set() -> None:
    assert {name: entries(path) for name, path in bundled().items()} == {
        name: list(ISAS) for name in bundled()
    }


@several
@compiles
@pytest.mark.parametrize("isa", ISAS)
def test_the_code_for_the_chosen_set_runs(which: Path, isa: str) -> None:
    need(isa)
    library = build(which)
    assert entries(library) == list(ISAS)
    assert run(ASK, library, isa=isa) == str(ISAS.index(isa))


@several
@compiles
def test_without_the_variable_the_largest_set_of_the_machine_runs(which: Path) -> None:
    assert run(ASK, build(which)) == str(len(_core.INSTRUCTION_SETS) - 1)


@several
@compiles
def test_names_of_the_other_sets_are_not_exported(which: Path) -> None:
    which.write_text(WHICH + "SHOAL_EXPORT int visible;\nint visible = 4;\n")
    loaded = ctypes.CDLL(str(build(which)))
    assert ctypes.c_int.in_dll(loaded, "visible").value == 4
    assert not hasattr(loaded, "which") and not hasattr(loaded, "which.avx2")
    assert not hasattr(loaded, "visible.avx2")


@compiles
def test_a_library_that_was_built_by_hand_loads(which: Path, tmp_path: Path) -> None:
    library = tmp_path / "by_hand.so"
    command = [REAL, "-shared", "-fPIC", f"-I{include_directory()}", str(which), "-o", str(library)]
    subprocess.run(command, check=True)
    assert entries(library) == ["default"]
    assert run(ASK, library) == "0"


@several
@compiles
@pytest.mark.parametrize("flags", ["-march=x86-64-v2", "-DSHOAL_ONE_ISA", "-flto"])
def test_a_compiler_that_was_told_the_cpu_compiles_once(which: Path, flags: str) -> None:
    library = build(which, compiler=f"cc {flags}")
    assert entries(library) == ["default"]
    assert run(ASK, library) == "0"


@several
@compiles
def test_a_compiler_that_does_not_know_a_set_compiles_without_the_others(which: Path, tmp_path: Path) -> None:
    old = tmp_path / "old-cc"
    old.write_text(f'#!/bin/sh\ncase "$*" in *x86-64-v4*) exit 1;; esac\nexec "{REAL}" "$@"\n')
    old.chmod(0o755)
    library = build(which, compiler=str(old))
    assert entries(library) == ["default"]
    assert run(ASK, library) == "0"


CPP = WHICH.replace(
    "int64_t which(void)", "template <typename T> struct Base { virtual T get() = 0; };\n%s"
) % (
    "struct Got : Base<int64_t> { Got() {} inline int64_t get() override; };\n"
    "inline int64_t Got::get() { static int64_t kept = compiled_for; return kept; }\n"
    "int64_t which(void)"
)
CPP = CPP.replace("return compiled_for; }", "Got got; Base<int64_t> &base = got; return base.get(); }", 1)


@several
@compiles
@pytest.mark.parametrize("isa", ISAS)
def test_cpp_with_templates_and_virtual_functions_runs_for_the_chosen_set(source: Path, isa: str) -> None:
    need(isa)
    cpp = source.with_suffix(".cpp")
    cpp.write_text(CPP)
    library = build(cpp, flags=["-O0"])  # so that nothing is inlined away
    assert entries(library) == list(ISAS)
    assert run(ASK, library, isa=isa) == str(ISAS.index(isa))


@several
@compiles
def test_code_that_runs_when_the_library_is_loaded_is_compiled_for_the_first_set_only(source: Path) -> None:
    cpp = source.with_suffix(".cpp")
    cpp.write_text(
        WHICH.replace("compiled_for = WHICH", "compiled_for = [] { static int at; return (++at, WHICH); }()")
    )
    library = build(cpp)
    assert entries(library) == ["default"]
    assert run(ASK, library) == "0"


@several
@compiles
def test_writable_globals_are_named_once_and_as_in_the_source(which: Path) -> None:
    from shoal.compat.puffer import writable_globals

    assert writable_globals(build(which)) == ["compiled_for"]


@pytest.mark.parametrize(
    ("isa", "message"),
    [("avx3", "SHOAL_ISA must be default, avx2 or avx512, found 'avx3'"), ("avx512", "runs at most")],
)
def test_a_set_that_does_not_exist_or_that_the_machine_lacks_is_an_error(isa: str, message: str) -> None:
    if isa == _core.INSTRUCTION_SETS[-1]:
        pytest.skip("machine: this CPU has every instruction set")
    done = subprocess.run(
        [sys.executable, "-c", "import shoal"],
        env={**os.environ, "SHOAL_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "ImportError: " in done.stderr and message in done.stderr


@several
@compiles
def test_a_damaged_object_is_never_renamed_wrongly(which: Path, tmp_path: Path) -> None:
    path = tmp_path / "object.o"
    command = [REAL, "-c", "-fPIC", f"-I{include_directory()}", str(which), "-o", str(path)]
    subprocess.run(command, check=True)
    content = path.read_bytes()
    assert b"which.avx2\0" in separate(content, "avx2")
    assert separate(content.replace(b"shoal_entry\0", b"shoal_entri\0"), "avx2") is None
    for length in [*range(0, 100, 7), *range(100, len(content), 97)]:
        assert separate(content[:length], "avx2") is None  # the table of sections is at the end
