"""Builds docs/*.md, and the reference from docstrings, into a static site: python docs/site/build.py [OUT].

    *.md, docstrings -> tokens -> headings get anchors, links are checked -> page.html -> OUT/*.html

Nothing in the result asks another host for anything, and it works from a folder as well as from a server. A
link to a page, an anchor, a picture or a file that is not there fails the build, all of them at once.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
ROOT = DOCS.parent

# Order of the pages: first what users read, then how Shoal works inside. A page that does not exist is left
# out; one that is not listed goes to the end of the guides.
SECTIONS: dict[str, list[str]] = {
    "Start": ["index", "quickstart", "train", "migrate"],
    "Environments": ["environments", "write_env", "agents", "native", "puffer"],
    "Guides": [
        "vector",
        "process",
        "zero_copy",
        "replay",
        "gpu",
        "cuda",
        "state",
        "adapters",
        "cluster",
        "memory",
    ],
    "Running it": ["performance", "bench", "faults", "reliability", "security", "release"],
    "Reference": ["glossary", "api", "CHANGELOG"],
}
INTERNALS: dict[str, list[str]] = {
    "How it works": [
        "memory_map",
        "design_gate",
        "design_leases",
        "design_ring",
        "design_window",
    ],
    "For contributors": ["ARCHITECTURE", "CONTRIBUTING"],
}
ENVIRONMENTS = "environments"  # the page below which the pages of docs/envs are listed


@dataclass
class Page:
    """One page on its way from Markdown to HTML."""

    name: str  # of the result, without .html
    source: Path  # links are relative to it
    text: str
    title: str = ""
    body: str = ""
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, anchor, text
    links: list[str] = field(default_factory=list)  # as they are written
    sections: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # anchor, heading, words: for the search


class Site:
    """All pages, and every link that leads nowhere."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.markdown = MarkdownIt("commonmark", {"highlight": _highlight, "html": True}).enable(["table"])
        self.pages: dict[str, Page] = {}
        self.files: set[Path] = set()  # of the repository, linked to and shown as pages
        self.pictures: set[Path] = set()
        self.broken: list[str] = []

    def add(self, name: str, source: Path, text: str) -> None:
        page = self.pages[name] = Page(name, source, text)
        tokens = self.markdown.parse(text)
        self._headings(page, tokens)
        self._words(page, tokens)
        page.title = next((text for level, _, text in page.headings if level == 1), name)

    def render(self) -> None:
        """To be called when all pages are known: links go across them."""
        for page in self.pages.values():
            tokens = self.markdown.parse(page.text)
            anchors = iter(page.headings)
            for token in tokens:
                if token.type == "heading_open":
                    token.attrSet("id", next(anchors)[1])
                for at, child in enumerate(token.children or []):
                    self._link(page, child)
                    self._title(child, (token.children or [])[at + 1 : at + 2])
            body = self.markdown.renderer.render(tokens, self.markdown.options, {})
            body = re.sub(r"<table>", '<div class="wide"><table>', body).replace("</table>", "</table></div>")
            body = re.sub(
                r"(<h[23] id=\"([^\"]+)\">.*?)(</h[23]>)", r'\1<a class="anchor" href="#\2">#</a>\3', body
            )
            page.body = re.sub(r"<p>(<img[^>]*>)</p>", self._picture, body)

    def write(self) -> None:
        if self.broken:
            raise SystemExit("\n".join(["broken links:", *sorted(set(self.broken))]))
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        order = self._order()
        names = [name for section in order.values() for name in section]
        template = (HERE / "page.html").read_text()
        for page in self.pages.values():
            at = names.index(page.name)
            before, after = names[at - 1 : at] or [""], names[at + 1 : at + 2] or [""]
            around = [self._neighbour("previous", before[0]), self._neighbour("next", after[0])]
            self._write_page(template, page, self._navigation(order, page.name), "".join(around))
        for path in self.files:
            page = Page(_file_page(path), path, "", title=str(path.relative_to(ROOT)))
            page.body = f"<h1>{html.escape(page.title)}</h1>\n{_highlight_file(path)}"
            self._write_page(template, page, self._navigation(order, ""), "")
        for picture in self.pictures | {ROOT / "src/shoal/viewer/page/icon.svg"}:
            shutil.copyfile(picture, self.out / picture.name)
        for asset in ("style.css", "site.js"):
            shutil.copyfile(HERE / asset, self.out / asset)
        entries = [
            [f"{page.name}.html{f'#{anchor}' if anchor else ''}", page.title, heading, words]
            for name in names
            for page in [self.pages[name]]
            for anchor, heading, words in page.sections
        ]
        (self.out / "search.js").write_text(
            f"window.SEARCH = {json.dumps(entries, separators=(',', ':'))};\n"
        )

    def _headings(self, page: Page, tokens: list[Token]) -> None:
        taken: dict[str, int] = {}
        for opening, content in zip(tokens, tokens[1:], strict=False):
            if opening.type != "heading_open":
                continue
            words = _plain(content)
            anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            count = taken[anchor] = taken.get(anchor, -1) + 1
            page.headings.append((int(opening.tag[1]), f"{anchor}-{count}" if count else anchor, words))

    def _words(self, page: Page, tokens: list[Token]) -> None:
        """Text under each heading, for the search."""
        found: list[tuple[str, str, list[str]]] = [("", "", [])]
        anchors = iter(page.headings)
        for at, token in enumerate(tokens):
            if token.type == "heading_open":
                level, anchor, words = next(anchors)
                found.append(("" if level == 1 else anchor, words, []))
            elif token.type == "inline" and tokens[at - 1].type != "heading_open":
                found[-1][2].append(_plain(token))
            elif token.type in ("fence", "code_block"):
                found[-1][2].append(token.content)
        page.sections = [
            (anchor, heading, re.sub(r"\s+", " ", " ".join(words))[:4000])
            for anchor, heading, words in found
            if heading or words
        ]

    def _link(self, page: Page, token: Token) -> None:
        kind = {"link_open": "href", "image": "src"}.get(token.type)
        if kind is None:
            return
        target = str(token.attrs[kind])
        page.links.append(target)
        parts = urlsplit(target)
        if parts.scheme in ("http", "https"):
            if kind == "src":
                self.broken.append(f"{page.source.name}: {target}: a picture of another host")
            return
        path = (page.source.parent / unquote(parts.path)).resolve() if parts.path else page.source
        name = next((known for known, other in self.pages.items() if other.source == path), None)
        if parts.path.startswith("api.md"):
            name = "api"
        if kind == "src" and path.is_file():
            self.pictures.add(path)
            token.attrs[kind] = path.name
        elif name is not None:
            anchors = {anchor for _, anchor, _ in self.pages[name].headings}
            if parts.fragment and parts.fragment not in anchors:
                self.broken.append(
                    f"{page.source.name}: {target}: no such heading there; there are {sorted(anchors)}"
                )
            token.attrs[kind] = f"{name}.html" + (f"#{parts.fragment}" if parts.fragment else "")
        elif path.is_file() and path.is_relative_to(ROOT):
            self.files.add(path)
            token.attrs[kind] = f"{_file_page(path)}.html"
        else:
            self.broken.append(f"{page.source.name}: {target}: there is no such file")

    def _title(self, link: Token, words: list[Token]) -> None:
        """A link that says no more than `vector.md`, as is good on a forge, says the page's title here."""
        name = str(link.attrs.get("href", "")).removesuffix(".html")
        if link.type == "link_open" and name in self.pages and words[0].content.endswith(".md"):
            words[0].content = self.pages[name].title

    def _picture(self, found: re.Match[str]) -> str:
        """A drawing goes into the page itself, where it has the page's colours; other pictures stay files."""
        source, words = re.findall(r'(?:src|alt)="([^"]*)"', found[1])
        path = next((picture for picture in self.pictures if picture.name == source), Path())
        inside = f'<img src="{source}" alt="{words}">'
        if path.suffix == ".svg" and 'class="drawing"' in path.read_text():
            inside = re.sub(r"<style>.*?</style>", "", path.read_text(), flags=re.DOTALL)
            inside = inside.replace("<svg ", f'<svg role="img" aria-label="{words}" ', 1)
        return f"<figure>{inside}<figcaption>{words}</figcaption></figure>"

    def _order(self) -> dict[str, list[str]]:
        order = {
            section: [name for name in names if name in self.pages]
            for section, names in (SECTIONS | INTERNALS).items()
        }
        listed = {name for names in order.values() for name in names}
        bundled = sorted(name for name in self.pages if name.startswith("env_"))
        order["Guides"] += sorted(self.pages.keys() - listed - set(bundled))
        if bundled:
            after = order["Environments"].index(ENVIRONMENTS) + 1
            order["Environments"][after:after] = bundled
        return {section: names for section, names in order.items() if names}

    def _navigation(self, order: dict[str, list[str]], current: str) -> str:
        lines = []
        is_open = current == ENVIRONMENTS or current.startswith("env_")
        for section, names in order.items():
            if section == next(iter(INTERNALS)):
                lines.append('<div class="internals">Internals</div>')
            lines.append(f"<h2>{section}</h2><ul>")
            for name in names:
                if name.startswith("env_") and not is_open:
                    continue
                here = ' aria-current="page"' if name == current else ""
                kind = ' class="below"' if name.startswith("env_") else ""
                title = html.escape(self.pages[name].title)
                lines.append(f'<li{kind}><a href="{name}.html"{here}>{title}</a></li>')
            lines.append("</ul>")
        return "".join(lines)

    def _neighbour(self, which: str, name: str) -> str:
        if not name:
            return "<span></span>"
        title = html.escape(self.pages[name].title)
        return f'<a class="{which}" href="{name}.html"><small>{which.capitalize()}</small>{title}</a>'

    def _write_page(self, template: str, page: Page, navigation: str, around: str) -> None:
        contents = "".join(
            f'<li class="level{level}"><a href="#{anchor}">{html.escape(_short(page.name, words))}</a></li>'
            for level, anchor, words in page.headings
            if level in (2, 3)
        )
        filled = {
            "title": html.escape(page.title),
            "name": page.name,
            "navigation": navigation,
            "contents": f"<h2>On this page</h2><ul>{contents}</ul>" if contents else "",
            "body": page.body,
            "around": around,
        }
        text = re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], template)
        (self.out / f"{page.name}.html").write_text(text)


def _short(page: str, heading: str) -> str:
    """In the reference's list of contents names stand below their module, and need it no more."""
    return heading.rpartition(".")[2] if page == "api" and heading.count(".") else heading


def _plain(inline: Token) -> str:
    """The words of a paragraph, without Markdown's marks; a line break separates words."""
    parts = {"text": "{}", "code_inline": "{}", "softbreak": " ", "hardbreak": " "}
    return "".join(parts.get(child.type, "").format(child.content) for child in inline.children or [])


def _highlight(code: str, language: str, attributes: str) -> str:
    try:
        lexer = get_lexer_by_name(
            {"console": "shell-session", "": "text"}.get(language, language), stripnl=False
        )
    except ClassNotFound as error:
        raise SystemExit(f"a code block is of a language that is not known: {language!r}") from error
    name = f'<span class="file">{html.escape(attributes)}</span>' if attributes else ""
    shown = highlight(code, lexer, HtmlFormatter(nowrap=True))
    return f'<pre data-language="{html.escape(language)}">{name}<code>{shown}</code></pre>'


def _highlight_file(path: Path) -> str:
    lexer = get_lexer_for_filename(path.name) if path.suffix else get_lexer_by_name("text")
    return f"<pre><code>{highlight(path.read_text(), lexer, HtmlFormatter(nowrap=True))}</code></pre>"


def _file_page(path: Path) -> str:
    return "file_" + re.sub(r"\W", "_", str(path.relative_to(ROOT)))


def build(out: Path, docs: Path = DOCS) -> Site:
    """Builds the site into `out`; SystemExit with every broken link."""
    sys.path.insert(0, str(HERE))
    from reference import reference

    site = Site(out)
    for path in sorted(docs.glob("*.md")):
        site.add(path.stem, path, path.read_text())
    for path in sorted(docs.glob("envs/*.md")):
        site.add(f"env_{path.stem}", path, path.read_text())
    for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING"):
        site.add(name, ROOT / f"{name}.md", (ROOT / f"{name}.md").read_text())
    site.add("api", docs / "api.md", reference())
    site.render()
    readme = Page("README", ROOT / "README.md", "")  # is no page, but its links must lead somewhere too
    for token in site.markdown.parse(readme.source.read_text()):
        for child in token.children or []:
            site._link(readme, child)
    site.write()
    return site


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()
    print(f"{len(build(target).pages)} pages: {target}/index.html")
