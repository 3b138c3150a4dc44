"""The provider of what is a stream: of ``Stream`` itself, and of ``Bucket``.

What the API cannot promise: no write of it is bound to a version. An update or a deletion reads the
stream first and compares its uid; who takes the name between these two calls, seconds at most, is
changed or deleted in its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Literal

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
    check_name,
    metadata_in,
    metadata_of,
    not_there,
    shown,
)
from infra.providers.jetstream.listings import listed
from reconciler.errors import ConflictError, NotDoneError, NotFoundError
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import READY, Readiness
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import check_uid
from reconciler.provider.secrets import Secrets

UNLIMITED = -1
DEFAULT_DUPLICATE_WINDOW_SECONDS = 120.0
MAX_SECONDS = 292 * 365 * 86_400
"""More is no duration of the server's."""

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
    """Round a duration as the server's objects have it; 0 means no limit, and is not reached so.

    Raises ``InvalidManifestError`` for a duration of less than a millisecond.
    """
    rounded = round(value, 3)
    if value and not rounded:
        raise InvalidManifestError(f"spec.{field}: {value:g}: must be at least 0.001 seconds, or 0")
    return rounded


class StreamOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """What a stream or bucket shows besides: ``has_data``, if anything was ever stored in it."""

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


class Deleted(msgspec.Struct, frozen=True):
    """The server's answer to a deletion."""

    success: bool


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind's objects are streams.

    ``stream_of`` and ``name_of``: a stream's name of an object's, and back; None where a stream is
    none of the kind's objects. ``config_of`` and ``fields_of``: its configuration of an object's
    name and fields, and the fields back.
    """

    name_problem: Callable[[str], str | None]
    stream_of: Callable[[str], str]
    name_of: Callable[[str], str | None]
    config_of: Callable[[str, Fields], Config]
    fields_of: Callable[[Config], Fields]


class StreamsProvider:
    """A client of a JetStream, for one form of streams."""

    def __init__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit, form: Form
    ) -> None:
        self._form = form
        self._api = JetStreamApi(config, secrets, permit)
        self._advisories = Advisories(self._api, STREAM_ADVISORIES, self._is_news)
        self._outside: frozenset[str] = frozenset()
        self._writing = asyncio.Lock()

    async def create(self, action: Action) -> Effect:
        """Create a stream; the server takes the same configuration, key included, once more."""
        stream = self._stream_of(action.external_name)
        config = self._config(stream, action)
        try:
            request = f"STREAM.CREATE.{stream}"
            async with self._turn():
                info = await self._api.write(request, StreamInfo, config, read_at=None)
        except ConflictError as conflict:
            found = await self.read(action.external_name)
            if found is not None and found.written_by == action.idempotency_key:
                return Effect(found, replayed=True)
            raise ConflictError(conflict.message, status=conflict.status, obstacle=found) from None
        return Effect(self._object(info))

    async def update(self, action: Action) -> Effect:
        """Change a stream that is still the action's; what no field is about stays as it is."""
        stream = self._stream_of(action.external_name)
        async with self._turn():
            found = await self._api.stream(stream)
            read_at = time.monotonic()
            if found is None:
                raise not_there(action)
            check_uid(self._object(found), action)
            config = {**found.config, **self._config(stream, action)}
            request = f"STREAM.UPDATE.{stream}"
            info = await self._api.write(request, StreamInfo, config, read_at=read_at)
        return Effect(self._object(info))

    async def delete(self, action: Action) -> Effect:
        """Delete a stream that is still the action's, with all that it holds."""
        stream = self._stream_of(action.external_name)
        found = await self._api.stream(stream)
        read_at = time.monotonic()
        if found is None:
            return Effect(None, absent=True)
        check_uid(self._object(found), action)
        try:
            await self._api.write(f"STREAM.DELETE.{stream}", Deleted, read_at=read_at)
        except NotFoundError:
            return Effect(None, absent=True)
        return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one; raises ``RefusedError`` for one that is out of bounds."""
        del uid  # names are unique
        found = await self._api.stream(self._stream_of(external_name))
        return None if found is None else self._object(found)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the streams of a scope; what is out of bounds is in none."""
        del page_size  # the server's own: 256
        outside, unreadable, named = set[str](), Unreadable(), self._form.name_of
        async for page in listed(self._api, "STREAM", StreamInfo, unreadable, named=named):
            outside |= {each.name for each in page if each.out_of_bounds}
            objects = [
                unreadable.converted(
                    partial(self._object, each), lambda at=(name, each.created): at
                )
                for each in page
                if each.name not in outside and (name := named(each.name)) is not None
            ]
            yield [each for each in objects if each and scope.has(each.name, each.labels)]
        self._outside = frozenset(outside)
        unreadable.check()

    async def changes(self, after: str | None) -> str:
        """Wait for the server's next advisory about a stream that is listed here."""
        return await self._advisories.changes(after)

    async def readings(self, external_name: str) -> Fields | None:
        """Count what it holds."""
        found = await self._api.stream(self._stream_of(external_name))
        return None if found is None else found.readings

    async def close(self) -> None:
        """Close the connection."""
        self._advisories.close()
        await self._api.close()

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """Wait until no other write of a configuration is under way.

        The server compares its subjects with those of all streams, and answers nobody meanwhile.
        """
        try:
            async with asyncio.timeout(self._api.timeout_seconds):
                await self._writing.acquire()
        except TimeoutError:
            raise NotDoneError(
                f"waited {self._api.timeout_seconds:g} s for other writes of streams: nothing was "
                "sent",
                status=HTTPStatus.CONFLICT,
            ) from None
        try:
            yield
        finally:
            self._writing.release()

    def _is_news(self, advisory: Incoming) -> bool:
        stream = advisory.subject.split(".")[-1]
        return stream not in self._outside and self._form.name_of(stream) is not None

    def _stream_of(self, external_name: str) -> str:
        check_name(external_name, self._form.name_problem(external_name))
        return self._form.stream_of(external_name)

    def _config(self, stream: str, action: Action) -> Config:
        config = self._form.config_of(action.external_name, action.fields)
        return {"name": stream, **config, "metadata": metadata_of(action)}

    def _object(self, info: StreamInfo) -> ExternalObject:
        name = self._form.name_of(info.name)
        if name is None:
            raise NotDoneError(f"the response describes another stream: {info.name!r}")
        fields = self._form.fields_of(info.config)
        return shown(name, info.created, metadata_in(info.config), fields, info.outputs)


def ready(_fields: Fields, thing: ExternalObject) -> Readiness:
    """Return whether somebody leads it: else nothing can be stored or read."""
    if thing.outputs.get("hasLeader", True):
        return READY
    return Readiness(
        False, "NoLeader", "more than half of the servers with its replicas must be running"
    )


def duplicate_window(value: float | None, max_age_seconds: float) -> float:
    """Return a duplicate window, or the server's: two minutes, and no longer than an age limit."""
    if value is not None:
        return round(value, 3)
    longest = DEFAULT_DUPLICATE_WINDOW_SECONDS
    return min(longest, max_age_seconds or longest)


def limit(value: int | None) -> int:
    """Return a limit its one spelling: 0 is none for the server, too."""
    return value or UNLIMITED


def has_data(thing: ExternalObject) -> bool:
    """Return whether an object may hold data: so it is taken to, where that is not known."""
    return bool(thing.outputs.get("hasData", True))


def tightened(fields: Fields, thing: ExternalObject, limits: Mapping[str, str]) -> list[str]:
    """Return which limits would be lower than they are; each of them removes what is beyond it."""
    lower: list[str] = []
    for name, unit in limits.items():
        wanted, found = fields.get(name, 0), thing.fields.get(name, 0)
        if wanted > 0 and (found <= 0 or wanted < found):
            before = "no limit" if found <= 0 else f"{found:g} {unit}"
            lower.append(f"{name} from {before} to {wanted:g} {unit}")
    return lower
