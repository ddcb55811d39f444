"""`shoal check --asan`: the flags, the runtime that must be loaded first, and the reports.

The stack trace in a report has addresses only: shoal.check.crash finds the lines, as for any crash.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.check.crash import locate
from shoal.check.subject import Region
from shoal.errors import BuildError
from shoal.native.build import find_compiler

__all__ = ["SANITIZE", "explain_report", "sanitized_environment"]

SANITIZE = (
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize=object-size",  # AddressSanitizer reports the same with more detail
    "-fno-sanitize-recover=all",
)


def sanitized_environment(source: str) -> tuple[list[str], dict[str, str]]:
    """Returns (compiler flags, environment variables); raises BuildError if there is no sanitizer."""
    if sys.platform != "linux":
        raise BuildError(f"--asan needs Linux; this is {sys.platform}. Run shoal check without it")
    compiler = find_compiler(source)
    is_clang = "clang" in _ask(compiler, "--version").lower()
    names = ["libasan.so"]
    if is_clang:
        names = [f"libclang_rt.asan-{platform.machine()}.so", "libclang_rt.asan.so"]
    runtime = next(filter(None, (_find_file(compiler, name) for name in names)), None)
    if runtime is None:
        raise BuildError(
            f"{' '.join(compiler)} has no AddressSanitizer runtime: there is no {' and no '.join(names)}. "
            "Install it (Debian: apt install gcc, or libclang-rt-dev for clang; Fedora: dnf install libasan "
            "libubsan), or choose another compiler with CC"
        )
    # The runtime intercepts C++ exceptions, so it must find the library that throws them when it starts.
    preloads = [runtime, _find_file(compiler, "libstdc++.so") or _find_file(compiler, "libstdc++.so.6")]
    variables = {
        "LD_PRELOAD": " ".join(filter(None, [*preloads, os.environ.get("LD_PRELOAD")])),
        "ASAN_OPTIONS": _join(
            "detect_leaks=0:allocator_may_return_null=1:symbolize=0:handle_abort=1", "ASAN_OPTIONS"
        ),
        "UBSAN_OPTIONS": _join("print_stacktrace=1:symbolize=0", "UBSAN_OPTIONS"),
    }
    return [*SANITIZE, *(["-shared-libasan"] if is_clang else [])], variables


def _join(ours: str, variable: str) -> str:
    return ":".join(filter(None, [ours, os.environ.get(variable)]))  # later options override


def _ask(compiler: Sequence[str], question: str) -> str:
    try:
        return subprocess.run([*compiler, question], capture_output=True, text=True).stdout.strip()
    except OSError as error:
        raise BuildError(f"the compiler cannot be run: {error}") from error


def _find_file(compiler: Sequence[str], name: str) -> str | None:
    path = _ask(compiler, f"-print-file-name={name}")
    return str(Path(path).resolve()) if os.path.isabs(path) and os.path.exists(path) else None


def explain_report(text: str, libraries: Sequence[Path], regions: Sequence[Region]) -> str | None:
    """Explains a sanitizer's report, with the C function and line; returns None if the text has none."""
    undefined = re.search(r"^.*: runtime error: (.*)$", text, re.MULTILINE)
    address = re.search(r"ERROR: AddressSanitizer: (\S+)(?:.*? address (0x[0-9a-f]+))?", text)
    access = re.search(r"^(READ|WRITE) of size (\d+)", text, re.MULTILINE)
    if address is not None:
        found = f"AddressSanitizer: {address[1]}"
        if access is not None:
            found += f", a {access[1].lower()} of {_count_bytes(int(access[2]))}"
        if address[2] is not None:
            size_of_access = int(access[2]) if access is not None else 1
            found += _name_address(int(address[2], 16), size_of_access, regions)
        begin = address.start()
    elif undefined is not None:
        found, begin = f"undefined behaviour: {undefined[1]}", undefined.start()
    else:
        return None
    first_stack = re.search(r"(?:^\s+#\d+ .*\n?)+", text[begin:], re.MULTILINE)
    frames = re.findall(r"\((/.+)\+0x([0-9a-f]+)\)", first_stack[0] if first_stack is not None else "")
    return f"{found}\n{locate(libraries, [(path, int(offset, 16)) for path, offset in frames])}"


def _name_address(address: int, size: int, regions: Sequence[Region]) -> str:
    """Returns a text that says which environment's memory an access is next to.

    For a call such as memset, the report has the size of the whole access and the address of the first byte
    that is out of bounds; for a single instruction, the address at which the access begins.
    """
    near = min(regions, key=lambda one: max(one.begin - address, address - one.end + 1), default=None)
    if near is None or not near.begin - (1 << 16) <= address < near.end + (1 << 16):
        return ""
    memory = f"{near.array} ({near.environments}), which has {_count_bytes(near.end - near.begin)}"
    if address < near.begin:
        return f"; the first byte out of bounds is {_count_bytes(near.begin - address)} before {memory}"
    if address + size > near.end:
        offset = max(address, near.end) - near.begin
        return f"; the first byte out of bounds is at offset {offset} of {memory}"
    return f" inside {near.array} ({near.environments})"


def _count_bytes(number: int) -> str:
    return "1 byte" if number == 1 else f"{number} bytes"
