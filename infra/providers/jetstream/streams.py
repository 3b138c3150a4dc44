"""The provider of ``Stream`` and ``Bucket``, which are both streams.

The API has no conditional writes. An update or a deletion reads the stream first and compares its
uid. If another stream takes the name between these two calls, at most a few seconds apart, that
stream is changed or deleted instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, ClassVar, Literal

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields, InvalidManifestError
from events.provider_config import ProviderConfigSpec, Scope
from infra.jetstream.parser import Incoming
from infra.providers.jetstream.advisories import STREAM_ADVISORIES, Advisories
from infra.providers.jetstream.api import (
    Config,
    JetStreamApi,
    StreamInfo,
    build_metadata,
    build_object,
    read_metadata,
)
from infra.providers.jetstream.listings import list_details
from reconciler.errors import NotDoneError
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import READY, Readiness
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets

UNLIMITED = -1
DEFAULT_DUPLICATE_WINDOW_SECONDS = 120.0
MAX_SECONDS = 292 * 365 * 86_400
"""The longest duration that the server accepts."""

Limit = Annotated[int, msgspec.Meta(ge=UNLIMITED, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
Replicas = Annotated[int, msgspec.Meta(ge=1, le=5)]
Storage = Literal["file", "memory"]
Compression = Literal["none", "s2"]

CAPABILITIES = Capabilities(
    idempotency_keys=False,
    deterministic_names=True,
    labels=True,
    conditional_writes=False,
    watch=True,
)


def to_milliseconds(field: str, value: float) -> float:
    """Round a duration as the server does, but never to 0, which means no limit.

    Raises ``InvalidManifestError`` for a duration below a millisecond.
    """
    seconds = round(value, 3)
    if value and not seconds:
        raise InvalidManifestError(f"spec.{field}: {value:g}: must be at least 0.001 seconds, or 0")
    return seconds


class StreamOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """Outputs of a stream, bucket or consumer."""

    has_data: Annotated[
        bool,
        msgspec.Meta(
            description="Whether a stream or bucket has ever stored a value, or a consumer "
            "has ever had a message to deliver."
        ),
    ]
    has_leader: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the object has a leader. A single server is always the leader."
        ),
    ]


class DeleteResponse(msgspec.Struct, frozen=True):
    """The server's response to a deletion."""

    success: bool


@dataclass(frozen=True, slots=True)
class StreamMapping:
    """How the objects of a kind correspond to streams.

    ``stream_of`` and ``name_of`` convert between an object's and its stream's name. ``name_of``
    returns None for a stream that is not an object of the kind. ``config_of`` and ``fields_of``
    convert between fields and configuration.
    """

    name_problem: Callable[[str], str | None]
    stream_of: Callable[[str], str]
    name_of: Callable[[str], str | None]
    config_of: Callable[[str, Fields], Config]
    fields_of: Callable[[Config], Fields]


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream as an object of a kind."""

    info: StreamInfo
    mapping: StreamMapping

    @property
    def name(self) -> str:
        """The external name."""
        name = self.mapping.name_of(self.info.native_name)
        if name is None:
            raise NotDoneError(
                f"the response describes a different stream: {self.info.native_name!r}"
            )
        return name

    def as_object(self) -> ExternalObject:
        info, fields = self.info, self.mapping.fields_of(self.info.config)
        return build_object(
            self.name, info.created, read_metadata(info.config), fields, info.outputs
        )


class StreamsProvider(NamedObjects[_Stream]):
    """Creates, updates and deletes the streams that its subclass's ``mapping`` describes."""

    mapping: ClassVar[StreamMapping]

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._api = JetStreamApi(config, secrets, permit)
        self._advisories = Advisories(self._api, STREAM_ADVISORIES, self._is_relevant)
        self._unmanageable_streams: frozenset[str] = frozenset()
        self._write_lock = asyncio.Lock()

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a stream cannot have this name, which is a subject token."""
        return self.mapping.name_problem(external_name)

    async def find(self, external_name: str) -> _Stream | None:
        """Read a stream. Raises ``RefusedError`` for an unmanageable stream."""
        info = await self._api.stream(self.mapping.stream_of(external_name))
        return None if info is None else _Stream(info, self.mapping)

    async def create_object(self, action: Action) -> _Stream:
        """Create a stream. The server accepts a repeat with the same configuration."""
        async with self._exclusive_write():
            return await self._write("CREATE", action, self._config(action), read_at=None)

    async def update(self, action: Action) -> Effect:
        """Update a stream. Waits for other writes before the read, not after it."""
        async with self._exclusive_write():
            return await super().update(action)

    async def update_object(self, action: Action, existing: ExistingObject[_Stream]) -> _Stream:
        """Update a stream. Keeps settings that have no field."""
        config = {**existing.native.info.config, **self._config(action)}
        return await self._write("UPDATE", action, config, read_at=existing.read_at)

    async def delete_object(self, action: Action, existing: ExistingObject[_Stream]) -> None:
        """Delete a stream with all its messages."""
        request = f"STREAM.DELETE.{self.mapping.stream_of(action.external_name)}"
        await self._api.write(request, DeleteResponse, read_at=existing.read_at)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Stream]]:
        """List the manageable streams that it maps, in the server's pages."""
        del scope, page_size
        unmanageable, name_of = set[str](), self.mapping.name_of
        async for page in list_details(
            self._api, "STREAM", StreamInfo, unreadable, to_name=name_of
        ):
            unmanageable |= {each.native_name for each in page if each.unmanageable_reason}
            yield [
                _Stream(each, self.mapping)
                for each in page
                if each.native_name not in unmanageable and name_of(each.native_name) is not None
            ]
        self._unmanageable_streams = frozenset(unmanageable)

    async def changes(self, after: str | None) -> str:
        """Wait for the server's next advisory about a listed stream."""
        return await self._advisories.changes(after)

    async def readings(self, external_name: str) -> Fields | None:
        """Return the stream's message count, size and positions."""
        self.check_name(external_name)
        stream = await self.find(external_name)
        return None if stream is None else stream.info.readings

    async def close(self) -> None:
        """Close the connection."""
        self._advisories.close()
        await self._api.close()

    @asynccontextmanager
    async def _exclusive_write(self) -> AsyncGenerator[None]:
        """Wait until no other write of a configuration is in progress.

        The server compares the subjects with those of all streams, and does not process other
        requests until it has finished.
        """
        try:
            async with asyncio.timeout(self._api.timeout_seconds):
                await self._write_lock.acquire()
        except TimeoutError:
            raise NotDoneError(
                f"waited {self._api.timeout_seconds:g} s for other writes to streams: nothing was "
                "sent",
                status=HTTPStatus.CONFLICT,
            ) from None
        try:
            yield
        finally:
            self._write_lock.release()

    def _is_relevant(self, advisory: Incoming) -> bool:
        stream = advisory.subject.split(".")[-1]
        return stream not in self._unmanageable_streams and self.mapping.name_of(stream) is not None

    def _config(self, action: Action) -> Config:
        name, mapping = action.external_name, self.mapping
        config = mapping.config_of(name, action.fields)
        return {"name": mapping.stream_of(name), **config, "metadata": build_metadata(action)}

    async def _write(
        self, verb: str, action: Action, config: Config, *, read_at: float | None
    ) -> _Stream:
        request = f"STREAM.{verb}.{self.mapping.stream_of(action.external_name)}"
        info = await self._api.write(request, StreamInfo, config, read_at=read_at)
        return _Stream(info, self.mapping)


def ready(_fields: Fields, observed: ExternalObject) -> Readiness:
    """Return whether an object has a leader. Without a leader, nothing can be stored or read."""
    if observed.outputs.get("hasLeader", True):
        return READY
    return Readiness(
        False, "NoLeader", "more than half of the servers with its replicas must be running"
    )


def duplicate_window(value: float | None, max_age_seconds: float) -> float:
    """Return a duplicate window. The server's default is 120 s, or the maximum age if shorter."""
    if value is not None:
        return round(value, 3)
    longest = DEFAULT_DUPLICATE_WINDOW_SECONDS
    return min(longest, max_age_seconds or longest)


def limit(value: int | None) -> int:
    """Return the canonical form of a limit. The server also treats 0 as no limit."""
    return value or UNLIMITED


def has_data(observed: ExternalObject) -> bool:
    """Return whether an object may hold data. If that is unknown, it may."""
    return bool(observed.outputs.get("hasData", True))


def find_lowered_limits(
    fields: Fields, observed: ExternalObject, limits: Mapping[str, str]
) -> list[str]:
    """Describe the limits that would be lowered. Lowering one deletes what exceeds it."""
    lowered: list[str] = []
    for name, unit in limits.items():
        desired, current = fields.get(name, 0), observed.fields.get(name, 0)
        if desired > 0 and (current <= 0 or desired < current):
            old_limit = "no limit" if current <= 0 else f"{current:g} {unit}"
            lowered.append(f"{name} from {old_limit} to {desired:g} {unit}")
    return lowered
