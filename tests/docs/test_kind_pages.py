"""Pages of kinds: each begins with a small manifest, and describes all fields and outputs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from events.manifest import Manifest
from reconciler.provider.kind import Kind, installed_kinds

FOLDER = Path(__file__).parents[2] / "docs" / "kinds"
KINDS = {
    "attachment": "Attachment",
    "certificate": "Certificate",
    "container": "Container",
    "database": "Database",
    "database-role": "DatabaseRole",
    "deployment": "Deployment",
    "disk": "Disk",
    "file": "File",
    "issuer": "Issuer",
}
MAX_LINES_OF_THE_FIRST = 8


def blocks(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (FOLDER / f"{page}.md").read_text(), re.DOTALL)


def manifests(block: str) -> list[Manifest]:
    return msgspec.convert(list(yaml.safe_load_all(block)), list[Manifest])


def names(struct: object) -> list[str]:
    assert isinstance(struct, type)
    return [each.encode_name for each in msgspec.structs.fields(struct)]


@pytest.mark.parametrize(("page", "kind"), KINDS.items())
def test_the_first_manifest_is_a_small_one_of_the_kind(page: str, kind: str) -> None:
    first = blocks(page)[0]
    assert [each.kind for each in manifests(first)] == [kind]
    assert len(first.splitlines()) <= MAX_LINES_OF_THE_FIRST


@pytest.mark.parametrize("page", KINDS)
def test_all_manifests_are_accepted(page: str) -> None:
    for manifest in (each for block in blocks(page) for each in manifests(block)):
        installed_kinds().check(manifest)


@pytest.mark.parametrize(("page", "name"), KINDS.items())
def test_all_fields_and_outputs_are_described(page: str, name: str) -> None:
    kind: Kind = installed_kinds()[name]
    words = set(re.findall(r"`([A-Za-z]+)", (FOLDER / f"{page}.md").read_text()))
    assert set(names(kind.schema)) <= words
    assert set(names(kind.outputs)) <= words
