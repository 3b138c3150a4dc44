"""Certificate roots with issuers, and the counts of a test CA."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from events.external import ExternalObject
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from infra.components.certificates import CA_FILE, Certificates
from infra.providers.certificates.issuer import ISSUER
from infra.providers.certificates.issuers import IssuersProvider
from infra.providers.file_root import ROOT_MARKER
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action
from reconciler.provider.secrets import Secrets
from tests.host_access import EVERYTHING

OWN_CA: Fields = {"ownCa": {"commonName": "Orders Root"}}


def create_root(folder: Path) -> Path:
    """Create an empty trusted root."""
    root = folder / "root"
    root.mkdir()
    (root / ROOT_MARKER).touch()
    return root


def acme(pebble: Certificates, directory: str | None = None, **more: object) -> Fields:
    """Return the spec of an account at an ACME CA."""
    return {
        "acme": {
            "directory": directory or pebble.directory,
            "acceptTerms": True,
            "caFile": CA_FILE,
            "http01": {"listen": pebble.http01},
            **more,
        }
    }


@asynccontextmanager
async def connect_issuers(root: Path) -> AsyncGenerator[IssuersProvider]:
    """Connect to the issuers of a root."""
    provider = IssuersProvider(
        ProviderConfigSpec("certificates", root.as_uri(), allow=EVERYTHING), Secrets(), CallPermit()
    )
    yield provider
    await provider.close()


async def create_issuer(root: Path, name: str, fields: Fields) -> ExternalObject:
    """Create an issuer in a root."""
    async with connect_issuers(root) as provider:
        effect = await provider.create(action("Create", name, ISSUER.check_fields(fields)))
    assert effect.object is not None
    return effect.object


def trust(pebble: Certificates, root: Path) -> None:
    """Make a root trust a CA's HTTPS server."""
    (root / CA_FILE).write_bytes((pebble.root / CA_FILE).read_bytes())


def count_issued(pebble: Certificates) -> int:
    """Count the certificates that a CA has issued since it started."""
    return len(re.findall(r"Issued certificate serial", pebble.log.read_text()))


def count_orders(pebble: Certificates) -> int:
    """Count the orders that a CA has accepted."""
    return len(re.findall(r"Added order", pebble.log.read_text()))
