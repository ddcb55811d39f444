"""The commands that the pages show in indented blocks, in ```sh and ```text blocks and in inline code.

Blocks of ```console are not among them: tests/docs/test_pages.py follows those from top to bottom.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator

from tests.docs.pages import PAGES, ROOT

__all__ = ["documented", "dry_run", "recipe", "shown"]

ALL_PAGES = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "lab" / "benchmarks" / "README.md"]
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^    (?! )(.+)$", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_BEGINS = re.compile(
    r"(?:\w+=\S+ )*"
    r"(?:shoal (?=[a-z-])|python3? (?=(?:lab/benchmarks/|examples/|docs/|-m ))|make(?= [a-z]|$))"
)
_EXAMPLE = re.compile(r"examples/\w+\.py")


def shown(text: str) -> Iterator[str]:
    """Each command of a page, as it is to be typed: without a prompt, a comment and what it is said to do."""
    for language, block in _FENCE.findall(text):
        if language in ("sh", "text"):
            for line in block.splitlines():
                yield from _commands(line)
    text = _FENCE.sub("", text)
    for line in _INDENTED.findall(text):
        yield from _commands(line)
    for code in _INLINE.findall(_INDENTED.sub("", text)):
        code = " ".join(code.split())
        if _BEGINS.match(code):
            yield code
        elif _EXAMPLE.fullmatch(code):
            yield f"python {code}"


def _commands(line: str) -> Iterator[str]:
    """A line such as `make asan      the C tests; make tsan: under ThreadSanitizer` has two."""
    line = line.removeprefix("$ ")
    if _BEGINS.match(line):
        yield re.split(r"\s{2,}|\s+# ", line)[0].strip()
    yield from re.findall(r"; (make [a-z-]+):", line)


def documented() -> dict[str, list[str]]:
    """Each command, and the pages that show it."""
    found: dict[str, list[str]] = {}
    for page in ALL_PAGES:
        for command in shown(page.read_text()):
            pages = found.setdefault(command, [])
            if page.name not in pages:
                pages.append(page.name)
    return found


def dry_run(make: str) -> tuple[int, str]:
    """The exit status of a `make TARGET` that runs nothing, and what it prints."""
    words = [word for word in shlex.split(make) if word != "make"]
    # The settings of a `make test ARGS=...` that runs this test are not those of the command.
    outer = ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")
    env = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def recipe(make: str) -> list[str]:
    """Our own commands that a `make TARGET` would run."""
    _, said = dry_run(make)
    lines = (re.sub(r"^(?:nice -n \d+ )?\.venv/bin/", "", line) for line in said.splitlines())
    return [line.strip() for line in lines if re.match(r"shoal |python (?:lab/benchmarks|docs)/", line)]
