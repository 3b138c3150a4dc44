"""The guides name every outcome and every field, and their manifests are accepted."""

import re
import shlex
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from events.log import OutcomeName
from events.manifest import Manifest, Policy, take_apart
from events.provider_config import ProviderConfigSpec
from reconciler.cli.exits import Exit
from reconciler.provider.kind import installed_kinds
from tests.cli.runner import Inside

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "operating.md"
CONFIGURING = DOCS / "configuring.md"


def manifests() -> list[Manifest]:
    blocks = [part.split("```")[0] for part in CONFIGURING.read_text().split("```yaml\n")[1:]]
    return [msgspec.convert(yaml.safe_load(block), Manifest) for block in blocks]


def fields_of(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def test_the_manifests_are_accepted() -> None:
    config, shape = manifests()
    kinds = installed_kinds()
    checked: dict[str, Any] = kinds["ProviderConfig"].checked_fields(dict(config.spec))
    assert checked["endpoint"] == "https://shapes.example.com"
    taken = take_apart(shape)
    assert kinds["Shape"].checked_fields(taken.fields) == {"type": "Square", "color": "Purple"}
    assert taken.external_name == "foo-in-the-api"


def test_the_manifests_show_every_field() -> None:
    config, shape = manifests()
    assert set(config.spec) == fields_of(ProviderConfigSpec)
    assert set(shape.spec["policy"]) == fields_of(Policy)


def test_every_outcome_is_explained() -> None:
    guide = GUIDE.read_text()
    assert [name for name in get_args(OutcomeName) if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for part in page.read_text().split("](")[1:]:
        target, _, heading = part.split(")")[0].partition("#")
        if target.startswith("https://"):
            continue
        found = DOCS / target if target else page
        assert found.exists()
        assert not heading or f"\n## {heading.replace('-', ' ')}\n" in found.read_text().lower()


def at_night() -> list[str]:
    section = GUIDE.read_text().split("## At 3 a.m.\n")[1].split("\n## ")[0]
    return sorted(set(re.findall(r"`reconciler ([^`]+)`", section)) - {"apply"})


@pytest.mark.parametrize("command", at_night())
def test_what_one_types_at_night_is_no_wrong_usage(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.connection.PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("reconciler.cli.client.PATIENCE_SECONDS", 0.1)
    ran = Inside(tmp_path).run(*shlex.split(command), "--nats-url", "nats://127.0.0.1:1")
    assert ran.status == Exit.FAILED
    assert ran.err.startswith("error: cannot reach nats://127.0.0.1:1")
