"""Reads of many tenants' databases in one listing, of which any may fail or take long.

The owner of a database can lock it, fill its catalog or limit its connections. That makes only that
database unreadable, and delays the listing of the others for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from psycopg import sql

from infra.providers.postgres.errors import REFUSED
from reconciler.errors import NotCalledError, NotDoneError, ProviderError, ThrottledError

MAX_FAILED_SECONDS: Final = 5.0
"""Limit on the time for databases that failed in the last listing. They come last."""

_RETRY_FACTOR: Final = 10
"""Delay before a failed database is read again, as a multiple of the time until it failed."""

IS_LOCKED: Final = sql.SQL(
    """
    d.oid = ANY (ARRAY(
        SELECT l.objid FROM pg_locks l
        WHERE l.locktype = 'object' AND l.classid = 'pg_database'::regclass
            AND l.pid <> pg_backend_pid() AND l.mode IN
                ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    )) AS is_locked
    """
)
"""Whether another session locks database ``d``, or waits for such a lock.

Each new connection to such a database waits for the lock, without a timeout. Its process remains on
the server even after the client has given up, and uses one of the server's connections.
"""


class TenantDatabase(Protocol):
    """A database that may belong to a tenant."""

    @property
    def uid(self) -> str:
        """The OID."""
        ...

    @property
    def name(self) -> str:
        """The name."""
        ...

    @property
    def is_locked(self) -> bool:
        """Whether a connection to it would wait."""
        ...


_D = TypeVar("_D", bound=TenantDatabase)
_R = TypeVar("_R")


class _Failure(NamedTuple):
    ended_at: float
    seconds: float
    error: ProviderError


def check_unlocked(database: TenantDatabase) -> None:
    """Raise ``NotDoneError`` if a connection to the database would wait for a lock."""
    if database.is_locked:
        raise NotDoneError(
            f"database {database.name!r} admits no connections, because a session alters or copies "
            "it; end the transaction of that session",
            status=REFUSED,
        )


class TenantReads:
    """Remembers which databases were slow to fail, so that listings read them last or not at all.

    Other databases are therefore listed in time, even if a tenant has many unreadable ones.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.failures: dict[str, _Failure] = {}


class TenantListing(Generic[_D, _R]):
    """The reads of one listing.

    ``read`` reads a database. ``record`` is awaited for each database that cannot be read.
    """

    def __init__(
        self,
        reads: TenantReads,
        read: Callable[[_D], Awaitable[_R]],
        record: Callable[[_D, ProviderError], Awaitable[None]],
    ) -> None:
        self._reads = reads
        self._read = read
        self._record = record
        self._postponed: list[tuple[_Failure, _D]] = []
        self._failed = set[str]()

    async def read(self, database: _D) -> _R | None:
        """Read a database; None if that fails, or is postponed to the end of the listing."""
        failure = self._reads.failures.get(database.uid)
        if failure is not None:
            self._postponed.append((failure, database))
            return None
        return await self._try(database)

    async def read_postponed(self) -> AsyncIterator[_R]:
        """Read the postponed databases while there is time, longest wait first."""
        failures = self._reads.failures
        listed = {each.uid for _, each in self._postponed}
        for uid in [uid for uid in failures if uid not in listed | self._failed]:
            del failures[uid]  # it no longer exists
        self._postponed.sort(key=lambda each: each[0].ended_at)
        began_at = self._reads.clock()
        for failure, database in self._postponed:
            now = self._reads.clock()
            is_due = now - failure.ended_at >= _RETRY_FACTOR * failure.seconds
            if is_due and now - began_at < MAX_FAILED_SECONDS:
                result = await self._try(database)
                if result is not None:
                    yield result
            else:
                await self._record(database, failure.error)

    async def _try(self, database: _D) -> _R | None:
        began_at = self._reads.clock()
        try:
            check_unlocked(database)
            result = await self._read(database)
        except (NotCalledError, ThrottledError):
            raise  # these are not about the database
        except ProviderError as error:
            if error.status != REFUSED:
                raise
            now = self._reads.clock()
            if not database.is_locked:
                self._failed.add(database.uid)
                self._reads.failures[database.uid] = _Failure(now, now - began_at, error)
            await self._record(database, error)
            return None
        self._reads.failures.pop(database.uid, None)
        return result
