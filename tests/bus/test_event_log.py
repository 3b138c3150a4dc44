"""The event log on JetStream: what is loaded, and who may write."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from nats.aio.client import Client

from events.log import LogEvent, OutcomeRecorded
from events.names import ResourceKey
from events.subjects import cached_state, log_filter
from infra.bus import event_log
from infra.bus.event_log import JetStreamLog
from infra.bus.streams import LOG, STATES
from infra.jetstream import sequences
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusUnavailableError, StreamFullError
from infra.jetstream.publish import publish
from infra.jetstream.reads import (
    StoredMessage,
    SubjectStart,
    last_for_subjects,
    read_subject,
    stream_state,
)
from reconciler.ports import (
    EVENTS_BETWEEN_SAVES,
    AppendLostError,
    AppendRefusedError,
    ResourceAppend,
)
from reconciler.resource.evolve import fold
from reconciler.resource.state import NEW
from reconciler.roles.repository import (
    Commit,
    ResourceRepository,
    encode_state,
)
from tests.bus.histories import event, events, history_of, new_key


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each read of a resource's events brought."""
    counts: list[int] = []

    async def counted(
        nc: Client, stream: str, subject_filter: str, *, start_seq: int = 1
    ) -> list[StoredMessage]:
        found = await read_subject(nc, stream, subject_filter, start_seq=start_seq)
        counts.append(len(found))
        return found

    monkeypatch.setattr(sequences, "read_subject", counted)
    return counts


async def test_a_new_resource_is_loaded_empty_with_no_read_of_its_own(
    log: JetStreamLog, reads: list[int]
) -> None:
    key = new_key()
    loaded = (await log.load([key]))[key]
    assert (loaded.last_position, loaded.cached, list(loaded.events)) == (0, None, [])
    assert reads == []


async def test_many_histories_are_read_at_once_and_are_those_that_are_read_one_by_one(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [new_key() for _ in range(20)]
    positions = dict.fromkeys(keys, 0)
    for version in (1, 3):  # all of one subject, so that the heads are not enough
        some = [
            ResourceAppend(key, events(key, version, version + 1), positions[key]) for key in keys
        ]
        positions = dict(zip(keys, await log.append(some), strict=True))

    async def nothing(_nc: Client, _stream: str, starts: Sequence[SubjectStart]) -> list[list[Any]]:
        return [[] for _ in starts]

    with monkeypatch.context() as patched:
        patched.setattr(event_log, "read_starts", nothing)
        one_by_one = await log.load(keys)
    monkeypatch.setattr(sequences, "read_subject", None)  # not called
    assert await log.load(keys) == one_by_one
    monkeypatch.setattr("infra.jetstream.reads._MESSAGES_AT_ONCE", 7)  # several rounds
    assert await log.load(keys) == one_by_one
    assert {key: each.last_position for key, each in one_by_one.items()} == positions
    assert all(len(each.events) == 4 for each in one_by_one.values())


async def test_a_short_history_comes_with_the_heads(log: JetStreamLog, reads: list[int]) -> None:
    key = new_key()
    [position] = await log.append([ResourceAppend(key, [event(key, 1)], 0)])
    loaded = (await log.load([key]))[key]
    assert loaded.last_position == position
    assert [each.resourceversion for each in loaded.events] == [1]
    assert reads == []


async def test_a_cold_load_is_flat_in_the_length_of_the_history(
    log: JetStreamLog, reads: list[int]
) -> None:
    key = new_key()
    repository = ResourceRepository(log)
    for first in range(1, 501, 10):
        base = (await repository.get([key]))[key]
        more = events(key, first, first + 9)
        assert not await repository.commit([Commit(key, base, fold(more, base.state), more)])
    cold = ResourceRepository(log)
    reads.clear()
    state = (await cold.get([key]))[key].state
    assert state.version == 500
    assert sum(reads) <= EVENTS_BETWEEN_SAVES


async def test_a_cached_of_another_schema_is_not_used(log: JetStreamLog) -> None:
    key = new_key()
    history = events(key, 1, 60)
    [position] = await log.append([ResourceAppend(key, history, 0)])
    await log.save_states({key: (position - 5, b"from another release")})
    kept = (await ResourceRepository(log).get([key]))[key]
    assert kept.state == fold(history)
    assert kept.position == position


async def test_a_cached_that_knows_more_than_the_log_is_not_used(
    log: JetStreamLog,
) -> None:
    key = new_key()
    history = events(key, 1, 60)
    [position] = await log.append([ResourceAppend(key, history, 0)])
    await log.save_states({key: (position + 1_000, encode_state(NEW))})
    kept = (await ResourceRepository(log).get([key]))[key]
    assert kept.state == fold(history)


async def test_resources_of_one_name_in_two_namespaces_have_each_a_cached(
    log: JetStreamLog,
) -> None:
    ours = new_key()
    twins = [
        ours,
        ResourceKey("other", ours.kind, ours.name),
        ResourceKey("default", "Record", ours.name),
    ]
    lengths = dict(zip(twins, (50, 60, 70), strict=True))
    states: dict[ResourceKey, tuple[int, bytes]] = {}
    for key, length in lengths.items():
        history = events(key, 1, length)
        [position] = await log.append([ResourceAppend(key, history, 0)])
        states[key] = position, encode_state(fold(history))
    await log.save_states(states)
    later = {key: events(key, length + 1, length + 1) for key, length in lengths.items()}
    await log.append([ResourceAppend(key, more, states[key][0]) for key, more in later.items()])
    loaded = await log.load(twins)
    for key in twins:
        assert (loaded[key].cached, list(loaded[key].events)) == (states[key][1], later[key])
    kept = await ResourceRepository(log).get(twins)
    assert {key: kept[key].state.version - 1 for key in twins} == lengths


async def test_a_hole_in_one_history_holds_that_resource_only(log: JetStreamLog) -> None:
    broken, sound = new_key(), new_key()
    await log.append([ResourceAppend(broken, [event(broken, 1), event(broken, 3)], 0)])
    await log.append([ResourceAppend(sound, events(sound, 1, 5), 0)])
    repository = ResourceRepository(log)
    assert list(await repository.get([broken, sound])) == [sound]
    assert "expected event 2, found event 3" in str(repository.broken[broken])


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_of_two_writers_one_wins_and_the_other_writes_nothing(
    log: JetStreamLog, length: int
) -> None:
    key = new_key()
    results = await asyncio.gather(
        *(log.append([ResourceAppend(key, events(key, 1, length), 0)]) for _ in range(2)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, AppendLostError) for result in results) == 1
    assert [each.resourceversion for each in await history_of(log, key)] == list(
        range(1, length + 1)
    )


async def test_a_conflict_lets_all_others_of_the_batch_through(log: JetStreamLog) -> None:
    keys = [new_key() for _ in range(20)]
    ours = ResourceRepository(log)
    bases = await ours.get(keys)
    beaten = keys[7]
    await log.append([ResourceAppend(beaten, events(beaten, 1, 4), 0)])
    commits = [Commit(key, bases[key], fold(events(key, 1, 3)), events(key, 1, 3)) for key in keys]
    lost = await ours.commit(commits)
    assert [commit.key for commit in lost] == [beaten]
    assert (await ours.get([beaten]))[beaten].state.version == 4, "refolded from the log"
    for key in keys:
        expected = 4 if key == beaten else 3
        assert len(await history_of(log, key)) == expected


async def test_following_sees_every_event_once_and_says_when_it_caught_up(
    bus: Client, log: JetStreamLog
) -> None:
    key = new_key()
    after = await log.last_position()
    await log.append([ResourceAppend(key, events(key, 1, 300), 0)])
    seen: list[int] = []
    async with log.follow(after) as feed:
        while not feed.caught_up:
            seen += [stored.event.resourceversion for stored in await feed.next_events()]
        assert feed.position == await log.last_position()
    assert seen == list(range(1, 301))
    assert len(await read_subject(bus, LOG, log_filter(key))) == 300


async def _commit(
    repository: ResourceRepository, key: ResourceKey, history: Sequence[LogEvent]
) -> bool:
    base = (await repository.get([key]))[key]
    return not await repository.commit([Commit(key, base, fold(history, base.state), history)])


async def _has_a_cached(bus: Client, key: ResourceKey) -> bool:
    return bool(await last_for_subjects(bus, STATES, [cached_state(key)]))


@pytest.mark.parametrize("trouble", ["another was faster", "too large", "full", "no answer"])
async def test_of_what_was_never_stored_nothing_is_kept_and_no_cached_made(
    bus: Client, log: JetStreamLog, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    key, repository = new_key(), ResourceRepository(log)
    history = list(events(key, 1, EVENTS_BETWEEN_SAVES))
    assert (await repository.get([key]))[key].state == NEW
    state = await stream_state(bus, LOG)
    if trouble == "another was faster":
        await log.append([ResourceAppend(key, events(key, 1, 2), 0)])
        assert not await _commit(repository, key, history)
    elif trouble == "too large":
        message = "x" * bus.max_payload
        history[-1] = event(key, len(history), OutcomeRecorded("Failed", 1, "x", message))
        with pytest.raises(AppendRefusedError):
            await _commit(repository, key, history)
    elif trouble == "full":
        full = {**state.config, "max_bytes": state.bytes + 1}
        await api_request(bus, f"STREAM.UPDATE.{LOG}", full)
        with pytest.raises(StreamFullError):
            await _commit(repository, key, history)
        await api_request(bus, f"STREAM.UPDATE.{LOG}", state.config)
    else:
        monkeypatch.setattr(sequences, "append", _unanswered)
        with pytest.raises(BusUnavailableError):
            await _commit(repository, key, history)
    stored = len(await history_of(log, key))
    assert (await repository.get([key]))[key].state.version == stored < len(history)
    assert not await _has_a_cached(bus, key)


async def _unanswered(*_: object, **__: object) -> list[int]:
    raise BusUnavailableError("no answer in time")


async def test_a_state_is_kept_and_its_cached_made_after_its_events_are_stored(
    bus: Client, log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, repository, really = new_key(), ResourceRepository(log), log.append
    before: list[tuple[int, bool]] = []

    async def append(appends: Sequence[ResourceAppend]) -> Sequence[int]:
        known = (await repository.get([key]))[key].state.version
        before.append((known, await _has_a_cached(bus, key)))
        return await really(appends)

    monkeypatch.setattr(log, "append", append)
    assert await _commit(repository, key, events(key, 1, EVENTS_BETWEEN_SAVES))
    assert before == [(0, False)]
    assert (await repository.get([key]))[key].state.version == EVENTS_BETWEEN_SAVES
    assert await _has_a_cached(bus, key)


async def test_what_is_no_event_behind_a_longer_history_is_damage(
    log: JetStreamLog, bus: Client
) -> None:
    key = new_key()
    [position] = await log.append([ResourceAppend(key, events(key, 1, 2), 0)])
    await log.append([ResourceAppend(key, events(key, 3, 4), position)])
    assert (await log.load([key]))[key].damage is None
    await publish(bus, f"log.{key.tokens}.fact", b"of somebody else")
    damage = (await log.load([key]))[key].damage
    assert damage is not None
    assert damage.problem == "Unreadable"
