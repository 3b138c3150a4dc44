"""The infrastructure factory, which the `eventsourcing` library finds by `PERSISTENCE_MODULE`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    InfrastructureFactoryError,
    NotSupportedError,
    ProcessRecorder,
)
from eventsourcing.utils import Environment, EnvType, resolve_topic, strtobool

from infra.eventstore.bus import DEFAULT_TIMEOUT_SECONDS, Bus
from infra.eventstore.header_layout import HeaderLayout, SnapshotLayout
from infra.eventstore.layout import EventLayout, TrackingLayout
from infra.eventstore.recorders import (
    JetStreamAggregateRecorder,
    JetStreamApplicationRecorder,
    JetStreamProcessRecorder,
    JetStreamRecorder,
    JetStreamSnapshotRecorder,
    JetStreamTrackingRecorder,
)

EVENTS: Final = "events"
EVENT_LAYOUT_TOPIC: Final = "EVENT_LAYOUT_TOPIC"
CREATE_TABLE: Final = "CREATE_TABLE"
NATS_URL: Final = "NATS_URL"
CREDENTIALS: Final = "NATS_CREDENTIALS"
STREAM_PREFIX: Final = "NATS_STREAM_PREFIX"
STREAM_REPLICAS: Final = "NATS_STREAM_REPLICAS"
TIMEOUT: Final = "NATS_TIMEOUT_SECONDS"

N = TypeVar("N", int, float)
R = TypeVar("R", bound=JetStreamRecorder)


@dataclass(frozen=True)
class Settings:
    """The bus address, and the names and replicas of the application's streams.

    Attributes:
        credentials: a `.creds` file, if the server requires one.
        base: first part of the stream names: the prefix and the application's name.
        timeout: seconds to wait for a response before the result counts as unknown.
    """

    url: str
    credentials: Path | None
    base: str
    replicas: int
    timeout: float

    @classmethod
    def from_environment(cls, env: Environment) -> "Settings":
        """Read the settings. A key prefixed with the application's name takes precedence.

        Raises:
            OSError: `NATS_URL` is missing.
            InfrastructureFactoryError: another setting is missing or invalid.
        """
        url = (env.get(NATS_URL) or "").strip()
        if not url:
            raise OSError(
                "the environment does not contain a NATS server URL; set "
                f"{' or '.join(env.create_keys(NATS_URL))}, as in "
                f"{NATS_URL}=nats://127.0.0.1:4222"
            )
        credentials = (env.get(CREDENTIALS) or "").strip()
        return cls(
            url=url,
            credentials=Path(credentials) if credentials else None,
            base=_base(env),
            replicas=_number(env, STREAM_REPLICAS, 1, int),
            timeout=_number(env, TIMEOUT, DEFAULT_TIMEOUT_SECONDS, float),
        )


class JetStreamFactory(InfrastructureFactory[JetStreamTrackingRecorder]):
    """Recorders on JetStream that share one connection and one background event loop.

    =========================  ==================================================================
    ``NATS_URL``               the server, or several separated by commas; required
    ``NATS_CREDENTIALS``       a ``.creds`` file, if the server requires one
    ``NATS_STREAM_PREFIX``     prefix to the application's name in its stream names
    ``NATS_STREAM_REPLICAS``   replicas of each stream in a cluster, 1 by default
    ``NATS_TIMEOUT_SECONDS``   time limit for a response, 20 by default
    ``CREATE_TABLE``           whether to create the streams, yes by default
    ``EVENT_LAYOUT_TOPIC``     format of stored events: a class with ``EventLayout``'s interface,
                               constructed with a base name and a purpose; ``HeaderLayout`` if unset
    =========================  ==================================================================
    """

    def __init__(self, env: Environment | EnvType | None) -> None:
        """Connect to the bus.

        Raises:
            OSError: `NATS_URL` is missing.
            InfrastructureFactoryError: another setting is invalid.
            OperationalError: no connection within the time limit.
        """
        super().__init__(env)
        self.settings = Settings.from_environment(self.env)
        self.bus = Bus.connect(
            self.settings.url,
            name=self.settings.base,
            credentials=self.settings.credentials,
            timeout=self.settings.timeout,
        )

    def aggregate_recorder(self, purpose: str = EVENTS) -> AggregateRecorder:
        """Construct a recorder for events, or for snapshots if the purpose is not `events`."""
        if purpose == EVENTS:
            return self._ensure_stream(JetStreamAggregateRecorder(self.bus, self._event_layout()))
        layout = SnapshotLayout(self.settings.base, purpose)
        return self._ensure_stream(JetStreamSnapshotRecorder(self.bus, layout))

    def application_recorder(self) -> ApplicationRecorder:
        """Construct an application recorder."""
        recorder_class = self._class_of(
            self.APPLICATION_RECORDER_TOPIC, JetStreamApplicationRecorder
        )
        return self._ensure_stream(recorder_class(self.bus, self._event_layout()))

    def tracking_recorder(
        self, tracking_recorder_class: type[JetStreamTrackingRecorder] | None = None
    ) -> JetStreamTrackingRecorder:
        """Construct a tracking recorder of the given class, or of the class in the environment."""
        recorder_class = tracking_recorder_class or self._class_of(
            self.TRACKING_RECORDER_TOPIC, JetStreamTrackingRecorder
        )
        return self._ensure_stream(recorder_class(self.bus, self._tracking_layout()))

    def process_recorder(self) -> ProcessRecorder:
        """Construct a recorder for an application that follows others."""
        recorder_class = self._class_of(self.PROCESS_RECORDER_TOPIC, JetStreamProcessRecorder)
        return self._ensure_stream(recorder_class(self.bus, self._tracking_layout()))

    def close(self) -> None:
        """Close the connection and the event loop, which ends recorders and subscriptions."""
        self.bus.close()

    def _ensure_stream(self, recorder: R) -> R:
        if strtobool(self.env.get(CREATE_TABLE) or "yes"):
            recorder.create_stream(self.settings.replicas)
        return recorder

    def _class_of(self, key: str, default: type[R]) -> type[R]:
        topic = self.env.get(key)
        if not topic:
            return default
        recorder_class: Any = resolve_topic(topic)
        if not (isinstance(recorder_class, type) and issubclass(recorder_class, default)):
            raise InfrastructureFactoryError(f"{key}={topic}: must be a {default.__name__}")
        return recorder_class

    def _event_layout(self) -> EventLayout:
        topic = self.env.get(EVENT_LAYOUT_TOPIC)
        layout_class: Any = resolve_topic(topic) if topic else HeaderLayout
        return layout_class(self.settings.base, EVENTS)

    def _tracking_layout(self) -> TrackingLayout:
        layout = self._event_layout()
        if not isinstance(layout, TrackingLayout):
            raise NotSupportedError(
                f"{type(layout).__name__} cannot store tracking records in {layout.stream}; "
                "use it with an application recorder, and store tracking records in your own "
                "application"
            )
        return layout


def _base(env: Environment) -> str:
    parts = [part for part in ((env.get(STREAM_PREFIX) or "").strip(), env.name) if part]
    if not parts:
        raise InfrastructureFactoryError(
            f"the streams need a name; set {STREAM_PREFIX}, or give the application a name"
        )
    return "-".join(parts)


def _number(env: Environment, key: str, default: N, read: Callable[[str], N]) -> N:
    text = (env.get(key) or "").strip()
    try:
        number = read(text) if text else default
    except ValueError:
        number = read("0")
    if number <= 0:
        raise InfrastructureFactoryError(f"{key}={text!r}: must be a number greater than 0")
    return number
