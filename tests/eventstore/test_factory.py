"""Settings, and the errors for invalid ones."""

import gc
import threading
from uuid import uuid4

import pytest
from eventsourcing.application import Application
from eventsourcing.persistence import (
    InfrastructureFactoryError,
    InterfaceError,
    OperationalError,
)
from eventsourcing.utils import Environment

from infra.embedded import EmbeddedServer
from infra.eventstore import JetStreamFactory
from infra.eventstore.factory import Settings
from infra.jetstream.reads import stream_state
from tests.eventstore.helpers import application_recorder, new_environment, stored


def test_the_error_without_a_url_names_the_setting() -> None:
    with pytest.raises(OSError, match="set APP_NATS_URL or NATS_URL, as in NATS_URL=nats://"):
        JetStreamFactory(Environment("App", {"NATS_URL": " "}))


def test_the_error_without_a_name_names_the_setting() -> None:
    with pytest.raises(InfrastructureFactoryError, match="set NATS_STREAM_PREFIX"):
        JetStreamFactory({"NATS_URL": "nats://127.0.0.1:1"})


@pytest.mark.parametrize("value", ["0", "-1", "many"])
@pytest.mark.parametrize("key", ["NATS_STREAM_REPLICAS", "NATS_TIMEOUT_SECONDS"])
def test_numbers_are_checked(key: str, value: str) -> None:
    with pytest.raises(
        InfrastructureFactoryError, match=f"{key}='{value}': must be a number greater than 0"
    ):
        Settings.from_environment(Environment("App", {"NATS_URL": "nats://x", key: value}))


def test_an_applications_own_setting_has_priority() -> None:
    env = {"NATS_URL": "nats://x", "APP_NATS_URL": "nats://own", "NATS_STREAM_PREFIX": "p"}
    assert Settings.from_environment(Environment("App", env)) == Settings(
        "nats://own", None, "p-App", 1, 20.0
    )


def test_an_unreachable_server_is_an_operational_error() -> None:
    with pytest.raises(OperationalError, match=r"cannot reach nats://127\.0\.0\.1:1"):
        JetStreamFactory(new_environment("nats://127.0.0.1:1", NATS_TIMEOUT_SECONDS="0.3"))


def test_a_missing_stream_is_not_created_when_creation_is_disabled(
    nats_server: EmbeddedServer,
) -> None:
    environment = new_environment(nats_server.url, CREATE_TABLE="no", NATS_TIMEOUT_SECONDS="1")
    with JetStreamFactory(environment) as factory:
        recorder = application_recorder(factory)
        with pytest.raises(OperationalError, match="stream is missing"):
            recorder.insert_events([stored(uuid4(), 1)])
        factory.close()


def test_a_wrong_recorder_topic_is_refused(environment: Environment) -> None:
    environment["APPLICATION_RECORDER_TOPIC"] = "eventsourcing.popo:POPOApplicationRecorder"
    factory = JetStreamFactory(environment)
    with pytest.raises(InfrastructureFactoryError, match="must be a JetStreamApplicationRecorder"):
        factory.application_recorder()
    factory.close()


def test_applications_that_share_a_prefix_have_their_own_streams(environment: Environment) -> None:
    other_environment = Environment("Other app.*", environment)
    factories = [JetStreamFactory(environment), JetStreamFactory(other_environment)]
    recorders = [application_recorder(factory) for factory in factories]
    for recorder in recorders:
        assert recorder.insert_events([stored("one", 1)]) == [1]
    assert recorders[0].layout.stream == f"{environment['NATS_STREAM_PREFIX']}-App_events"
    for factory in factories:
        factory.close()


def test_the_stream_never_drops_history(factory: JetStreamFactory) -> None:
    stream = application_recorder(factory).layout.stream
    config = factory.bus.call(stream_state(factory.bus.nc, stream)).config
    expected = {"discard": "new", "deny_delete": True, "deny_purge": True, "retention": "limits"}
    assert expected.items() <= config.items()


def test_a_closed_store_raises_a_clear_error(factory: JetStreamFactory) -> None:
    recorder = application_recorder(factory)
    factory.close()
    factory.close()
    with pytest.raises(InterfaceError, match="closed"):
        recorder.select_events("one")


def test_the_thread_of_an_unreferenced_application_ends(nats_server: EmbeddedServer) -> None:
    environment = new_environment(nats_server.url)
    name = f"eventstore {environment['NATS_STREAM_PREFIX']}-Application"
    app = Application[object](environment)  # pyright: ignore[reportInvalidTypeArguments]
    (thread,) = (thread for thread in threading.enumerate() if thread.name == name)
    del app
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
