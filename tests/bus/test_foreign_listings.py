"""Listings that other services publish, read from a stream that another client deletes."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client
from structlog.testing import capture_logs

from infra.bus.foreign_listings import JetStreamListingReader
from infra.bus.streams import LISTINGS, ensure_topology
from infra.jetstream.publish import publish
from infra.jetstream.topology import delete_stream

PATIENCE_SECONDS = 60.0


async def test_a_reader_continues_once_the_deleted_stream_exists_again(bus: Client) -> None:
    """The observer also lists the APIs itself, so it must keep running."""
    reader = JetStreamListingReader(bus)
    batches: asyncio.Queue[list[str]] = asyncio.Queue()

    async def read() -> None:
        while True:
            batches.put_nowait([each.subject for each in await reader.next_batch()])

    reading = asyncio.create_task(read())

    async def is_read(subject: str) -> None:
        while True:
            await publish(bus, subject, b"{}")
            try:
                async with asyncio.timeout(0.2):
                    while subject not in await batches.get():
                        pass
            except TimeoutError:
                continue
            return

    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_read("listing.default.Shape.a")
            await delete_stream(bus, LISTINGS)
            await ensure_topology(bus)
            await is_read("listing.default.Shape.b")
            with capture_logs() as warnings:
                await delete_stream(bus, LISTINGS)
                while not warnings:  # nothing else reports it
                    await asyncio.wait([reading], timeout=0.05)
            assert "`reconciler init`" in warnings[0]["event"]
            await ensure_topology(bus)
            await is_read("listing.default.Shape.c")
    finally:
        assert not reading.done(), reading.exception()
        reading.cancel()
        await reader.close()
