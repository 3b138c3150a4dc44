"""``docs/how-to/add-a-kind.md`` quotes code that exists."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from events.manifest import Manifest, split_manifest
from reconciler.provider.kind import installed_kinds

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs/how-to/add-a-kind.md"
PAGE = PATH.read_text()
QUOTES = re.findall(r"<!-- from (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
MANIFESTS = [
    msgspec.convert(document, Manifest)
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for document in yaml.safe_load_all(block)
]


@pytest.mark.parametrize(("path", "quote"), QUOTES, ids=[quote[:40] for _, quote in QUOTES])
def test_quoted_code_is_in_the_named_file(path: str, quote: str) -> None:
    assert quote in (ROOT / path).read_text()


def test_every_python_block_is_a_quotation() -> None:
    assert PAGE.count("```python") == sum(path.endswith(".py") for path, _ in QUOTES) > 0


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.kind)
def test_the_manifests_can_be_declared(manifest: Manifest) -> None:
    kind = installed_kinds()[manifest.kind]
    declared = split_manifest(manifest)

    assert manifest.api_version == kind.api_version
    assert kind.check_fields(declared.fields)
    assert kind.name_problem(declared.external_name) is None


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)", PAGE))
def test_links_lead_to_a_file(target: str) -> None:
    assert (PATH.parent / target).exists()
