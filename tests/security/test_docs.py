"""The security page agrees with the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from events.provider_config import Tls
from infra.bus.permission_files import User, server_configuration
from infra.bus.permissions import PRINCIPALS, Principal, principal_permissions, service_permissions
from infra.jetstream.access import VARIABLE_PREFIX, Access
from tests.cli.runner import Cli, InProcessCli

KEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def _row(principal: Principal) -> list[str]:
    table = PAGE[PAGE.index("<!-- roles -->") :]
    (line,) = [line for line in table.splitlines() if line.startswith(f"| `{principal}` |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("principal", PRINCIPALS)
def test_the_table_names_every_subject_that_a_role_may_publish_to(principal: Principal) -> None:
    if principal == "service":
        published = service_permissions("namespace", ["user"]).publish
    else:
        published = principal_permissions(principal, ["user"]).publish
    messages = {each for each in published if not each.startswith(("$JS.", "$SYS."))}
    documented = set(re.findall(r"`([^`]+)`", _row(principal)[2]))
    assert {re.sub("<([a-z]+)>", r"\1", each) for each in documented} == messages


def test_every_option_and_variable_is_documented() -> None:
    for each in fields(Access):
        assert f"`--{each.name.replace('_', '-')}`" in PAGE
        assert f"`{VARIABLE_PREFIX}{each.name.upper()}`" in PAGE
    for name in ("caFile", "certificateFile", "keyFile"):
        assert f"{name}:" in PAGE
    assert len(Tls.__struct_fields__) == 3


def test_the_commands_on_the_page_print_the_output_shown(tmp_path: Path) -> None:
    cli: Cli = InProcessCli(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "reconciler" in line]
    assert len(lines) == 4
    for line in lines:
        result = cli.run(*line.split(" > ")[0].split()[1:])
        assert result.status == 0, result
        assert "RECONCILER" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("service",), "missing option --namespace, which a service requires"),
        (("worker", "--namespace", "a"), "--namespace: allowed only for a service"),
        (("--namespace", "system"), "namespace 'system': not allowed for a service"),
        (("--namespace", "a.b"), "is not allowed"),
        (("worker", "--key", "worker=SUAxyz"), "is not a user's public nkey"),
        (("worker", "--key", "decider=U"), "--key: unknown user decider"),
        (("--namespace", "worker"), "a service cannot be named worker"),
        (("--user", "ann"), "--user: requires a PRINCIPAL"),
        (("worker", "--finalizers"), "--finalizers: allowed only for services"),
        (("worker", "--provider-config", "a"), "--provider-config: allowed only for services"),
        (("--namespace", "a", "--provider-config", "*"), "is not allowed"),
        (("--key", f"worker={KEY}", "--key", f"decider={KEY}"), "give each user exactly one key"),
        (
            ("--key", f"worker={KEY}", "--key", f"worker={KEY[:-1]}5"),
            "give each user exactly one key",
        ),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    result = InProcessCli(tmp_path).run("permissions", *arguments)
    assert result.status == 2
    assert expected in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_missing_keys_are_printed_as_placeholders() -> None:
    text = server_configuration([User("worker", "worker")])
    assert 'nkey: "PUT-THE-PUBLIC-KEY-HERE-OF-worker"' in text
