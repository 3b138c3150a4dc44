"""The example on the kind's page is accepted."""

from __future__ import annotations

from pathlib import Path

from events.documents import ParsedManifest, read_documents
from infra.providers.git.source import GIT_SOURCE
from reconciler.provider.kind import KindRegistry

PAGE = Path(__file__).parents[2] / "docs/kinds/git-source.md"


def test_its_example_is_accepted() -> None:
    applied = "<!-- applied by tests/git/test_page.py -->\n```yaml\n"
    text = PAGE.read_text().split(applied)[1].split("```")[0]
    [read] = read_documents(str(PAGE), text, "default")
    assert isinstance(read, ParsedManifest)
    KindRegistry([GIT_SOURCE]).check(read.manifest)
    assert GIT_SOURCE.references(read.manifest.spec, "default")
