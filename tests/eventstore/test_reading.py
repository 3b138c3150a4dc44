"""Pages of the log, ranges of an aggregate's events, and subscriptions."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from eventsourcing.persistence import InterfaceError, ProgrammingError

from infra.eventstore import JetStreamFactory
from infra.jetstream.topology import delete_stream
from tests.eventstore.helpers import application_recorder, stored


def test_rare_topics_are_found_across_many_pages(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    for start in (1, 1_001, 2_001):
        recorder.insert_events(
            [
                stored("one", version, "rare" if version % 700 == 0 else "common")
                for version in range(start, start + 1_000)
            ]
        )

    def rare(limit: int, start: int = 1, stop: int | None = None) -> list[int]:
        page = recorder.select_notifications(start, limit, stop, topics=["rare"])
        return [notification.id for notification in page]

    assert rare(10) == [700, 1400, 2100, 2800]
    assert rare(2) == [700, 1400]
    assert rare(10, start=701, stop=2100) == [1400, 2100]
    assert rare(10, stop=699) == []
    assert len(recorder.select_notifications(None, 5_000)) == 3_000
    assert [n.id for n in recorder.select_notifications(2_999, 10)] == [2999, 3000]
    assert recorder.select_notifications(3_001, 10) == []


def test_an_aggregates_events_by_version(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    recorder.insert_events([stored("one", version) for version in range(1, 11)])
    recorder.insert_events([stored("other", 1)])

    def versions(**options: int | bool) -> list[int]:
        events = recorder.select_events("one", **options)  # pyright: ignore[reportArgumentType]
        return [event.originator_version for event in events]

    assert versions(gt=3, lte=6) == [4, 5, 6]
    assert versions(gt=3, desc=True, limit=2) == [10, 9]
    assert versions(limit=2) == [1, 2]
    assert versions(gt=10) == []
    assert versions(gt=10, desc=True, limit=1) == []
    assert versions(lte=0, desc=True, limit=1) == []
    recorder.insert_events([stored("one", 11)])
    assert versions(gt=10) == [11]
    assert versions(gt=9) == [10, 11]


def test_a_subscription_receives_each_event_once_while_events_are_written(
    factory: JetStreamFactory,
) -> None:
    recorder, batches, size = application_recorder(factory), 30, 100

    def write() -> None:
        for _ in range(batches):
            recorder.insert_events([stored(uuid4(), 1) for _ in range(size)])

    with ThreadPoolExecutor(1) as pool, recorder.subscribe() as subscription:
        write_task = pool.submit(write)
        ids = [next(subscription).id for _ in range(batches * size)]
        write_task.result()
    assert ids == list(range(1, batches * size + 1))


def test_another_thread_can_stop_a_waiting_subscription(
    factory: JetStreamFactory,
) -> None:
    recorder = application_recorder(factory)
    recorder.insert_events([stored("one", 1)])
    subscription = recorder.subscribe()
    with ThreadPoolExecutor(1) as pool, subscription:
        assert next(subscription).id == 1
        pending = pool.submit(lambda: [n.id for n in subscription])
        subscription.stop()
        assert pending.result(10) == []
    subscription.stop()


def test_closing_the_factory_ends_a_subscription(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    recorder.insert_events([stored("one", 1)])
    with recorder.subscribe() as subscription:
        assert next(subscription).id == 1
        factory.close()
        with pytest.raises(InterfaceError, match="closed"):
            next(subscription)


def test_a_subscription_to_a_deleted_stream_raises_an_error(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    factory.bus.call(delete_stream(factory.bus.nc, recorder.layout.stream))
    with (
        recorder.subscribe() as subscription,
        pytest.raises(ProgrammingError, match="CREATE_TABLE"),
    ):
        next(subscription)
