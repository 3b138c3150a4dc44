"""JetStream objects on the same server that the reconciler uses: the example in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from events.intake import Withdrawn
from events.log import ActionFailed
from events.manifest import Manifest
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope
from infra.bus.permissions import ALL_STREAMS
from infra.jetstream.connection import api_request
from infra.jetstream.topology import delete_consumer, delete_stream
from infra.providers.jetstream.bucket import BUCKET
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.provider.kind import KindRegistry
from tests.resource.building import every
from tests.scenarios.conftest import bare_world_on_own_server as bare_world
from tests.scenarios.harness import World, api_config

__all__ = ["bare_world"]

PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "jetstream.md"
APPLIED = r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```"
EXAMPLE = [
    msgspec.convert(document, Manifest)
    for block in re.findall(APPLIED, PAGE.read_text(), re.DOTALL)
    for document in yaml.safe_load_all(block)
]
KEYS = [each.key for each in EXAMPLE if each.kind != "ProviderConfig"]
MIN_RESYNC_SECONDS = 0.5


async def configs(world: World) -> dict[str, dict[str, Any]]:
    listed = (await api_request(world.nc, "STREAM.LIST", None))["streams"]
    return {each["config"]["name"]: each["config"] for each in listed}


async def declare_example(world: World, *, exclusive: bool = False) -> None:
    """Declare the page's example on this world's bus, with a resync interval of an hour."""
    world.kinds = KindRegistry([STREAM, CONSUMER, BUCKET])
    await world.start_reconciler()
    (documented_spec,) = (each.spec for each in EXAMPLE if each.kind == "ProviderConfig")
    spec = msgspec.convert({**documented_spec, "endpoint": world.server.url}, ProviderConfigSpec)
    base_config = api_config(
        spec.endpoint, provider=spec.provider, resync=3600, least_resync_seconds=MIN_RESYNC_SECONDS
    )
    scope = Scope(mode="Exclusive" if exclusive else "Shared")
    await world.configure(msgspec.structs.replace(base_config, scope=scope), name="jetstream")
    await world.declare_all([each for each in EXAMPLE if each.kind != "ProviderConfig"])
    for key in KEYS:
        await world.until_outcome(key, "Converged")


async def test_the_pages_example_is_created_and_out_of_band_changes_are_reverted(
    bare_world: World,
) -> None:
    world = bare_world
    await declare_example(world)
    configs_by_name = await configs(world)
    consumer = (await api_request(world.nc, "CONSUMER.INFO.ORDERS.billing", None))["config"]
    assert configs_by_name["ORDERS"]["subjects"] == ["orders.>"]
    assert configs_by_name["KV_sessions"]["max_msgs_per_subject"] == 3
    assert consumer["filter_subjects"] == ["orders.cancelled", "orders.placed"]

    changed = {
        **configs_by_name["ORDERS"],
        "max_bytes": 5_000,
        "subjects": ["orders.>", "others.>"],
    }
    await api_request(world.nc, "STREAM.UPDATE.ORDERS", changed)
    body = {"stream_name": "ORDERS", "config": {**consumer, "max_deliver": 1}, "action": "update"}
    await api_request(world.nc, "CONSUMER.CREATE.ORDERS.billing", body)
    await delete_stream(world.nc, "KV_sessions")

    async def is_as_declared() -> bool:
        stream_configs = await configs(world)
        read = (await api_request(world.nc, "CONSUMER.INFO.ORDERS.billing", None))["config"]
        return (
            stream_configs["ORDERS"]["max_bytes"] == 1_000_000_000
            and stream_configs["ORDERS"]["subjects"] == ["orders.>"]
            and "KV_sessions" in stream_configs
            and read["max_deliver"] == -1
        )

    await world.until(is_as_declared, "everything is as declared, long before the next resync")

    await delete_consumer(world.nc, "ORDERS", "billing")

    async def is_recreated() -> bool:
        names = (await api_request(world.nc, "CONSUMER.NAMES.ORDERS", {}))["consumers"]
        return names == ["billing"]

    await world.until(is_recreated, "the consumer is recreated")


async def test_an_exclusive_scope_deletes_unmanaged_objects_but_keeps_our_streams(
    bare_world: World,
) -> None:
    world = bare_world
    await declare_example(world, exclusive=True)
    configs_before = await configs(world)
    unmanaged_stream = {"name": "UNMANAGED", "subjects": ["unmanaged"]}
    await api_request(world.nc, "STREAM.CREATE.UNMANAGED", unmanaged_stream)

    unmanaged = ResourceKey("default", "Stream", "UNMANAGED")
    await world.until_outcome(unmanaged, "Degraded", reason="AwaitingRead")
    # The deletion waits for another listing, which the outcome causes within the hour.

    async def is_deleted() -> bool:
        return "UNMANAGED" not in await configs(world)

    await world.until(is_deleted, "the undeclared object is deleted")
    configs_after = await configs(world)
    assert {name: configs_after[name] for name in ALL_STREAMS} == {
        name: configs_before[name] for name in ALL_STREAMS
    }
    assert set(configs_after) == {*ALL_STREAMS, "ORDERS", "KV_sessions"}
    for stream in ALL_STREAMS:
        key = ResourceKey("default", "Stream", stream)
        assert await world.outcomes(key) == []


async def test_data_that_is_newer_than_the_last_listing_is_not_lost_without_approval(
    bare_world: World,
) -> None:
    """Messages cause no advisory, so the next listing is an hour away."""
    world = bare_world
    await declare_example(world)
    for subject in ("orders.placed", "$KV.sessions.user"):
        assert (await world.nc.request(subject, b"1")).data, "the server has stored it"
    stream, consumer, bucket = KEYS
    declared = {each.key: each for each in EXAMPLE}[stream]
    smaller = msgspec.structs.replace(declared, spec={**declared.spec, "maxMessages": 1})

    await world.declare_all([smaller])
    held = await world.until_outcome(stream, "Held", reason="DataLoss")
    assert "messages of stream ORDERS: maxMessages from no limit to 1 messages" in held.message
    assert (await configs(world))["ORDERS"]["max_msgs"] == -1
    for key in (bucket, consumer, stream):
        await world.publish(key, Withdrawn())
        await world.until_outcome(key, "Held", reason="DataLoss", generation=3 - (key != stream))
    assert {"ORDERS", "KV_sessions"} <= set(await configs(world))
    failures = every(ActionFailed, await world.facts(bucket))
    assert [each.consequence for each in failures] == ["Observed"]

    await world.client.approve_many([consumer, stream, bucket], hold="DataLoss")
    for key in (consumer, stream, bucket):
        await world.until_outcome(key, "Deleted")
    assert not {"ORDERS", "KV_sessions"} & set(await configs(world))
