"""The SDK's client for commands that declare and withdraw."""

from __future__ import annotations

import getpass
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from reconciler.cli.connection import PATIENCE_SECONDS, Connection, find_url
from reconciler.cli.logs import configure_logs
from reconciler.client.client import Client
from reconciler.sdk import connect


def who() -> str:
    """Name who uses the command line: the actor in the history."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in containers
        return "cli"


@asynccontextmanager
async def client_of(connection: Connection) -> AsyncGenerator[Client]:
    """Connect for one command; raises ``BusError`` and ``ConfigurationError``."""
    configure_logs(connection.log_level)
    async with connect(
        find_url(connection.nats_url),
        source=who(),
        access=connection.access,
        patience_seconds=PATIENCE_SECONDS,
    ) as client:
        yield client
