"""Commands of the pages do what the pages say."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

from shoal.native.build import include_directory
from tests.docs.pages import PAGES, blocks, changed, follow, matches, transcript
from tests.lenience import PROGRAM_S

NEED_COMPILER = {"README.md", "agents.md", "cuda.md", "native.md", "write_env.md"}
WITH_COMMANDS = [page for page in PAGES if any(language == "console" for language, _, _ in blocks(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_a_page_can_be_followed_from_top_to_bottom(page, tmp_path):
    if page.name in NEED_COMPILER and shutil.which("cc") is None:
        pytest.skip("no compiler")
    assert follow(page, tmp_path) > 0


def test_the_tutorials_are_among_them():
    assert {"write_env.md", "agents.md", "train.md", "quickstart.md"} <= {page.name for page in WITH_COMMANDS}


RUN = {"python", "console", "diff", "c"}
READ = {"py", "sh", "text", "yaml", "toml", "json"}  # `py` needs another library, `sh` takes long


def test_every_fence_of_the_pages_is_of_a_kind_that_is_tested_or_marked_as_not():
    for page in PAGES:
        for language, file, _ in blocks(page):
            assert language in RUN | READ, f"{page.name}: {language!r}"
            assert file or language != "diff"


C_BLOCKS = [
    (page, content) for page in PAGES for kind, file, content in blocks(page) if kind == "c" and not file
]


@pytest.mark.parametrize(("page", "content"), C_BLOCKS, ids=[page.name for page, _ in C_BLOCKS])
def test_c_of_the_pages_compiles(page, content, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler")
    source = tmp_path / "block.c"
    source.write_text(content)
    flags = ["-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    include = ["-I", str(include_directory())]
    done = subprocess.run([compiler, *flags, *include, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PY_BLOCKS = [(page, content) for page in PAGES for kind, file, content in blocks(page) if kind == "py"]


@pytest.mark.parametrize(("page", "content"), PY_BLOCKS, ids=[page.name for page, _ in PY_BLOCKS])
def test_a_block_that_needs_another_library_runs_where_that_is(page, content, tmp_path):
    """In `make test-adapters`, that is; everywhere it must at least be Python."""
    needed = re.findall(r"^(?:from|import) (\w+)", content, re.MULTILINE)
    compile(content, page.name, "exec")
    if not needed:
        return  # a part of a program
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: make test-adapters")
    script = tmp_path / "block.py"
    script.write_text(content)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if re.match("ModuleNotFoundError|ImportError|.*pip install", last):  # a part of Shoal asks for it
        pytest.skip(f"{last}: make test-adapters")
    assert done.returncode == 0, done.stderr


def test_what_a_command_prints_must_be_what_is_promised():
    assert matches("a ...\nc", "a b\nd\nc") and matches("", "") and matches("...", "anything")
    assert matches("NAME  ENV  ...", "NAME     ENV   PID")
    assert not matches("a", "b") and not matches("a\n", "a\nb") and not matches("", "warning")


def test_commands_and_what_they_print_are_told_apart():
    assert list(transcript("$ one\n$ two 2\nsays\nmore\n")) == [("one", ""), ("two 2", "says\nmore\n")]


def test_a_change_that_does_not_fit_is_an_error():
    assert changed("a\nb\nc\n", " a\n-b\n+x\n c\n") == "a\nx\nc\n"
    with pytest.raises(AssertionError, match="does not fit"):
        changed("a\nb\n", " a\n+x\n z\n")


def test_a_command_that_fails_or_prints_something_else_fails_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one && false\none\n```\n")
    with pytest.raises(AssertionError, match="one"):
        follow(page, tmp_path)
    page.write_text("```console\n$ echo one\ntwo\n```\n")
    with pytest.raises(AssertionError, match="promised"):
        follow(page, tmp_path)
