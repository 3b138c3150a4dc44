"""Commands that list what they import, and what most of them should not."""

from __future__ import annotations

from tests.cli.runner import Cli

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

DECIDER = {
    "reconciler.resource.decide",
    "reconciler.roles.decider.decider",
    "reconciler.roles.planning.foresight",
}


class Listing(Cli):
    """Runs commands that list on standard error what they import."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPROFILEIMPORTTIME": "1"}


def imported(err: str) -> set[str]:
    """Return what was imported, or looked for and not found, as a skipped package is."""
    lines = (line for line in err.splitlines() if line.startswith("import time:"))
    modules = {line.rpartition("|")[2].strip() for line in lines}
    assert "reconciler.cli.main" in modules
    return modules
