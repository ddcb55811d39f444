"""Compiles the C code that measures limits, for the machine of the run."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import BuildError

__all__ = ["FLAGS", "SOURCES", "NoCompiler", "compiled", "has_compiler"]

FLAGS = ("-O3", "-march=native", "-ffp-contract=off")
SOURCES = Path(__file__).with_name("c")


def _program() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def has_compiler() -> bool:
    """Whether this machine has a compiler for `compiled`."""
    return shutil.which(_program()[0]) is not None


class NoCompiler(BuildError):
    """This machine has no C compiler, so limits cannot be measured.

    A file of Shoal that does not compile is a BuildError, because that is a bug of Shoal.
    """


def compiled(*sources: Path, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Compiles these files and loads them as a library.

    Raises NoCompiler if there is no compiler, and BuildError if the files do not compile.
    """
    program = _program()
    directory = tempfile.mkdtemp(prefix="shoal-bench-")
    try:
        path = Path(directory) / "limit.so"
        command = [*program, *FLAGS, *flags, "-fPIC", "-shared", *map(str, sources), "-o", str(path)]
        try:
            done = subprocess.run([*command, "-lm", "-ldl", "-lpthread"], capture_output=True, text=True)
        except OSError as error:
            raise NoCompiler(
                f"limits are measured in C, but the compiler {program[0]!r} does not run ({error.strerror}); "
                "install one (Debian: apt install build-essential), or set CC to your compiler"
            ) from None
        if done.returncode != 0:
            raise BuildError(f"{sources[0].name} did not compile:\n{done.stderr.strip()}")
        return ctypes.CDLL(str(path))
    finally:
        shutil.rmtree(directory)  # a loaded library no longer needs its file
