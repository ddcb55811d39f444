"""README.md and ARCHITECTURE.md tell the truth: the code runs, the tree exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lenience import PROGRAM_S
from tests.shared import run_example

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    (page.name, block)
    for page in PAGES
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


def test_there_are_blocks_to_run():
    assert BLOCKS


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_a_block_of_the_pages_runs_as_written(page, block, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.returncode == 0, done.stderr
    for promised in re.findall(r"print\(.*?# (.+)", block):
        assert promised in done.stdout


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example):
    done = run_example(example)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readme_and_its_quickstart_are_short():
    assert len(README.splitlines()) <= 125
    assert len(BLOCKS[0][1].strip().splitlines()) <= 15


def test_the_readme_shows_the_viewer_and_a_chart():
    viewer, chart = re.findall(r"!\[[^]]*\]\((.+?)\)", README)
    assert "viewer" in viewer and (ROOT / viewer).is_file()
    assert "Shoal" in (ROOT / chart).read_text()


def test_numbers_of_the_readme_are_those_of_the_performance_page():
    """What is measured is written down once; the front page repeats some of it."""
    measured = (ROOT / "docs" / "performance.md").read_text()
    for number in ("295 M", "12.6 M", "1.19 M", "40.6 M", "9.3", "363", "13.6", "404", "2.1", "84"):
        assert number in README and re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", measured), number


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)\b", re.sub(r"[^`]*(`[^`]*`)?", r"\1 ", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_every_path_of_the_tree_exists_and_none_is_missing():
    (tree,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    named = {
        word.rstrip("/")
        for line in tree.strip().splitlines()
        for word in re.split(r"\s{2,}", line, maxsplit=1)[0].split()
    }
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode != 0:
        pytest.skip("machine: not a git checkout")
    present = {path.split("/")[0] for path in tracked.stdout.split()}
    hidden = {path for path in present if path.startswith(".")} | {"LICENSE", "SECURITY.md"}
    assert named == present - hidden


def test_every_layer_is_drawn():
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    for part in ("core/", "memory", "spaces", "reference", "doctor", "demo", "cli"):
        assert part in architecture
