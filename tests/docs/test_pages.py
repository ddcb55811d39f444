"""Commands of the pages do what the pages say."""

import shutil

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, changed, follow, matches, transcript

WITH_COMMANDS = [page for page in PAGES if any(language == "console" for language, _, _ in blocks(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_a_page_can_be_followed_from_top_to_bottom(page, tmp_path):
    if page.name == "write_env.md" and shutil.which("cc") is None:
        pytest.skip("no compiler")
    assert follow(page, tmp_path) > 0


def test_the_tutorial_is_among_them():
    assert ROOT / "docs" / "write_env.md" in WITH_COMMANDS


def test_every_fence_of_the_pages_is_of_a_kind_that_is_tested_or_marked_as_not():
    """`py` is Python that needs another library (the adapters' own tests have it), `c` a part of a file."""
    for page in PAGES:
        for language, file, _ in blocks(page):
            assert language in {"python", "console", "diff", "py", "c", "text"}, f"{page.name}: {language!r}"
            assert file or language != "diff"


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
