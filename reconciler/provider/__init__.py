"""What an external API must offer to be reconciled: the provider interface.

A *provider* is a thin client of one external API for one kind. It makes each call once, classifies
every failure as one of the ``ProviderError`` classes, and holds no state that matters: retries,
back-off and ownership are the aggregate's (ADR 0003). What an API can do differs, so a provider
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
    ``deterministic_names``: we choose the name, and it is unique. ``labels``: objects carry our
    owner label. ``conditional_writes``: a write can be bound to a version. ``watch``: the API
    reports changes, and each of the kind's providers is a ``WatchingProvider``. Without
    ``listing``, the objects of resources are read one by one, at the interval of listings, and
    unmanaged objects are never detected. ``consistency_grace_seconds``: time until reads and
    listings show an effect; a ``ProviderConfig`` can raise it. Each is declared because a decision
    depends on it (ADR 0003).

    They also determine how an unknown result is resolved (ADR 0012). Without keys and unique names,
    a creation must not be repeated before a lookup. If labels are missing, too, only an operator
    can determine the result.
    """

    idempotency_keys: bool
    deterministic_names: bool
    labels: bool
    conditional_writes: bool
    watch: bool = False
    listing: bool = True
    consistency_grace_seconds: float = 0.0


class Effect(msgspec.Struct, frozen=True):
    """The result of a write: the object as the API returns it afterwards (None after a deletion).

    ``replayed``: the API returned the stored response to an earlier call with the same key.
    ``absent``: the object of a deletion did not exist: an earlier call or another client deleted
    it.
    """

    object: ExternalObject | None
    replayed: bool = False
    absent: bool = False


class Provider(Protocol):
    """A client of one external API for one kind.

    Every method raises a ``ProviderError`` class on failure and never retries by itself.
    """

    async def create(self, action: Action) -> Effect:
        """Create ``action.external_name`` with the action's fields and labels, under its key.

        Raises ``ConflictError`` with the obstacle if an object of that name exists that this key
        did not create, and without an obstacle if that was deleted meanwhile. Never overwrites an
        object. If another call with this key still runs, raises ``UnknownResultError``.
        """
        ...

    async def update(self, action: Action) -> Effect:
        """Replace the object's fields and labels if it is still ``action.uid`` at its version.

        Raises ``NotFoundError``, or ``ConflictError`` with what is there now.
        """
        ...

    async def delete(self, action: Action) -> Effect:
        """Delete the object if it is still ``action.uid``; a missing one is a success, absent.

        Raises ``ConflictError`` with the obstacle if another object has taken the name.
        """
        ...

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one object; None is proof that there is none.

        ``uid``: the object that is meant, where the API makes the ids and names are not unique. An
        API of unique names reads what has the name. Without either, any object of the name.
        """
        ...

    def pages(self, scope: Scope, *, page_size: int) -> AsyncIterator[Sequence[ExternalObject]]:
        """List a scope page by page. Ending without an exception means: the listing is complete.

        After the last page, ``UnreadableObjectsError`` names the objects that cannot be shown: one
        of them must not keep the others from being listed. With one whose name is unknown, the
        listing does not prove that any object is missing.

        Where the kind declares no ``listing``, only the scope of one name and one owner label is
        searched, and only where names are not unique: so the object of a lost creation is found.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class WatchingProvider(Provider, Protocol):
    """A provider of an API that reports changes: its kind declares ``watch``.

    A report is only a hint, after which the next complete listing begins earlier.
    """

    async def changes(self, after: str | None) -> str:
        """Wait a while for a change behind the mark ``after``, and return the newest mark.

        One call: it ends before ``limits.request_timeout_seconds``, with the same mark if nothing
        changed. Without a mark, give the newest at once. Marks are the API's own; only whether two
        are equal counts. It must not take a connection from the other calls.
        """
        ...


@runtime_checkable
class LoggingProvider(Provider, Protocol):
    """A provider whose objects write something that people want to read: a container's output."""

    def logs(
        self, uid: str, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[bytes]:
        """Read what an object has written, in pieces of any length, as they come.

        ``follow``: go on with what it writes from now on, until it ends. ``tail``: only so many of
        the lines that are there. Raises ``NotFoundError`` if there is no such object.
        """
        ...


@runtime_checkable
class MeasuredProvider(Provider, Protocol):
    """A provider that reads values which change continuously: counters, ages, backlogs.

    Such readings are not outputs: they are never recorded, and returned only on request.
    """

    async def readings(self, external_name: str) -> Fields | None:
        """Read them for one object; None if there is none."""
        ...


class ProviderFactory(Protocol):
    """Builds a provider."""

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        """Build a client for a ``ProviderConfig``; opens no connection yet.

        ``secrets``: those that it may read. ``permit``: to be asked before each request.
        """
        ...
