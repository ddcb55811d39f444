"""Where the system has no compiler, the Python package ziglang compiles C environments."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import BuildError
from shoal.native import compilers
from shoal.native.build import build
from tests.native.conftest import REAL, SOURCE, answer
from tests.native.test_isa import ASK, HAS_SEVERAL, ISAS, WHICH, entries, need, run

ENVS = Path(__file__).resolve().parents[2] / "envs"
compiles = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")
zig = pytest.mark.skipif(
    compilers.find_zig() is None, reason="machine: ziglang is not installed: make cuda, make test-compiler"
)


@pytest.fixture
def no_system_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ziglang whose zig is the system's compiler; returns the file that lists its arguments."""
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    log = tmp_path / "zig-log"
    program = package / "zig"
    program.write_text(
        f'#!/bin/sh\necho "$*" >>"{log}"\nshift 3\nPATH="{os.environ["PATH"]}" exec "{REAL}" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    assert compilers.find_zig() == program
    return log


@compiles
def test_the_package_is_used_only_if_there_is_no_compiler(
    source: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(source)
    monkeypatch.setenv("CC", REAL)
    assert build(source) == first
    assert not stand_in.exists()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "/nowhere")
    second = build(source)
    assert second != first and answer(second) == 1, "another compiler makes another library"
    assert stand_in.exists()
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(BuildError, match="'no-such-cc' on the PATH"):
        build(source)


@compiles
def test_it_compiles_for_any_cpu_of_this_kind(source: Path, stand_in: Path, no_system_compiler: None) -> None:
    build(source)
    target = platform.machine().replace("arm64", "aarch64")
    calls = stand_in.read_text().splitlines()
    assert calls and all(call.startswith(f"cc -target {target}-") for call in calls)
    if HAS_SEVERAL:
        assert any("-march=x86_64_v3" in call for call in calls)
    (command,) = {tuple(compilers.find_compiler(compilers.LANGUAGES[".cpp"])[1:3])}
    assert command == ("c++", "-target")


def test_a_package_without_its_program_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").touch()
    (tmp_path / "ziglang" / "zig").touch()  # not executable
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    assert compilers.find_zig() is None


@compiles
def test_its_runtime_is_kept_in_a_private_directory_if_the_cache_cannot_be_used(
    source: Path, stand_in: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compilers.find_zig()
    assert program is not None
    script = program.read_text().replace('echo "$*"', 'echo "$ZIG_GLOBAL_CACHE_DIR"')
    program.write_text(script)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    build(source)
    assert set(stand_in.read_text().split()) == set()  # zig finds the user's cache itself
    cache.rename(cache.with_name("elsewhere"))
    cache.write_text("a file where the cache should be")
    library = build(source)
    assert set(stand_in.read_text().split()) == {str(library.parent / "zig")}


@zig
@pytest.mark.parametrize("isa", ISAS)
def test_zig_makes_a_library_for_every_set(source: Path, no_system_compiler: None, isa: str) -> None:
    need(isa)
    source.write_text(WHICH)
    library = build(source)
    assert entries(library) == list(ISAS if HAS_SEVERAL else ISAS[:1])
    assert run(ASK, library, isa=isa) == str(ISAS.index(isa))


@zig
def test_zig_reports_mistakes_and_warnings(
    source: Path, no_system_compiler: None, capfd: pytest.CaptureFixture[str]
) -> None:
    source.write_text(SOURCE % 1 + "static int unused;\n")
    assert answer(build(source)) == 1
    assert "unused" in capfd.readouterr().err
    source.write_text("#include <shoal/env.h>\nint first = wrong;\n")
    with pytest.raises(BuildError, match=f"{source}:2:.*wrong"):
        build(source)


SAME = """
import sys, numpy as np, shoal
found = []
for env in sys.argv[1:]:
    envs = shoal.make_vec(env, 70)
    envs.action_space.seed(1)
    rows = [envs.reset(seed=3)[0]]
    rows += [envs.step(envs.action_space.sample())[0] for _ in range(300)]
    found.append(b"".join(row.tobytes() for row in rows))
    envs.close()
assert len(found[0]) > 300 * 70 * 4
print(found[0] == found[1])
"""


@zig
@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0"])
def test_zig_and_the_compiler_of_the_bundled_environments_give_the_same_bytes(
    name: str, cache: Path, no_system_compiler: None
) -> None:
    from shoal.native.describe import bundled

    stem = bundled()[name].stem
    library = build(ENVS / stem / f"{stem}.c", flags=[f"-I{ENVS}"])
    assert run(SAME, library, name) == "True"


@zig
def test_the_command_builds_without_a_system_compiler(
    source: Path, no_system_compiler: None, tmp_path: Path
) -> None:
    source.write_text(WHICH)
    command = [sys.executable, "-m", "shoal", "build", str(source), "--output", str(tmp_path / "out.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert run(ASK, tmp_path / "out.so", isa="default") == "0"
