"""The event log on JetStream: loaded histories and conditional writes."""

from collections.abc import Sequence
from typing import Any

import pytest
from nats.aio.client import Client

from events.log import LogEvent, OutcomeRecorded
from events.names import ResourceKey
from events.subjects import cached_state
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
    AppendRefusedError,
    ResourceAppend,
)
from reconciler.resource.evolve import fold
from reconciler.resource.state import NEW
from reconciler.roles.decider.repository import (
    Commit,
    ResourceRepository,
)
from tests.bus.histories import event, events, history_of, new_key


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the number of messages that each read of a resource's events returned."""
    counts: list[int] = []

    async def read_and_count(
        nc: Client, stream: str, subject_filter: str, *, start_seq: int = 1
    ) -> list[StoredMessage]:
        messages = await read_subject(nc, stream, subject_filter, start_seq=start_seq)
        counts.append(len(messages))
        return messages

    monkeypatch.setattr(sequences, "read_subject", read_and_count)
    return counts


async def test_a_new_resource_is_loaded_empty_without_a_separate_read(
    log: JetStreamLog, reads: list[int]
) -> None:
    key = new_key()
    loaded = (await log.load([key]))[key]
    assert (loaded.last_position, loaded.cached, list(loaded.events)) == (0, None, [])
    assert reads == []


async def test_histories_read_together_equal_histories_read_separately(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [new_key() for _ in range(20)]
    positions = dict.fromkeys(keys, 0)
    for version in (1, 3):  # all events have the same subject, so the heads are not enough
        appends = [
            ResourceAppend(key, events(key, version, version + 1), positions[key]) for key in keys
        ]
        positions = dict(zip(keys, await log.append(appends), strict=True))

    async def nothing(_nc: Client, _stream: str, starts: Sequence[SubjectStart]) -> list[list[Any]]:
        return [[] for _ in starts]

    with monkeypatch.context() as patched:
        patched.setattr(event_log, "read_starts", nothing)
        read_separately = await log.load(keys)
    monkeypatch.setattr(sequences, "read_subject", None)  # not called
    assert await log.load(keys) == read_separately
    monkeypatch.setattr("infra.jetstream.reads._MAX_MESSAGES_IN_FLIGHT", 7)  # several rounds
    assert await log.load(keys) == read_separately
    assert {key: each.last_position for key, each in read_separately.items()} == positions
    assert all(len(each.events) == 4 for each in read_separately.values())


async def test_a_short_history_is_loaded_with_the_heads(
    log: JetStreamLog, reads: list[int]
) -> None:
    key = new_key()
    [position] = await log.append([ResourceAppend(key, [event(key, 1)], 0)])
    loaded = (await log.load([key]))[key]
    assert loaded.last_position == position
    assert [each.resourceversion for each in loaded.events] == [1]
    assert reads == []


async def test_a_cold_load_does_not_grow_with_the_length_of_the_history(
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


async def test_the_total_size_of_cached_states_is_limited(log: JetStreamLog) -> None:
    keys = [new_key() for _ in range(5)]
    repository = ResourceRepository(log, cached_bytes=80_000)

    async def commit(key: ResourceKey, size: int) -> None:
        base = (await repository.get([key]))[key]
        more = events(key, base.state.version + 1, base.state.version + 1)
        turn = Commit(key, base, fold(more, base.state), more, size)
        assert not await repository.commit([turn])

    for key in keys:
        await commit(key, 6_000)
    assert [repository.is_cached(key) for key in keys] == [False, False, True, True, True]
    await commit(keys[2], 9_000)
    assert [repository.is_cached(key) for key in keys] == [False, False, True, False, True]
    loaded = await repository.get(keys)
    assert [loaded[key].state.version for key in keys] == [1, 1, 2, 1, 1]


async def _commit(
    repository: ResourceRepository, key: ResourceKey, history: Sequence[LogEvent]
) -> bool:
    base = (await repository.get([key]))[key]
    return not await repository.commit([Commit(key, base, fold(history, base.state), history)])


async def _has_cached_state(bus: Client, key: ResourceKey) -> bool:
    return bool(await last_for_subjects(bus, STATES, [cached_state(key)]))


@pytest.mark.parametrize("failure", ["version conflict", "too large", "full", "no response"])
async def test_a_failed_append_changes_no_state_and_stores_no_cached_state(
    bus: Client, log: JetStreamLog, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    key, repository = new_key(), ResourceRepository(log)
    history = list(events(key, 1, EVENTS_BETWEEN_SAVES))
    assert (await repository.get([key]))[key].state == NEW
    state = await stream_state(bus, LOG)
    if failure == "version conflict":
        await log.append([ResourceAppend(key, events(key, 1, 2), 0)])
        assert not await _commit(repository, key, history)
    elif failure == "too large":
        message = "x" * bus.max_payload
        history[-1] = event(key, len(history), OutcomeRecorded("Failed", 1, "x", message))
        with pytest.raises(AppendRefusedError):
            await _commit(repository, key, history)
    elif failure == "full":
        full = {**state.config, "max_bytes": state.bytes + 1}
        await api_request(bus, f"STREAM.UPDATE.{LOG}", full)
        with pytest.raises(StreamFullError):
            await _commit(repository, key, history)
        await api_request(bus, f"STREAM.UPDATE.{LOG}", state.config)
    else:
        monkeypatch.setattr(sequences, "append", _fail_without_response)
        with pytest.raises(BusUnavailableError):
            await _commit(repository, key, history)
    stored = len(await history_of(log, key))
    assert (await repository.get([key]))[key].state.version == stored < len(history)
    assert not await _has_cached_state(bus, key)


async def _fail_without_response(*_: object, **__: object) -> list[int]:
    raise BusUnavailableError("no response in time")


async def test_a_cached_state_is_stored_after_its_events(
    bus: Client, log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, repository, original_append = new_key(), ResourceRepository(log), log.append
    states_before: list[tuple[int, bool]] = []

    async def append(appends: Sequence[ResourceAppend]) -> Sequence[int]:
        version = (await repository.get([key]))[key].state.version
        states_before.append((version, await _has_cached_state(bus, key)))
        return await original_append(appends)

    monkeypatch.setattr(log, "append", append)
    assert await _commit(repository, key, events(key, 1, EVENTS_BETWEEN_SAVES))
    assert states_before == [(0, False)]
    assert (await repository.get([key]))[key].state.version == EVENTS_BETWEEN_SAVES
    assert await _has_cached_state(bus, key)


async def test_an_unreadable_event_after_a_longer_history_is_damage(
    log: JetStreamLog, bus: Client
) -> None:
    key = new_key()
    [position] = await log.append([ResourceAppend(key, events(key, 1, 2), 0)])
    await log.append([ResourceAppend(key, events(key, 3, 4), position)])
    assert (await log.load([key]))[key].damage is None
    await publish(bus, f"log.{key.tokens}.fact", b"from another client")
    damage = (await log.load([key]))[key].damage
    assert damage is not None
    assert damage.problem == "Unreadable"
