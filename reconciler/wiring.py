"""Wires JetStream to the ports. Only this module selects their implementation."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.client import Client

from infra.bus.actions import JetStreamActionReader
from infra.bus.decision_sink import JetStreamDecisionSink
from infra.bus.event_log import open_log
from infra.bus.foreign_listings import JetStreamListingReader
from infra.bus.intake import JetStreamIntakeReader, JetStreamIntakeWriter
from infra.bus.intake_trim import trim_periodically
from infra.bus.log_watch import watch_log
from infra.bus.name_owners import BusNameOwners
from infra.bus.rates import JetStreamRates
from infra.bus.removals import check_intake_positions
from infra.bus.retries import retry_read
from infra.bus.rows import JetStreamRows
from infra.bus.streams import Topology, ensure_topology
from infra.jetstream.access import DEFAULT_ACCESS, Access
from infra.jetstream.connection import close, connect, is_clustered, require_jetstream
from infra.jetstream.errors import BusUnavailableError, StreamReplacedError
from infra.secrets import open_stores
from reconciler.failpoints import arm_from_environment
from reconciler.provider.kind import KindRegistry, installed_kinds
from reconciler.provider.secrets import SecretStores
from reconciler.roles.process import ROLES, Ports, ProcessParts, Role, load, run_parts
from reconciler.roles.projector.lost_events import LogTooShortError, find_log_losses

__all__ = [
    "ROLES",
    "ProcessParts",
    "Role",
    "initialize",
    "open_connection",
    "process_name",
    "run_roles",
]

START_TIMEOUT_SECONDS = 60.0
"""Time that a process waits for the streams, so that it survives a recovery or an election."""


SECRETS_VARIABLE = "RECONCILER_SECRETS"
"""Environment variable with the folder of the ``files`` secret store."""


def process_name() -> str:
    """Return the name of this process in events and on the server: host and process id."""
    return f"reconciler@{socket.gethostname()}:{os.getpid()}"


@asynccontextmanager
async def open_connection(
    url: str, *, access: Access = DEFAULT_ACCESS, timeout_seconds: float = 30
) -> AsyncGenerator[Client]:
    """Connect to a JetStream server that is new enough, and close the connection at the end.

    ``timeout_seconds``: time to wait for a server that is still starting. Raises
    ``BusAccessError``, ``BusUnavailableError`` or ``IncompatibleServerError``.
    """
    nc = await connect(url, name=process_name(), access=access, timeout_seconds=timeout_seconds)
    try:
        await retry_read(nc, lambda: require_jetstream(nc), seconds=timeout_seconds)
        yield nc
    finally:
        await close(nc)


async def initialize(
    nc: Client, *, replicas: int | None = None, namespaces: Sequence[str] = ()
) -> Topology:
    """Create or upgrade every stream, consumer and bucket. Repeating this changes nothing.

    ``namespaces``: the namespaces whose services read outcomes.
    """
    arm_from_environment()
    return await ensure_topology(nc, replicas=replicas, namespaces=namespaces)


@asynccontextmanager
async def run_roles(
    nc: Client,
    roles: Sequence[Role],
    *,
    kinds: KindRegistry | None = None,
    secrets: Path | None = None,
) -> AsyncGenerator[ProcessParts]:
    """Run roles until the context ends. The streams must exist (``initialize``).

    ``secrets`` is the folder of the ``files`` secret store, instead of the environment's.

    When the context is entered, the process has read the whole log. If a role fails, the context
    ends and raises its error in an exception group. Raises ``ConfigurationError`` for an invalid
    failpoint in the environment (``reconciler.failpoints``).
    """
    arm_from_environment()
    known = kinds if kinds is not None else installed_kinds()
    stores = open_stores(secrets or secrets_folder())
    parts = await retry_read(
        nc, lambda: _load(nc, roles, known, stores), seconds=START_TIMEOUT_SECONDS
    )
    background = [lambda: trim_periodically(nc)] if "decider" in roles else []
    async with run_parts(parts, roles, bus_tasks=background):
        yield parts


def secrets_folder() -> Path | None:
    """Return the folder of the ``files`` secret store that the environment names."""
    folder = os.environ.get(SECRETS_VARIABLE)
    return Path(folder) if folder else None


async def _load(
    nc: Client, roles: Sequence[Role], kinds: KindRegistry, stores: SecretStores
) -> ProcessParts:
    log = await open_log(nc)
    rows = JetStreamRows(nc)
    try:
        await check_intake_positions(nc)
    except StreamReplacedError as error:
        raise _retryable_in_cluster(nc, error) from error
    ports = Ports(
        watch=await watch_log(nc),
        name=process_name(),
        log=log,
        rows=rows,
        rates=JetStreamRates(nc),
        names=BusNameOwners(nc),
        intake=JetStreamIntakeWriter(nc, process_name()),
        sink=JetStreamDecisionSink(nc),
        intake_reader=lambda: JetStreamIntakeReader(nc, log.identity),
        action_reader=lambda: JetStreamActionReader(nc),
        listing_reader=lambda: JetStreamListingReader(nc),
        lost_events=lambda models: find_log_losses(log, rows, models),
        secrets=stores,
    )
    try:
        return await load(ports, roles, kinds)
    except LogTooShortError as error:
        raise _retryable_in_cluster(nc, error) from error


def _retryable_in_cluster(nc: Client, error: Exception) -> Exception:
    """Return a retryable error in a cluster, where an isolated leader may have less data."""
    return BusUnavailableError(str(error)) if is_clustered(nc) else error
