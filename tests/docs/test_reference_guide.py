"""The manifests in ``docs/how-to/reference-other-resources.md`` are accepted."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from events.manifest import Manifest
from events.reference import MAX_REFERENCES
from reconciler.provider.kind import installed_kinds

PAGE = (Path(__file__).parents[2] / "docs/how-to/reference-other-resources.md").read_text()
MANIFESTS = [
    msgspec.convert(yaml.safe_load(block), Manifest)
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
]


def test_the_page_shows_a_manifest_of_each_form() -> None:
    assert [manifest.kind for manifest in MANIFESTS] == ["File", "File", "ShapeRef"]
    assert f"at most {MAX_REFERENCES} resources" in PAGE


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.metadata.name)
def test_the_manifests_on_the_page_are_accepted(manifest: Manifest) -> None:
    installed_kinds().check(manifest)
