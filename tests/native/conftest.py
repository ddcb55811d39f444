"""A cache of each test's own, a small source in it to compile, and a compiler that counts."""

from __future__ import annotations

import ctypes
import shutil

import pytest

REAL = shutil.which("cc")
SOURCE = "#include <shoal/env.h>\n#include <math.h>\nSHOAL_EXPORT int answer;\nint answer = %s;\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The directory of libraries, in a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "shoal"


@pytest.fixture
def source(tmp_path, cache):
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "my_env.c"
    path.write_text(SOURCE % 1)
    return path


@pytest.fixture
def compiler(tmp_path, cache):
    """A compiler that counts: `compiler.runs()` is how often it compiled or listed headers."""

    class Compiler:
        path = tmp_path / "counting-cc"
        log = tmp_path / "log"

        def runs(self):
            lines = self.log.read_text().splitlines() if self.log.exists() else []
            return len([line for line in lines if "--version" not in line])

    Compiler.path.write_text(f'#!/bin/sh\necho "$*" >>"{Compiler.log}"\nexec "{REAL}" "$@"\n')
    Compiler.path.chmod(0o755)
    return Compiler()


def answer(library):
    return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "answer").value
