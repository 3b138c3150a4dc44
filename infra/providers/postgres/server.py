"""Connections to a PostgreSQL server that send each statement once and classify each failure.

They ignore libpq's environment (``PGPASSWORD``, a service file, a password file), because the
provider logs in as a separate user.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec
import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Tls
from infra.providers.postgres.errors import (
    REFUSED,
    classify_connection_error,
    classify_error,
)
from infra.providers.postgres.limits import ResultTooLargeError, check_values
from infra.providers.postgres.login import LoginBusyError, logins_to
from infra.providers.postgres.settings import FIXED, INHERITED, TIMEOUTS_SINCE, as_options
from infra.providers.slots import FairSlots, SlotLimits, Turn
from reconciler.errors import (
    ConfigurationError,
    NotCalledError,
    NotDoneError,
    ProviderError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets

SLOT_LIMITS: Final = SlotLimits(total=6, per_namespace=4, unproven=5, quick_seconds=1.0)
"""Limits on a provider's concurrent calls. A server has a hundred connections in total, and few
calls take long. A namespace can prolong a call: another session may block its statement."""

TENANT_CONNECT_SECONDS: Final = 2.0
"""Limit on connecting to a database other than the operator's, which usually takes 10 ms. Its owner
can block each connection, and such a connection uses a slot."""

DEFAULT_PORT: Final = 5432
_REQUIRE_AUTH_SINCE: Final = 160_000
_NONEXISTENT_FILE: Final = "/dev/null/none"
_LOCK: Final = 0x7265636F
"""Advisory lock for all writes, because concurrent writes to one catalog row would fail and
be retried. Any role may hold this lock, so a write eventually proceeds without it."""

_LOCK_TRIES: Final = 10
_LOCK_WAIT_SECONDS: Final = 0.1

_LOCK_TIMEOUT_DIVISOR: Final = 4
"""Divisor of the request timeout: a quarter of it is the limit on waiting for a lock."""

_ENDPOINT = re.compile(
    r"postgresql://(?:(?P<user>[^@:/?#]+)@)?"
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[^@:/?#\[\]]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/(?P<database>[^/?#]*))?"
)

_S = TypeVar("_S", bound=msgspec.Struct)


class ServerAddress(NamedTuple):
    """The address of a server, and the user to log in as."""

    host: str
    port: int
    user: str
    database: str

    def url(self, database: str) -> str:
        """Return the URL of a database, without user and password."""
        host = self.host if self.host.startswith("[") else quote(self.host, safe="")
        return f"postgresql://{host}:{self.port}/{quote(database, safe='')}"

    def outputs(self, database: str) -> Fields:
        """Return the address of a database, for other resources."""
        return {
            "host": self.host.strip("[]"),
            "port": self.port,
            "name": database,
            "url": self.url(database),
        }


class Session:
    """A connection while one call uses it."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[DictRow],
        timeout: float,
        permit: CallPermit,
        turn: Turn | None = None,
    ) -> None:
        self._connection = connection
        self._permit = permit
        self._timeout_seconds = timeout
        self._turn = turn

    async def run(
        self, *statements: sql.Composable, read_at: float | None = None, may_be_done: bool = False
    ) -> list[DictRow]:
        """Send statements in one round trip, and return the rows of the last one.

        ``read_at``: time of the read that they rely on. ``may_be_done``: whether they take effect
        immediately.
        """
        with self.waiting():
            await self._permit.before_request(read_at=read_at)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                cursor = await self._connection.execute(sql.SQL("; ").join(statements))
                while cursor.nextset():
                    pass
                if may_be_done:
                    self._permit.record_write()
                if cursor.pgresult is None or not cursor.pgresult.nfields:
                    return []
                check_values(cursor.pgresult.ntuples, cursor.pgresult.nfields)
                return await cursor.fetchall()
        except TimeoutError:
            timeout_class = UnknownResultError if may_be_done else NotDoneError
            raise timeout_class(f"no response within {self._timeout_seconds:g} s") from None
        except ResultTooLargeError as error:
            limit_class = UnknownResultError if may_be_done else NotDoneError
            raise limit_class(f"invalid response: {error}", responded=True) from None
        except psycopg.Error as error:
            raise classify_error(error, may_be_done=may_be_done) from error

    def waiting(self) -> AbstractContextManager[None]:
        """Exclude a wait for other calls from the time that the namespace has used."""
        return contextlib.nullcontext() if self._turn is None else self._turn.waiting()

    async def read(self, row_type: type[_S], *statements: sql.Composable) -> list[_S]:
        """Send statements, and return the rows of the last one as structs."""
        return as_structs(row_type, await self.run(*statements))


class PostgresServer:
    """A few connections to one server, opened when they are needed."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self.address = parse_endpoint(config.endpoint)
        self.timeout_seconds = config.limits.request_timeout_seconds
        self._tls = _tls(config.tls)
        self._secrets = secrets
        self._permit = permit
        self._logins = logins_to(self.address.host, self.address.port)
        self._slots = FairSlots(SLOT_LIMITS, time.monotonic)
        self._idle: list[psycopg.AsyncConnection[DictRow]] = []
        self._is_closed = False
        self._timeout_settings: dict[str, str] = {}
        self._inherited_settings: dict[str, str] = {}

    @asynccontextmanager
    async def session(self, database: str | None = None) -> AsyncGenerator[Session]:
        """Lend a connection. One to another database is closed after use, as it blocks statements.

        A connection is also closed after an error, which rolls back uncommitted changes. A call
        that has a connection must not request another, because calls could deadlock.
        """
        namespace = self._permit.namespace
        async with self._slots.turn(namespace, namespace) as turn:
            if database is None:
                async with self._operator_session(turn) as session:
                    yield session
                return
            with blame_database():
                connection = await self._connect_to_tenant(database)
                try:
                    yield Session(connection, self.timeout_seconds, self._permit, turn)
                finally:
                    await _close_quietly(connection)

    @asynccontextmanager
    async def _operator_session(self, turn: Turn | None = None) -> AsyncGenerator[Session]:
        """Lend a connection to the operator's database, without waiting for a slot."""
        connection = self._take_idle() or await self._connect()
        is_reusable = False
        try:
            yield Session(connection, self.timeout_seconds, self._permit, turn)
            is_reusable = connection.info.transaction_status == TransactionStatus.IDLE
        finally:
            if is_reusable and not self._is_closed:
                self._idle.append(connection)
            else:
                await _close_quietly(connection)

    async def probe(self) -> None:
        """Check that the server responds, without waiting for other calls."""
        async with self._operator_session() as session:
            await session.run(sql.SQL("SELECT 1"))

    @asynccontextmanager
    async def transaction(self, database: str | None = None) -> AsyncGenerator[Session]:
        """Lend a connection in a transaction, usually only one at a time, and commit it."""
        async with self.session(database) as session:
            await session.run(sql.SQL("BEGIN"))
            lock = sql.SQL("SELECT pg_try_advisory_xact_lock({}) AS is_acquired").format(_LOCK)
            for _ in range(_LOCK_TRIES):
                if (await session.run(lock))[0]["is_acquired"]:
                    break
                with session.waiting():
                    await asyncio.sleep(_LOCK_WAIT_SECONDS)
            started_at = time.monotonic()
            yield session
            await session.run(sql.SQL("COMMIT"), read_at=started_at, may_be_done=True)

    async def read(self, row_type: type[_S], *statements: sql.Composable) -> list[_S]:
        """Send statements that change nothing, and return the rows of the last one as structs."""
        async with self.session() as session:
            return await session.read(row_type, *statements)

    async def run(
        self, *statements: sql.Composable, read_at: float | None = None
    ) -> Sequence[DictRow]:
        """Send statements that take effect immediately."""
        async with self.session() as session:
            return await session.run(*statements, read_at=read_at, may_be_done=True)

    async def close(self) -> None:
        """Close all idle connections. Those in use are closed when they are returned."""
        self._is_closed = True
        while self._idle:
            await _close_quietly(self._idle.pop())

    def _take_idle(self) -> psycopg.AsyncConnection[DictRow] | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not _has_unread_data(connection):
                return connection
            connection.pgconn.finish()
        return None

    async def _connect_to_tenant(self, database: str) -> psycopg.AsyncConnection[DictRow]:
        if not self._inherited_settings:
            # The view pg_settings does not contain the role.
            query = sql.SQL(
                "SELECT name, current_setting(name) AS setting FROM unnest({}::text[]) name"
            )
            async with self._operator_session() as session:
                rows = await session.run(query.format(list(INHERITED)))
            self._inherited_settings = {row["name"]: row["setting"] for row in rows}
        return await self._connect(database)

    async def _connect(self, database: str | None = None) -> psycopg.AsyncConnection[DictRow]:
        """Connect to a database, by default the operator's."""
        address, milliseconds = self.address, max(1, round(self.timeout_seconds * 1000))
        seconds = self.timeout_seconds
        if database is not None:
            seconds = min(seconds, TENANT_CONNECT_SECONDS)
        settings: dict[str, Any] = {
            "host": address.host.strip("[]"),
            "port": address.port,
            "user": address.user,
            "dbname": address.database if database is None else database,
            "password": self._secrets.credential or "",
            "passfile": _NONEXISTENT_FILE,
            "application_name": "reconciler",
            "client_encoding": "utf-8",
            "connect_timeout": max(2, round(self.timeout_seconds)),
            "target_session_attrs": "read-write",  # a replica may lack existing objects
            "gssencmode": "disable",
            "options": as_options(
                {
                    **FIXED,
                    "statement_timeout": str(milliseconds),
                    "lock_timeout": str(max(1, milliseconds // _LOCK_TIMEOUT_DIVISOR)),
                    **self._timeout_settings,
                    **({} if database is None else self._inherited_settings),
                }
            ),
            **self._tls,
        }
        target = f"{address.host}:{address.port}"
        if database is not None:
            target = f"database {database!r} at {target}"
        if psycopg.pq.version() >= _REQUIRE_AUTH_SINCE and "sslrootcert" not in settings:
            # A server must not request the password in cleartext.
            settings["require_auth"] = "!password"
        try:
            async with asyncio.timeout(seconds):
                connection = await self._logins.connect(settings)
        except TimeoutError:
            hint = "; the server may request too many SCRAM iterations" * self._logins.is_slow
            raise NotDoneError(f"not connected to {target} within {seconds:g} s{hint}") from None
        except (LoginBusyError, ResultTooLargeError) as error:
            raise NotDoneError(f"not connected to {target}: {error}") from None
        except psycopg.Error as error:
            raise classify_connection_error(error) from error
        # The first connection is to the operator's database, whose defaults no tenant sets.
        version = connection.info.server_version
        self._timeout_settings = {
            name: "0" for name, since in TIMEOUTS_SINCE.items() if version >= since
        }
        return connection


@contextmanager
def blame_database() -> Generator[None]:
    """Attribute failures in a tenant's database to that database, because its owner may cause any.

    They are not failures of the server. Only calls that depend on no tenant show whether the server
    responds.
    """
    try:
        yield
    except ProviderError as error:
        if error.status is None and not isinstance(error, (NotCalledError, ThrottledError)):
            error.status = REFUSED
        raise


def parse_endpoint(endpoint: str) -> ServerAddress:
    """Parse an endpoint. Raises ``ConfigurationError``."""
    match = _ENDPOINT.fullmatch(endpoint)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65_536:  # noqa: PLR2004 - the valid ports
        raise ConfigurationError(
            "spec.endpoint: must be postgresql://USER@HOST:PORT/DATABASE, where HOST may be "
            "the directory of a socket, such as %2Frun%2Fpostgresql; put the password in "
            "spec.credentialsRef"
        )
    return ServerAddress(
        host=unquote(match["host"]),
        port=port,
        user=unquote(match["user"] or "postgres"),
        database=unquote(match["database"] or "postgres"),
    )


def as_structs(row_type: type[_S], rows: Sequence[DictRow]) -> list[_S]:
    """Convert rows to structs. Raises ``NotDoneError`` for rows that do not match."""
    try:
        return msgspec.convert(rows, list[row_type])
    except msgspec.ValidationError as error:
        raise NotDoneError(f"invalid response: {error}", responded=True) from None


def _tls(tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {"sslmode": "disable"}
    if tls.key_file is not None and tls.certificate_file is None:
        raise ConfigurationError(
            "spec.tls.keyFile: requires spec.tls.certificateFile; set that, too"
        )
    files = {"sslcert": tls.certificate_file, "sslkey": tls.key_file}
    return {
        "sslmode": "verify-full",
        "sslrootcert": tls.ca_file or "system",
        **{name: file or _NONEXISTENT_FILE for name, file in files.items()},
    }


def _has_unread_data(connection: psycopg.AsyncConnection[DictRow]) -> bool:
    """Return whether there is unread data, which on an idle connection means that it has ended."""
    try:
        readable, _, _ = select.select([connection.fileno()], [], [], 0)
    except (OSError, ValueError, psycopg.Error):
        return True
    return bool(readable)


async def _close_quietly(connection: psycopg.AsyncConnection[DictRow]) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        await connection.close()


def names(rows: Sequence[DictRow], column: str) -> list[str]:
    """Return a text column of some rows."""
    return [cast("str", row[column]) for row in rows]
