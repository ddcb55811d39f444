"""What the pages tell their readers to type, done: files written, changes made, commands run and compared.

A fence says what its block is: ```console holds commands after `$ ` and what they print, where `...` stands
for anything; ```python NAME (or another language) is a file of that name; ```diff NAME is a change of such a
file. All blocks of a page share one folder and one shell, so a page reads as a session from top to bottom.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Shell", "blocks", "changed", "follow", "matches", "transcript"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_END = "--- end of a command ---"


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(language, file, content) of each fence."""
    found = re.findall(r"^```(\w*)(?: ([\w./]+))?\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [(language, file, content) for language, file, content in found]


def transcript(block: str) -> Iterator[tuple[str, str]]:
    """Each command with what it is said to print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def matches(promised: str, printed: str) -> bool:
    """Whether `printed` is what was promised; `...` is anything, and runs of blanks are one."""
    wanted = re.escape(_blanks(promised)).replace(r"\.\.\.", ".*")
    return re.fullmatch(wanted, _blanks(printed), re.DOTALL) is not None


def _blanks(text: str) -> str:
    return "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines())


def changed(text: str, diff: str) -> str:
    """`text` after the change; the lines that are not new must be in it, once."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(before) == 1, f"the change does not fit:\n{diff}"
    return text.replace(before, after)


class Shell:
    """A shell that goes on between commands, so that `&`, `kill $!` and variables mean what they mean."""

    def __init__(self, folder: Path) -> None:
        programs = Path(sys.executable).parent
        environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / ".cache"),
            "COLUMNS": "120",
        }
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """What it printed; it must succeed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\nended=$?; echo; echo '{_END}' $ended\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line.startswith(_END):
                assert line.split()[-1] == "0", f"$ {command}\n{''.join(printed)}"
                return "".join(printed).strip("\n")
            printed.append(line)
        raise AssertionError(f"the shell ended with {self._process.wait()}: $ {command}\n{''.join(printed)}")

    def close(self) -> None:
        """Ends it, and all it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass


def follow(page: Path, folder: Path) -> int:
    """Does what the page says, in `folder`; how many commands that were."""
    commands = 0
    shell = Shell(folder)
    try:
        for language, file, content in blocks(page):
            if language == "diff":
                path = folder / file
                path.write_text(changed(path.read_text(), content))
            elif file:
                (folder / file).write_text(content)
            elif language == "console":
                for command, promised in transcript(content):
                    printed = shell.run(command)
                    said = f"{page.name}: $ {command}\npromised:\n{promised}\nprinted:\n{printed}"
                    assert matches(promised, printed), said
                    commands += 1
    finally:
        shell.close()
    return commands
