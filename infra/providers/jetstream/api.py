"""A connection to an external JetStream server. Sends each request once and classifies failures.

It ignores the environment of Reconciler's own bus (``RECONCILER_CREDENTIALS`` and the like),
because the provider logs in as a separate user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import nats.errors
from nats.aio.client import Client

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Tls
from infra.bus.streams import LOG_ID_METADATA, OWN_METADATA, is_own
from infra.jetstream.access import Access
from infra.jetstream.connection import api_request, close, connect, server_urls
from infra.jetstream.errors import (
    BusAccessError,
    BusDeniedError,
    BusError,
    BusRefusedError,
    BusUnavailableError,
    IncompatibleServerError,
    MessageTooLargeError,
    NotFoundOnBusError,
    ResponseTooLargeError,
    StreamFullError,
)
from infra.jetstream.identity import Login, parse_login
from infra.providers.jetstream.subjects import describe_reserved_stream
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets

Config = dict[str, Any]
"""A configuration in the server's format. Unknown fields are kept."""

KEY_METADATA: Final = "reconciler-key"
"""Metadata field with the key of an object's last write. It is not reported as a label."""

_RESERVED: Final = frozenset({KEY_METADATA, OWN_METADATA, LOG_ID_METADATA})
_SERVER_PREFIX: Final = "_nats."
_SCHEMES: Final = frozenset({"nats", "tls"})
_CREDENTIAL: Final = "the secret of spec.credentialsRef"
_CHECK_ACCESS: Final = f"check {_CREDENTIAL} and the permissions of its user"

_NAME_IN_USE: Final = frozenset({10058, 10148, 10013, 10105})
_NOT_FOUND: Final = frozenset({10149})
_TEMPORARY: Final = frozenset({10002, 10005, 10026, 10027, 10065, 10099, 10100})
"""Account limits, unavailable peers, another stream with the same subjects, and another consumer of
the same part of a work queue."""

_UNAVAILABLE: Final = 503


class StreamCounts(msgspec.Struct, frozen=True):
    """The positions and sizes of a stream."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    consumer_count: int = 0


class Cluster(msgspec.Struct, frozen=True):
    """The leader of an object. A single server reports none."""

    leader: str = ""


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as the server reports it."""

    config: Config
    created: str
    state: StreamCounts = StreamCounts()
    cluster: Cluster | None = None

    @property
    def native_name(self) -> str:
        """The name on the server, which may differ from the external name."""
        return str(self.config["name"])

    @property
    def unmanageable_reason(self) -> str:
        """Why no resource can manage this stream: it is Reconciler's own, or has its subjects."""
        if is_own(read_metadata(self.config)):
            return f"stream {self.native_name} belongs to Reconciler"
        reason = describe_reserved_stream(self.native_name, self.config.get("subjects") or ())
        return f"stream {self.native_name}: {reason}" if reason else ""

    @property
    def readings(self) -> Fields:
        """Values that change with each message."""
        state = self.state
        return {
            "messages": state.messages,
            "bytes": state.bytes,
            "firstSequence": state.first_seq,
            "lastSequence": state.last_seq,
            "consumers": state.consumer_count,
        }

    @property
    def outputs(self) -> Fields:
        """Stable values. A work queue that is currently empty still counts as having data.

        So does a stream without a leader, because the responding server does not have its state.
        """
        leader_exists = has_leader(self.cluster)
        return {"hasData": self.state.last_seq > 0 or not leader_exists, "hasLeader": leader_exists}


_T = TypeVar("_T")


class ListingTooLargeError(NotDoneError):
    """A response exceeds the limit because some objects are large."""


class JetStreamApi:
    """A connection, opened on first use."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self.permit = permit
        self._endpoint = _check_endpoint(config.endpoint)
        self._login = _login(secrets)
        self._access = _access(config.tls)
        self.timeout_seconds = config.limits.request_timeout_seconds
        self._client: Client | None = None
        self._is_closed = False
        self._connect_lock = asyncio.Lock()

    async def query(
        self, request: str, result_type: type[_T], body: Config | None = None
    ) -> _T | None:
        """Send a request that changes nothing; None if the server reports that no object exists."""
        await self.permit.before_request()
        try:
            reply = await self._request(request, body)
            return msgspec.convert(reply, result_type)
        except NotFoundOnBusError:
            return None
        except BusError as error:
            raise classify_error(error, is_read=True) from error
        except msgspec.ValidationError as error:
            raise NotDoneError(f"{request}: invalid response: {error}", responded=True) from None

    async def write(
        self,
        request: str,
        result_type: type[_T],
        body: Config | None = None,
        *,
        read_at: float | None,
    ) -> _T:
        """Send a change that relies on a read at ``read_at``.

        Raises ``ConflictError`` without an obstacle if another object has the name.
        """
        client = await self.connection()  # before the permit, because a new connection takes time
        await self.permit.before_request(read_at=read_at)
        try:
            reply = await api_request(client, request, body, self.timeout_seconds)
            self.permit.record_write()
            return msgspec.convert(reply, result_type)
        except BusError as error:
            raise classify_error(error, is_read=False) from error
        except msgspec.ValidationError as error:
            raise UnknownResultError(f"{request}: invalid response: {error}") from None

    async def stream(self, name: str) -> StreamInfo | None:
        """Return a stream; None if it does not exist.

        Raises ``RefusedError`` for an unmanageable stream: if treated as absent, it would be
        created.
        """
        info = await self.query(f"STREAM.INFO.{name}", StreamInfo)
        if info is not None and info.unmanageable_reason:
            raise RefusedError(f"{info.unmanageable_reason}; a resource cannot manage it")
        return info

    async def connection(self) -> Client:
        """Return the connection. Raises ``NotDoneError`` while it is interrupted."""
        async with self._connect_lock:
            client = self._client or await self._connect()
            if self._is_closed:  # possibly while connecting
                await close(client)
                raise NotDoneError(f"the connection to {self._endpoint} was closed")
            self._client = client
        if not client.is_connected:
            # The client would buffer the message, and send it after it has reconnected.
            raise NotDoneError(f"not connected to {self._endpoint}: nothing was sent")
        return client

    async def close(self) -> None:
        """Close the connection permanently."""
        self._is_closed = True
        client, self._client = self._client, None
        if client is not None:
            await close(client)

    async def _connect(self) -> Client:
        try:
            return await connect(
                self._endpoint,
                name="reconciler provider jetstream",
                timeout_seconds=self.timeout_seconds,
                access=self._access,
                login=self._login,
            )
        except BusError as error:
            raise classify_error(error, is_read=True) from error

    async def _request(self, suffix: str, body: Config | None) -> Config:
        return await api_request(await self.connection(), suffix, body, self.timeout_seconds)


def classify_error(error: BusError, *, is_read: bool) -> ProviderError:
    """Classify a failure as a provider error."""
    text = str(error)
    match error:
        case BusAccessError() | BusDeniedError() | IncompatibleServerError():
            return NotDoneError(f"{text} ({_CHECK_ACCESS})")
        case NotFoundOnBusError():
            return NotFoundError(text)
        case StreamFullError():
            return NotDoneError(text)
        case ResponseTooLargeError() if is_read:
            # A tenant can cause it, so it does not count against the server's health.
            return ListingTooLargeError(text, status=HTTPStatus.CONFLICT)
        case MessageTooLargeError():
            return RefusedError(text)
        case BusRefusedError():
            return _classify_refusal(error, is_read=is_read)
        case BusUnavailableError():
            # If there is no cause, the server responded or nothing was sent.
            is_certain = isinstance(error.__cause__, nats.errors.NoRespondersError | None)
            return NotDoneError(text) if is_read or is_certain else UnknownResultError(text)
        case _:
            return NotDoneError(text) if is_read else UnknownResultError(text)


def _classify_refusal(error: BusRefusedError, *, is_read: bool) -> ProviderError:
    text, code = str(error), error.code
    if error.err_code in _NAME_IN_USE:
        return ConflictError(text, status=code)
    if error.err_code in _NOT_FOUND:
        return NotFoundError(text, status=code)
    if is_read or code == _UNAVAILABLE or error.err_code in _TEMPORARY:
        return NotDoneError(text, status=code)
    # Also code 500, which is the server's response to an invalid configuration.
    return RefusedError(text, status=code)


def has_leader(cluster: Cluster | None) -> bool:
    """Return whether there is a leader. A single server has no cluster and always leads."""
    return cluster is None or bool(cluster.leader)


def read_metadata(config: Config) -> dict[str, str]:
    """Return an object's metadata."""
    return config.get("metadata") or {}


def build_metadata(action: Action) -> dict[str, str]:
    """Return the metadata that an action writes: its labels and its key.

    Raises ``RefusedError`` for a label with a reserved name.
    """
    for label in action.labels:
        if label in _RESERVED or label.startswith(_SERVER_PREFIX):
            raise RefusedError(f"label {label!r} is reserved in JetStream; use another name")
    return {**action.labels, KEY_METADATA: action.idempotency_key}


def build_object(
    name: str, created: str, metadata: Mapping[str, str], fields: Fields, outputs: Fields
) -> ExternalObject:
    """Return an object as a provider reports it.

    Its creation time distinguishes it from other objects of the same name.
    """
    labels = {
        key: value
        for key, value in metadata.items()
        if key != KEY_METADATA and not key.startswith(_SERVER_PREFIX)
    }
    written_by = metadata.get(KEY_METADATA)
    return ExternalObject(name, fields, created, None, labels, written_by, outputs)


def to_seconds(nanoseconds: int) -> float:
    """Convert the server's duration to seconds, rounded to milliseconds."""
    return round(nanoseconds / 1_000_000) / 1_000


def to_nanoseconds(seconds: float) -> int:
    """Convert seconds to the server's duration, rounded to milliseconds."""
    return round(seconds * 1_000) * 1_000_000


def _check_endpoint(endpoint: str) -> str:
    """Return a valid endpoint of one or more servers. Raises ``ConfigurationError``."""
    try:
        urls = server_urls(endpoint)
        parts = [urlsplit(url) for url in urls]
        is_usable = all(
            part.scheme in _SCHEMES and part.hostname and (part.port or True) for part in parts
        )
        is_plain = all(not part.path.strip("/") and not part.query for part in parts)
    except (BusUnavailableError, ValueError):
        is_usable = is_plain = False
    if "@" in endpoint:
        raise ConfigurationError(
            "spec.endpoint: the URL must not contain credentials, because the log keeps it; "
            "use spec.credentialsRef"
        )
    if not is_usable or not is_plain:
        raise ConfigurationError(
            f"spec.endpoint: {endpoint[:200]!r} is not the URL of a NATS server; use "
            "nats://HOST:PORT or tls://HOST:PORT, and separate multiple servers of one "
            "cluster with commas"
        )
    return endpoint


def _login(secrets: Secrets) -> Login:
    """Return the login, which is empty without a secret."""
    if secrets.credential is None:
        return Login()
    try:
        login = parse_login(secrets.credential, what=_CREDENTIAL)
    except BusAccessError as error:
        raise ConfigurationError(str(error)) from None
    if login.password:
        secrets.secrecy.add(login.password)
    if login.key is not None:
        secrets.secrecy.add(login.key.read().seed)
    return login


def _access(tls: Tls | None) -> Access:
    if tls is None:
        return Access()
    files = (tls.ca_file, tls.certificate_file, tls.key_file)
    ca, certificate, key = (None if file is None else Path(file) for file in files)
    if key is not None and certificate is None:
        raise ConfigurationError(
            "spec.tls.keyFile: requires spec.tls.certificateFile; set that, too"
        )
    return Access(tls_ca=ca, tls_cert=certificate, tls_key=key)
