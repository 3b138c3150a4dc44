"""Reading through the SDK: history, replay, and the rows of the read models."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TypeVar

import pytest

from events.log import SpecDeclared
from reconciler.sdk import Client, InvalidNameError, PositionNotFoundError, StatusRow, StoredEvent
from tests.sdk.conftest import shape

TIMEOUT_SECONDS = 90
T = TypeVar("T")


async def until(read: Callable[[], Awaitable[T]], is_expected: Callable[[T], object]) -> T:
    """Read until the value is as expected, because read models lag behind the log."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not is_expected(value := await read()):  # noqa: ASYNC110 - polls a server
            await asyncio.sleep(0.02)
        return value


async def collect_replay(client: Client, *, after: int = 0, name: str = "*") -> list[StoredEvent]:
    return [each async for batch in client.replay(after=after, name=name) for each in batch]


async def test_history_lists_everything_in_order(client: Client, name: str) -> None:
    await client.declare(shape(name))
    await client.wait_for(shape(name).key, generation=1)
    history = await client.history(f"default/Shape/{name}")

    assert isinstance(history[0].event.data, SpecDeclared)
    assert [each.event.resourceversion for each in history] == list(range(1, len(history) + 1))
    assert history[0].event.actor == "test"
    assert await client.history("default/Shape/never") == []


async def test_an_earlier_state_is_read_at_any_position_and_time(client: Client, name: str) -> None:
    key = shape(name).key
    rows: list[StatusRow] = []
    for color in ("Red", "Blue"):
        reply = await client.declare(shape(name, color))
        await client.wait_for(key, generation=reply.generation)
        position = (await client.history(key))[-1].position

        found = await until(
            partial(client.status, key),
            lambda row, at=position: row is not None and row.position == at,
        )
        assert found is not None
        rows.append(found)
    first = rows[0]
    then = await client.moment(first.position)
    assert (then.position, then.time) == (first.position, first.changed_at)
    for at in (first.position, then.time):
        assert await client.status(key, at=at) == first
        found = await client.statuses("default", "Shape", at=at)
        assert [row for row in found if row.name == name] == [first]
        assert {(row.namespace, row.kind) for row in found} == {("default", "Shape")}
    assert await client.status(key, at=(await client.history(key))[0].position - 1) is None
    now = await client.statuses(at=rows[1].position)
    assert [row for row in now if row.name == name] == [rows[1]]
    assert any(row.kind == "ProviderConfig" for row in now)
    for when in (0, rows[1].position + 10_000, datetime(2000, 1, 1), datetime(2999, 1, 1)):  # noqa: DTZ001
        with pytest.raises(PositionNotFoundError):
            await client.statuses(at=when)


async def test_fleet_events_are_filtered_and_the_newest_are_last(client: Client, name: str) -> None:
    await client.declare(shape(name))
    await client.wait_for(shape(name).key, generation=1)
    history = await client.history(shape(name).key)
    assert await client.events(name=name) == history
    assert await client.events(kind="Shape", name=name, limit=2) == history[-2:]
    assert await client.events(name=name, outcome="Converged") == history[-1:]
    assert await client.events(name=name, actor="test", until=history[0].position) == history[:1]
    assert await client.events(name=name, actor="nobody*") == []
    since = history[-1].event.time
    assert (await client.events(name=name, since=since))[-1:] == history[-1:]
    with pytest.raises(InvalidNameError):
        await client.events(namespace="a.b")


async def test_replay_ends_when_caught_up(client: Client, name: str) -> None:
    await client.declare(shape(name))
    await client.wait_for(shape(name).key, generation=1)
    whole = await collect_replay(client)
    own_events = await collect_replay(client, name=name)

    assert [each for each in whole if each.event.key.name == name] == own_events
    assert own_events == await client.history(shape(name).key)
    assert await collect_replay(client, after=own_events[0].position, name=name) == own_events[1:]
    assert await collect_replay(client, name="never") == []


async def test_replay_that_follows_continues(client: Client, name: str) -> None:
    async def first_of_generation_2() -> StoredEvent:
        async for batch in client.replay(follow=True, name=name):
            for each in batch:
                if isinstance(each.event.data, SpecDeclared) and each.event.data.generation == 2:
                    return each
        raise AssertionError("the replay ended")

    following = asyncio.ensure_future(first_of_generation_2())
    await client.declare(shape(name))
    await client.declare(shape(name, "Blue"))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert (await following).event.key == shape(name).key


async def test_status_and_ownership_follow_the_log(client: Client, name: str) -> None:
    key = shape(name).key
    await client.declare(shape(name))
    await client.wait_for(key, generation=1)
    row = await until(lambda: client.status(key), lambda row: row and row.outcome == "Converged")
    owned = await client.ownership(key)

    assert row is not None
    assert (row.key, row.generation, row.owned) == (key, 1, True)
    assert owned is not None
    assert (owned.owned, owned.external_name) == (True, name)
    assert key in [each.key for each in await client.statuses(kind="Shape")]
    assert key in await client.ownerships("default")
    assert await client.statuses("nowhere") == []
    fleet = await client.fleet()
    assert fleet.owned >= 1
    assert any(count.outcome == "Converged" for count in fleet.counts)


async def test_nothing_is_left_after_a_deletion(client: Client, name: str) -> None:
    key = shape(name).key
    await client.declare(shape(name))
    reply = await client.withdraw(key)
    await client.wait_for(key, generation=reply.generation)

    assert await until(lambda: client.status(key), lambda row: row is None) is None
    assert await client.ownership(key) is None
    assert key not in [each.key for each in await client.statuses()]
