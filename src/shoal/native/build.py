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
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from shoal import _core
from shoal.errors import BuildError, explain_os_errors
from shoal.native import compilers
from shoal.native.compilers import LANGUAGES, Language

__all__ = ["build", "cache_directory", "find_compiler", "include_directory", "touch", "user_cache"]

_DAY_S = 86400.0
_MAX_AGE_S = 90 * _DAY_S
_FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")


def build(
    source: str | Path,
    *,
    output: Path | None = None,
    compiler: str | None = None,
    flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> Path:
    """Compiles an environment and returns the absolute path of its library.

    The compiler is `compiler`, else $CC ($CXX for C++), else the first of cc, gcc and clang, else the Python
    package ziglang; the first two may contain flags. Its warnings go to stderr. With `output` the library is
    always compiled and written there. Without it, the library is in the cache ($XDG_CACHE_HOME/shoal or
    ~/.cache/shoal) and compiled only if something changed. `flags` come after Shoal's own and before its
    include directories, `libraries` after the source.
    A BuildError contains the compiler's whole message, also as `compiler_output`, and the `command`.
    """
    path, language = _check_source(source)
    program = compilers.find_compiler(language, compiler)
    own = [*language.flags, *_FLAGS, *flags, f"-I{path.parent}", f"-I{include_directory()}"]
    isas = compilers.instruction_sets([*program, *flags])
    compile_to = partial(_compile, program, own, path, libraries, isas)
    if output is not None:
        target = Path(output).absolute()
        if target.is_dir():
            raise BuildError(f"the output {target} is a directory; give the path of a file in it")
        with (
            compile_to(target) as built,
            explain_os_errors(f"write {target}", BuildError),
        ):
            os.replace(built, target)
        return target

    tools = _hash_tools(tuple(program), os.stat(program[0]).st_mtime_ns)
    directory = cache_directory()
    command = [*program, *own]
    others = [*libraries, *(flag for isa in isas for flag in compilers.list_cpu_flags(program, isa))]
    inputs = _hash_inputs(tools, command, others, path, directory)
    while not _is_own_file(library := directory / f"{path.stem}-{inputs}.so"):
        with compile_to(library) as built:
            compiled, inputs = inputs, _hash_inputs(tools, command, others, path, directory)
            if compiled == inputs:  # otherwise a file changed while the compiler ran: compile again
                os.replace(built, library)
                _prune(directory)
                break
    touch(library)
    return library


def include_directory() -> Path:
    """Returns the directory of shoal/env.h: beside the native module, or in an editable install."""
    installed = Path(_core.__file__).parent / "include"
    checkout = Path(__file__).resolve().parents[3] / "include"
    for directory in (installed, checkout):
        if (directory / "shoal" / "env.h").is_file():
            return directory
    raise BuildError(f"shoal/env.h is neither in {installed} nor in {checkout}; install shoal again")


def _check_source(source: str | Path) -> tuple[Path, Language]:
    path = Path(source).absolute()
    if path.is_dir():
        example = path / f"{path.name}.c"
        raise BuildError(f"{source} is a directory; give the source file in it, such as {example}")
    if path.suffix not in LANGUAGES:
        raise BuildError(
            f"{source} must end in one of {', '.join(LANGUAGES)}, found {path.suffix or 'no suffix'}"
        )
    if not path.is_file():
        raise BuildError(f"there is no file {path}; `shoal new NAME` writes one to start from")
    return path, LANGUAGES[path.suffix]


def find_compiler(source: str | Path) -> list[str]:
    """Returns the command that compiles a file, as C unless its suffix is one of C++: program and flags."""
    return compilers.find_compiler(LANGUAGES.get(Path(source).suffix, LANGUAGES[".c"]))


@contextmanager
def _compile(
    program: list[str],
    flags: Sequence[str],
    source: Path,
    libraries: Sequence[str],
    isas: Sequence[str],
    library: Path,
) -> Iterator[Path]:
    """Compiles and yields the complete library, in a temporary directory beside its destination."""
    try:
        # A private directory, so that no other user can replace the file while the compiler writes it.
        scratch = Path(tempfile.mkdtemp(prefix=f".{library.stem}-", dir=library.parent))
    except OSError as error:
        raise BuildError(f"cannot write beside {library}: {error.strerror}; choose another output") from error
    try:
        built = scratch / library.name
        compilers.compile_library(program, flags, source, built, libraries, isas)
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
    return _digest([compilers.run([*program, "--version"]).stdout, platform.machine(), *platform.libc_ver()])


def _hash_inputs(tools: str, command: list[str], others: list[str], source: Path, directory: Path) -> str:
    """Returns a hash of everything that the library depends on.

    The compiler lists the headers (-MM). The list is cached until one of those files, or the set of names in
    the source's directory, changes.
    """
    record = directory / f"{source.stem}-{_digest([tools, *command, *others, str(source)])}.json"
    names = sorted(os.listdir(source.parent))
    files = _read_record(record, names)
    touch(record)
    if files is None:
        files = _list_dependencies(command, source)
        _write_record(record, {"names": names, "files": files, "contents": _hash_contents(files)})
    return _digest([tools, *command, *others, _hash_contents(files)])


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
    rule = compilers.run([*command, "-MM", "-MT", "it", str(source)]).stdout
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
    return user_cache() or _private_directory(os.getpid())


def user_cache() -> Path | None:
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


def touch(file: Path) -> None:
    """Marks a file as used, at most once a day."""
    with suppress(OSError):
        if time.time() - file.stat().st_mtime > _DAY_S:
            os.utime(file)


def _prune(directory: Path) -> None:
    """Removes files that were not used for a long time; otherwise every version of a source would remain."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            ours = entry.name.endswith((".so", ".json", ".ptx")) and entry.is_file(follow_symlinks=False)
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
