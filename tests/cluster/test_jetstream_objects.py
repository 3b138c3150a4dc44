"""JetStream's own objects in a cluster: replicas change in place, and an outage is no deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from nats.aio.client import Client

from events.external import ExternalObject
from events.manifest import Fields
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.jetstream.connection import close, connect
from infra.providers.jetstream.bucket import BUCKET
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.errors import NotDoneError, ProviderError
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action, listing
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets
from tests.cluster.servers import EmbeddedCluster, leader
from tests.providers.connect import action_on

_T = TypeVar("_T")

KINDS = {kind.name: kind for kind in (STREAM, BUCKET, CONSUMER)}
FIELDS: dict[str, Fields] = {"Stream": {"subjects": ["s.>"]}, "Bucket": {}, "Consumer": {}}
NAMES = {"Stream": "S", "Bucket": "b", "Consumer": "S/c"}


@pytest.fixture
async def providers(cluster: EmbeddedCluster) -> AsyncIterator[dict[str, Provider]]:
    config = ProviderConfigSpec(
        provider="jetstream", endpoint=cluster.url, limits=Limits(request_timeout_seconds=3)
    )

    def build_provider(kind: Kind) -> Provider:
        assert kind.connect is not None
        return kind.connect(config, Secrets(), CallPermit())

    providers_by_kind = {kind.name: build_provider(kind) for kind in KINDS.values()}
    yield providers_by_kind
    for each in providers_by_kind.values():
        await each.close()


@pytest.fixture
async def nc(cluster: EmbeddedCluster) -> AsyncIterator[Client]:
    client = await connect(cluster.url, name="test")
    yield client
    await close(client)


async def retry_call(call: Callable[[], Awaitable[_T]]) -> _T:
    """Retry a call until it succeeds, because leaders are being elected."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except ProviderError:
                await asyncio.sleep(0.2)


async def create(provider: Provider, kind: str, replicas: int) -> ExternalObject:
    fields = KINDS[kind].check_fields({**FIELDS[kind], "replicas": replicas})
    effect = await retry_call(lambda: provider.create(action("Create", NAMES[kind], fields)))
    assert effect.object is not None
    return effect.object


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Stream", "Bucket", "Consumer"])
async def test_the_number_of_replicas_changes_in_place(
    providers: dict[str, Provider], kind: str
) -> None:
    if kind == "Consumer":
        await create(providers["Stream"], "Stream", 3)
    created_object = await create(providers[kind], kind, 1)
    for replicas in (3, 1):
        fields = KINDS[kind].check_fields({**FIELDS[kind], "replicas": replicas})
        changed = (await providers[kind].update(action_on("Update", created_object, fields))).object
        assert changed is not None
        assert (changed.uid, changed.fields) == (created_object.uid, fields)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_an_object_on_an_unreachable_node_is_not_absent(
    cluster: EmbeddedCluster, providers: dict[str, Provider], nc: Client
) -> None:
    created_object = await create(providers["Stream"], "Stream", 1)
    consumer = await create(providers["Consumer"], "Consumer", 0)
    leader_name = await leader(nc, NAMES["Stream"])
    assert leader_name is not None
    await cluster.nodes[leader_name].kill()

    for kind in ("Stream", "Consumer"):
        with pytest.raises(NotDoneError):
            await providers[kind].read(NAMES[kind])
        with pytest.raises(NotDoneError):
            await listing(providers[kind], Scope())

    await cluster.start_node(leader_name)
    for kind, previous_object in (("Stream", created_object), ("Consumer", consumer)):
        assert await retry_call(lambda kind=kind: listing(providers[kind], Scope())) == [
            previous_object
        ]
