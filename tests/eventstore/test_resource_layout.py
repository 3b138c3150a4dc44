"""The library's recorders read and write the product's log."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from eventsourcing.persistence import (
    DataError,
    IntegrityError,
    InternalError,
    NotSupportedError,
    ProgrammingError,
    StoredEvent,
)

from events import subjects
from events.envelope import decode_log, encode_log
from events.intake import ActionError
from events.log import (
    SOURCE,
    ActionFailed,
    GenerationSuperseded,
    LogEvent,
    OutcomeRecorded,
    ResourceEvent,
    SpecWithdrawn,
    event_id,
    event_type,
    log_suffix,
)
from events.names import ResourceKey
from infra.embedded import EmbeddedServer
from infra.eventstore import JetStreamFactory
from infra.jetstream.reads import read_subject
from infra.jetstream.sequences import EMPTY, Entry, Sequences, head_of
from infra.jetstream.topology import ensure_stream
from tests.eventstore.helpers import application_recorder, new_environment

KEY, OTHER = ResourceKey("team", "Shape", "foo_1"), ResourceKey("team", "Shape", "foo_2")
TOPIC = "infra.eventstore.resource_layout:ResourceLayout"
CONFIG: dict[str, object] = {
    "name": "LOG_1",
    "subjects": ["log.>"],
    "discard": "new",
    "allow_direct": True,
    "allow_atomic": True,
}
HISTORY: list[ResourceEvent] = [
    GenerationSuperseded(1, 2),
    SpecWithdrawn(2),
    OutcomeRecorded("Deleted", 2, "Withdrawn"),
    ActionFailed("a", "Delete", 1, ActionError("Throttled", "slow down")),
]


@pytest.fixture
def factory(own_server: EmbeddedServer) -> Iterator[JetStreamFactory]:
    environment = new_environment(own_server.url, EVENT_LAYOUT_TOPIC=TOPIC, CREATE_TABLE="no")
    factory = JetStreamFactory(environment)
    factory.bus.call(ensure_stream(factory.bus.nc, CONFIG))
    yield factory
    factory.close()


def _log_event(key: ResourceKey, version: int, data: ResourceEvent) -> LogEvent:
    now = datetime(2026, 11, 21, 8, tzinfo=UTC)
    return LogEvent(event_id(key, version), SOURCE, event_type(data), str(key), now, version, data)


def _stored(event: LogEvent) -> StoredEvent:
    return StoredEvent(event.subject, event.resourceversion, event.type, encode_log(event))


def _append_like_the_product(factory: JetStreamFactory, events: list[LogEvent]) -> None:
    entries = [
        Entry(
            subjects.log_filter(event.key),
            event.resourceversion,
            subjects.log(event.key, log_suffix(event.data)),
            encode_log(event),
        )
        for event in events
    ]
    factory.bus.call(_append(factory, entries))


async def _append(factory: JetStreamFactory, entries: list[Entry]) -> None:
    log = Sequences(factory.bus.nc, "LOG_1", sequence_of=subjects.log_filter_of, has_digests=True)
    newest = await log.newest({entry.sequence for entry in entries}, from_leader=True)
    heads = {entry.sequence: EMPTY for entry in entries}
    await log.append(entries, heads | {name: head_of(each) for name, each in newest.items()})


def test_the_library_reads_what_the_product_wrote(factory: JetStreamFactory) -> None:
    own_events = [_log_event(KEY, n, data) for n, data in enumerate(HISTORY, start=1)]
    other_events = [_log_event(OTHER, 1, HISTORY[0])]
    _append_like_the_product(factory, own_events + other_events)
    recorder = application_recorder(factory)

    assert recorder.select_events(str(KEY)) == [_stored(event) for event in own_events]
    assert recorder.select_events(str(KEY), desc=True, limit=1) == [_stored(own_events[-1])]
    assert recorder.select_events(str(KEY), gt=1, lte=3) == [_stored(e) for e in own_events[1:3]]
    assert [
        decode_log(n.state) for n in recorder.select_notifications(1, 10)
    ] == own_events + other_events
    topics = ["reconciler.resource.OutcomeRecorded"]
    assert [n.id for n in recorder.select_notifications(1, 10, topics=topics)] == [3]
    assert recorder.max_notification_id() == 5
    with recorder.subscribe(gt=4) as subscription:
        assert next(subscription).originator_id == str(OTHER)


def test_the_product_reads_what_the_library_wrote(factory: JetStreamFactory) -> None:
    events = [_log_event(KEY, n, data) for n, data in enumerate(HISTORY, start=1)]
    recorder = application_recorder(factory)

    assert recorder.insert_events([_stored(event) for event in events[:2]]) == [1, 2]
    assert recorder.insert_events([_stored(event) for event in events[2:]]) == [3, 4]

    messages = factory.bus.call(read_subject(factory.bus.nc, "LOG_1", subjects.log_filter(KEY)))
    assert [decode_log(message.payload) for message in messages] == events
    assert [message.subject.split(".", 4)[4] for message in messages] == [
        "fact",
        "fact",
        "outcome.Deleted",
        "fact",
    ]


def test_the_product_and_the_library_write_each_version_of_a_resource_once(
    factory: JetStreamFactory,
) -> None:
    events = [_log_event(KEY, n, data) for n, data in enumerate(HISTORY, start=1)]
    recorder = application_recorder(factory)
    recorder.insert_events([_stored(events[0])])
    _append_like_the_product(factory, [events[1]])

    with pytest.raises(IntegrityError, match="already exists; the last version is 2"):
        recorder.insert_events([_stored(events[1])])
    with pytest.raises(IntegrityError, match="would leave a gap; the next version is 3"):
        recorder.insert_events([_stored(events[3])])
    assert recorder.insert_events([_stored(events[2])]) == [3]


def test_a_resource_starts_at_version_one(factory: JetStreamFactory) -> None:
    event = _stored(_log_event(KEY, 2, HISTORY[0]))
    with pytest.raises(IntegrityError, match="would leave a gap; the next version is 1"):
        application_recorder(factory).insert_events([event])


def test_a_gap_in_a_resources_history_is_an_error(factory: JetStreamFactory) -> None:
    events = [_log_event(KEY, n, HISTORY[0]) for n in (1, 2, 4)]
    _append_like_the_product(factory, events)
    with pytest.raises(InternalError, match="expected event 3, found event 4"):
        application_recorder(factory).select_events(str(KEY))
    assert len(application_recorder(factory).select_events(str(KEY), lte=2)) == 2


def test_an_event_that_contradicts_its_envelope_is_refused(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    valid_event = _stored(_log_event(KEY, 1, HISTORY[0]))
    for invalid_event in (
        replace(valid_event, originator_id=str(OTHER)),
        replace(valid_event, originator_version=2),
        replace(valid_event, topic="reconciler.resource.SpecWithdrawn"),
        replace(valid_event, state=b"{}"),
        replace(valid_event, state=b"\xff"),
    ):
        with pytest.raises(DataError):
            recorder.insert_events([invalid_event])
    assert recorder.max_notification_id() is None


def test_the_log_is_not_created_and_stores_no_tracking(factory: JetStreamFactory) -> None:
    with pytest.raises(NotSupportedError, match="cannot store tracking records in LOG_1"):
        factory.process_recorder()
    factory.env["CREATE_TABLE"] = "yes"
    with pytest.raises(ProgrammingError, match="set CREATE_TABLE=no"):
        factory.application_recorder()
