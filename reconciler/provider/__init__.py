"""The provider interface: what Reconciler requires of a client of an external API.

A *provider* is a thin client of one external API for one kind. It makes each call once, classifies
every failure as one of the ``ProviderError`` classes, and does not hold state that matters: the
aggregate is responsible for retries, backoff and ownership (ADR 0003). APIs differ, so a provider
declares its ``Capabilities``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets


class Capabilities(msgspec.Struct, frozen=True):
    """What an external API can do.

    ``idempotency_keys``: a repeat with the same key returns the first response.
    ``deterministic_names``: Reconciler chooses the name, and it is unique. ``labels``: objects
    carry the owner label. ``conditional_writes``: a write can be bound to a version. ``watch``: the
    API reports that something changed, and each provider of the kind is a ``WatchingProvider``.
    Without ``listing``, the objects of resources are read one by one, at the listing interval.
    Undeclared objects are then never observed. ``path_names``: names are paths, and no object has a
    name below that of another one, so the owner of a name also owns those above and below it.
    ``consistency_grace_seconds``: time until reads and listings show an effect; a
    ``ProviderConfig`` can raise it. A decision depends on each of these fields (ADR 0003).

    They also determine what follows an unknown result (ADR 0012). Without keys and unique names, a
    creation must not be repeated before a lookup. Without labels as well, only an operator
    can find out what the call did.
    """

    idempotency_keys: bool
    deterministic_names: bool
    labels: bool
    conditional_writes: bool
    watch: bool = False
    listing: bool = True
    path_names: bool = False
    consistency_grace_seconds: float = 0.0


class Effect(msgspec.Struct, frozen=True):
    """Effect of a write: the object as the API then shows it, or None after a deletion.

    ``replayed``: the API returned its stored response to an earlier call with the same key.
    ``absent``: a deletion found no object, because an earlier call or another client had deleted
    it.
    """

    object: ExternalObject | None
    replayed: bool = False
    absent: bool = False


class Provider(Protocol):
    """A client of one external API for one kind.

    Every method raises a ``ProviderError`` class on failure, and never retries by itself.
    """

    async def create(self, action: Action) -> Effect:
        """Create ``action.external_name`` with the action's fields and labels, under its key.

        Never overwrite an object. Raise ``ConflictError`` if the name belongs to an object that
        another key created. Add that object as the obstacle, unless it no longer exists. Raise
        ``UnknownResultError`` if a call with the key is still running.
        """
        ...

    async def update(self, action: Action) -> Effect:
        """Replace the object's fields and labels if it still has the action's uid and version.

        Raises ``NotFoundError``, or ``ConflictError`` with the object that exists now.
        """
        ...

    async def delete(self, action: Action) -> Effect:
        """Delete the object if it still has the action's uid. If it is missing, return ``absent``.

        Raises ``ConflictError`` with the obstacle if another object now has the name.
        """
        ...

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one object. None proves that it does not exist.

        ``uid`` identifies the object if the API assigns ids and names are not unique. An API with
        unique names reads the object by name. Without a uid, any object with the name is read.
        """
        ...

    def pages(self, scope: Scope, *, page_size: int) -> AsyncIterator[Sequence[ExternalObject]]:
        """List a scope page by page. The listing is complete if no exception ends it.

        After the last page, ``UnreadableObjectsError`` names the objects that cannot be shown, so
        that they do not hide the others. If the name of one is unknown, the listing does not prove
        that any object is missing.

        If the kind does not declare a ``listing``, only scopes with one name and one owner label
        are searched, and only if names are not unique. This finds the object of a creation whose
        response was lost.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class WatchingProvider(Provider, Protocol):
    """A provider of an API that reports changes: its kind declares ``watch``.

    A report is only a hint that makes the next complete listing begin earlier.
    """

    async def changes(self, after: str | None) -> str:
        """Wait for a limited time for a change after the mark ``after``. Return the newest mark.

        The call ends before ``limits.request_timeout_seconds``, with the same mark if nothing has
        changed. Without a mark, it returns the newest mark immediately. The API defines marks,
        which are compared only for equality. The call must not occupy a connection that other calls
        need.
        """
        ...


@runtime_checkable
class VolatileProvider(Provider, Protocol):
    """A provider of an API whose objects may end with its process.

    After a restart, a listing without objects is plausible. The loss guard accepts it if the
    process is younger than the last complete listing. A different API is usually older.
    """

    async def uptime_seconds(self) -> float | None:
        """Return the age of the API's process, both times by its own clock; None if unknown."""
        ...


@runtime_checkable
class IdentifiedProvider(Provider, Protocol):
    """A provider of a system that can lose all objects and still be the same system.

    Examples are rules of the kernel, which end with a reboot. The ``ProviderConfig`` records the id
    of a listing that contains the objects. The loss guard accepts a loss at the same system.
    """

    async def system_id(self) -> str | None:
        """Return an id that differs from that of each other system; None if it is unknown.

        A restart does not change it. It contains no secret, because it is recorded.
        """
        ...


@runtime_checkable
class ProbedProvider(Provider, Protocol):
    """A provider that can be called without its objects, which may make a listing slow or large.

    Other providers are probed by the first page of a listing.
    """

    async def probe(self) -> bool:
        """Make a call that depends on no object and waits for no other call.

        Return True if the API responds, or False if the call cannot show this. Raises the same
        errors as ``read`` if the API does not respond.
        """
        ...


@runtime_checkable
class LoggingProvider(Provider, Protocol):
    """A provider whose objects write output for users, such as containers."""

    def logs(
        self, uid: str, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[bytes]:
        """Read the output of an object, in pieces of any length, as they arrive.

        ``follow``: continue with new output, until the object stops. ``tail``: only this number of
        existing lines. Raises ``NotFoundError`` if the object does not exist.
        """
        ...


@runtime_checkable
class MeasuredProvider(Provider, Protocol):
    """A provider that can read values that change continually, such as counters and backlogs.

    Such readings are not outputs: they are never recorded, and shown only on request.
    """

    async def readings(self, external_name: str) -> Fields | None:
        """Return the readings of one object; None if it does not exist."""
        ...


class ProviderFactory(Protocol):
    """Builds a provider."""

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        """Build a client for a ``ProviderConfig``, without opening a connection.

        ``secrets``: the secrets that it may read. ``permit``: the client awaits it before each
        request.
        """
        ...
