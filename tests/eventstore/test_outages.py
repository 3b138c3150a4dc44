"""In an outage nothing is lost, and an unknown result is never reported as a failure."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventsourcing.persistence import IntegrityError, OperationalError

from infra.embedded import EmbeddedServer
from infra.eventstore import JetStreamFactory
from tests.eventstore.helpers import application_recorder, new_environment, stored


@pytest.fixture
def factory(own_server: EmbeddedServer) -> Iterator[JetStreamFactory]:
    factory = JetStreamFactory(new_environment(own_server.url, NATS_TIMEOUT_SECONDS="0.5"))
    yield factory
    factory.close()


def test_a_restarted_server_has_all_events_and_recorders_continue(
    own_server: EmbeddedServer, factory: JetStreamFactory, tmp_path: Path
) -> None:
    recorder = application_recorder(factory)
    recorder.insert_events([stored("one", 1), stored("other", 1)])
    with recorder.subscribe(gt=1) as subscription:
        assert next(subscription).id == 2

        asyncio.run(own_server.kill())
        with pytest.raises(OperationalError, match="result is unknown"):
            recorder.insert_events([stored("one", 2)])
        asyncio.run(own_server.start(tmp_path, port=own_server.port))

        last = _insert_when_possible(factory, first_version=3)
        assert last in (notification.id for notification in subscription)
    assert recorder.select_events("one")[0] == stored("one", 1)
    assert recorder.select_events("other") == [stored("other", 1)]


def _insert_when_possible(factory: JetStreamFactory, first_version: int) -> int:
    """Insert an event; after a lost response, insert a later one, as it may have been stored."""
    recorder = application_recorder(factory)
    for version in range(first_version, first_version + 60):
        try:
            numbers = recorder.insert_events([stored("one", version)])
        except OperationalError:
            continue
        assert numbers
        return numbers[0]
    raise AssertionError("the server did not restart")


def test_the_result_after_a_lost_acknowledgment_is_unknown_and_not_a_conflict(
    own_server: EmbeddedServer, factory: JetStreamFactory
) -> None:
    recorder = application_recorder(factory)
    batch = [stored("one", 1), stored("one", 2)]

    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(OperationalError, match="result is unknown") as raised:
            recorder.insert_events(batch)
    finally:
        os.kill(own_server.pid, signal.SIGCONT)

    assert not isinstance(raised.value, IntegrityError)
    with recorder.subscribe() as subscription:
        assert next(subscription).id == 1
    assert recorder.select_events("one") == batch  # the server had stored it
    with pytest.raises(IntegrityError):
        recorder.insert_events(batch)
