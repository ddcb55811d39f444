"""Compiles a C environment from one source file to one shared library, and again only if something changed.

The library of `my_env.c` is `my_env-HASH.so` in the user's cache, where HASH covers everything that the
result depends on: the source, the headers it includes, the flags, the compiler and the machine. A library is
complete before it gets its name, so any number of processes may build at once. Libraries that were not used
for 90 days are removed; you may delete the cache at any time.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shoal import _core
from shoal.errors import BuildError, explain_os_errors

__all__ = ["build", "cache_directory", "find_compiler", "include_directory"]

_DAY_S = 86400.0
_MAX_AGE_S = 90 * _DAY_S
_FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


@dataclass(frozen=True, slots=True)
class _Language:
    flags: tuple[str, ...]
    variable: str
    compilers: tuple[str, ...]


# A call of an undeclared function would compile, and fail only when the library is loaded.
_C = _Language(("-std=c11", "-Werror=implicit-function-declaration"), "CC", ("cc", "gcc", "clang"))
_CPP = _Language(("-std=c++17",), "CXX", ("c++", "g++", "clang++"))
_LANGUAGES = {".c": _C, ".cc": _CPP, ".cpp": _CPP}


def build(
    source: str | Path,
    *,
    output: Path | None = None,
    compiler: str | None = None,
    flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> Path:
    """Compiles an environment and returns the absolute path of its library.

    The compiler is `compiler`, else $CC ($CXX for C++), else the first of cc, gcc and clang; each may contain
    flags. Its warnings go to stderr. With `output` the library is always compiled and written there. Without
    it, the library is in the cache ($XDG_CACHE_HOME/shoal or ~/.cache/shoal) and compiled only if something
    changed. `flags` come after Shoal's own and before its include directories, `libraries` after the source.
    A BuildError contains the compiler's whole message, also as `compiler_output`, and the `command`.
    """
    path, language = _check_source(source)
    program = _find_compiler(language, compiler)
    own = (*language.flags, *_FLAGS, *flags)
    command = [*program, *own, f"-I{path.parent}", f"-I{include_directory()}"]
    if output is not None:
        target = Path(output).absolute()
        if target.is_dir():
            raise BuildError(f"the output {target} is a directory; give the path of a file in it")
        with (
            _compile(command, path, target, libraries) as built,
            explain_os_errors(f"write {target}", BuildError),
        ):
            os.replace(built, target)
        return target

    tools = _hash_tools(tuple(program), os.stat(program[0]).st_mtime_ns)
    directory = cache_directory()
    inputs = _hash_inputs(tools, [*command, *libraries], path, directory)
    while not _is_own_file(library := directory / f"{path.stem}-{inputs}.so"):
        with _compile(command, path, library, libraries) as built:
            compiled, inputs = inputs, _hash_inputs(tools, [*command, *libraries], path, directory)
            if compiled == inputs:  # otherwise a file changed while the compiler ran: compile again
                os.replace(built, library)
                _prune(directory)
                break
    _touch(library)
    return library


def include_directory() -> Path:
    """Returns the directory of shoal/env.h: beside the native module, or in an editable install."""
    installed = Path(_core.__file__).parent / "include"
    checkout = Path(__file__).resolve().parents[3] / "include"
    for directory in (installed, checkout):
        if (directory / "shoal" / "env.h").is_file():
            return directory
    raise BuildError(f"shoal/env.h is neither in {installed} nor in {checkout}; install shoal again")


def _check_source(source: str | Path) -> tuple[Path, _Language]:
    path = Path(source).absolute()
    if path.is_dir():
        example = path / f"{path.name}.c"
        raise BuildError(f"{source} is a directory; give the source file in it, such as {example}")
    if path.suffix not in _LANGUAGES:
        raise BuildError(
            f"{source} must end in one of {', '.join(_LANGUAGES)}, found {path.suffix or 'no suffix'}"
        )
    if not path.is_file():
        raise BuildError(f"there is no file {path}; `shoal new NAME` writes one to start from")
    return path, _LANGUAGES[path.suffix]


def find_compiler(source: str | Path) -> list[str]:
    """Returns the command that compiles a file, as C unless its suffix is one of C++: program and flags."""
    return _find_compiler(_LANGUAGES.get(Path(source).suffix, _C), None)


def _find_compiler(language: _Language, given: str | None) -> list[str]:
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


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs the compiler; raises BuildError with all of its output if it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise BuildError(f"the compiler cannot be run: {error}\ncommand: {shlex.join(command)}") from error
    if done.returncode != 0:
        output = (done.stderr + done.stdout).strip() or f"(no output; exit status {done.returncode})"
        raise BuildError(
            f"the compiler failed:\n{output}\ncommand: {shlex.join(command)}",
            command=shlex.join(command),
            compiler_output=done.stderr + done.stdout,
        )
    return done


@contextmanager
def _compile(command: list[str], source: Path, library: Path, libraries: Sequence[str]) -> Iterator[Path]:
    """Compiles and yields the complete library, in a temporary directory beside its destination."""
    try:
        # A private directory, so that no other user can replace the file while the compiler writes it.
        scratch = Path(tempfile.mkdtemp(prefix=f".{library.stem}-", dir=library.parent))
    except OSError as error:
        raise BuildError(f"cannot write beside {library}: {error.strerror}; choose another output") from error
    try:
        built = scratch / library.name
        done = _run([*command, str(source), "-o", str(built), *libraries, "-lm"])
        if done.stderr:
            print(done.stderr, end="", file=sys.stderr)
        with explain_os_errors(f"write {library} to disk", BuildError), built.open("rb") as file:
            os.fsync(file.fileno())
        yield built
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# ---- Dependencies of a library


@cache
def _hash_tools(program: tuple[str, ...], mtime_ns: int) -> str:
    """Returns a hash of the compiler and the machine, because machines may share a home directory."""
    del mtime_ns  # only a key of the cache: a new file is a new compiler
    return _digest([_run([*program, "--version"]).stdout, platform.machine(), *platform.libc_ver()])


def _hash_inputs(tools: str, command: list[str], source: Path, directory: Path) -> str:
    """Returns a hash of everything that the library depends on.

    The compiler lists the headers (-MM). The list is cached until one of those files, or the set of names in
    the source's directory, changes.
    """
    record = directory / f"{source.stem}-{_digest([tools, *command, str(source)])}.json"
    names = sorted(os.listdir(source.parent))
    files = _read_record(record, names)
    _touch(record)
    if files is None:
        files = _list_dependencies(command, source)
        _write_record(record, {"names": names, "files": files, "contents": _hash_contents(files)})
    return _digest([tools, *command, _hash_contents(files)])


def _read_record(record: Path, names: list[str]) -> list[str] | None:
    if not _is_own_file(record):
        return None
    try:
        known = json.loads(record.read_text())
        files = [str(file) for file in known["files"]]
        return files if known["names"] == names and known["contents"] == _hash_contents(files) else None
    except (OSError, BuildError, ValueError, KeyError, TypeError):
        return None  # the compiler lists the headers again


def _write_record(record: Path, known: dict[str, object]) -> None:
    with suppress(OSError):  # without a record, the next build asks the compiler again
        descriptor, temporary = tempfile.mkstemp(prefix=f".{record.stem}-", dir=record.parent)
        with open(descriptor, "w") as file:
            json.dump(known, file)
        os.replace(temporary, record)


def _list_dependencies(command: list[str], source: Path) -> list[str]:
    """Returns the source and the headers that it includes, without those of the system."""
    rule = _run([*command, "-MM", "-MT", "it", str(source)]).stdout
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.removeprefix("it:").replace("\\\n", " "))
    return [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words]


def _hash_contents(files: list[str]) -> str:
    try:
        return _digest(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files)
    except OSError as error:
        raise BuildError(f"cannot read {error.filename}: {error.strerror}") from error


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]


# ---- The cache


def cache_directory() -> Path:
    """Returns the user's cache or, if that is not safe, a temporary directory of this process."""
    return _find_user_cache() or _private_directory(os.getpid())


def _find_user_cache() -> Path | None:
    """Returns the user's cache; None if it cannot be written or another user could put a library there."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        directory = (base if base.is_absolute() else Path.home() / ".cache") / "shoal"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = directory.resolve()
        safe = _is_private(directory.stat()) and all(_is_trusted(above.stat()) for above in directory.parents)
        return directory if safe and os.access(directory, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0


def _is_trusted(status: os.stat_result) -> bool:
    """Returns whether only root and this user can add files to this directory."""
    others_write = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    return status.st_uid in (0, os.geteuid()) and not others_write


def _touch(file: Path) -> None:
    """Marks a file as used, at most once a day."""
    with suppress(OSError):
        if time.time() - file.stat().st_mtime > _DAY_S:
            os.utime(file)


def _prune(directory: Path) -> None:
    """Removes files that were not used for a long time; otherwise every version of a source would remain."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            ours = entry.name.endswith((".so", ".json")) and entry.is_file(follow_symlinks=False)
            if ours and time.time() - entry.stat().st_mtime > _MAX_AGE_S:
                os.unlink(entry)


def _is_own_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


@cache
def _private_directory(pid: int) -> Path:
    """Returns a temporary directory of this process, which is removed when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="shoal-"))
    atexit.register(_remove, directory, pid)
    return directory


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not remove its parent's directory
        shutil.rmtree(directory, ignore_errors=True)
