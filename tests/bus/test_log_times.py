"""Times and positions of the log: what is found by a few reads is what all of it says."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from events.hold import Hold
from events.log import SpecDeclared
from infra.bus.event_log import JetStreamLog
from infra.bus.log_times import first_event_from, last_position_before, log_between
from infra.jetstream.publish import publish
from reconciler.ports import ResourceAppend
from reconciler.sdk.log_replay import LogReplay, replay_to
from tests.bus.histories import event, new_key

BEGAN = datetime(2026, 1, 2, tzinfo=UTC)
DECLARED = SpecDeclared(1, "shapes/v1", "default", "foo", {})


@pytest.fixture
def module_bus_url(fresh_bus_url: str) -> str:
    """A log for each test: their events have times of their own."""
    return fresh_bus_url


async def append_at(log: JetStreamLog, times: list[datetime]) -> list[int]:
    """Append an event at each of these times; gives their positions."""
    positions: list[int] = []
    for time in times:
        key = new_key()
        what = replace(event(key, 1, DECLARED), time=time)
        positions += await log.append([ResourceAppend(key, [what], 0)])
    return positions


async def test_the_position_of_any_time_is_that_of_the_last_event_before_it(
    bus: Client, log: JetStreamLog
) -> None:
    chance = random.Random(7)
    assert await last_position_before(bus, BEGAN) == 0  # of an empty log
    seconds = sorted(chance.choices(range(40), k=60))  # several at once, and gaps
    positions = await append_at(log, [BEGAN + timedelta(seconds=one) for one in seconds])
    for second in range(-1, 42):
        before = [at for at, one in zip(positions, seconds, strict=True) if one < second]
        position = await last_position_before(bus, BEGAN + timedelta(seconds=second))
        assert position == (before[-1] if before else 0), second


async def test_where_clocks_differ_it_is_a_place_where_the_time_is_passed(
    bus: Client, log: JetStreamLog
) -> None:
    later = BEGAN + timedelta(hours=1)
    seconds = [number + (5 if number % 3 else 0) for number in range(30)]
    positions = await append_at(log, [later + timedelta(seconds=one) for one in seconds])
    times = dict(zip(positions, seconds, strict=True))
    for second in range(1, 34):
        position = await last_position_before(bus, later + timedelta(seconds=second))
        assert times[position] < second
        assert times.get(position + 1, second) >= second


async def test_what_cannot_be_read_is_stepped_over(bus: Client, log: JetStreamLog) -> None:
    later = BEGAN + timedelta(hours=2)
    early = await append_at(log, [later, later + timedelta(seconds=1)])
    odd = [(await publish(bus, "log.default.Shape.odd.fact", b"no event")).seq for _ in range(9)]
    late = await append_at(log, [later + timedelta(seconds=8)])
    existing_event = await first_event_from(bus, odd[0])
    assert existing_event is not None
    assert existing_event.position == late[0]
    for second in range(2, 9):
        assert await last_position_before(bus, later + timedelta(seconds=second)) == early[1]
    await publish(bus, "log.default.Shape.odd.fact", b"no event")
    assert await last_position_before(bus, later + timedelta(days=1)) == late[0]


async def test_a_part_of_the_log_is_read_and_no_more(bus: Client, log: JetStreamLog) -> None:
    positions = await append_at(log, [BEGAN] * 20)
    read = [
        one.position
        async for events in log_between(bus, "log.>", after=positions[4], up_to=positions[14])
        for one in events
    ]
    assert read == positions[5:15]
    assert not [1 async for _ in log_between(bus, "log.>", after=5, up_to=5)]


async def test_damage_that_comes_later_is_not_shown_before(bus: Client, log: JetStreamLog) -> None:
    key = new_key()
    [position] = await log.append([ResourceAppend(key, [event(key, 1, DECLARED)], 0)])
    damaged = await publish(bus, log_subject(key.tokens), b"no event")
    for tokens in ("*.*.*", key.tokens):
        replay = LogReplay(log, tokens=tokens)
        await replay.advance(position)
        assert str(key) not in replay.models.damage
        assert replay.models.status[str(key)].outcome == ""
        await replay.advance(damaged.seq)
        assert replay.models.status[str(key)].reason == Hold.LOG_DAMAGED
        await replay.close()


def log_subject(tokens: str) -> str:
    return f"log.{tokens}.fact"


async def test_of_a_log_with_holes_all_is_read_so_that_they_are_seen(
    bus: Client, log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event that is missing may be one of the resources that are asked for."""
    [last] = await append_at(log, [BEGAN])
    async with replay_to(bus, last, tokens="nowhere.*.*") as replay:
        assert replay.events == 0

    async def one(_: JetStreamLog) -> int:
        return 1

    monkeypatch.setattr(JetStreamLog, "missing_events", one)
    async with replay_to(bus, last, tokens="nowhere.*.*") as replay:
        assert replay.events > 0
