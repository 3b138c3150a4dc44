"""Changes that an API reports are detected immediately, and by listings if the feed fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import httpx
import pytest

from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from reconciler.errors import NotDoneError
from reconciler.provider.kind import KindRegistry
from shapes_api.kinds.records import RECORD, RecordsProvider
from tests.scenarios.harness import World, api_config

KEY = ResourceKey("default", "Record", "www")
FIELDS = {"type": "A", "values": ["10.0.0.1"], "providerConfigRef": {"name": "zone"}}
MIN_RESYNC_SECONDS = 0.5
RESYNC_SECONDS = 2.0


class Broken(RecordsProvider):
    """A provider whose feed always fails."""

    async def changes(self, after: str | None) -> str:
        raise NotDoneError(f"no feed after {after!r}", status=500)


class Hanging(RecordsProvider):
    """A provider whose feed never sends an event."""

    async def changes(self, after: str | None) -> str:
        await asyncio.Event().wait()
        raise AssertionError(after)


class Silent(RecordsProvider):
    """A provider whose feed always reports immediately that nothing changed."""

    async def changes(self, after: str | None) -> str:
        return "always the same" if after is None else after


class FalseAlarm(RecordsProvider):
    """A provider whose feed always reports immediately that something changed."""

    marks = count()

    async def changes(self, after: str | None) -> str:
        return str(next(self.marks))


@asynccontextmanager
async def converged_record(
    world: World, zone: str, resync: float, least: float
) -> AsyncGenerator[httpx.AsyncClient]:
    """Declare a record, wait until it is created, and yield a client for its API."""
    await world.start_reconciler()
    config = api_config(zone, provider="records", resync=resync, least_resync_seconds=least)
    await world.configure(config, name="zone")
    await world.declare_all([Manifest("records/v1", "Record", Metadata("www"), FIELDS)])
    await world.until_outcome(KEY, "Converged")
    async with httpx.AsyncClient(base_url=zone) as api:
        yield api


async def check_deleted_record_is_recreated(world: World, api: httpx.AsyncClient) -> None:
    deleted_id = (await api.get("/records/www")).raise_for_status().json()["id"]
    (await api.delete("/records/www", headers={"If-Match": "*"})).raise_for_status()

    async def is_recreated() -> bool:
        response = await api.get("/records/www")
        return response.status_code == 200 and response.json()["id"] != deleted_id

    await world.until(is_recreated, "the record is recreated")


async def test_a_deleted_object_is_recreated_long_before_the_next_resync(
    bare_world: World, records_url: str
) -> None:
    zone = records_url + "/zones/watched.example"
    async with converged_record(bare_world, zone, resync=3600, least=MIN_RESYNC_SECONDS) as api:
        for _ in range(3):
            await check_deleted_record_is_recreated(bare_world, api)


@pytest.mark.parametrize("provider", [Broken, Hanging, Silent, FalseAlarm])
async def test_an_unreliable_feed_delays_detection_but_never_prevents_it(
    bare_world: World, records_url: str, provider: type[RecordsProvider]
) -> None:
    world, zone = bare_world, f"{records_url}/zones/{provider.__name__.lower()}.example"
    world.kinds = KindRegistry([replace(RECORD, connect=provider)])
    began = time.monotonic()
    async with converged_record(world, zone, RESYNC_SECONDS, MIN_RESYNC_SECONDS) as api:
        await check_deleted_record_is_recreated(world, api)
        await world.until_observed_again()
        observer = world.parts.observer
        assert observer is not None
        max_listings = 2 + (time.monotonic() - began) / MIN_RESYNC_SECONDS
        assert observer.listings <= max_listings
