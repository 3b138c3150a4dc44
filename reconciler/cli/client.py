"""The SDK's client for commands that expect a reply of the decider."""

from __future__ import annotations

import getpass
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from events.wording import plural
from reconciler.cli.connection import PATIENCE_SECONDS, Connection
from reconciler.cli.own_clock import warn_of_own_clock
from reconciler.cli.own_logs import configure_logs
from reconciler.sdk import connect
from reconciler.sdk.client import Client


def who() -> str:
    """Return the user of the command line, which is the actor in the history."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in containers
        return "cli"


class RetryNotice:
    """Reports once on standard error that the server does not confirm messages."""

    def __init__(self) -> None:
        self._is_printed = False

    def __call__(self, count: int) -> None:
        """Report the number of messages that are sent again, the first time."""
        if not self._is_printed:
            self._is_printed = True
            notice = (
                f"waiting: the server does not confirm {plural(count, 'message')}; this command "
                "sends them again until its timeout. The disk of the server may be full: see "
                "`reconciler doctor`"
            )
            sys.stderr.write(f"{notice}\n")


@asynccontextmanager
async def client_of(connection: Connection, *, sends: bool = True) -> AsyncGenerator[Client]:
    """Connect for one command, which sends messages, or only reads.

    Raises:
        BusError, ConfigurationError: the connection is not possible.
    """
    configure_logs(connection.log_level)
    async with connect(
        connection.url,
        source=who(),
        access=connection.access,
        patience_seconds=PATIENCE_SECONDS,
        on_retry=RetryNotice(),
    ) as client:
        await warn_of_own_clock(client.read_clock)
        if sends:
            connection.name_bus()
        yield client
