"""Finds the compiler of a C environment and runs it, once for each instruction set."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BuildError
from shoal.native.elf import separate

__all__ = [
    "LANGUAGES",
    "Language",
    "compile_library",
    "find_compiler",
    "find_zig",
    "instruction_sets",
    "list_cpu_flags",
    "run",
    "zig_target",
]

# The oldest GNU libc that zig's libraries run on, as that of the wheels; a system without GNU libc has musl.
_ZIG_LIBC = "gnu.2.28" if platform.libc_ver()[0] == "glibc" else "musl"
_ISAS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}


@dataclass(frozen=True, slots=True)
class Language:
    flags: tuple[str, ...]
    variable: str
    compilers: tuple[str, ...]
    zig: str
    """The command of zig that compiles it."""


# A call of an undeclared function would compile, and fail only when the library is loaded.
_C = Language(("-std=c11", "-Werror=implicit-function-declaration"), "CC", ("cc", "gcc", "clang"), "cc")
_CPP = Language(("-std=c++17",), "CXX", ("c++", "g++", "clang++"), "c++")
LANGUAGES = {".c": _C, ".cc": _CPP, ".cpp": _CPP}


def find_compiler(language: Language, given: str | None = None) -> list[str]:
    """Returns the command that compiles this language; its program is an absolute path.

    It is `given`, else $CC or $CXX, else the first compiler on the PATH, else zig of the package ziglang.
    """
    chosen = (given or os.environ.get(language.variable, "")).strip()
    for candidate in [chosen] if chosen else language.compilers:
        try:
            program, *flags = [candidate] if shutil.which(candidate) else shlex.split(candidate)
        except ValueError as error:
            raise BuildError(
                f"{language.variable} is not a valid command: {candidate!r}: {error}; correct the quotes"
            ) from error
        found = shutil.which(program)
        if found is not None:
            return [str(Path(found).absolute()), *flags]
    zig = None if chosen else find_zig()
    if zig is not None:
        return [str(zig), language.zig, *zig_target()]
    asked = f"{chosen!r} on the PATH"
    if not chosen:
        asked = f"any of {', '.join(language.compilers)} on the PATH, and for the Python package ziglang"
    raise BuildError(
        f'no compiler: looked for {asked}. Install one (pip install "shoal[compiler]"; Debian: apt install '
        f"build-essential; macOS: xcode-select --install), or set {language.variable} to yours"
    )


def find_zig() -> Path | None:
    """Returns the program of the package ziglang; None if that is not installed."""
    spec = importlib.util.find_spec("ziglang")
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(directory).absolute() / "zig"
        if os.access(program, os.X_OK):
            return program
    return None


def zig_target() -> list[str]:
    """Returns the flags for any CPU of this kind; without them, zig compiles for the very CPU it runs on.

    A library in a shared cache would then end another machine's process with SIGILL.
    """
    machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    system = "macos" if sys.platform == "darwin" else f"linux-{_ZIG_LIBC}"
    return ["-target", f"{machine}-{system}", "-fno-sanitize=all"]  # it would check for undefined behaviour


def instruction_sets(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the sets that a library is compiled for besides the first one of the machine.

    There are none if the command says for which CPU it compiles, or makes no plain machine code.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ()
    alone = ("-m", "-flto", "-fsanitize", "-DSHOAL_ONE_ISA")
    return () if any(word.startswith(alone) for word in words) else tuple(_ISAS)


def _is_zig(program: Sequence[str]) -> bool:
    return Path(program[0]).name.startswith("zig") or "ziglang" in program


def list_cpu_flags(program: Sequence[str], isa: str) -> list[str]:
    """Returns the flags that compile for an instruction set."""
    cpu = _ISAS[isa]
    flags = [f"-march={cpu.replace('-', '_') if _is_zig(program) else cpu}"]
    # By default clang uses vectors of 256 bits for AVX-512.
    return [*flags, "-mprefer-vector-width=512"] if isa == "avx512" else flags


def _environment(command: Sequence[str]) -> dict[str, str] | None:
    """Returns the variables of a compiler that needs others than this process has."""
    if not _is_zig(command) or "ZIG_GLOBAL_CACHE_DIR" in os.environ:
        return None
    from shoal.native.build import cache_directory, user_cache

    if user_cache() is not None:
        return None  # zig then keeps its runtime beside it, in the user's cache
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache_directory() / "zig")}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs the compiler; raises BuildError with all of its output if it fails."""
    with _start(command) as started:
        output, errors = started.communicate()
    if started.returncode != 0:
        text = (errors + output).strip() or f"(no output; exit status {started.returncode})"
        raise BuildError(
            f"the compiler failed:\n{text}\ncommand: {shlex.join(command)}",
            command=shlex.join(command),
            compiler_output=errors + output,
        )
    return subprocess.CompletedProcess(command, 0, output, errors)


@contextmanager
def _start(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Starts the compiler; it is killed if it still runs at the end, as after Ctrl-C."""
    pipe = subprocess.PIPE
    try:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=_environment(command),
        )
    except OSError as error:
        raise BuildError(f"the compiler cannot be run: {error}\ncommand: {shlex.join(command)}") from error
    with started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def compile_library(
    program: list[str],
    flags: Sequence[str],
    source: Path,
    library: Path,
    libraries: Sequence[str],
    isas: Sequence[str],
) -> None:
    """Compiles the source and links the library, for several instruction sets where that is possible."""
    link = [*libraries, "-lm"]
    if not isas:
        _show(run([*program, *flags, "-shared", str(source), "-o", str(library), *link]))
        return
    directory = library.parent / "objects"
    directory.mkdir()
    plain = directory / "default.o"
    objects = [plain]
    with _start_all(program, flags, source, directory, isas) as others:
        _show(run([*program, *flags, "-c", str(source), "-o", str(plain)]))
        for isa, (path, started) in others.items():
            started.communicate()
            separated = separate(path.read_bytes(), isa) if started.returncode == 0 else None
            if separated is None:
                objects = [plain]  # a compiler that does not know this set, or code that runs at load
                break
            path.write_bytes(separated)
            objects.append(path)
    # All flags again, because some are for the linker; clang warns about the others. They include -O3: zig
    # compiles its own runtime on its first link, for many seconds longer without it.
    quiet = "-Wno-unused-command-line-argument"
    _show(run([*program, *flags, quiet, "-shared", *map(str, objects), "-o", str(library), *link]))


@contextmanager
def _start_all(
    program: list[str], flags: Sequence[str], source: Path, directory: Path, isas: Sequence[str]
) -> Iterator[dict[str, tuple[Path, subprocess.Popen[str]]]]:
    """Starts one compiler for each set."""
    with ExitStack() as stack:
        started = {}
        for isa in isas:
            path = directory / f"{isa}.o"
            command = [*program, *flags, *list_cpu_flags(program, isa), "-c", str(source), "-o", str(path)]
            started[isa] = path, stack.enter_context(_start(command))
        yield started


def _show(done: subprocess.CompletedProcess[str]) -> None:
    if done.stderr:
        print(done.stderr, end="", file=sys.stderr)
