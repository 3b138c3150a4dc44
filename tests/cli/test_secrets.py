"""The `reconciler secrets` commands, which need no server and never print values."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.runner import COMMAND, Cli, CommandResult, InProcessCli

VALUE = "planted-value-7f3a"
DIRECTORY = Path("reconciler-data") / "secrets"


@pytest.fixture
def own_cli(tmp_path: Path) -> Cli:
    (tmp_path / DIRECTORY.parent).mkdir()
    return InProcessCli(tmp_path)


def check_hidden(result: CommandResult) -> CommandResult:
    assert VALUE not in result.out + result.err
    return result


def test_a_secret_is_set_listed_granted_revoked_and_removed(own_cli: Cli) -> None:
    own_cli.write("password.txt", f"{VALUE}\n")
    stored = check_hidden(
        own_cli.ok("secrets", "set", "db", "-n", "billing", "--from-file", "password.txt")
    )
    assert stored.out == "secret billing/db stored\n"
    file = own_cli.folder / DIRECTORY / "billing" / "db"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (VALUE, 0o600)
    replaced = check_hidden(
        own_cli.ok("secrets", "set", "db", "-n", "billing", text=f"{VALUE}-2\n")
    )
    assert replaced.out == "secret billing/db replaced\n"
    assert file.read_text() == f"{VALUE}-2"

    granted = own_cli.ok(
        "secrets", "grant", "db", "-n", "billing", "--to", "shop", "-o", "json"
    ).json
    assert granted == {
        "namespace": "billing",
        "name": "db",
        "grantedTo": ["shop"],
        "change": "granted to shop",
    }
    check_hidden(own_cli.ok("secrets", "set", "other", text=VALUE))
    listed = check_hidden(own_cli.ok("secrets", "list"))
    assert listed.rows == [["billing", "db", "shop"], ["default", "other"]]
    [secret] = check_hidden(own_cli.ok("secrets", "list", "-n", "billing", "--output", "json")).json
    assert (secret["name"], secret["grantedTo"]) == ("db", ["shop"])

    refused = own_cli.run("secrets", "remove", "db", "-n", "billing")
    assert (refused.status, "is granted to shop; add --yes" in refused.err) == (1, True)
    own_cli.ok("secrets", "revoke", "db", "-n", "billing", "--to", "shop")
    own_cli.ok("secrets", "remove", "db", "-n", "billing")
    own_cli.ok("secrets", "grant", "other", "--to", "shop")
    own_cli.ok("secrets", "remove", "other", "--yes")
    assert own_cli.ok("secrets", "list").out == "no secrets\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("set ../x", "is not a valid secret name"),
        ("set a/b", "is not a valid secret name"),
        ("set db -n a.b", "namespace 'a.b' is not allowed"),
        ("grant db --to default", "already belongs to this namespace"),
        ("grant db --to shop", "secret default/db does not exist"),
        ("revoke db --to shop", "is not granted to shop"),
        ("remove db", "secret default/db does not exist"),
    ],
)
def test_a_failing_command_reports_the_reason(own_cli: Cli, command: str, message: str) -> None:
    result = check_hidden(own_cli.run("secrets", *command.split(), text=VALUE))
    assert result.status != 0
    assert message in result.err
    assert not list((own_cli.folder / DIRECTORY).glob("*/*"))


def test_an_empty_or_binary_value_is_refused(own_cli: Cli) -> None:
    (own_cli.folder / "binary").write_bytes(b"\xff\xfe")
    for arguments in (("--from-file", "binary"), ()):
        result = own_cli.run("secrets", "set", "db", *arguments, text="")
        assert (result.status, "the value of secret default/db is" in result.err) == (2, True)


def test_a_value_that_is_too_short_to_be_hidden_causes_a_warning(own_cli: Cli) -> None:
    assert "cannot hide it" in own_cli.ok("secrets", "set", "pin", text="1234").err
    assert not own_cli.ok("secrets", "set", "pin", text="123456").err


def test_the_directory_option_is_required_without_a_data_directory(tmp_path: Path) -> None:
    cli = InProcessCli(tmp_path)
    unknown = cli.run("secrets", "list")
    assert (unknown.status, "pass --directory" in unknown.err) == (2, True)
    named = str(cli.folder / "named")
    cli.ok("secrets", "set", "db", "--directory", named, text=VALUE)
    assert cli.run("secrets", "list", RECONCILER_SECRETS=named).rows == [["default", "db"]]


def test_the_value_is_prompted_for_and_not_echoed(own_cli: Cli) -> None:
    own_end, process_end = pty.openpty()
    with os.fdopen(own_end, "wb", buffering=0) as keyboard:
        process = subprocess.Popen(
            [*COMMAND, "secrets", "set", "db"],
            cwd=own_cli.folder,
            env=own_cli.environment(),
            stdin=process_end,
            stdout=process_end,
            stderr=process_end,
            start_new_session=True,
        )
        output = os.read(own_end, 1000)
        assert b"Value of secret default/db:" in output
        keyboard.write(f"{VALUE}\n".encode())
        assert process.wait(60) == 0
        output += os.read(own_end, 1000)
    os.close(process_end)
    assert VALUE.encode() not in output
    assert (own_cli.folder / DIRECTORY / "default" / "db").read_text() == VALUE
