"""The ``Consumer`` kind: a durable pull consumer of a stream.

A consumer is unique within its stream, so its external name is ``STREAM/CONSUMER``; neither name
can contain a slash. As with streams, no write is conditional on a version.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.jetstream.parser import Incoming
from infra.providers.jetstream.advisories import PREFIX, Advisories
from infra.providers.jetstream.api import (
    Cluster,
    Config,
    JetStreamApi,
    StreamInfo,
    build_metadata,
    build_object,
    has_leader,
    read_metadata,
    to_nanoseconds,
    to_seconds,
)
from infra.providers.jetstream.listings import consumer_names, list_details
from infra.providers.jetstream.stream import NAME
from infra.providers.jetstream.streams import (
    CAPABILITIES,
    DeleteResponse,
    Seconds,
    StreamOutputs,
    has_data,
    ready,
    to_milliseconds,
)
from infra.providers.jetstream.subjects import BUCKET_PREFIX, MAX_SUBJECTS, check_filters
from infra.providers.responses import UNDECODABLE
from infra.providers.times import check_time, in_utc
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    RefusedError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, ObjectUse
from reconciler.provider.listing import LISTING_CHANGED, Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets

UNLIMITED = -1
DEFAULT_ACK_WAIT_SECONDS = 30.0
DEFAULT_MAX_ACK_PENDING = 1_000
DEFAULT_MAX_WAITING = 512

_SUBJECTS = (f"{PREFIX}.CONSUMER.CREATED.*.*", f"{PREFIX}.CONSUMER.DELETED.*.*", f"{PREFIX}.API")
"""For a consumer update, the server sends an advisory only for the API request."""

_REQUESTS = ("$JS.API.CONSUMER.CREATE.", "$JS.API.CONSUMER.DURABLE.CREATE.")
_ADVISORY_STREAM_TOKEN = 5

_REMOVABLE_SETTINGS = frozenset(
    {
        "ack_wait",
        "backoff",
        "filter_subject",
        "filter_subjects",
        "max_ack_pending",
        "opt_start_seq",
        "opt_start_time",
    }
)
"""Optional fields of a configuration that an update may remove."""


class ConsumerFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A durable consumer of a JetStream stream.

    Its external name is STREAM/CONSUMER, in the annotation reconciler/external-name.
    """

    stream: Annotated[
        str | None,
        msgspec.Meta(
            description="Stream in the external name. With a reference, {$ref: "
            "Stream/NAME, field: name}, Reconciler creates the consumer after the "
            "stream and deletes it before the stream."
        ),
    ] = None
    description: Annotated[str, msgspec.Meta(max_length=4_096, description="Free text.")] = ""
    filter_subjects: Annotated[
        list[str],
        msgspec.Meta(
            max_length=MAX_SUBJECTS, description="Subjects to deliver, in any order. Default: all."
        ),
    ] = []
    deliver_policy: Annotated[
        Literal["all", "last", "new", "last_per_subject", "by_start_sequence", "by_start_time"],
        msgspec.Meta(description="First message to deliver."),
    ] = "all"
    start_sequence: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None,
        msgspec.Meta(
            description="Sequence of the first message, with deliverPolicy by_start_sequence."
        ),
    ] = None
    start_time: Annotated[
        Annotated[datetime, msgspec.Meta(tz=True)] | None,
        msgspec.Meta(
            description="Time of the first message (ISO 8601), with deliverPolicy by_start_time."
        ),
    ] = None
    ack_policy: Annotated[
        Literal["explicit", "all", "none"],
        msgspec.Meta(
            description="explicit: each message needs an acknowledgement. all: one acknowledgement "
            "also covers all earlier messages. none: no acknowledgements."
        ),
    ] = "explicit"
    ack_wait_seconds: Annotated[
        Seconds,
        msgspec.Meta(
            description="Seconds after which an unacknowledged message is "
            "redelivered. With backoffSeconds, its first value applies."
        ),
    ] = DEFAULT_ACK_WAIT_SECONDS
    backoff_seconds: Annotated[
        list[Seconds],
        msgspec.Meta(
            max_length=100,
            description="Seconds before each redelivery, one value for each delivery.",
        ),
    ] = []
    max_deliver: Annotated[
        int,
        msgspec.Meta(
            ge=UNLIMITED,
            le=2**31 - 1,
            description="Maximum number of deliveries of a message; -1 or 0 means no limit.",
        ),
    ] = UNLIMITED
    max_ack_pending: Annotated[
        int,
        msgspec.Meta(
            ge=UNLIMITED,
            le=2**31 - 1,
            description="Maximum number of messages that are delivered but not acknowledged; "
            "-1 means no limit.",
        ),
    ] = DEFAULT_MAX_ACK_PENDING
    max_waiting: Annotated[
        int,
        msgspec.Meta(ge=1, le=2**31 - 1, description="Maximum number of waiting pull requests."),
    ] = DEFAULT_MAX_WAITING
    replay_policy: Annotated[
        Literal["instant", "original"],
        msgspec.Meta(
            description="instant: as fast as possible. original: at the rate at which the "
            "messages arrived."
        ),
    ] = "instant"
    headers_only: Annotated[
        bool, msgspec.Meta(description="Whether messages are delivered without their payload.")
    ] = False
    memory_storage: Annotated[
        bool,
        msgspec.Meta(description="Whether the state of the consumer is stored in memory only."),
    ] = False
    replicas: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=5,
            description="Replicas of the consumer in a cluster; 0 means as many as the stream has.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        check_filters(self.filter_subjects)
        check_time("startTime", self.start_time)
        if (self.start_sequence is not None) != (self.deliver_policy == "by_start_sequence"):
            raise ValueError(
                "startSequence: required with deliverPolicy by_start_sequence, and not allowed "
                "without it"
            )
        if (self.start_time is not None) != (self.deliver_policy == "by_start_time"):
            raise ValueError(
                "startTime: required with deliverPolicy by_start_time, and not allowed without it"
            )


class _Delivered(msgspec.Struct, frozen=True):
    consumer_seq: int = 0


class _Consumer(msgspec.Struct, frozen=True):
    """A consumer as the server reports it."""

    config: Config
    created: str
    native_name: str = msgspec.field(name="name")
    stream_name: str
    delivered: _Delivered = _Delivered()
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    cluster: Cluster | None = None

    @property
    def is_durable(self) -> bool:
        """Whether it is durable. Ephemeral consumers belong to a client."""
        return bool(self.config.get("durable_name"))

    @property
    def name(self) -> str:
        """The external name."""
        return f"{self.stream_name}/{self.native_name}"

    @property
    def readings(self) -> Fields:
        """Values that change with each message."""
        return {
            "pending": self.num_pending,
            "delivered": self.delivered.consumer_seq,
            "waitingForAck": self.num_ack_pending,
            "redelivered": self.num_redelivered,
        }

    def as_object(self) -> ExternalObject:
        # Almost stable: it becomes true when the first message is pending.
        is_used = self.delivered.consumer_seq > 0 or self.num_pending > 0
        leader_exists = has_leader(self.cluster)
        outputs = {"hasData": is_used or not leader_exists, "hasLeader": leader_exists}
        fields = _fields_of(self.config)
        return build_object(self.name, self.created, read_metadata(self.config), fields, outputs)


class _Request(msgspec.Struct, frozen=True):
    """An advisory about a request to the server's API."""

    subject: str = ""


_request = msgspec.json.Decoder(_Request)


class _ConsumerPath(NamedTuple):
    """The stream and name of a consumer."""

    stream: str
    consumer: str

    @property
    def tokens(self) -> str:
        return f"{self.stream}.{self.consumer}"


class ConsumersProvider(NamedObjects[_Consumer]):
    """Creates, updates and deletes the durable consumers on a JetStream server."""

    noun = "consumer"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._api = JetStreamApi(config, secrets, permit)
        self._advisories = Advisories(self._api, _SUBJECTS, self._is_relevant)
        self._unmanageable_streams: frozenset[str] = frozenset()

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a consumer cannot have this name. Its parts are subject tokens."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> _Consumer | None:
        """Read a durable consumer. Raises ``RefusedError`` if its stream is unmanageable."""
        path = _parse_path(external_name)
        if await self._api.stream(path.stream) is None:
            return None
        info = await self._info(path)
        return info if info is not None and info.is_durable else None

    async def create_object(self, action: Action) -> _Consumer:
        """Create a consumer. The server accepts a repeat with the same configuration."""
        path = _parse_path(action.external_name)
        if action.fields.get("stream", path.stream) != path.stream:
            raise RefusedError(
                f"spec.stream: {action.fields['stream']!r} does not match "
                f"{action.external_name!r}; use {path.stream!r}"
            )
        stream = await self._api.stream(path.stream)
        read_at = time.monotonic()
        if stream is None:
            raise NotDoneError(
                f"stream {path.stream!r} does not exist yet", status=HTTPStatus.CONFLICT
            )
        try:
            return await self._write_consumer(path, "create", _config_of(path, action), read_at)
        except ConflictError:
            existing = await self._info(path)
            if existing is not None and not existing.is_durable:
                raise NotDoneError(
                    f"{action.external_name!r} is an ephemeral consumer, which the server deletes "
                    "after its client stops; use another name",
                    status=HTTPStatus.CONFLICT,
                ) from None
            raise

    async def update_object(self, action: Action, existing: ExistingObject[_Consumer]) -> _Consumer:
        """Update a consumer. Keeps its position, and settings that have no field."""
        path, current = _parse_path(action.external_name), existing.native.config
        if current.get("deliver_subject"):
            raise RefusedError(
                f"{action.external_name!r} is a push consumer (to "
                f"{current['deliver_subject']!r}); only pull consumers can be declared"
            )
        preserved = {key: value for key, value in current.items() if key not in _REMOVABLE_SETTINGS}
        config = {**preserved, **_config_of(path, action)}
        return await self._write_consumer(path, "update", config, existing.read_at)

    async def delete_object(self, action: Action, existing: ExistingObject[_Consumer]) -> None:
        """Delete a consumer with its position."""
        request = f"CONSUMER.DELETE.{_parse_path(action.external_name).tokens}"
        await self._api.write(request, DeleteResponse, read_at=existing.read_at)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Consumer]]:
        """List the durable consumers, stream by stream, in the server's pages."""
        del page_size
        prefix = scope.prefix or ""
        streams, unreadable_streams = list[StreamInfo](), Unreadable()
        async for page in list_details(self._api, "STREAM", StreamInfo, unreadable_streams):
            streams += page
        if unreadable_streams.has_unknown_names:
            unreadable.add(None, None, LISTING_CHANGED)
        for stream in unreadable_streams.names:
            for name in await consumer_names(self._api, stream):
                unreadable.add(f"{stream}/{name}", None, "its stream cannot be read")
        for stream in streams:
            stream_prefix = f"{stream.native_name}/"
            if stream.unmanageable_reason or not (
                stream_prefix.startswith(prefix) or prefix.startswith(stream_prefix)
            ):
                continue
            async for consumers in list_details(
                self._api,
                "CONSUMER",
                _Consumer,
                unreadable,
                stream=stream.native_name,
                to_name=stream_prefix.__add__,
            ):
                yield [each for each in consumers if each.is_durable]
        self._unmanageable_streams = frozenset(
            each.native_name for each in streams if each.unmanageable_reason
        )

    async def changes(self, after: str | None) -> str:
        """Wait for the server's next advisory about a consumer of a listed stream."""
        return await self._advisories.changes(after)

    async def readings(self, external_name: str) -> Fields | None:
        """Return its message counts, such as pending and redelivered ones."""
        self.check_name(external_name)
        consumer = await self.find(external_name)
        return None if consumer is None else consumer.readings

    async def close(self) -> None:
        """Close the connection."""
        self._advisories.close()
        await self._api.close()

    async def _info(self, path: _ConsumerPath) -> _Consumer | None:
        return await self._api.query(f"CONSUMER.INFO.{path.tokens}", _Consumer)

    async def _write_consumer(
        self,
        path: _ConsumerPath,
        verb: Literal["create", "update"],
        config: Config,
        read_at: float,
    ) -> _Consumer:
        request = f"CONSUMER.CREATE.{path.tokens}"
        if "filter_subject" in config:  # also in the subject, so that permissions apply to it
            request += f".{config['filter_subject']}"
        body = {"stream_name": path.stream, "config": config, "action": verb}
        return await self._api.write(request, _Consumer, body, read_at=read_at)

    def _is_relevant(self, advisory: Incoming) -> bool:
        stream = _read_changed_stream(advisory)
        return stream is not None and stream not in self._unmanageable_streams


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a consumer's fields, with the server's defaults."""
    result: Fields = {
        "description": "",
        "deliverPolicy": "all",
        "startSequence": None,
        "ackPolicy": "explicit",
        "maxAckPending": DEFAULT_MAX_ACK_PENDING,
        "maxWaiting": DEFAULT_MAX_WAITING,
        "replayPolicy": "instant",
        "headersOnly": False,
        "memoryStorage": False,
        "replicas": 0,
        **fields,
        "filterSubjects": sorted(set(fields.get("filterSubjects", []))),
        "startTime": in_utc(fields.get("startTime")),
        "maxDeliver": fields.get("maxDeliver") or UNLIMITED,
        "backoffSeconds": [
            to_milliseconds("backoffSeconds", each) for each in fields.get("backoffSeconds", [])
        ],
    }
    ack_wait = to_milliseconds(
        "ackWaitSeconds", fields.get("ackWaitSeconds") or DEFAULT_ACK_WAIT_SECONDS
    )
    # As the server converts them: the first backoff interval is the acknowledgement wait, and a
    # consumer without acknowledgements has neither a wait nor a limit.
    result["ackWaitSeconds"] = (*result["backoffSeconds"], ack_wait)[0]
    result["maxAckPending"] = result["maxAckPending"] or DEFAULT_MAX_ACK_PENDING
    if result["ackPolicy"] == "none":
        del result["ackWaitSeconds"], result["maxAckPending"]
    if result.get("stream") is None:
        result.pop("stream", None)
    return result


def comparable(fields: Fields) -> Fields:
    """Return fields without the stream, which the external name determines."""
    return {name: value for name, value in fields.items() if name != "stream"}


def find_uses(external_name: str, _fields: Fields) -> Sequence[ObjectUse]:
    """Return the stream of a consumer, or the bucket that it belongs to."""
    stream = external_name.partition("/")[0]
    if stream.startswith(BUCKET_PREFIX):
        return [ObjectUse("stream", "Bucket", stream.removeprefix(BUCKET_PREFIX))]
    return [ObjectUse("stream", "Stream", stream)]


def name_problem(name: str) -> str | None:
    """Describe what is wrong with a consumer's external name; None if it is valid."""
    parts = name.split("/")
    if (
        len(parts) == len(_ConsumerPath._fields)
        and all(map(NAME.fullmatch, parts))
        and name.isprintable()
    ):
        return None
    return (
        "set the annotation reconciler/external-name to STREAM/CONSUMER, without spaces or "
        "any of . * > \\ "
    )


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe what a deletion would lose: the position, which cannot be restored."""
    if fields is not None or not has_data(observed):
        return ""
    return (
        f"the position of consumer {observed.name} and, in a stream with interest retention, the "
        "messages that are waiting for it"
    )


def _read_changed_stream(advisory: Incoming) -> str | None:
    """Return the stream whose consumer changed; None if the advisory reports no change."""
    if advisory.subject != _SUBJECTS[-1]:
        return advisory.subject.split(".")[_ADVISORY_STREAM_TOKEN]
    try:
        subject = _request.decode(advisory.data).subject
    except UNDECODABLE:
        return None
    prefix = next((each for each in _REQUESTS if subject.startswith(each)), None)
    return None if prefix is None else subject.removeprefix(prefix).split(".")[0]


def _parse_path(external_name: str) -> _ConsumerPath:
    return _ConsumerPath(*external_name.split("/"))


def _config_of(path: _ConsumerPath, action: Action) -> Config:
    fields = action.fields
    config: Config = {
        "name": path.consumer,
        "durable_name": path.consumer,
        "description": fields["description"],
        "deliver_policy": fields["deliverPolicy"],
        "ack_policy": fields["ackPolicy"],
        "max_deliver": fields["maxDeliver"],
        "max_waiting": fields["maxWaiting"],
        "replay_policy": fields["replayPolicy"],
        "headers_only": fields["headersOnly"],
        "mem_storage": fields["memoryStorage"],
        "num_replicas": fields["replicas"],
        "metadata": build_metadata(action),
    }
    filters: list[str] = fields["filterSubjects"]
    optional: dict[str, Any] = {
        "filter_subject": filters[0] if len(filters) == 1 else None,
        "filter_subjects": filters if len(filters) > 1 else None,
        "opt_start_seq": fields["startSequence"],
        "opt_start_time": fields["startTime"],
        "ack_wait": _optional_nanoseconds(fields.get("ackWaitSeconds")),
        "max_ack_pending": fields.get("maxAckPending"),
        "backoff": [to_nanoseconds(each) for each in fields["backoffSeconds"]] or None,
    }
    return config | {key: value for key, value in optional.items() if value is not None}


def _fields_of(config: Config) -> Fields:
    single_filter = config.get("filter_subject")
    backoff: list[int] = config.get("backoff") or []
    return normalize(
        {
            "description": config.get("description", ""),
            "filterSubjects": [single_filter]
            if single_filter
            else config.get("filter_subjects") or [],
            "deliverPolicy": config["deliver_policy"],
            "startSequence": config.get("opt_start_seq"),
            "startTime": config.get("opt_start_time"),
            "ackPolicy": config["ack_policy"],
            "ackWaitSeconds": to_seconds(config.get("ack_wait", 0)),
            "backoffSeconds": [to_seconds(each) for each in backoff],
            "maxDeliver": config.get("max_deliver"),
            "maxAckPending": config.get("max_ack_pending"),
            "maxWaiting": config.get("max_waiting", 0),  # a push consumer has none
            "replayPolicy": config["replay_policy"],
            "headersOnly": config.get("headers_only", False),
            "memoryStorage": config.get("mem_storage", False),
            "replicas": config.get("num_replicas", 0),
        }
    )


def _optional_nanoseconds(value: float | None) -> int | None:
    return None if value is None else to_nanoseconds(value)


CONSUMER = Kind(
    name="Consumer",
    api_version="jetstream/v1",
    provider="jetstream",
    schema=ConsumerFields,
    capabilities=CAPABILITIES,
    connect=ConsumersProvider,
    normalize=normalize,
    name_problem=name_problem,
    find_uses=find_uses,
    outputs=StreamOutputs,
    ready=ready,
    keeps_readiness=True,
    immutable=frozenset(
        {
            "ackPolicy",
            "deliverPolicy",
            "maxWaiting",
            "memoryStorage",
            "replayPolicy",
            "startSequence",
            "startTime",
        }
    ),
    describe_data_loss=describe_data_loss,
    comparable=comparable,
)
"""The ``Consumer`` kind."""
