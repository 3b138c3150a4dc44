"""A reconciler with a user for each principal, on a server with the printed permissions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.client import Client

from events.manifest import Manifest, Metadata
from infra.bus.permission_files import User, server_configuration
from infra.bus.permissions import PRINCIPALS
from infra.embedded import EmbeddedServer
from infra.jetstream.access import Access
from infra.jetstream.connection import connect as connect_to_bus
from reconciler.sdk import Client as Sdk
from reconciler.sdk import connect
from reconciler.wiring import ROLES as RUNNING_ROLES
from reconciler.wiring import initialize, open_connection, run_roles
from tests.faulty_api import FaultyApi
from tests.security.keys import Pair

NAMESPACES = ("acme", "other", "default")
PATIENCE_SECONDS = 60


@dataclass
class Guarded:
    """The running reconciler, and a key file for each user."""

    folder: Path
    bus: EmbeddedServer = field(default_factory=EmbeddedServer)
    api: FaultyApi = field(default_factory=FaultyApi)
    pairs: dict[str, Pair] = field(default_factory=dict[str, Pair])
    admin_url: str = ""

    def users(self) -> list[User]:
        roles = [
            User(principal, principal, self.pairs[principal].public)
            for principal in PRINCIPALS
            if principal != "service"
        ]
        readable = {"acme": ("default",)}
        return roles + [
            User(
                name,
                "service",
                self.pairs[name].public,
                name,
                provider_configs=readable.get(name, ()),
            )
            for name in NAMESPACES
        ]

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.nk"

    def access(self, name: str) -> Access:
        """Return only a key, from which the client derives the inbox."""
        return Access(nkey=self.key(name))

    async def start(self) -> None:
        for name in (*PRINCIPALS, *NAMESPACES):
            self.pairs[name] = Pair.of_user()
            self.pairs[name].write(self.key(name))
        await self.api.start(self.folder / "api")
        await self.bus.start(self.folder / "nats", extra_config=self.configuration())
        self.admin_url = self.bus.url.replace("//", "//admin:unrestricted@")

    def configuration(self) -> str:
        """Return the printed block, with an unrestricted user who inspects the results."""
        first = 'users: [\n      { user: "admin", password: "unrestricted" }\n'
        return server_configuration(self.users()).replace("users: [\n", first, 1)

    async def stop(self) -> None:
        await self.api.stop()
        await self.bus.stop()

    def violations(self) -> list[str]:
        """Return the denials in the server's log."""
        log = (self.bus.data_dir / "nats.log").read_text()
        return [line for line in log.splitlines() if "Violation" in line]

    @asynccontextmanager
    async def bus_as(self, name: str) -> AsyncGenerator[Client]:
        nc = await connect_to_bus(self.bus.url, name=name, access=self.access(name))
        try:
            yield nc
        finally:
            await nc.close()

    @asynccontextmanager
    async def sdk_as(self, name: str) -> AsyncGenerator[Sdk]:
        async with connect(self.bus.url, source=name, access=self.access(name)) as client:
            yield client

    async def run(self, ready: threading.Event, stop: asyncio.Event) -> None:
        """Run each principal on its own connection."""
        async with AsyncExitStack() as stack:
            async with open_connection(self.bus.url, access=self.access("installer")) as nc:
                await initialize(nc, namespaces=NAMESPACES)
            for principal in RUNNING_ROLES:
                nc = await stack.enter_async_context(
                    open_connection(self.bus.url, access=self.access(principal))
                )
                await stack.enter_async_context(run_roles(nc, (principal,)))
            operator = await stack.enter_async_context(self.sdk_as("operator"))
            await operator.declare(provider_config(self.api.url))
            ready.set()
            await stop.wait()


def provider_config(endpoint: str, **more: object) -> Manifest:
    spec = {"provider": "shapes", "endpoint": endpoint, "resyncSeconds": 0.3, **more}
    return Manifest("reconciler/v1", "ProviderConfig", Metadata("default", "system"), spec)


def shape(namespace: str, name: str, color: str = "Red") -> Manifest:
    return Manifest(
        "shapes/v1", "Shape", Metadata(name, namespace), {"type": "Square", "color": color}
    )
