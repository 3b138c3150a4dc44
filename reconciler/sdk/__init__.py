"""The SDK for other services: ``from reconciler.sdk import connect``.

::

    async with connect("nats://127.0.0.1:4222", source="billing") as client:
        reply = await client.declare(manifest)
        outcome = await client.wait_for("default/Shape/foo", generation=reply.generation)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nats.aio.client import Client as Connection

from events.dead_letter import Discarded
from events.external import ExternalObject
from events.intake import Observed, Reply
from events.integrity import LogDamage, LogDamagedError
from events.log import OutcomeName
from events.manifest import InvalidManifestError, Manifest, Metadata
from events.names import InvalidNameError, ResourceKey
from infra.bus.client_bus import JetStreamClientBus, OnRetry, log_retry
from infra.bus.streams import check_log_format, has_log
from infra.jetstream import connection
from infra.jetstream.access import DEFAULT_ACCESS, Access
from infra.jetstream.errors import BusError
from projections.ownership import OwnershipRow
from projections.read_models import FleetSummary
from projections.status import StatusRow
from reconciler.errors import (
    ConfigurationError,
    DeclarationRefusedError,
    PositionNotFoundError,
    ReconcilerError,
    WaitTimeoutError,
)
from reconciler.ports import StoredEvent
from reconciler.sdk.client import Client
from reconciler.sdk.dead_letters import DeadLetter, LetterRefusedError, RetryResult
from reconciler.sdk.listing_writer import ListingWriter
from reconciler.sdk.moments import Moment
from reconciler.sdk.outcomes import SETTLED, Outcome, OutcomeStream

__all__ = [
    "SETTLED",
    "Access",
    "BusError",
    "Client",
    "ConfigurationError",
    "DeadLetter",
    "DeclarationRefusedError",
    "Discarded",
    "ExternalObject",
    "FleetSummary",
    "InvalidManifestError",
    "InvalidNameError",
    "LetterRefusedError",
    "ListingWriter",
    "LogDamage",
    "LogDamagedError",
    "Manifest",
    "Metadata",
    "Moment",
    "Observed",
    "Outcome",
    "OutcomeName",
    "OutcomeStream",
    "OwnershipRow",
    "PositionNotFoundError",
    "ReconcilerError",
    "Reply",
    "ResourceKey",
    "RetryResult",
    "StatusRow",
    "StoredEvent",
    "WaitTimeoutError",
    "client_on",
    "connect",
]

DEFAULT_URL = "nats://127.0.0.1:4222"
_MAX_SOURCE_CHARACTERS = 200


@asynccontextmanager
async def connect(
    url: str = DEFAULT_URL,
    *,
    source: str,
    access: Access = DEFAULT_ACCESS,
    timeout_seconds: float = 30.0,
    on_retry: OnRetry = log_retry,
) -> AsyncGenerator[Client]:
    """Connect to the bus of a reconciler; lost connections are restored.

    ``source`` names your service: it is the actor in the history. ``access``: the key to use and
    the CAs to trust. Unset fields come from the environment (``RECONCILER_CREDENTIALS``,
    ``RECONCILER_NKEY``, ``RECONCILER_TLS_CA``, ...). ``timeout_seconds``: timeout for the first
    connection. ``on_retry`` is called with the number of messages that the server did not confirm
    within five seconds, before they are sent again. Raises ``BusError`` if the bus is unavailable,
    and ``ConfigurationError`` for an invalid source or a bus without a reconciler.
    """
    _check_source(source)
    nc = await connection.connect(url, name=source, access=access, timeout_seconds=timeout_seconds)
    try:
        await connection.require_jetstream(nc)
        async with client_on(nc, source=source, on_retry=on_retry) as client:
            yield client
    finally:
        await connection.close(nc)


@asynccontextmanager
async def client_on(
    nc: Connection, *, source: str, on_retry: OnRetry = log_retry
) -> AsyncGenerator[Client]:
    """Create a client on a connection that the caller closes.

    Raises the same errors as ``connect``.
    """
    _check_source(source)
    await check_log_format(nc)
    if not await has_log(nc):
        raise ConfigurationError(
            "this server has no event log; run `reconciler init` on a new server, or restore a "
            "lost log from a backup"
        )
    bus = JetStreamClientBus(nc, source, on_retry)
    await bus.open()
    client = Client(bus, nc)
    try:
        yield client
    finally:
        await client.close()
        await bus.close()


def _check_source(source: str) -> None:
    if not source or len(source) > _MAX_SOURCE_CHARACTERS or not source.isprintable():
        raise ConfigurationError(
            f"source {source[:80]!r}: invalid; use 1 to {_MAX_SOURCE_CHARACTERS} printable "
            "characters"
        )
