"""Copy buttons and the search, in a browser. Skipped without chromium and playwright: make test-viewer."""

import pytest

from tests.docs.test_site import builder, site  # noqa: F401
from tests.viewer.browsing import browser  # noqa: F401


@pytest.fixture
def page(site, browser):  # noqa: F811
    """The quickstart, with a clipboard that the test can read."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.add_init_script(
        "window.copied = [];"
        "Object.defineProperty(navigator, 'clipboard',"
        " {value: {writeText: async (text) => { window.copied.push(text); }}});"
    )
    opened.goto((site / "quickstart.html").as_uri())
    yield opened
    context.close()


def copy(page, language, index=0):
    page.locator(f'.snippet:has(pre[data-language="{language}"])').nth(index).hover()
    page.locator(f'.snippet:has(pre[data-language="{language}"]) .copy').nth(index).click()
    page.wait_for_function("window.copied.length > 0")
    return page.evaluate("window.copied[0]")


def test_the_commands_of_a_terminal_session_are_copied_without_prompts_and_output(page):
    assert copy(page, "console") == "shoal --version\nshoal doctor\nshoal envs\n"


def test_python_code_is_copied_as_it_is(page):
    copied = copy(page, "python")
    assert copied.startswith("import numpy as np\nimport shoal\n") and copied.endswith("envs.close()\n")


def test_the_search_finds_words_on_both_sides_of_a_line_break(page):
    page.fill("#search", "seeds kept")
    page.wait_for_selector("#found a")
    assert "quickstart.html" in page.locator("#found a").first.get_attribute("href")
    page.fill("#search", "zebracrossing")
    page.wait_for_selector("#found .none")
