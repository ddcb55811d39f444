"""Finds the compiler of a C environment and runs it, once for each instruction set."""

from __future__ import annotations

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

__all__ = ["LANGUAGES", "Language", "compile_library", "find_compiler", "instruction_sets", "run"]

_ISAS = {"avx2": "-march=x86-64-v3", "avx512": "-march=x86-64-v4"}


@dataclass(frozen=True, slots=True)
class Language:
    flags: tuple[str, ...]
    variable: str
    compilers: tuple[str, ...]


# A call of an undeclared function would compile, and fail only when the library is loaded.
_C = Language(("-std=c11", "-Werror=implicit-function-declaration"), "CC", ("cc", "gcc", "clang"))
_CPP = Language(("-std=c++17",), "CXX", ("c++", "g++", "clang++"))
LANGUAGES = {".c": _C, ".cc": _CPP, ".cpp": _CPP}


def find_compiler(language: Language, given: str | None = None) -> list[str]:
    """Returns the command that compiles this language; its program is an absolute path."""
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
    asked = f"{chosen!r}" if chosen else f"any of {', '.join(language.compilers)}"
    raise BuildError(
        f"no compiler: looked for {asked} on the PATH. Install one (Debian: apt install build-essential; "
        f"macOS: xcode-select --install), or set {language.variable} to yours"
    )


def instruction_sets(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the sets that a library is compiled for besides the first one of the machine.

    There are none if the command says for which CPU it compiles, or makes no plain machine code.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ()
    alone = ("-m", "-flto", "-fsanitize", "-DSHOAL_ONE_ISA")
    return () if any(word.startswith(alone) for word in words) else tuple(_ISAS)


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
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
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
    _show(run([*program, "-shared", "-fPIC", *map(str, objects), "-o", str(library), *link]))


@contextmanager
def _start_all(
    program: list[str], flags: Sequence[str], source: Path, directory: Path, isas: Sequence[str]
) -> Iterator[dict[str, tuple[Path, subprocess.Popen[str]]]]:
    """Starts one compiler for each set."""
    with ExitStack() as stack:
        started = {}
        for isa in isas:
            path = directory / f"{isa}.o"
            command = [*program, *flags, _ISAS[isa], "-c", str(source), "-o", str(path)]
            started[isa] = path, stack.enter_context(_start(command))
        yield started


def _show(done: subprocess.CompletedProcess[str]) -> None:
    if done.stderr:
        print(done.stderr, end="", file=sys.stderr)
