"""The operators' pages name every outcome, hold and field, and show real messages and commands."""

import ast
import errno
import os
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from events.dead_letter import Stage
from events.hold import Hold
from events.log import OutcomeName
from events.manifest import Manifest, Policy, split_manifest
from events.provider_config import ProviderConfigSpec
from reconciler.cli.exits import Exit
from reconciler.provider.kind import installed_kinds
from tests.cli.runner import REPOSITORY, InProcessCli, shape
from tests.docs.test_links import DOCS

CONFIGURING = DOCS / "how-to/configure-the-connection.md"
TROUBLESHOOTING = DOCS / "troubleshooting.md"
MIN_MESSAGE_CHARACTERS = 9
"""Shorter constant strings of the product occur in quotations by chance."""


def blocks(page: Path, language: str) -> list[str]:
    parts = page.read_text().split(f"```{language}\n")[1:]
    return [part.split("```")[0] for part in parts]


def manifests() -> list[Manifest]:
    yaml_blocks = blocks(CONFIGURING, "yaml")
    return [msgspec.convert(yaml.safe_load(block), Manifest) for block in yaml_blocks]


def field_names(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def test_the_manifests_are_accepted() -> None:
    config, shape = manifests()
    kinds = installed_kinds()
    checked: dict[str, Any] = kinds["ProviderConfig"].check_fields(dict(config.spec))
    assert checked["endpoint"] == "https://shapes.example.com"
    declaration = split_manifest(shape)
    assert kinds["Shape"].check_fields(declaration.fields) == {
        "type": "Square",
        "color": "Purple",
    }
    assert declaration.external_name == "foo-in-the-api"


def test_the_manifests_show_every_field() -> None:
    config, shape = manifests()
    assert set(config.spec) == field_names(ProviderConfigSpec)
    assert set(shape.spec["policy"]) == field_names(Policy)


def test_every_field_of_the_manifests_is_explained() -> None:
    config, shape = manifests()
    explained = "\n".join(re.findall(r"^\| (`[^|]+) \|", CONFIGURING.read_text(), re.MULTILINE))
    names = [*config.spec, *shape.spec["policy"]]
    assert [name for name in names if f"`{name}" not in explained] == []


def test_every_outcome_is_explained() -> None:
    page = (DOCS / "concepts/outcomes.md").read_text()
    assert [name for name in get_args(OutcomeName) if f"\n| `{name}` |" not in page] == []


def test_every_stage_of_dead_letters_is_explained() -> None:
    page = (DOCS / "how-to/operate.md").read_text()
    assert [name for name in get_args(Stage) if f"\n| `{name}` |" not in page] == []


def test_the_table_of_holds_agrees_with_the_code() -> None:
    page = (DOCS / "concepts/holds.md").read_text()
    rows = re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted((str(each), each.meaning, each.remedy) for each in Hold)


def test_approvable_holds_are_listed() -> None:
    page = " ".join((DOCS / "concepts/holds.md").read_text().split())
    listed = page.split("You can approve ")[1].split(". ")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == {each for each in Hold if each.is_approvable}


# --- quotations


Template = tuple[str | None, ...]
"""A string of the product in parts; None stands for a value that is filled in."""


def templates(path: Path) -> Iterator[Template]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Constant(str(text)):
                yield (text,)
            case ast.JoinedStr(values):
                yield tuple(
                    str(each.value) if isinstance(each, ast.Constant) else None for each in values
                )
            case _:
                pass


@cache
def messages() -> tuple[Template, ...]:
    folders = ("events", "infra", "reconciler")
    paths = [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    unique_templates = {template for path in paths for template in templates(path)}
    unique_templates |= {(os.strerror(number),) for number in errno.errorcode}
    return tuple(
        each for each in unique_templates if constant_characters(each) >= MIN_MESSAGE_CHARACTERS
    )


def constant_characters(template: Template) -> int:
    return sum(len(part) for part in template if part is not None)


def ends_with(line: str, template: Template) -> bool:
    """Return whether a line ends with a string of the product; what precedes it varies."""
    position = 0
    for part in template:
        if part is not None:
            index = line.find(part, position)
            if index < 0:
                return False
            position = index + len(part)
    return template[-1] is None or position == len(line)


@pytest.mark.parametrize("quoted", blocks(TROUBLESHOOTING, "text"), ids=lambda each: each[:40])
def test_a_quoted_message_exists_in_the_product(quoted: str) -> None:
    line = " ".join(quoted.split())
    assert any(ends_with(line, each) for each in messages())


# --- commands


def commands(page: Path) -> list[str]:
    """Return the product's commands in a page's ``sh`` blocks."""
    lines = [
        line.partition(" | ")[0] for block in blocks(page, "sh") for line in block.splitlines()
    ]
    command_lines = [shlex.join(shlex.split(line, comments=True)) for line in lines]
    return sorted({line for line in command_lines if line.startswith("reconciler ")})


LOCAL_COMMANDS = {"reconciler config view", "reconciler explain Shape", "reconciler kinds"}
"""Commands that need no bus."""


def bus_commands() -> list[str]:
    """Leave out roles, and commands for a local directory or file: other tests run them."""
    others = ("run", "secrets", "restore", "up")
    return [each for each in commands(TROUBLESHOOTING) if shlex.split(each)[1] not in others]


@pytest.mark.parametrize("command", bus_commands())
def test_the_commands_on_the_troubleshooting_page_are_valid(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.connection.CONNECT_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("reconciler.cli.client.CONNECT_TIMEOUT_SECONDS", 0.1)
    words = shlex.split(command)[1:]
    for name in [word for word in words if word.endswith(".yaml")]:
        (tmp_path / name).write_text(shape("bar"))
    result = InProcessCli(tmp_path).run(*words, "--nats-url", "nats://127.0.0.1:1")
    if command in LOCAL_COMMANDS:
        assert result.status == Exit.OK
        return
    assert result.status == Exit.FAILED
    assert result.err.startswith("error: cannot reach nats://127.0.0.1:1")


# --- the commands of the how-to pages


GUIDES = ("back-up-and-restore", "configure-the-connection", "operate", "plan-and-approve")
COMMANDS_WITHOUT_BUS = ("config", "completion", "permissions", "secrets", "up", "run")
"""Commands that need no bus or start one; other tests run them."""


def parse_bus_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each ``reconciler`` command in a shell command line."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|<>&")
    words.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("|", "<", ">", "&"):
            parts.append([])
        else:
            parts[-1].append(word)
    for part in parts:
        if part[:2] == ["xargs", "reconciler"]:
            yield [*part[2:], "default/Shape/foo"]
        elif part[:1] == ["reconciler"] and part[1] not in COMMANDS_WITHOUT_BUS:
            yield part[1:]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_commands_in_a_guide_are_valid(
    guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.connection.CONNECT_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("reconciler.cli.client.CONNECT_TIMEOUT_SECONDS", 0.1)
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes/bar.yaml").write_text(shape("bar"))
    page = DOCS / f"how-to/{guide}.md"
    lines = [
        line.partition(" | ")[0] for block in blocks(page, "sh") for line in block.splitlines()
    ]
    command_lines = [words for line in lines for words in parse_bus_commands(line)]
    assert command_lines
    for words in command_lines:
        for name in [word for word in words if word.endswith((".yaml", ".json"))]:
            (tmp_path / name).write_text(shape("bar"))
        url_option = [] if "--nats-url" in words else ["--nats-url", "nats://127.0.0.1:1"]
        result = InProcessCli(tmp_path).run(*words, *url_option)
        assert result.status == Exit.FAILED, (words, result)
        assert "--help`)" not in result.err, (words, result)
