"""Baseline programs, run as separate processes, that only read the same messages."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from infra.bus.streams import LOG
from infra.jetstream.connection import close, connect
from infra.jetstream.follow import follow


async def follower(url: str, count: int) -> None:
    """Read the first messages with Reconciler's follower, as bytes."""
    nc = await connect(url, name="benchmark")
    async with follow(nc, LOG) as messages:
        async for batch in messages:
            if batch and batch[-1].seq >= count:
                break
    await close(nc)


async def ordered(url: str, count: int) -> None:
    """Read the first messages with nats-py's own ordered consumer and a callback."""
    plain, received_count, all_received = Client(), 0, asyncio.Event()
    await plain.connect(url)  # pyright: ignore[reportUnknownMemberType]

    async def take(_message: Msg) -> None:
        nonlocal received_count
        received_count += 1
        if received_count == count:
            all_received.set()

    reading = await JetStreamContext(plain).subscribe(
        "log.>", stream=LOG, ordered_consumer=True, cb=take
    )
    await all_received.wait()
    await reading.unsubscribe()
    await plain.close()


if __name__ == "__main__":
    programs = {"follower": follower, "ordered": ordered}
    uvloop.run(programs[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
