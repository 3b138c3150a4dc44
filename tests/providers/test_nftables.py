"""The provider contract, for the `Service` kind in a real namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address
from itertools import count
from typing import ClassVar

import msgspec
import pytest

from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields
from infra.providers.nftables.service import SERVICE
from reconciler.errors import ConflictError
from reconciler.provider import Provider
from reconciler.provider.contract import ProviderContract
from tests.nftables import Namespace, namespace

pytestmark = pytest.mark.nftables


@pytest.fixture(scope="module")
def network_namespace() -> Iterator[Namespace]:
    with namespace() as created_namespace:
        yield created_namespace


class TestServices(ProviderContract):
    kind = SERVICE
    fields: ClassVar[Fields] = {
        "port": 80,
        "backends": [
            {"address": "10.0.0.10", "port": 80},
            {"address": "10.0.0.9", "port": 8080},
            {"address": "10.0.0.10", "port": 80},
        ],
    }
    other_fields: ClassVar[Fields] = {
        "port": 53,
        "protocol": "udp",
        "backends": [],
        "balance": "SourceAddress",
        "masquerade": False,
    }

    addresses: ClassVar[dict[str, str]] = {}
    numbers: ClassVar[Iterator[int]] = count(int(IPv4Address("198.18.0.0")))

    @pytest.fixture
    def endpoint(self, network_namespace: Namespace) -> str:
        return network_namespace.endpoint()

    def action(self, operation: Operation, name: str, fields: Fields | None = None) -> Action:
        """Give each name its own virtual address, because no two services can share one."""
        return super().action(operation, name, self._with_address(name, fields))

    async def refused_create(self, provider: Provider, name: str) -> Action:
        """Create a service with the address and port of another service."""
        other_action = self.action("Create", f"other-{name}", self.fields)
        with suppress(ConflictError):
            await provider.create(other_action)
        create = self.action("Create", name, self.fields)
        return msgspec.structs.replace(create, fields=other_action.fields)

    def is_as_declared(self, observed: ExternalObject | None, fields: Fields) -> bool:
        return observed is not None and super().is_as_declared(
            observed, self._with_address(observed.name, fields) or {}
        )

    def _with_address(self, name: str, fields: Fields | None) -> Fields | None:
        if fields is None:
            return None
        if name not in self.addresses:
            self.addresses[name] = str(IPv4Address(next(self.numbers)))
        return {"address": self.addresses[name], **fields}
