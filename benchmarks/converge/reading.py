"""Read the log into read models, with only the follower, and with nats-py's consumer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from benchmarks.converge.results import Replay
from infra.bus.event_log import open_log
from infra.bus.streams import LOG
from infra.jetstream.follow import follow
from infra.jetstream.reads import stream_state
from projections.read_models import ReadModels

_ROUNDS = 3


async def replay(nc: Client, url: str) -> Replay:
    """Read the whole log with each method in turn, and return the best round of each."""
    plain = Client()
    await plain.connect(url)  # pyright: ignore[reportUnknownMemberType]
    try:
        return await _compare(nc, plain)
    finally:
        await plain.close()


async def _compare(nc: Client, plain: Client) -> Replay:
    state = await stream_state(nc, LOG)
    methods: dict[str, Callable[[], Awaitable[int]]] = {
        "rebuild": lambda: _rebuild(nc),
        "follower": lambda: _follow(nc),
        "ordered": lambda: _ordered_consumer(plain, state.messages),
    }
    best = dict.fromkeys(methods, 0.0)
    for _ in range(_ROUNDS):
        for name, run_method in methods.items():
            began = time.perf_counter()
            count = await run_method()
            best[name] = max(best[name], count / (time.perf_counter() - began))
            assert count == state.messages, f"{name} read {count} of {state.messages}"
    return Replay(
        events=state.messages,
        bytes_per_event=state.bytes // max(1, state.messages),
        rebuild_events_per_second=round(best["rebuild"]),
        follower_messages_per_second=round(best["follower"]),
        ordered_consumer_messages_per_second=round(best["ordered"]),
        rebuild_share=round(best["rebuild"] / best["ordered"], 2),
        follower_share=round(best["follower"] / best["ordered"], 2),
    )


async def _rebuild(nc: Client) -> int:
    """Fold the whole log into all read models, and encode their rows."""
    log = await open_log(nc)
    models, count = ReadModels(), 0
    async with log.follow() as feed:
        while not feed.caught_up:
            for position, event in await feed.next_events():
                models.apply(position, event)
                count += 1
    assert sum(1 for _ in models.rows())
    return count


async def _follow(nc: Client) -> int:
    count = 0
    async with follow(nc, LOG) as messages:
        async for batch in messages.replay():
            count += len(batch)
    return count


async def _ordered_consumer(plain: Client, total: int) -> int:
    """Read with nats-py's ordered consumer and a callback."""
    count, all_received = 0, asyncio.Event()

    async def take(_message: Msg) -> None:
        nonlocal count
        count += 1
        if count == total:
            all_received.set()

    reading = await JetStreamContext(plain).subscribe(
        "log.>", stream=LOG, ordered_consumer=True, cb=take
    )
    await all_received.wait()
    await reading.unsubscribe()
    return count
