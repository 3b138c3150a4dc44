"""The provider contract, for certificates from our own authority and a real ACME authority."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from events.manifest import Fields
from infra.components.certificates import Certificates
from infra.providers.certificates.certificate import CERTIFICATE
from infra.providers.certificates.issuer import ISSUER
from reconciler.provider.contract import ProviderContract
from tests.certificates import OWN_CA, acme, create_issuer, create_root, trust
from tests.host_access import EVERYTHING


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return create_root(tmp_path)


class TestIssuers(ProviderContract):
    kind = ISSUER
    fields: ClassVar[Fields] = OWN_CA
    other_fields: ClassVar[Fields] = {"ownCa": {"commonName": "Orders Root", "duration": "365d"}}
    never_refused = "creating a private CA calls no external API"

    @pytest.fixture
    def endpoint(self, root: Path) -> str:
        return root.as_uri()


class TestCertificates(ProviderContract):
    kind = CERTIFICATE
    fields: ClassVar[Fields] = {"issuer": "own", "dnsNames": ["Orders.test", "a.test"]}
    other_fields: ClassVar[Fields] = {
        "issuer": "own",
        "dnsNames": ["orders.test"],
        "ipAddresses": ["127.0.0.1", "0:0::1"],
        "keyAlgorithm": "ECDSA-P384",
        "duration": "48h",
        "renewBefore": "1h",
    }
    refused_fields: ClassVar[Fields] = {"issuer": "no-such-issuer"}

    @pytest.fixture
    async def endpoint(self, root: Path, name: str) -> str:
        await create_issuer(root, "own", OWN_CA)
        return root.as_uri()


@pytest.mark.pebble
class TestAcmeAccounts(ProviderContract):
    kind = ISSUER
    allow = EVERYTHING

    @pytest.fixture(autouse=True)
    def specs(self, pebble: Certificates) -> None:
        type(self).fields = acme(pebble)
        type(self).other_fields = acme(pebble, email="ops@example.test")
        type(self).refused_fields = acme(pebble, caFile="no-such-file.pem")

    @pytest.fixture
    def endpoint(self, root: Path, pebble: Certificates) -> str:
        trust(pebble, root)
        return root.as_uri()


@pytest.mark.pebble
class TestAcmeCertificates(ProviderContract):
    kind = CERTIFICATE
    allow = EVERYTHING
    fields: ClassVar[Fields] = {"issuer": "pebble", "dnsNames": ["orders.test"]}
    other_fields: ClassVar[Fields] = {"issuer": "pebble", "ipAddresses": ["127.0.0.1"]}
    refused_fields: ClassVar[Fields] = {"dnsNames": ["*.orders.test"]}

    @pytest.fixture
    async def endpoint(self, root: Path, pebble: Certificates) -> str:
        trust(pebble, root)
        await create_issuer(root, "pebble", acme(pebble))
        return root.as_uri()
