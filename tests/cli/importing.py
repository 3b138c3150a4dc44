"""Commands that list their imports, and modules that most commands must not import."""

from __future__ import annotations

from tests.cli.runner import Cli

OPTIONAL_LIBRARIES = {
    *("acme", "cel", "cryptography", "dulwich", "psycopg", "semantic_version", "urllib3"),
    *("aiohttp.client", "eventsourcing", "httpx", "starlette", "uvicorn", "yaml"),
}
"""Libraries that only some kinds, commands and processes use."""

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
"""Modules that are used only with a ProviderConfig of their provider."""

DECIDER = {
    "reconciler.resource.decide",
    "reconciler.roles.decider.decider",
    "reconciler.roles.planning.foresight",
}


class ImportListingCli(Cli):
    """Runs commands that list on standard error what they import."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPROFILEIMPORTTIME": "1"}


def read_imports(err: str) -> set[str]:
    """Return the modules that were imported, and the skipped ones that were looked up."""
    lines = (line for line in err.splitlines() if line.startswith("import time:"))
    modules = {line.rpartition("|")[2].strip() for line in lines}
    assert "reconciler.cli.main" in modules
    return modules
