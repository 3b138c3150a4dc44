"""Backup and restore, each as a user that has only the required permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.bus.permission_files import User, server_configuration
from infra.embedded import EmbeddedServer
from infra.jetstream.access import Access
from reconciler.sdk import connect
from tests.cli.runner import CommandResult, InProcessCli
from tests.security.guarded import Guarded, shape
from tests.security.keys import Pair

Run = Callable[..., CommandResult]
USERS = (
    User("restore", "restore"),
    User("backup", "backup"),
    User("installer", "installer"),
    User("operator", "operator"),
    User("acme", "service", namespace="acme"),
)


def violations(server: EmbeddedServer) -> list[str]:
    log = (server.data_dir / "nats.log").read_text()
    return [line for line in log.splitlines() if "Violation" in line]


@pytest.fixture
def empty_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """Run a server without a log that accepts only these users."""
    users_with_keys: list[User] = []
    for user in USERS:
        pair = Pair.of_user()
        pair.write(tmp_path / f"{user.name}.nk")
        users_with_keys.append(User(user.name, user.principal, pair.public, user.namespace))
    server = EmbeddedServer()
    configuration = server_configuration(users_with_keys)
    asyncio.run(server.start(tmp_path / "empty", extra_config=configuration))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def run_as(empty_server: EmbeddedServer, tmp_path: Path) -> Run:
    """Run a command on the empty server as one of its users."""

    def run(user: str, *arguments: str) -> CommandResult:
        key = str(tmp_path / f"{user}.nk")
        return InProcessCli(tmp_path).run(*arguments, "--nkey", key, "--nats-url", empty_server.url)

    return run


@pytest.fixture
def backup_file(guarded: Guarded, tmp_path: Path, name: str) -> str:
    """Back up the running reconciler as the backup user; return the path."""
    asyncio.run(_declare(guarded, name))
    violations_before = guarded.violations()
    key = str(guarded.key("backup"))
    file = str(tmp_path / "monday.backup")
    result = InProcessCli(tmp_path).run(
        "backup", file, "--nkey", key, "--nats-url", guarded.bus.url
    )
    assert result.status == 0, result
    assert guarded.violations() == violations_before
    return file


async def _declare(guarded: Guarded, name: str) -> None:
    async with guarded.sdk_as("acme") as client:
        await client.declare(shape("acme", name))
        await client.wait_for(f"acme/Shape/{name}", generation=1)


def test_a_backup_is_restored_to_an_empty_server_without_denials(
    backup_file: str, run_as: Run, empty_server: EmbeddedServer, name: str
) -> None:
    result = run_as("restore", "restore", backup_file)
    assert result.status == 0, result
    assert run_as("restore", "restore", backup_file).out.endswith("nothing was changed\n")
    history = run_as("operator", "history", f"acme/Shape/{name}", "-o", "json").json
    assert " is Converged" in history[-1]["what"]
    assert run_as("backup", "backup", f"{backup_file}.again").status == 0
    assert violations(empty_server) == []


def test_a_restored_service_reads_its_outcomes_from_the_beginning(
    backup_file: str, run_as: Run, empty_server: EmbeddedServer, tmp_path: Path, name: str
) -> None:
    """Its consumers were deleted with the log, and a service cannot create any."""
    assert run_as("restore", "restore", backup_file).status == 0

    async def first_outcome() -> str:
        access = Access(nkey=tmp_path / "acme.nk")
        async with (
            connect(empty_server.url, source="acme", access=access) as client,
            client.outcomes("acme", durable="acme") as outcomes,
            asyncio.timeout(10),
        ):
            async for outcome in outcomes:
                if outcome.key.name == name:
                    return outcome.outcome
        raise AssertionError("no outcome")

    assert asyncio.run(first_outcome()) == "Converged"
    # A service may not read the log's format, but its client tries to once.
    assert [
        line for line in violations(empty_server) if "$JS.API.STREAM.INFO.LOG_1" not in line
    ] == []


def test_the_restore_role_cannot_replace_a_log(
    backup_file: str, run_as: Run, empty_server: EmbeddedServer, tmp_path: Path
) -> None:
    assert run_as("installer", "init").status == 0
    result = run_as("restore", "restore", backup_file)
    assert (result.status, result.out) == (1, "")
    bus, lines = result.err.splitlines()
    assert bus.startswith("bus: ")
    assert "permission denied: user" in lines
    assert violations(empty_server) != []
    assert run_as("operator", "get", "-A").err == "no resources\n"
    assert run_as("installer", "init").status == 0  # nothing was partially restored
    assert not list(tmp_path.glob("*.partial"))


def test_the_backup_role_cannot_restore(backup_file: str, run_as: Run) -> None:
    result = run_as("backup", "restore", backup_file)
    assert (result.status, result.out) == (1, "")
    assert "permission denied: user" in result.err
    assert "no event log yet" in run_as("operator", "get").err


def test_the_restore_role_is_printed_only_when_it_is_named(tmp_path: Path) -> None:
    all_permissions = InProcessCli(tmp_path).ok("permissions").out
    assert "# backup, backup:" in all_permissions
    assert "# restore, restore:" not in all_permissions
    assert "# restore, restore:" in InProcessCli(tmp_path).ok("permissions", "restore").out
