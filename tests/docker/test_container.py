"""The whole reconciler on a server that the product did not start."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import msgspec
import pytest

from events.intake import Declared
from events.log import LogEvent, OutcomeRecorded
from events.manifest import RECONCILER_API_VERSION, Manifest, Metadata
from events.names import SYSTEM_NAMESPACE
from events.provider_config import PROVIDER_CONFIG_KIND, ProviderConfigSpec
from infra.bus.streams import ensure_topology
from infra.jetstream.connection import OLDEST_SERVER, require_jetstream
from reconciler.ports import IntakeMessageOut
from reconciler.wiring import ROLES, open_connection, run_roles
from tests.faulty_api import FaultyApi

if TYPE_CHECKING:
    from testcontainers.community.nats import NatsContainer

pytestmark = [
    pytest.mark.docker,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:testcontainers"),  # from its own module
]

CONVERGED_SECONDS = 20.0


@pytest.fixture
async def shapes_url(tmp_path: Path) -> AsyncIterator[str]:
    process = FaultyApi()
    yield await process.start(tmp_path / "shapes")
    await process.stop()


def _declaration(manifest: Manifest) -> IntakeMessageOut:
    return IntakeMessageOut("desired", manifest.key, Declared(manifest), uuid.uuid4().hex)


async def test_a_resource_converges_on_a_server_in_a_container(
    nats_container: NatsContainer, shapes_url: str
) -> None:
    config = Manifest(
        RECONCILER_API_VERSION,
        PROVIDER_CONFIG_KIND,
        Metadata("default", SYSTEM_NAMESPACE),
        msgspec.to_builtins(ProviderConfigSpec(provider="shapes", endpoint=shapes_url)),
    )
    shape = Manifest("shapes/v1", "Shape", Metadata("one"), {"type": "Circle", "color": "Green"})
    converged = asyncio.Event()

    def on_event(_position: int, event: LogEvent) -> None:
        data = event.data
        if event.subject == str(shape.key) and isinstance(data, OutcomeRecorded):
            converged.set() if data.outcome == "Converged" else converged.clear()

    async with open_connection(nats_container.nats_uri()) as nc:
        version = await require_jetstream(nc)
        assert (version.major, version.minor) >= OLDEST_SERVER
        first = await ensure_topology(nc)
        assert set(first.changes.values()) == {"created"}
        second = await ensure_topology(nc)
        assert set(second.changes.values()) == {"unchanged"}
        assert second.log_id == first.log_id
        async with run_roles(nc, ROLES) as parts:
            parts.feed.subscribe(on_event)
            await parts.intake.publish([_declaration(config), _declaration(shape)])
            await asyncio.wait_for(converged.wait(), CONVERGED_SECONDS)
        async with httpx.AsyncClient(base_url=shapes_url) as api:
            created_shape = (await api.get("/shapes/one")).raise_for_status().json()
    assert (created_shape["type"], created_shape["color"]) == ("Circle", "Green")
