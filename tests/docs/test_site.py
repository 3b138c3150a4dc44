"""The documentation as a site: it builds without a warning, no link is dead, and it is complete.

MkDocs checks what it understands: links between pages, their anchors, pages missing from the
navigation. The built pages are read here as a browser reads them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.cli.runner import REPOSITORY

LOADING = {"icon", "stylesheet", "preload", "modulepreload", "manifest", "preconnect"}
"""``rel`` values of a ``link`` that make a browser connect to its ``href``."""

LOADED_ON_DEMAND = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js": 'class="mermaid"',
    "https://api.github.com/repos/": 'data-md-component="source"',
    "https://api.github.com/users/": 'data-md-component="source"',
    "https://unpkg.com/resize-observer-polyfill": None,
}
"""Addresses in the theme's script, and the element without which it does not contact them.

The last one is for browsers released before 2020.
"""


@dataclass
class Html(HTMLParser):
    """A page's anchors, links, loaded resources, and the text of its paragraphs."""

    path: Path
    anchors: set[str] = field(default_factory=set[str])
    links: list[str] = field(default_factory=list[str])
    loads: list[str] = field(default_factory=list[str])
    paragraphs: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__()
        self._is_paragraph = False
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and LOADING & set(values.get("rel", "").split()):
            self.loads.append(values["href"])
        sources = [values[name] for name in ("src", "poster", "data") if name in values]
        candidates = values.get("srcset", "").split(",")
        self.loads += [*sources, *(each.split()[0] for each in candidates if each.strip())]
        if tag == "p":
            self._is_paragraph = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._is_paragraph = False

    def handle_data(self, data: str) -> None:
        if self._is_paragraph:
            self.paragraphs[-1] += data


@dataclass
class Site:
    """A built site, and the result of the build."""

    folder: Path
    status: int
    output: str

    @cached_property
    def pages(self) -> dict[Path, Html]:
        return {path: Html(path) for path in sorted(self.folder.rglob("*.html"))}

    @property
    def internal_links(self) -> Iterator[tuple[Html, str]]:
        """Every link of every page within the site; 404.html has absolute ones on purpose."""
        for page in self.pages.values():
            if page.path.name != "404.html":
                yield from ((page, link) for link in page.links if not urlsplit(link).scheme)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("built") / "site"
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Site(folder, process.returncode, process.stdout + process.stderr)


def test_the_site_builds_without_a_warning(site: Site) -> None:
    assert site.status == 0, site.output
    assert "WARNING" not in site.output


def test_every_page_is_in_the_site(site: Site) -> None:
    docs = REPOSITORY / "docs"
    pages = {page.relative_to(docs).with_suffix(".html") for page in docs.rglob("*.md")}
    assert {site.folder / page for page in pages} <= site.pages.keys()


def test_every_link_leads_to_a_page_and_an_anchor(site: Site) -> None:
    dead: list[str] = []
    for page, link in site.internal_links:
        parts = urlsplit(link)
        target = page.path if not parts.path else page.path.parent / unquote(parts.path)
        target = Path(os.path.normpath(target))
        anchor = unquote(parts.fragment)
        target_page = site.pages.get(target)
        if not target.is_file() or (
            anchor and (target_page is None or anchor not in target_page.anchors)
        ):
            dead.append(f"{page.path.relative_to(site.folder)}: {link}")
    assert dead == []


def test_linked_repository_files_are_in_the_site(site: Site) -> None:
    assert "repository/examples/foo.yaml.html" in site.pages[site.folder / "tutorial.html"].links
    page = (site.folder / "repository" / "examples" / "foo.yaml.html").read_text()
    assert "Purple" in page


def test_nothing_is_loaded_from_another_host(site: Site) -> None:
    pages = site.pages.values()
    loads = {load for page in pages for load in page.loads}
    assert "assets/stylesheets" in str(loads)  # so something was found
    assert [load for load in loads if urlsplit(load).netloc] == []
    for style in site.folder.rglob("*.css"):
        assert (
            re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*", style.read_text()) == []
        )


def test_the_themes_script_contacts_no_other_host(site: Site) -> None:
    text = "".join(page.path.read_text() for page in site.pages.values())
    (script,) = site.folder.glob("assets/javascripts/bundle.*.js")
    code = re.sub(r"/\*.*?\*/", "", script.read_text(), flags=re.DOTALL)
    for address in re.findall(r"https?://[\w.-]+\.\w+/[\w./@-]*", code):
        assert address in LOADED_ON_DEMAND, address
        element = LOADED_ON_DEMAND[address]
        assert element is None or element not in text


def test_lists_and_tables_are_shown_as_such(site: Site) -> None:
    """GitHub renders a list or table right after a line of text; MkDocs treats it as text."""
    broken = [
        f"{page.path.relative_to(site.folder)}: {line}"
        for page in site.pages.values()
        for paragraph in page.paragraphs
        for line in paragraph.splitlines()
        if re.match(r"\s*(?:[-*] |1\. |\|.*\|$)", line)
    ]
    assert broken == []


def test_the_search_finds_pages_but_no_code(site: Site) -> None:
    index = (site.folder / "search" / "search_index.json").read_text()
    assert "tutorial.html" in index
    assert "foo.yaml.html" not in index
