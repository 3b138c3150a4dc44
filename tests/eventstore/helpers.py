"""Helpers for the tests of the event store."""

from collections.abc import Sequence
from uuid import UUID, uuid4

from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import Environment

from infra.eventstore.factory import JetStreamFactory
from infra.eventstore.recorders import JetStreamApplicationRecorder, JetStreamProcessRecorder


def new_environment(url: str, **more: str) -> Environment:
    """Return the settings of an application with uniquely named streams."""
    settings = {
        "PERSISTENCE_MODULE": "infra.eventstore",
        "NATS_URL": url,
        "NATS_STREAM_PREFIX": uuid4().hex,
    }
    return Environment("App", {**settings, **more})


def stored(
    originator_id: UUID | str, version: int, topic: str = "topic", state: bytes = b"state"
) -> StoredEvent:
    return StoredEvent(originator_id, version, topic, state)


def plain(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return events without their positions, to compare them."""
    return [stored(e.originator_id, e.originator_version, e.topic, e.state) for e in events]


def application_recorder(factory: JetStreamFactory) -> JetStreamApplicationRecorder:
    recorder = factory.application_recorder()
    assert isinstance(recorder, JetStreamApplicationRecorder)
    return recorder


def process_recorder(factory: JetStreamFactory) -> JetStreamProcessRecorder:
    recorder = factory.process_recorder()
    assert isinstance(recorder, JetStreamProcessRecorder)
    return recorder
