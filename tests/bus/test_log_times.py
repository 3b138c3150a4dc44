"""A few reads find the same positions by time as a read of the whole log."""

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
    """Each test has its own log, because its events have different times."""
    return fresh_bus_url


async def append_at(log: JetStreamLog, times: list[datetime]) -> list[int]:
    """Append an event at each of the given times; return the events' positions."""
    positions: list[int] = []
    for time in times:
        key = new_key()
        data = replace(event(key, 1, DECLARED), time=time)
        positions += await log.append([ResourceAppend(key, [data], 0)])
    return positions


async def test_the_position_at_a_time_is_that_of_the_last_event_before_it(
    bus: Client, log: JetStreamLog
) -> None:
    rng = random.Random(7)
    assert await last_position_before(bus, BEGAN) == 0  # the log is empty
    seconds = sorted(rng.choices(range(40), k=60))  # with equal times and gaps
    positions = await append_at(log, [BEGAN + timedelta(seconds=offset) for offset in seconds])
    for second in range(-1, 42):
        earlier_positions = [
            event_position
            for event_position, offset in zip(positions, seconds, strict=True)
            if offset < second
        ]
        position = await last_position_before(bus, BEGAN + timedelta(seconds=second))
        assert position == (earlier_positions[-1] if earlier_positions else 0), second


async def test_the_position_is_one_where_the_time_passes_even_with_different_clocks(
    bus: Client, log: JetStreamLog
) -> None:
    start = BEGAN + timedelta(hours=1)
    seconds = [number + (5 if number % 3 else 0) for number in range(30)]
    positions = await append_at(log, [start + timedelta(seconds=offset) for offset in seconds])
    times = dict(zip(positions, seconds, strict=True))
    for second in range(1, 34):
        position = await last_position_before(bus, start + timedelta(seconds=second))
        assert times[position] < second
        assert times.get(position + 1, second) >= second


async def test_unreadable_events_are_skipped(bus: Client, log: JetStreamLog) -> None:
    later = BEGAN + timedelta(hours=2)
    early_positions = await append_at(log, [later, later + timedelta(seconds=1)])
    unreadable = [
        (await publish(bus, "log.default.Shape.odd.fact", b"no event")).seq for _ in range(9)
    ]
    late_positions = await append_at(log, [later + timedelta(seconds=8)])
    first_event = await first_event_from(bus, unreadable[0])
    assert first_event is not None
    assert first_event.position == late_positions[0]
    for second in range(2, 9):
        assert (
            await last_position_before(bus, later + timedelta(seconds=second)) == early_positions[1]
        )
    await publish(bus, "log.default.Shape.odd.fact", b"no event")
    assert await last_position_before(bus, later + timedelta(days=1)) == late_positions[0]


async def test_only_the_requested_part_of_the_log_is_read(bus: Client, log: JetStreamLog) -> None:
    positions = await append_at(log, [BEGAN] * 20)
    read_positions = [
        event_.position
        async for events in log_between(bus, "log.>", after=positions[4], up_to=positions[14])
        for event_ in events
    ]
    assert read_positions == positions[5:15]
    assert not [1 async for _ in log_between(bus, "log.>", after=5, up_to=5)]


async def test_later_damage_is_not_shown_at_an_earlier_position(
    bus: Client, log: JetStreamLog
) -> None:
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


async def test_a_log_with_gaps_is_read_completely_to_find_them(
    bus: Client, log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing event may belong to one of the requested resources."""
    [last] = await append_at(log, [BEGAN])
    async with replay_to(bus, last, tokens="nowhere.*.*") as replay:
        assert replay.events == 0

    async def one_missing_event(_: JetStreamLog) -> int:
        return 1

    monkeypatch.setattr(JetStreamLog, "missing_events", one_missing_event)
    async with replay_to(bus, last, tokens="nowhere.*.*") as replay:
        assert replay.events > 0
