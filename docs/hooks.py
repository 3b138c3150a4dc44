"""What the site needs beyond docs/: repository files that pages link to, and the list of decisions.

A link such as ``../examples/foo.yaml`` works in the repository and leads nowhere in a site that has
docs/ only. So the site gets a page for each linked file, and links lead there. MkDocs itself
reports a link to a file that does not exist.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY: Final = Path(__file__).parents[1]
FOLDER: Final = "repository"
"""Folder of the site that has the repository's files."""

_DECISIONS: Final = "adr/"
_INDEX: Final = "adr/index.md"
_LINK: Final = re.compile(r"(?<=\]\()[^)\s#:]+")

_sources: dict[str, str] = {}
"""Path in the repository of each page that was added, by the page's path in the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the folder of decisions in the navigation with its pages, the index first."""
    docs = Path(config.docs_dir)
    numbered = (docs / _DECISIONS).glob("[0-9]*.md")
    pages = [_INDEX, *sorted(page.relative_to(docs).as_posix() for page in numbered)]
    nav = cast("list[dict[str, Any]]", config["nav"])
    config["nav"] = [
        {title: pages if target == _DECISIONS else target}
        for entry in nav
        for title, target in entry.items()
    ]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for every file of the repository that a page links to."""
    _sources.clear()
    waiting = list(files.documentation_pages())
    while waiting:
        page = waiting.pop()
        for path in _linked(page, page.content_string):
            uri = _uri(path)
            if path.startswith("docs/") or files.get_file_from_path(uri):
                continue
            added = File.generated(config, uri, content=_content(path))
            _sources[uri] = path
            files.append(added)
            waiting.append(added)
    return files


def on_page_markdown(
    markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files
) -> str:  # the names are those of MkDocs
    """Return the page with links to repository files replaced by links to their pages."""
    del config, files
    here = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        path = _resolved(page.file, link[0])
        return posixpath.relpath(_uri(path), here) if (REPOSITORY / path).exists() else link[0]

    return _LINK.sub(replaced, markdown)


def _linked(page: File, markdown: str) -> Iterator[str]:
    """Yield the path in the repository of every existing file that a page links to."""
    for link in _LINK.findall(markdown):
        path = _resolved(page, link)
        if not path.startswith("../") and (REPOSITORY / path).exists():
            yield path


def _resolved(page: File, link: str) -> str:
    """Return where a page's link leads, as a path in the repository."""
    source = _sources.get(page.src_uri, f"docs/{page.src_uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _uri(path: str) -> str:
    """Return the path in the site of the page of a file in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def _content(path: str) -> str:
    """Return the page of a file: Markdown as it is, other text as code, a folder as a list."""
    place = REPOSITORY / path
    if place.suffix == ".md":
        return place.read_text()
    if place.is_dir():
        names = sorted(each.name for each in place.iterdir() if each.name != "__pycache__")
        text, language = "\n".join(names), "text"
    else:
        text, language = place.read_text(), place.suffix.removeprefix(".") or "text"
    fence = "`" * 6
    return f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n{fence}{language}\n{text}\n{fence}\n"
