import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.client import Client

from infra.jetstream.acknowledgement import PublishAck
from infra.jetstream.errors import BusRefusedError
from infra.jetstream.follow import follow
from infra.jetstream.reads import read_subject
from infra.jetstream.schedules import Schedule, cancel, schedule, schedule_many
from infra.jetstream.topology import delete_stream, ensure_stream
from tests.jetstream.helpers import collect, until


@pytest.fixture
async def timers(nc: Client, unique: str) -> AsyncIterator[str]:
    config = {
        "name": unique,
        "subjects": [f"{unique}.>"],
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "allow_direct": True,
    }
    await ensure_stream(nc, config)
    assert await ensure_stream(nc, config) == "unchanged"
    yield unique
    await delete_stream(nc, unique)


def seconds_from_now(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_a_scheduled_message_is_delivered_once_and_not_early(nc: Client, timers: str) -> None:
    at = seconds_from_now(0.5)
    await schedule(
        nc,
        subject=f"{timers}.sched.a",
        target=f"{timers}.fired.a",
        at=at,
        payload=b"wake",
        headers={"Why": "retry"},
    )
    async with follow(nc, timers, filters=[f"{timers}.fired.>"]) as follower:
        [delivered] = await collect(follower, 1)
    assert (delivered.subject, delivered.payload) == (f"{timers}.fired.a", b"wake")
    assert delivered.headers is not None
    assert delivered.headers["Why"] == "retry"
    assert 0 <= time.time() - at.timestamp() < 20
    assert await read_subject(nc, timers, f"{timers}.sched.>") == []


async def test_schedules_are_replaced_canceled_and_delivered_late(nc: Client, timers: str) -> None:
    for payload, seconds in ((b"first", 3), (b"second", 4)):
        await schedule(
            nc,
            subject=f"{timers}.sched.a",
            target=f"{timers}.fired.a",
            at=seconds_from_now(seconds),
            payload=payload,
        )
    many = [
        Schedule(f"{timers}.sched.b", f"{timers}.fired.b", seconds_from_now(3), b"canceled"),
        Schedule(f"{timers}.sched.c", f"{timers}.fired.c", seconds_from_now(5.5), b"last"),
        Schedule(f"{timers}.sched.d", f"{timers}.fired.d", seconds_from_now(-60), b"overdue"),
    ]
    results = await schedule_many(nc, many)
    assert all(isinstance(result, PublishAck) for result in results)
    assert await cancel(nc, timers, f"{timers}.sched.b")
    assert not await cancel(nc, timers, f"{timers}.sched.b")
    async with follow(nc, timers, filters=[f"{timers}.fired.>"]) as follower:
        messages = await collect(follower, 3)
    assert [message.payload for message in messages] == [b"overdue", b"second", b"last"]


async def test_a_delivered_message_is_deleted_after_its_time(nc: Client, timers: str) -> None:
    await schedule(
        nc,
        subject=f"{timers}.sched.a",
        target=f"{timers}.fired.a",
        at=seconds_from_now(0),
        payload=b"",
        keep_seconds=1,
    )
    async with follow(nc, timers, filters=[f"{timers}.fired.>"]) as follower:
        await collect(follower, 1)

    async def is_empty() -> bool:
        return await read_subject(nc, timers, f"{timers}.>") == []

    await until(is_empty)


async def test_a_stream_without_schedules_refuses_them(nc: Client, stream: str) -> None:
    with pytest.raises(BusRefusedError):
        await schedule(
            nc, subject=f"{stream}.a", target=f"{stream}.b", at=seconds_from_now(1), payload=b""
        )


async def test_a_time_needs_a_time_zone(nc: Client) -> None:
    with pytest.raises(ValueError, match="time zone"):
        await schedule(nc, subject="a", target="b", at=datetime(2030, 1, 1), payload=b"")  # noqa: DTZ001
