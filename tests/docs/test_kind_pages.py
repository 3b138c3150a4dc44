"""Each kind's page begins with a small manifest, and describes all fields and outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import yaml

from events import composition_definition, kind_definition, rest_definition
from events.manifest import Manifest
from events.names import KIND_DEFINITION_KIND
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import Kind, installed_kinds

FOLDER = Path(__file__).parents[2] / "docs" / "kinds"
KINDS: Mapping[str, tuple[str, ...]] = {
    "attachment": ("Attachment",),
    "certificate": ("Certificate",),
    "container": ("Container",),
    "database": ("Database",),
    "database-role": ("DatabaseRole",),
    "deployment": ("Deployment",),
    "disk": ("Disk",),
    "file": ("File",),
    "git-source": ("GitSource",),
    "grant": ("Grant",),
    "issuer": ("Issuer",),
    "jetstream": ("Stream", "Consumer", "Bucket"),
    "kind-definition": ("KindDefinition",),
    "route": ("Route",),
    "service": ("Service",),
    "volume": ("Volume",),
}
DEFINITION_PARTS = (
    kind_definition.DefinedField,
    rest_definition.RestSpec,
    rest_definition.Reading,
    rest_definition.Call,
    rest_definition.Listing,
    rest_definition.Paging,
    rest_definition.NameField,
    rest_definition.MetadataField,
    rest_definition.Idempotency,
    rest_definition.ErrorRule,
    rest_definition.Output,
    rest_definition.ChangeMark,
    composition_definition.CompositionSpec,
    composition_definition.PartDefinition,
    composition_definition.PartManifest,
    composition_definition.PartMetadata,
    composition_definition.ComposedOutput,
)
MAX_LINES = 8
MAX_FIRST_MANIFEST_LINES: Mapping[str, int] = {"kind-definition": 9}
"""Defining a kind takes more lines than declaring one resource."""


def blocks(page: str) -> list[str]:
    """Return a page's manifests; a block after a ``no manifest`` comment does not count."""
    text = (FOLDER / f"{page}.md").read_text()
    return re.findall(r"(?<!<!-- no manifest -->\n)```yaml\n(.*?)```", text, re.DOTALL)


def manifests(block: str) -> list[Manifest]:
    return msgspec.convert(list(yaml.safe_load_all(block)), list[Manifest])


def names(struct: object) -> set[str]:
    assert isinstance(struct, type)
    return {each.encode_name for each in msgspec.structs.fields(struct)}


def test_every_page_is_checked() -> None:
    assert {each.stem for each in FOLDER.glob("*.md")} == set(KINDS)


@pytest.mark.parametrize(("page", "kinds"), KINDS.items())
def test_the_first_manifest_is_short_and_of_the_pages_kind(
    page: str, kinds: tuple[str, ...]
) -> None:
    first = blocks(page)[0]
    assert [each.kind for each in manifests(first)] == [kinds[0]]
    assert len(first.splitlines()) <= MAX_FIRST_MANIFEST_LINES.get(page, MAX_LINES)


@pytest.mark.parametrize("page", KINDS)
def test_all_manifests_are_accepted(page: str) -> None:
    kinds = installed_kinds().copy()
    for manifest in (each for block in blocks(page) for each in manifests(block)):
        kinds.check(manifest)
        if manifest.kind == KIND_DEFINITION_KIND:
            kinds.define(build_defined_kind(kinds, manifest.metadata.name, manifest.spec, 1))


@pytest.mark.parametrize(
    ("page", "kind"), [(page, kind) for page, kinds in KINDS.items() for kind in kinds]
)
def test_all_fields_and_outputs_are_described(page: str, kind: str) -> None:
    words = set(re.findall(r"`([A-Za-z]+)", (FOLDER / f"{page}.md").read_text()))
    described: Kind = installed_kinds()[kind]
    assert names(described.schema) <= words
    assert described.outputs is None or names(described.outputs) <= words


@pytest.mark.parametrize("part", DEFINITION_PARTS)
def test_all_parts_of_a_definition_are_described(part: type[msgspec.Struct]) -> None:
    in_code = re.findall(r"`([^`\n]+)`", (FOLDER / "kind-definition.md").read_text())
    assert names(part) <= set(re.findall(r"[A-Za-z]+", " ".join(in_code)))
