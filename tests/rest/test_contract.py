"""The contract suite for real APIs, driven only by the manifests in ``examples/kinds``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from events.manifest import Fields
from events.provider_config import Limits, ProviderConfigSpec
from reconciler.errors import RefusedError
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import Connect, ProviderContract
from reconciler.provider.http_faults import HttpFaultContract, Proxy, build_response
from reconciler.provider.secrets import Secrets
from tests.rest.kinds import example
from tests.rest.servers import API_KEY


class TestFigure(ProviderContract, HttpFaultContract):
    """The shapes API: it supports everything that the kind's own provider does."""

    kind = example("figure")
    fields: ClassVar[Fields] = {"type": "Square", "color": "Red"}
    other_fields: ClassVar[Fields] = {"type": "Square", "color": "Blue"}
    refused_fields: ClassVar[Fields] = {"color": "Invisible"}

    @pytest.fixture
    def endpoint(self, shapes_url: str) -> str:
        return shapes_url


class _KeyProxy(Proxy):
    """Adds the API's key to requests without one."""

    async def _forward(self, head: str, body: bytes) -> bytes:
        key = "" if "x-api-key" in head.lower() else f"\r\nX-API-Key: {API_KEY}"
        return await super()._forward(head + key, body)


class TestAddress(ProviderContract, HttpFaultContract):
    """PowerDNS: no create-only, no ids, no versions; a comment holds the owner."""

    kind = example("address")
    fields: ClassVar[Fields] = {"addresses": ["192.0.2.2", "192.0.2.1"]}
    other_fields: ClassVar[Fields] = {"addresses": ["192.0.2.3"], "ttl": 60}
    refused_fields: ClassVar[Fields] = {"records": [{"content": "nowhere", "disabled": False}]}
    secret_header = "x-api-key: s3cr3t"

    @pytest.fixture
    def endpoint(self, zone_url: str) -> str:
        return zone_url

    @pytest_asyncio.fixture
    async def proxy(self, endpoint: str) -> AsyncIterator[Proxy]:
        async with _KeyProxy(endpoint) as running:
            yield running

    @pytest_asyncio.fixture
    async def connect(self) -> AsyncIterator[Connect]:
        """Build providers with the API's key, which all requests need."""
        built: list[Provider] = []

        def build(
            endpoint: str, *, timeout_seconds: float = 10, secret: str | None = None
        ) -> Provider:
            assert self.kind.connect is not None
            limits = Limits(request_timeout_seconds=timeout_seconds)
            config = ProviderConfigSpec(self.kind.provider, endpoint, limits=limits)
            built.append(self.kind.connect(config, Secrets(secret or API_KEY), CallPermit()))
            return built[-1]

        yield build
        for provider in built:
            await provider.close()


class HostProxy(Proxy):
    """Sets the API's own host name, because Caddy accepts no other."""

    async def _forward(self, head: str, body: bytes) -> bytes:
        host = urlsplit(self.upstream).netloc
        lines = [
            f"Host: {host}" if line.lower().startswith("host:") else line
            for line in head.split("\r\n")
        ]
        return await super()._forward("\r\n".join(lines), body)


class TestWebRoute(ProviderContract, HttpFaultContract):
    """Caddy: names unique by @id, an ETag per object; a handler holds the owner."""

    kind = example("web-route")
    fields: ClassVar[Fields] = {"paths": ["/a/*"], "upstreams": ["127.0.0.1:9"]}
    other_fields: ClassVar[Fields] = {"paths": ["/b/*", "/c"], "upstreams": ["127.0.0.1:10"]}
    refused_fields: ClassVar[Fields] = {"handle": [{"handler": "no_such_handler"}]}

    @pytest.fixture
    def endpoint(self, caddy_url: str) -> str:
        return caddy_url

    @pytest_asyncio.fixture
    async def proxy(self, endpoint: str) -> AsyncIterator[Proxy]:
        async with HostProxy(endpoint) as running:
            yield running

    @pytest.fixture(autouse=True)
    def no_routes(self, caddy_url: str) -> None:
        """Remove the routes of other cases, because each change reloads all routes."""
        routes = f"{caddy_url}/config/apps/http/servers/main/routes"
        httpx.patch(routes, json=[]).raise_for_status()

    async def test_a_configuration_that_was_rolled_back_is_refused(
        self, proxied: Provider, proxy: Proxy, name: str
    ) -> None:
        proxy.exempt_methods = ("GET",)
        proxy.plan.append(build_response(500, '{"error": "loading new config: unknown module"}'))
        with pytest.raises(RefusedError, match="unknown module"):
            await proxied.create(self.action("Create", name, self.fields))
