"""Compare-and-set: the winner's events are stored, and the loser receives an error."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import uuid4

import pytest
from eventsourcing.persistence import DataError, IntegrityError, StoredEvent, Tracking
from eventsourcing.utils import Environment

from infra.eventstore import JetStreamFactory
from tests.eventstore.helpers import application_recorder, process_recorder, stored


def test_one_of_two_concurrent_writers_wins_each_version(environment: Environment) -> None:
    versions, originator_id, barrier = 20, uuid4(), Barrier(2)

    def write(name: bytes) -> list[int]:
        won: list[int] = []
        with JetStreamFactory(environment) as factory:
            recorder = application_recorder(factory)
            for version in range(1, versions + 1):
                barrier.wait()
                try:
                    recorder.insert_events([stored(originator_id, version, state=name)])
                except IntegrityError:
                    continue
                won.append(version)
            factory.close()
        return won

    with ThreadPoolExecutor(2) as pool:
        position, other_position = pool.map(write, (b"one", b"other"))

    assert sorted(position + other_position) == list(range(1, versions + 1))
    with JetStreamFactory(environment) as factory:
        events = application_recorder(factory).select_events(originator_id)
        factory.close()
    assert {e.originator_version: e.state for e in events} == (
        dict.fromkeys(position, b"one") | dict.fromkeys(other_position, b"other")
    )


def test_a_writer_continues_after_another_writers_events_without_a_read(
    environment: Environment,
) -> None:
    originator_id = uuid4()
    factories = [JetStreamFactory(environment) for _ in range(2)]
    recorders = [application_recorder(factory) for factory in factories]

    numbers = [
        recorders[version % 2].insert_events([stored(originator_id, version)])
        for version in range(1, 7)
    ]

    assert numbers == [[1], [2], [3], [4], [5], [6]]
    for factory in factories:
        factory.close()


def test_a_batch_of_many_aggregates_is_stored_completely_or_not_at_all(
    factory: JetStreamFactory,
) -> None:
    recorder = application_recorder(factory)
    existing_id = uuid4()
    recorder.insert_events([stored(existing_id, 1)])
    ids = [uuid4() for _ in range(100)]
    batch = [stored(i, version) for version in (1, 2) for i in ids]

    with pytest.raises(
        IntegrityError, match=r"version 1 of .* already exists; the last version is 1"
    ):
        recorder.insert_events([*batch, stored(existing_id, 1)])
    assert recorder.max_notification_id() == 1

    assert recorder.insert_events([*batch, stored(existing_id, 2)]) == list(range(2, 203))
    assert [n.originator_id for n in recorder.select_notifications(2, 200)] == ids + ids


@pytest.mark.parametrize("versions", [(1, 1), (2, 1), (1, 3, 2)])
def test_versions_in_one_insert_must_increase(
    factory: JetStreamFactory, versions: tuple[int, ...]
) -> None:
    recorder, originator_id = application_recorder(factory), uuid4()
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(originator_id, version) for version in versions])
    assert recorder.max_notification_id() is None


def test_an_event_before_the_last_one_is_refused(factory: JetStreamFactory) -> None:
    recorder, originator_id = application_recorder(factory), uuid4()
    recorder.insert_events([stored(originator_id, 5)])
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(originator_id, 4)])


def test_more_than_a_thousand_events_are_refused_with_a_remedy(factory: JetStreamFactory) -> None:
    recorder = process_recorder(factory)
    events = [stored(uuid4(), 1) for _ in range(1_001)]
    with pytest.raises(DataError, match=r"1001 events .* at most 1000 .* in several steps"):
        recorder.insert_events(events)
    with pytest.raises(DataError, match="at most 1000"):
        recorder.insert_events(events[:1_000], tracking=Tracking("upstream", 1))
    assert recorder.max_notification_id() is None
    assert recorder.insert_events(events[:1_000]) == list(range(1, 1_001))


def test_an_event_that_is_too_large_is_refused(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    events = [stored(uuid4(), 1), stored(uuid4(), 1, state=bytes(9 * 1024 * 1024))]
    with pytest.raises(DataError, match="max_payload"):
        recorder.insert_events(events)
    assert recorder.max_notification_id() is None


def test_a_position_and_its_events_are_stored_together_or_not_at_all(
    factory: JetStreamFactory,
) -> None:
    recorder, first_id, other_id = process_recorder(factory), uuid4(), uuid4()
    recorder.insert_events([stored(first_id, 1)], tracking=Tracking("upstream", 7))

    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(other_id, 1)], tracking=Tracking("upstream", 7))
    assert recorder.select_events(other_id) == []
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(first_id, 1)], tracking=Tracking("upstream", 8))
    assert recorder.max_tracking_id("upstream") == 7

    assert recorder.insert_events([stored(other_id, 1)], tracking=Tracking("upstream", 8)) == [3]
    assert [n.id for n in recorder.select_notifications(1, 10)] == [1, 3]
    assert recorder.max_notification_id() == 3


def test_a_tracking_recorder_shares_the_positions_of_its_application(
    factory: JetStreamFactory,
) -> None:
    process, tracking = process_recorder(factory), factory.tracking_recorder()
    process.insert_events([stored(uuid4(), 1)], tracking=Tracking("upstream", 7))
    assert tracking.max_tracking_id("upstream") == 7
    with pytest.raises(IntegrityError):
        tracking.insert_tracking(Tracking("upstream", 7))
    tracking.insert_tracking(Tracking("upstream", 8))
    assert process.max_tracking_id("upstream") == 8


def test_snapshots_may_be_written_in_any_order_but_only_once(factory: JetStreamFactory) -> None:
    recorder, originator_id = factory.aggregate_recorder("snapshots"), uuid4()

    def versions(**options: int | bool) -> list[int]:
        events = recorder.select_events(originator_id, **options)  # pyright: ignore[reportArgumentType]
        return [event.originator_version for event in events]

    for version in (4, 2, 9, 3):
        recorder.insert_events([stored(originator_id, version)])
    for version in (4, 2, 9, 3):
        with pytest.raises(IntegrityError):
            recorder.insert_events([stored(originator_id, version)])
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(originator_id, 5), stored(originator_id, 5)])

    assert versions() == [2, 3, 4, 9]
    assert versions(desc=True, limit=1) == [9]
    assert versions(desc=True, limit=1, lte=8) == [4]
    assert versions(gt=9) == []
    recorder.insert_events([stored(originator_id, 10)])
    assert versions(desc=True, limit=1) == [10]
    assert versions(gt=3, lte=9) == [4, 9]


def test_topics_and_states_are_read_unchanged(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    events: list[StoredEvent] = [
        stored("", 1, "a.b:C.D[x, y]", bytes(range(256))),
        stored("ü/\u0000 .*>", 1, " topic\r\nInjected: header ", b""),
        stored("x" * 200, 0, "Ω%41", b"\r\n"),
    ]
    recorder.insert_events(events)
    assert [recorder.select_events(e.originator_id) for e in events] == [[e] for e in events]
    assert [n.topic for n in recorder.select_notifications(None, 9)] == [e.topic for e in events]


def test_an_id_that_is_too_long_for_a_subject_is_refused(factory: JetStreamFactory) -> None:
    with pytest.raises(DataError, match="too long"):
        application_recorder(factory).insert_events([stored("ü" * 500, 1)])
