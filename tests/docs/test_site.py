"""`make docs`: the site is whole, asks no other host for anything, and a broken link fails it."""

import importlib.util
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.shared import make_once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def builder():
    pytest.importorskip("markdown_it", reason="make docs installs it")
    path = ROOT / "docs" / "site" / "build.py"
    spec = importlib.util.spec_from_file_location("site_build", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["site_build"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(builder):
    return make_once("site", builder.build)


class Links(HTMLParser):
    """What a page asks for and where it leads."""

    def __init__(self, page):
        super().__init__()
        self.asks, self.leads, self.ids = [], [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.add(attrs["id"])
        if tag == "a":
            self.leads.append(attrs["href"])
        else:
            self.asks += [attrs[name] for name in ("src", "href") if attrs.get(name)]


def test_every_page_asks_only_for_files_of_the_site_and_every_link_of_it_leads_somewhere(site):
    pages = {page.name: Links(page) for page in site.glob("*.html")}
    assert {"index.html", "api.html", "vector.html", "CHANGELOG.html"} <= pages.keys()
    for name, page in pages.items():
        for asked in page.asks:
            assert (site / asked).is_file(), f"{name} asks for {asked}"
        for target in page.leads:
            if re.match("https?://", target):
                continue
            path, _, anchor = target.partition("#")
            assert (path or name) in pages, f"{name} leads to {target}"
            assert not anchor or anchor in pages[path or name].ids, f"{name} leads to {target}"


def test_styles_and_scripts_name_no_other_host(site):
    for asset in ("style.css", "site.js"):
        assert "//" not in re.sub(r"/\*.*?\*/", "", (site / asset).read_text(), flags=re.DOTALL)


def test_every_page_of_the_folder_is_in_the_navigation(site):
    navigation = re.search("<nav.*?</nav>", (site / "index.html").read_text(), re.DOTALL)[0]
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in navigation


def test_user_guides_come_before_internals_in_the_navigation(site):
    navigation = re.search("<nav.*?</nav>", (site / "index.html").read_text(), re.DOTALL)[0]
    guides, internals = navigation.split('<div class="internals">')
    assert all(
        f'"{name}.html"' in guides for name in ("quickstart", "vector", "process", "replay", "glossary")
    )
    assert all(f'"{name}.html"' in internals for name in ("design_gate", "memory_map", "ARCHITECTURE"))


def test_pages_of_environments_are_listed_below_their_index_alone(site):
    pages = [f'href="env_{page.stem}.html"' for page in (ROOT / "docs" / "envs").glob("*.md")]
    assert len(pages) > 5
    for name, is_shown in (("environments", True), ("env_reef", True), ("quickstart", False)):
        navigation = re.search("<nav.*?</nav>", (site / f"{name}.html").read_text(), re.DOTALL)[0]
        assert [link in navigation for link in pages] == [is_shown] * len(pages), name


def test_every_page_links_to_the_glossary(site):
    for page in site.glob("*.html"):
        assert 'href="glossary.html' in page.read_text(), page.name


GLOSSARY_LINK = re.compile(r"\]\((?:\.\./|docs/)?glossary\.md(?:#[\w-]+)?\)")
SOURCES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", SOURCES, ids=lambda page: page.name)
def test_every_page_links_to_the_glossary_where_it_is_read_without_the_site(page):
    assert page.name == "glossary.md" or GLOSSARY_LINK.search(page.read_text()), "link to glossary.md"


def test_words_at_the_end_and_the_beginning_of_a_line_are_two_words_for_the_search(builder, tmp_path):
    site = builder.Site(tmp_path)
    site.add(
        "page",
        ROOT / "docs" / "page.md",
        "# Page\n\nthe end\nof a *line*\n`code`  \nbroken, and\n[a\nlink](x)\n",
    )
    ((_, _, words),) = site.pages["page"].sections
    assert words == "the end of a line code broken, and a link"


def test_every_code_block_says_its_language_so_that_only_commands_are_copied(site):
    text = (site / "quickstart.html").read_text()
    assert '<pre data-language="console">' in text and '<pre data-language="python">' in text
    script = (site / "site.js").read_text()
    assert 'language === "console"' in script and "navigator.clipboard.writeText" in script


def test_the_search_knows_every_page(site):
    index = (site / "search.js").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f'"{page.stem}.html' in index
    assert '"env_reef.html' in index


def test_the_reference_has_every_public_name_with_its_signature(site):
    from tests.test_exports import PUBLIC

    text = re.sub("<[^>]*>", "", (site / "api.html").read_text())
    for module, names in PUBLIC.items():
        for name in names:
            assert name == "__version__" or f"{module}.{name}" in text, f"{module}.{name}"
    assert "num_envs: int = 1," in text


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("[there](missing.md)", "no such file"),
        ("[there](vector.md#no-such-heading)", "no such heading"),
        ("[here](#nowhere)", "no such heading"),
        ("![picture](pictures/none.png)", "no such file"),
        ("[a file](../examples/none.py)", "no such file"),
        ("![picture](https://example.org/a.png)", "another host"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(builder, tmp_path, link, why):
    site = builder.Site(tmp_path)
    vector = ROOT / "docs" / "vector.md"
    site.add("vector", vector, vector.read_text())
    site.add("page", ROOT / "docs" / "page.md", f"# Page\n\n{link}\n\n[fine](vector.md#search)\n")
    site.pages["vector"].text = "# Vector environments\n\n## Search\n"  # its own links are not asked for here
    site.render()
    with pytest.raises(SystemExit, match=f"(?s)^broken links:\npage.md: .*{why}[^\n]*$"):
        site.write()


def test_a_block_of_an_unknown_language_fails_the_build(builder, tmp_path):
    site = builder.Site(tmp_path)
    site.add("page", ROOT / "docs" / "page.md", "# Page\n\n```pyhton\n1\n```\n")
    with pytest.raises(SystemExit, match="pyhton"):
        site.render()


def test_drawings_share_one_style_so_that_the_site_can_give_them_its_colours():
    styles = {}
    for drawing in (ROOT / "docs" / "pictures").glob("*.svg"):
        if 'class="drawing"' in drawing.read_text():
            styles[drawing.name] = re.search("<style>(.*?)</style>", drawing.read_text(), re.DOTALL)[1]
    assert len(styles) > 5
    assert len(set(styles.values())) == 1, f"these differ: {sorted(styles)}"
