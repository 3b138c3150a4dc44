"""The SDK's client, for commands that expect a reply from the decider."""

from __future__ import annotations

import getpass
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from events.wording import plural
from reconciler.cli.connection import CONNECT_TIMEOUT_SECONDS, Connection
from reconciler.cli.local_clock import warn_of_clock_difference
from reconciler.cli.process_logs import configure_logs
from reconciler.sdk import connect
from reconciler.sdk.client import Client


def command_actor() -> str:
    """Return the actor that the history records for this user's commands."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in containers
        return "cli"


class RetryNotice:
    """Reports once on standard error that the server has not confirmed messages."""

    def __init__(self) -> None:
        self._is_printed = False

    def __call__(self, count: int) -> None:
        """Report the number of messages to send again, but only on the first call."""
        if not self._is_printed:
            self._is_printed = True
            notice = (
                f"waiting: the server has not confirmed {plural(count, 'message')}; this command "
                "retries until its timeout. A stream may be full or missing; see `reconciler "
                "doctor`"
            )
            sys.stderr.write(f"{notice}\n")


@asynccontextmanager
async def connect_client(connection: Connection, *, sends: bool = True) -> AsyncGenerator[Client]:
    """Connect for one command. ``sends``: whether it sends messages.

    Raises:
        BusError, ConfigurationError: the command cannot connect.
    """
    configure_logs(connection.log_level)
    async with connect(
        connection.url,
        source=command_actor(),
        access=connection.access,
        timeout_seconds=CONNECT_TIMEOUT_SECONDS,
        on_retry=RetryNotice(),
    ) as client:
        await warn_of_clock_difference(client.read_clock)
        if sends:
            connection.print_bus_url()
        yield client
