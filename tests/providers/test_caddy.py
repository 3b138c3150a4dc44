"""The provider contract, for routes on a real Caddy server."""

from __future__ import annotations

from typing import ClassVar

import pytest
import trustme

from events.allow import EVERY_PATH, Allow
from events.manifest import Fields
from infra.components.caddy import Caddy
from infra.providers.caddy.route import ROUTE
from reconciler.provider.contract import ProviderContract
from reconciler.provider.http_faults import HttpFaultContract
from tests.caddy import write_certificate

pytestmark = [pytest.mark.caddy]


class TestRoutes(ProviderContract, HttpFaultContract):
    kind = ROUTE
    fields: ClassVar[Fields] = {"hosts": ["a.example.org"], "backends": ["127.0.0.1:9001"]}
    other_fields: ClassVar[Fields] = {
        "hosts": ["A.example.org", "*.example.net"],
        "paths": ["/api/", "/images"],
        "backends": [{"address": "::1", "port": 9002}, "127.0.0.1:9001"],
        "balancing": "least_conn",
        "retrySeconds": 0,
        "healthCheck": {"path": "/health", "intervalSeconds": 60},
    }
    refused_fields: ClassVar[Fields] = {"server": "nowhere"}

    @pytest.fixture
    def endpoint(self, caddy_server: Caddy) -> str:
        return caddy_server.endpoint


class TestRoutesWithTls(ProviderContract):
    kind = ROUTE
    allow = Allow(certificates=(EVERY_PATH,))
    fields: ClassVar[Fields]
    other_fields: ClassVar[Fields]
    refused_fields: ClassVar[Fields] = {
        "tls": {"certificateFile": "/nowhere/tls.crt", "keyFile": "/nowhere/tls.key"}
    }

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Create two certificates from one authority, for the two specs."""
        authority = trustme.CA()
        cls.fields, cls.other_fields = (
            {
                "hosts": [host],
                "backends": ["127.0.0.1:9001"],
                "tls": write_certificate(
                    tmp_path_factory.mktemp("tls"), authority.issue_cert(host)
                ),
            }
            for host in ("a.example.org", "b.example.org")
        )

    @pytest.fixture
    def endpoint(self, caddy_server: Caddy) -> str:
        return caddy_server.endpoint
