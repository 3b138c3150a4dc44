"""The event log: compare-and-set, atomic appends, cached states, and feeds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from events.names import ResourceKey
from infra.jetstream.errors import StreamFullError
from reconciler.ports import AppendLostError, LoadedResource, ResourceAppend
from reconciler.resource.evolve import fold
from reconciler.resource.state import NEW
from reconciler.roles.decider.repository import Commit, ResourceRepository, encode_state
from reconciler.roles.runtime.log_feed import LogFeed
from tests.bus.histories import event, events, history_of, new_key
from tests.memory_bus.contract.buses import Bus


async def test_a_new_resource_is_loaded_empty(bus: Bus) -> None:
    key = new_key()
    loaded = (await bus.log.load([key]))[key]
    assert (loaded.last_position, loaded.cached, list(loaded.events)) == (0, None, [])
    assert await bus.log.newest_positions([key]) == {key: 0}


async def test_an_append_returns_the_position_of_its_last_event(bus: Bus) -> None:
    one, two = new_key(), new_key()
    appends = [ResourceAppend(one, events(one, 1, 3), 0), ResourceAppend(two, events(two, 1, 1), 0)]
    positions = await bus.log.append(appends)
    assert await bus.log.newest_positions([one, two]) == dict(
        zip((one, two), positions, strict=True)
    )
    assert await bus.log.last_position() == max(positions)
    assert list(await history_of(bus.log, one)) == list(appends[0].events)


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_one_of_two_writers_wins_and_the_other_writes_nothing(bus: Bus, length: int) -> None:
    key = new_key()
    results = await asyncio.gather(
        *(bus.log.append([ResourceAppend(key, events(key, 1, length), 0)]) for _ in range(2)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, AppendLostError) for result in results) == 1
    assert [each.resourceversion for each in await history_of(bus.log, key)] == list(
        range(1, length + 1)
    )


async def test_an_append_to_several_resources_is_stored_whole_or_not_at_all(bus: Bus) -> None:
    contested, other_key = new_key(), new_key()
    await bus.log.append([ResourceAppend(contested, events(contested, 1, 2), 0)])
    position_before = await bus.log.last_position()
    with pytest.raises(AppendLostError):
        await bus.log.append(
            [
                ResourceAppend(other_key, events(other_key, 1, 2), 0),
                ResourceAppend(contested, events(contested, 1, 2), 0),
            ]
        )
    assert await bus.log.last_position() == position_before
    assert not await history_of(bus.log, other_key)


async def test_a_conflict_does_not_block_the_rest_of_the_batch(bus: Bus) -> None:
    keys = [new_key() for _ in range(20)]
    repository = ResourceRepository(bus.log)
    bases = await repository.get(keys)
    contested = keys[7]
    await bus.log.append([ResourceAppend(contested, events(contested, 1, 4), 0)])
    commits = [Commit(key, bases[key], fold(events(key, 1, 3)), events(key, 1, 3)) for key in keys]
    conflicts = await repository.commit(commits)
    assert [commit.key for commit in conflicts] == [contested]
    assert (await repository.get([contested]))[contested].state.version == 4, (
        "refolded from the log"
    )
    for key in keys:
        expected = 4 if key == contested else 3
        assert len(await history_of(bus.log, key)) == expected


async def test_a_full_log_stores_no_event_of_a_turn(bus: Bus) -> None:
    first, key = new_key(), new_key()
    await bus.log.append([ResourceAppend(first, events(first, 1, 1), 0)])
    await bus.set_remaining_capacity("LOG_1", 2)
    with pytest.raises(StreamFullError):
        await bus.log.append([ResourceAppend(key, events(key, 1, 3), 0)])
    assert not await history_of(bus.log, key)
    await bus.set_remaining_capacity("LOG_1", None)
    await bus.log.append([ResourceAppend(key, events(key, 1, 3), 0)])


async def load_with_states(
    bus: Bus, keys: Sequence[ResourceKey]
) -> Mapping[ResourceKey, LoadedResource]:
    """Load resources once the bus has their states; writers do not wait for them."""
    loaded = await bus.log.load(keys)
    while any(each.cached is None for each in loaded.values()):
        loaded = await bus.log.load(keys)
    return loaded


async def test_a_cached_state_is_returned_with_the_events_after_it(bus: Bus) -> None:
    key = new_key()
    [position] = await bus.log.append([ResourceAppend(key, events(key, 1, 60), 0)])
    await bus.log.save_states({key: (position, b"state of 60")})
    await bus.log.append([ResourceAppend(key, events(key, 61, 63), position)])
    loaded = (await load_with_states(bus, [key]))[key]
    assert loaded.cached == b"state of 60"
    assert [each.resourceversion for each in loaded.events] == [61, 62, 63]
    whole = (await bus.log.load([key], use_cache=False))[key]
    assert (whole.cached, len(whole.events)) == (None, 63)


async def test_a_cached_state_with_another_schema_is_not_used(bus: Bus) -> None:
    key = new_key()
    history = events(key, 1, 60)
    [position] = await bus.log.append([ResourceAppend(key, history, 0)])
    await bus.log.save_states({key: (position - 5, b"from another release")})
    loaded = (await ResourceRepository(bus.log).get([key]))[key]
    assert loaded.state == fold(history)
    assert loaded.position == position


async def test_a_cached_state_newer_than_the_log_is_not_used(bus: Bus) -> None:
    key = new_key()
    history = events(key, 1, 60)
    [position] = await bus.log.append([ResourceAppend(key, history, 0)])
    await bus.log.save_states({key: (position + 1_000, encode_state(NEW))})
    loaded = (await ResourceRepository(bus.log).get([key]))[key]
    assert loaded.state == fold(history)


async def test_resources_with_the_same_name_in_two_namespaces_have_separate_cached_states(
    bus: Bus,
) -> None:
    key = new_key()
    twins = [
        key,
        ResourceKey("other", key.kind, key.name),
        ResourceKey("default", "Record", key.name),
    ]
    lengths = dict(zip(twins, (50, 60, 70), strict=True))
    states: dict[ResourceKey, tuple[int, bytes]] = {}
    for key, length in lengths.items():
        history = events(key, 1, length)
        [position] = await bus.log.append([ResourceAppend(key, history, 0)])
        states[key] = position, encode_state(fold(history))
    await bus.log.save_states(states)
    later = {key: events(key, length + 1, length + 1) for key, length in lengths.items()}
    await bus.log.append([ResourceAppend(key, more, states[key][0]) for key, more in later.items()])
    loaded = await load_with_states(bus, twins)
    for key in twins:
        assert (loaded[key].cached, list(loaded[key].events)) == (states[key][1], later[key])
    stored = await ResourceRepository(bus.log).get(twins)
    assert {key: stored[key].state.version - 1 for key in twins} == lengths


async def test_a_gap_in_one_history_blocks_only_that_resource(bus: Bus) -> None:
    broken, sound = new_key(), new_key()
    await bus.log.append([ResourceAppend(broken, [event(broken, 1), event(broken, 3)], 0)])
    await bus.log.append([ResourceAppend(sound, events(sound, 1, 5), 0)])
    repository = ResourceRepository(bus.log)
    assert list(await repository.get([broken, sound])) == [sound]
    assert "expected event 2, found event 3" in str(repository.errors[broken])


async def test_all_events_of_a_kind_are_read(bus: Bus) -> None:
    mine, other_key = new_key(), ResourceKey("default", "Record", "x")
    await bus.log.append([ResourceAppend(mine, events(mine, 1, 3), 0)])
    await bus.log.append([ResourceAppend(other_key, events(other_key, 1, 1), 0)])
    existing_events = await bus.log.read_kind("default", "Shape")
    assert sorted(each.event.id for each in existing_events) == [
        each.id for each in events(mine, 1, 3)
    ]


async def test_a_feed_delivers_every_event_once_and_reports_when_it_has_caught_up(bus: Bus) -> None:
    key = new_key()
    [first] = await bus.log.append([ResourceAppend(key, events(key, 1, 1), 0)])
    [last] = await bus.log.append([ResourceAppend(key, events(key, 2, 300), first)])
    positions: list[int] = []
    async with bus.log.follow(first) as feed:
        while not feed.caught_up:
            positions += [stored.event.resourceversion for stored in await feed.next_events()]
        assert feed.position == last == await bus.log.last_position()
        assert positions == list(range(2, 301))
        await bus.log.append([ResourceAppend(key, events(key, 301, 301), last)])
        while len(positions) < 300:
            positions += [stored.event.resourceversion for stored in await feed.next_events()]
    assert positions[-1] == 301


async def test_a_feed_that_has_caught_up_has_delivered_all_earlier_events(bus: Bus) -> None:
    feed = LogFeed(bus.log, after=await bus.log.last_position())
    names: list[str] = []
    feed.subscribe(lambda _position, event: names.append(event.id))
    running = asyncio.create_task(feed.run())
    try:
        for number in range(5):
            key = new_key()
            history = events(key, 1, 1 + number)
            await bus.log.append([ResourceAppend(key, history, 0)])
            await feed.catch_up(10)
            assert names[-len(history) :] == [each.id for each in history]
        await feed.catch_up(10)  # nothing new has arrived
    finally:
        running.cancel()


async def test_a_feed_that_is_not_running_does_not_catch_up(bus: Bus) -> None:
    feed = LogFeed(bus.log, after=await bus.log.last_position())
    key = new_key()
    await bus.log.append([ResourceAppend(key, events(key, 1, 1), 0)])
    with pytest.raises(TimeoutError):
        await feed.catch_up(0.05)
