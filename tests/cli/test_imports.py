"""A command imports what it uses: what starting one costs is mostly imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runner import Cli, Up, up

HEAVY = ("aiohttp", "click", "eventsourcing", "httpx", "pygments", "typing_extensions")
IMPORTED = """
import sys
from reconciler.cli.main import main
main([{command!r}, "--help"])
print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)
"""
OTHERS = {
    *("acme", "cel", "cryptography", "dulwich", "psycopg", "semantic_version", "urllib3"),
    *("aiohttp.client", "eventsourcing", "httpx", "starlette", "uvicorn", "yaml"),
}
"""Libraries of certain kinds, commands and processes."""

PROVIDERS = {
    "infra.providers.caddy.routes",
    "infra.providers.certificates.certificates",
    "infra.providers.certificates.issuers",
    "infra.providers.composition.provider",
    "infra.providers.docker.containers",
    "infra.providers.docker.engine",
    "infra.providers.docker.volumes",
    "infra.providers.git.sources",
    "infra.providers.nftables.services",
    "infra.providers.postgres.server",
}
"""What only those use who have a ProviderConfig of theirs."""

DECIDER = {"reconciler.resource.decide", "reconciler.roles.decider", "reconciler.roles.foresight"}


class Listing(Cli):
    """Runs commands that list on standard error what they import."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPROFILEIMPORTTIME": "1"}


def imported(err: str) -> set[str]:
    """Return what was imported, or looked for and not found, as a spared package is."""
    lines = (line for line in err.splitlines() if line.startswith("import time:"))
    found = {line.rpartition("|")[2].strip() for line in lines}
    assert "reconciler.cli.main" in found
    return found


@pytest.mark.parametrize("command", ["apply", "get", "up", "watch"])
def test_a_command_does_not_import_what_it_does_not_use(command: str) -> None:
    code = IMPORTED.format(command=command, heavy=HEAVY)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.split() == []


def test_a_start_imports_what_it_starts_and_no_more(
    running_up: tuple[Cli, Up], tmp_path: Path
) -> None:
    url = running_up[1].ready["natsUrl"]
    with up(Listing(tmp_path), "--no-api", "--nats-url", url, "--roles", "projector") as running:
        status, err = running.stop()
    assert status == 0
    servers = {"infra.embedded.server", "infra.example_api.server"}
    assert imported(err) & {*OTHERS, *PROVIDERS, *servers, "rich.console"} == set()


def test_looking_imports_no_decider_and_no_kind(running_up: tuple[Cli, Up]) -> None:
    err = Listing(running_up[0].folder).ok("get").err
    assert imported(err) & {*OTHERS, *DECIDER, "infra.providers", "rich.progress"} == set()


def test_declaring_imports_no_decider_and_no_provider(live: Cli, unique: str) -> None:
    text = f"{{apiVersion: shapes/v1, kind: Shape, metadata: {{name: {unique.lower()}}}, "
    text += "spec: {type: Square, color: Red}}"
    err = Listing(live.folder).ok("apply", "-f", "-", text=text).err
    assert imported(err) & {*OTHERS, *DECIDER, *PROVIDERS, "rich.progress"} == {"yaml"}


def test_who_uses_a_spared_package_finds_it() -> None:
    code = "import nats.aio.transport, aiohttp; assert aiohttp.ClientSession"
    setup = "from reconciler.cli.spared_imports import import_without_spared as f; f(); "
    subprocess.run([sys.executable, "-c", setup + code], check=True)


def test_who_prints_nothing_for_people_needs_nothing_for_it() -> None:
    code = "import sys; from reconciler.cli.spared_imports import import_without_spared as f; f(); "
    code += "import reconciler.cli.app, reconciler.cli.up; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
