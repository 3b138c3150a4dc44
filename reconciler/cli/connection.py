"""The connection to the bus, and the options that all commands share."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from cyclopts import Group, Parameter
from nats.aio.client import Client

from infra.jetstream.access import Access
from infra.jetstream.connection import (
    close,
    connect,
    leave_server,
    redact_url,
    require_jetstream,
    server_urls,
)
from infra.jetstream.errors import BusUnavailableError
from reconciler.cli.interrupts import interrupting, record_sending
from reconciler.cli.local_clock import warn_of_clock_difference
from reconciler.cli.options import NamedPath
from reconciler.cli.process_logs import LogLevel, configure_logs
from reconciler.cli.settings import NAMES, UP_SOURCE, Setting, settings
from reconciler.errors import ConfigurationError

if TYPE_CHECKING:
    from infra.bus.bus_clock import BusClock

DATA_DIRECTORY: Final = Path("reconciler-data")
UP_FILE: Final = "up.json"
UP_LOCK: Final = "up.lock"  # `up` holds the lock while it runs
SECRETS_DIRECTORY: Final = "secrets"  # in the data directory
CONNECT_TIMEOUT_SECONDS: Final = 3.0

_GROUP = Group("Connection and logs", sort_key=10)
_T = TypeVar("_T")


class NoBusError(ConfigurationError):
    """No setting and no running `up` in this directory selects a bus."""


class UpFile(msgspec.Struct, frozen=True, rename="camel"):
    """The file that a running `reconciler up` writes into its data directory."""

    nats_url: str
    api_url: str | None
    pid: int
    monitoring_url: str = ""


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Options for logs and errors."""

    log_level: LogLevel = "info"
    """Minimum level of the log lines on standard error."""

    debug: bool = False
    """Show the traceback of an error."""


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class BusOptions:
    """Connection options: URL, credentials and trusted certificate authorities."""

    nats_url: str | None = None
    """URL of the NATS server. Default: see `reconciler --help`."""

    credentials: NamedPath | None = None
    """NATS credentials file (.creds)."""

    nkey: NamedPath | None = None
    """File with an nkey seed."""

    inbox_prefix: str | None = None
    """Prefix of reply subjects. Default: derived from the name of the NATS user."""

    tls_ca: NamedPath | None = None
    """PEM file with certificate authorities to trust instead of the system's."""

    tls_cert: NamedPath | None = None
    """PEM file with the client certificate, if the server requires one."""

    tls_key: NamedPath | None = None
    """PEM file with the private key of the client certificate."""

    def settings(self) -> dict[str, Setting]:
        """Return the settings from all sources; raises ``ConfigurationError``."""
        flags = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        running = read_up_file(DATA_DIRECTORY)
        return settings(flags, running="" if running is None else running.nats_url)

    @property
    def url(self) -> str:
        """The URL of the bus; raises ``ConfigurationError``."""
        return self._bus_setting().value

    def print_bus_url(self) -> None:
        """Print the bus URL before a command sends messages, unless the local `up` selects it."""
        bus = self._bus_setting()
        if record_sending() and bus.source != UP_SOURCE:
            sys.stderr.write(f"bus: {redact_url(bus.value)} ({bus.source})\n")

    def _bus_setting(self) -> Setting:
        url = self.settings().get("nats_url")
        if url is None:
            has_stopped = (DATA_DIRECTORY / UP_FILE).exists()
            raise NoBusError(
                "no NATS server is selected: "
                + ("the `reconciler up` in" if has_stopped else "no `reconciler up` is running in")
                + (" this directory has stopped" if has_stopped else " this directory")
                + "; start it, or set --nats-url, $RECONCILER_NATS_URL or nats-url in "
                "reconciler.toml"
            )
        return url

    @property
    def access(self) -> Access:
        """The credentials and trusted certificate authorities; raises ``ConfigurationError``."""
        settings = self.settings()

        def path(name: str) -> Path | None:
            return Path(settings[name].value).expanduser() if name in settings else None

        prefix = settings.get("inbox_prefix")
        return Access(
            credentials=path("credentials"),
            nkey=path("nkey"),
            inbox_prefix=None if prefix is None else prefix.value,
            tls_ca=path("tls_ca"),
            tls_cert=path("tls_cert"),
            tls_key=path("tls_key"),
        )


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class Connection(BusOptions):
    """Options for all commands that use the bus."""

    log_level: LogLevel = "error"
    """Minimum level of the log lines on standard error."""

    debug: bool = False
    """Show the traceback of an error."""


DEFAULT_BUS_OPTIONS: Final = BusOptions()
DEFAULT_CONNECTION: Final = Connection()
DEFAULT_LOG_OPTIONS: Final = LogOptions()


def read_up_file(data: Path) -> UpFile | None:
    """Read the file of `up`; None if no `up` is running with this data directory."""
    with suppress(OSError, msgspec.DecodeError):
        file = msgspec.json.decode((data / UP_FILE).read_bytes(), type=UpFile)
        return file if _is_lock_held(data / UP_LOCK) else None
    return None


def _is_lock_held(path: Path) -> bool:
    """Return whether a process holds the lock. Unlike a pid, a lock cannot be reused."""
    if sys.platform == "win32":
        return False  # `up` does not run on Windows
    import fcntl  # noqa: PLC0415 - not available on Windows

    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@asynccontextmanager
async def bus(connection: Connection, *, sends: bool = False) -> AsyncGenerator[Client]:
    """Connect for one command. ``sends``: whether it sends messages. Raises ``BusError``."""
    configure_logs(connection.log_level)
    nc = await connect(
        connection.url,
        name="reconciler-cli",
        access=connection.access,
        timeout_seconds=CONNECT_TIMEOUT_SECONDS,
    )
    try:
        try:
            await require_jetstream(nc)
        except BusUnavailableError:
            if len(server_urls(connection.url)) == 1:
                raise
            await leave_server(nc)  # the server may be isolated from the cluster
            await require_jetstream(nc)
        await warn_of_clock_difference(partial(_read_clock, nc))
        if sends:
            connection.print_bus_url()
        yield nc
    finally:
        await close(nc)


async def _read_clock(nc: Client) -> BusClock:
    from infra.bus.bus_clock import read_clock  # noqa: PLC0415 - most commands do not need it

    return await read_clock(nc)


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine on the fastest available event loop."""
    with interrupting() as begin:

        async def begin_work() -> _T:
            begin()
            return await work

        gc.freeze()  # objects imported so far are never freed
        gc.enable()
        try:
            import uvloop  # noqa: PLC0415 - only with the `server` extra, and not on Windows
        except ImportError:
            return asyncio.run(begin_work())
        return uvloop.run(begin_work())
