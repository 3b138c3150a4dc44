"""The page about security says what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from events.provider_config import Tls
from infra.bus.permission_files import User, server_configuration
from infra.bus.permissions import PRINCIPALS, Principal, principal_permissions, service_permissions
from infra.jetstream.access import VARIABLE_PREFIX, Access
from tests.cli.runner import Cli, Inside

KEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def _row(principal: Principal) -> list[str]:
    table = PAGE[PAGE.index("<!-- roles -->") :]
    (line,) = [line for line in table.splitlines() if line.startswith(f"| `{principal}` |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("principal", PRINCIPALS)
def test_the_table_names_all_that_a_role_may_write(principal: Principal) -> None:
    if principal == "service":
        published = service_permissions("namespace", ["user"]).publish
    else:
        published = principal_permissions(principal, ["user"]).publish
    messages = {each for each in published if not each.startswith(("$JS.", "$SYS."))}
    documented = set(re.findall(r"`([^`]+)`", _row(principal)[2]))
    assert {re.sub("<([a-z]+)>", r"\1", each) for each in documented} == messages


def test_every_option_and_variable_is_there() -> None:
    for each in fields(Access):
        assert f"`--{each.name.replace('_', '-')}`" in PAGE
        assert f"`{VARIABLE_PREFIX}{each.name.upper()}`" in PAGE
    for name in ("caFile", "certificateFile", "keyFile"):
        assert f"{name}:" in PAGE
    assert len(Tls.__struct_fields__) == 3


def test_the_commands_of_the_page_print_the_output_shown(tmp_path: Path) -> None:
    cli: Cli = Inside(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "reconciler" in line]
    assert len(lines) == 4
    for line in lines:
        ran = cli.run(*line.split(" > ")[0].split()[1:])
        assert ran.status == 0, ran
        assert "RECONCILER" in ran.out


@pytest.mark.parametrize(
    ("arguments", "told"),
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
        (("--key", f"worker={KEY}", "--key", f"decider={KEY}"), "give each user exactly one key"),
        (
            ("--key", f"worker={KEY}", "--key", f"worker={KEY[:-1]}5"),
            "give each user exactly one key",
        ),
    ],
)
def test_impossible_options_are_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    ran = Inside(tmp_path).run("permissions", *arguments)
    assert ran.status == 2
    assert told in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_placeholders_that_were_not_filled_in_stand_out() -> None:
    text = server_configuration([User("worker", "worker")])
    assert 'nkey: "PUT-THE-PUBLIC-KEY-HERE-OF-worker"' in text
