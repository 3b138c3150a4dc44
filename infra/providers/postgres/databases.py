"""The ``Database`` provider.

Creating a database takes several statements, and the first cannot run in a transaction. So a
database is created under a name derived from the action's key, marked, filled, and finally renamed:
a database with the declared name is complete (see Design in docs/kinds/database.md).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from psycopg import sql

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.postgres.database_spec import ALWAYS_INSTALLED, normalize
from infra.providers.postgres.errors import DATABASE_NOT_FOUND, IN_USE, REFUSED, state_of
from infra.providers.postgres.limits import MAX_ROWS, select_bounded
from infra.providers.postgres.marks import Mark, read_mark, replace_mark
from infra.providers.postgres.names import (
    INVALID_DATABASE_LIMIT,
    PROTECTED_DATABASES,
    REPLACEMENT_CHARACTER,
    UNFINISHED_PREFIX,
    database_problem,
    unfinished_name,
)
from infra.providers.postgres.server import PostgresServer, names
from infra.providers.postgres.tenant_reads import (
    IS_LOCKED,
    TenantListing,
    TenantReads,
    check_unlocked,
)
from reconciler.errors import (
    ConflictError,
    NotCalledError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.data_check import check_data
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects, check_uid
from reconciler.provider.secrets import Secrets

LEFTOVER_SECONDS: Final = 3_600
"""Age at which an unfinished database is listed, so that an operator notices it."""

_MAX_NAMED_SESSIONS: Final = 5
_MAX_LEFTOVERS: Final = 10

_SELECT = sql.SQL(
    """
    SELECT d.oid::text AS uid, d.xmin::text || '.' || coalesce(c.xmin::text, '') AS version,
        d.datname AS name, o.rolname AS owner, pg_encoding_to_char(d.encoding) AS encoding,
        d.datcollate AS collation, d.datctype AS ctype, d.datconnlimit AS connection_limit,
        d.datallowconn AS allow_connections, {comment} AS comment,
        d.datconnlimit <> {invalid} AND has_database_privilege(d.oid, 'CONNECT') AS may_connect,
        session_user AS login, {is_locked}
    FROM pg_database d JOIN pg_roles o ON o.oid = d.datdba
        LEFT JOIN pg_shdescription c
            ON c.objoid = d.oid AND c.classoid = 'pg_database'::regclass
    WHERE {condition}
    """
)

# Any tenant that may create databases can create many with such a name and comment.
_LEFTOVERS = sql.SQL(
    """
    SELECT u.oid FROM pg_database u JOIN pg_roles r ON r.oid = u.datdba
        JOIN pg_shdescription m ON m.objoid = u.oid AND m.classoid = 'pg_database'::regclass
    WHERE starts_with(u.datname, {prefix}) AND r.rolname IN (session_user, {owner})
        AND strpos({comment}, {name}) > 0
    ORDER BY u.oid LIMIT {limit}
    """
)


class DatabaseMark(Mark, frozen=True, omit_defaults=True):
    """The mark in a database's comment.

    Only an unfinished database has ``name`` and ``since``. ``extensions`` are the declared ones.
    The owner of a database can write any comment, so a time may lack its zone.
    """

    name: str = ""
    since: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    extensions: tuple[str, ...] = ()


class _Row(msgspec.Struct, frozen=True):
    uid: str
    version: str
    name: str
    owner: str
    encoding: str
    collation: str
    ctype: str
    connection_limit: int
    allow_connections: bool
    comment: str | None
    may_connect: bool
    login: str
    is_locked: bool

    @property
    def mark(self) -> DatabaseMark | None:
        return read_mark(self.comment, DatabaseMark)


@dataclass(frozen=True, slots=True)
class _Database:
    """A database's row, extensions and address."""

    row: _Row
    extensions: Sequence[str]
    outputs: Fields

    @property
    def name(self) -> str:
        return self.row.name

    def as_object(self) -> ExternalObject:
        row, mark = self.row, self.row.mark
        fields = normalize(
            {
                "owner": row.owner,
                "encoding": row.encoding,
                "locale": f"{row.collation}/{row.ctype}",
                "connectionLimit": row.connection_limit,
                "allowConnections": row.allow_connections,
                "extensions": list(self.extensions),
            }
        )
        return ExternalObject(
            row.name,
            fields,
            uid=row.uid,
            version=row.version,
            labels={} if mark is None else mark.labels,
            written_by=None if mark is None else mark.key,
            outputs=self.outputs,
        )


class DatabasesProvider(NamedObjects[_Database]):
    """Creates, updates and deletes a PostgreSQL server's databases."""

    noun = "database"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._server = PostgresServer(config, secrets, permit)
        self._protected = PROTECTED_DATABASES | {self._server.address.database}
        self._reads = TenantReads()

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a database cannot have this name.

        The names of unfinished databases are valid, so that leftovers can be read and deleted.
        """
        if external_name in self._protected:
            return (
                f"database {external_name} belongs to the server, or Reconciler is connected to it"
            )
        if external_name.startswith(UNFINISHED_PREFIX):
            return None
        return database_problem(external_name)

    async def find(self, external_name: str) -> _Database | None:
        """Read the database with this name."""
        rows = await self._rows(_has_name(external_name))
        return await self._database(rows[0]) if rows else None

    async def create_object(self, action: Action) -> _Database:
        """Create a database, or resume where an earlier attempt at this action stopped."""
        name, unfinished = action.external_name, unfinished_name(action.idempotency_key)
        _check_declared(name)
        leftover_ids = _LEFTOVERS.format(
            prefix=UNFINISHED_PREFIX,
            comment=select_bounded("m.description"),
            name=name,
            owner=action.fields.get("owner") or "",
            limit=_MAX_LEFTOVERS,
        )
        condition = sql.SQL("d.datname = ANY({}) OR d.oid = ANY (ARRAY({}))")
        rows = await self._rows(condition.format([name, unfinished], leftover_ids))
        read_at = time.monotonic()
        existing = next((row for row in rows if row.name == name), None)
        unfinished_row = next((row for row in rows if row.name == unfinished), None)
        leftovers = [row for row in rows if row.name != unfinished and _is_leftover(row, action)]
        if unfinished_row is not None and not _is_own(unfinished_row, action):
            raise NotDoneError(
                f"database {unfinished!r} belongs to role {unfinished_row.owner!r}, which "
                "Reconciler did not create it for; drop it",
                status=REFUSED,
            )
        if existing is not None:
            if existing.mark is None or existing.mark.key != action.idempotency_key:
                await self._drop_unfinished(
                    [*leftovers, *([unfinished_row] if unfinished_row else [])]
                )
            raise ConflictError(f"database {name!r} already exists")
        await self._drop_unfinished(leftovers)
        mark = DatabaseMark(
            action.idempotency_key,
            action.labels,
            name=name,
            since=datetime.now(UTC),
            extensions=tuple(sorted(action.fields["extensions"])),
        )
        if unfinished_row is None:
            await self.check_replacement(action)
            await self._create_unfinished(unfinished, action.fields, read_at)
        if unfinished_row is None or unfinished_row.mark is None:
            await self._server.run(_comment_statement(unfinished, replace_mark(None, mark)))
        if mark.extensions:
            try:
                async with self._server.transaction(unfinished) as session:
                    await session.run(*_extension_statements(mark.extensions, []))
            except RefusedError as error:  # without them, the database still belongs to the action
                incomplete = await self._finish(action, unfinished, mark)
                raise RefusedError(error.message, obstacle=incomplete.as_object()) from None
        return await self._finish(action, unfinished, mark)

    async def update_object(self, action: Action, existing: ExistingObject[_Database]) -> _Database:
        """Change the extensions, then the database if it has not changed since it was read."""
        name, row, observed = action.external_name, existing.native.row, existing.object
        _check_declared(name)
        # The mark is written last, so a database with this action's key matches its declaration.
        if _must_allow_connections(observed, action.fields):
            row = await self._allow_connections(row)
        await self._change_extensions(observed, action.fields)
        mark = DatabaseMark(
            action.idempotency_key,
            action.labels,
            extensions=tuple(sorted(action.fields["extensions"])),
        )
        async with self._server.transaction() as session:
            (current,) = await session.read(_Row, _select(_has_name(name))) or (None,)
            if current is None or (current.uid, current.version) != (row.uid, row.version):
                raise NotDoneError(
                    f"database {name!r} has changed since it was read", status=REFUSED
                )
            await session.run(
                *_alter_statements(name, current, action.fields),
                _comment_statement(name, replace_mark(current.comment, mark)),
            )
            (updated,) = await session.read(_Row, _select(_has_name(name)))
        return await self._database(updated)

    async def delete(self, action: Action) -> Effect:
        """Delete the database without reading its extensions, which requires a connection to it."""
        self.check_name(action.external_name)
        read_at = time.monotonic()
        (row,) = await self._rows(_has_name(action.external_name)) or (None,)
        if row is None:
            return Effect(None, absent=True)
        if action.uid not in (None, row.uid):
            check_uid((await self._database(row)).as_object(), action)
        await self.check_before_deletion(action)
        database = self._database_with_recorded_extensions(row)
        existing = database.as_object()
        check_data(existing)
        try:
            await self.delete_object(action, ExistingObject(database, existing, read_at))
        except NotFoundError:
            return Effect(None, absent=True)
        return Effect(None)

    async def delete_object(self, action: Action, existing: ExistingObject[_Database]) -> None:
        """Drop the database, unless it has sessions."""
        if not await self._drop(action.external_name, existing.read_at):
            raise self.missing_error(action)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Database]]:
        """List the databases in a scope, ordered by their ids."""

        async def record(row: _Row, error: ProviderError) -> None:
            for name in await self._names_since(row):
                unreadable.add(name, row.uid, error.message)

        listing = TenantListing(self._reads, self._database, record)
        last, page_size = "0", min(page_size, MAX_ROWS)
        while True:
            condition = sql.SQL("d.oid > {}::oid AND starts_with(d.datname, {})").format(
                last, scope.prefix or ""
            )
            page = sql.SQL("{} ORDER BY d.oid LIMIT {}").format(condition, page_size)
            rows = await self._rows(page)
            for row in rows:
                if REPLACEMENT_CHARACTER in row.name:
                    unreadable.add(row.name, row.uid, "the name is not valid UTF-8")
            databases = [await listing.read(row) for row in rows if self._is_object(row)]
            yield [each for each in databases if each is not None]
            if len(rows) < page_size:
                break
            last = rows[-1].uid
        async for database in listing.read_postponed():
            yield [database]

    async def probe(self) -> bool:
        """Check that the server responds."""
        await self._server.probe()
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    # --- reading

    def _is_object(self, row: _Row) -> bool:
        """Return whether a row is an object. An unfinished database is not one until it is old."""
        if row.name in self._protected or REPLACEMENT_CHARACTER in row.name:
            return False
        if not row.name.startswith(UNFINISHED_PREFIX) or row.mark is None:
            return True
        since = row.mark.since or datetime.fromtimestamp(0, UTC)
        return (datetime.now(UTC) - since).total_seconds() > LEFTOVER_SECONDS

    async def _rows(self, condition: sql.Composable) -> list[_Row]:
        return await self._server.read(_Row, _select(condition))

    def _database_with_recorded_extensions(self, row: _Row) -> _Database:
        """Return a database with the extensions that were last written."""
        extensions = () if row.mark is None else row.mark.extensions
        return _Database(row, extensions, self._server.address.outputs(row.name))

    async def _database(self, row: _Row) -> _Database:
        """Read a database's extensions, if any were declared.

        If it does not allow connections, use the extensions that were last written.
        """
        recorded = self._database_with_recorded_extensions(row)
        if not recorded.extensions or not row.allow_connections or not row.may_connect:
            return recorded
        check_unlocked(row)
        query = sql.SQL("SELECT extname FROM pg_extension WHERE extname <> {} ORDER BY extname")
        async with self._server.session(row.name) as session:
            rows = await session.run(query.format(ALWAYS_INSTALLED))
        return replace(recorded, extensions=names(rows, "extname"))

    async def _names_since(self, row: _Row) -> set[str]:
        """Return the names that a listed database has had since; none if it was dropped."""
        rows = await self._rows(sql.SQL("d.oid = {}::oid").format(row.uid))
        return {row.name, *(each.name for each in rows)} if rows else set()

    # --- writing

    async def check_replacement(self, action: Action) -> None:
        """Raise if the owner or an extension is missing, before anything is created or deleted."""
        owner, extensions = action.fields.get("owner"), sorted(action.fields["extensions"])
        query = sql.SQL(
            "SELECT 'role' AS what, wanted AS name FROM unnest({}::text[]) AS wanted"
            " WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted)"
            " UNION ALL SELECT 'extension', wanted FROM unnest({}::text[]) AS wanted"
            " WHERE NOT EXISTS (SELECT FROM pg_available_extensions WHERE name = wanted)"
        ).format([] if owner is None else [owner], extensions)
        async with self._server.session() as session:
            missing_rows = await session.run(query)
        for row in missing_rows:
            if row["what"] == "role":
                raise NotDoneError(f"role {row['name']!r} does not exist yet", status=REFUSED)
            # Only an operator can install a package, so the creation waits for a new declaration.
            text = _not_available(row["name"])
            raise RefusedError(f"{text}, then apply the manifest with a change")

    async def _create_unfinished(self, name: str, fields: Fields, read_at: float) -> None:
        """Create a database under its temporary name.

        ``CREATE DATABASE`` is not transactional, so its error does not prove that it had no effect.
        Only the absence of the database after the statement has finished proves that.
        """
        try:
            await self._server.run(_create_statement(name, fields), read_at=read_at)
        except (NotCalledError, UnknownResultError):
            raise
        except ProviderError as error:
            try:
                may_exist = bool(await self._rows(_has_name(name)))
            except ProviderError:
                may_exist = True
            if may_exist:
                raise UnknownResultError(error.message, status=error.status) from error.__cause__
            raise

    async def _finish(self, action: Action, unfinished: str, mark: DatabaseMark) -> _Database:
        name, target = action.external_name, sql.Identifier(unfinished)
        completed = msgspec.structs.replace(mark, name="", since=None)
        statements = [
            _comment_statement(unfinished, replace_mark(None, completed)),
            sql.SQL("ALTER DATABASE {} RENAME TO {}").format(target, sql.Identifier(name)),
        ]
        if not action.fields["allowConnections"]:
            statements.insert(
                0, sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(target)
            )
        try:
            async with self._server.transaction() as session:
                await session.run(*statements)
                (row,) = await session.read(_Row, _select(_has_name(name)))
        except ConflictError:
            await self._drop_unfinished(await self._rows(_has_name(unfinished)))
            raise
        except ProviderError as error:
            raise await self._build_in_use_error(error, unfinished) from None
        return await self._database(row)

    async def _allow_connections(self, row: _Row) -> _Row:
        """Allow connections to a database whose extensions must change."""
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(row.name))
        async with self._server.transaction() as session:
            await session.run(allow)
            (updated,) = await session.read(_Row, _select(_has_name(row.name)))
        return updated

    async def _change_extensions(self, observed: ExternalObject, fields: Fields) -> None:
        desired, current = fields["extensions"].keys(), observed.fields["extensions"].keys()
        to_create, to_drop = sorted(desired - current), sorted(current - desired)
        if not to_create and not to_drop:
            return
        if not fields["allowConnections"] and not observed.fields["allowConnections"]:
            raise RefusedError(
                f"extensions of database {observed.name!r} cannot be changed while it does not "
                "allow connections; set allowConnections to true first"
            )
        available = sql.SQL("SELECT name FROM pg_available_extensions WHERE name = ANY({})")
        async with self._server.session() as session:
            installable = names(await session.run(available.format(to_create)), "name")
        for extension in to_create:
            if extension not in installable:
                # An update can wait, because the next declaration supersedes it.
                raise NotDoneError(_not_available(extension), status=REFUSED)
        async with self._server.transaction(observed.name) as session:
            await session.run(*_extension_statements(to_create, to_drop))

    async def _drop_unfinished(self, rows: Sequence[_Row]) -> None:
        for row in rows:
            await self._drop(row.name, None)

    async def _drop(self, name: str, read_at: float | None) -> bool:
        """Drop a database. Return whether it existed."""
        statement = sql.SQL("DROP DATABASE {}").format(sql.Identifier(name))
        try:
            await self._server.run(statement, read_at=read_at)
        except ProviderError as error:
            if state_of(error.__cause__) == DATABASE_NOT_FOUND:
                return False
            raise await self._build_in_use_error(error, name) from None
        return True

    async def _build_in_use_error(self, error: ProviderError, database: str) -> ProviderError:
        """Return the error, with the sessions that blocked the statement if they are the cause."""
        if state_of(error.__cause__) != IN_USE:
            return error
        query = sql.SQL(
            "SELECT pid, usename, application_name FROM pg_stat_activity"
            " WHERE datname = {} ORDER BY pid LIMIT {}"
        ).format(database, _MAX_NAMED_SESSIONS)
        async with self._server.session() as session:
            rows = await session.run(query)
        sessions = [
            f"{row['usename']} ({row['application_name'] or 'unnamed'}, pid {row['pid']})"
            for row in rows
        ]
        users = ", ".join(sessions) or "sessions that have since ended"
        return NotDoneError(
            f"{error.message}; in use by {users}. Reconciler does not terminate sessions",
            status=REFUSED,
        )


def _check_declared(name: str) -> None:
    """Raise ``RefusedError`` for a leftover's name, which no resource may declare."""
    problem = database_problem(name)
    if problem is not None:
        raise RefusedError(f"invalid name {name!r}: {problem}")


def _is_leftover(row: _Row, action: Action) -> bool:
    """Return whether a row is left over from an abandoned action on the same resource."""
    mark = row.mark
    return mark is not None and (mark.name, mark.labels) == (action.external_name, action.labels)


def _is_own(row: _Row, action: Action) -> bool:
    """Return whether an unfinished database has an owner that its creation gives it.

    Its name can be predicted, so a tenant may have created it.
    """
    return row.owner in (row.login, action.fields.get("owner"))


def _select(condition: sql.Composable) -> sql.Composed:
    return _SELECT.format(
        is_locked=IS_LOCKED,
        condition=condition,
        comment=select_bounded("c.description"),
        invalid=INVALID_DATABASE_LIMIT,
    )


def _has_name(name: str) -> sql.Composed:
    return sql.SQL("d.datname = {}").format(name)


def _create_statement(name: str, fields: Fields) -> sql.Composed:
    encoding, locale = fields.get("encoding"), fields.get("locale")
    # A template with data cannot be copied to a different encoding; template0 has no data.
    default = "template0" if encoding or locale else "template1"
    parts = [sql.SQL("TEMPLATE {}").format(sql.Identifier(fields.get("template") or default))]
    if owner := fields.get("owner"):
        parts.append(sql.SQL("OWNER {}").format(sql.Identifier(owner)))
    if encoding:
        parts.append(sql.SQL("ENCODING {}").format(encoding))
    if locale:
        collation, _, ctype = str(locale).partition("/")
        parts.append(sql.SQL("LC_COLLATE {} LC_CTYPE {}").format(collation, ctype or collation))
    parts.append(sql.SQL("CONNECTION LIMIT {}").format(fields["connectionLimit"]))
    return sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), sql.SQL(" ").join(parts))


def _alter_statements(name: str, current: _Row, fields: Fields) -> list[sql.Composed]:
    target, statements = sql.Identifier(name), list[sql.Composed]()
    owner = fields.get("owner", current.owner)
    if owner != current.owner:
        statements.append(
            sql.SQL("ALTER DATABASE {} OWNER TO {}").format(target, sql.Identifier(owner))
        )
    if fields["connectionLimit"] != current.connection_limit:
        limit = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}")
        statements.append(limit.format(target, fields["connectionLimit"]))
    if fields["allowConnections"] != current.allow_connections:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        statements.append(allow.format(target, fields["allowConnections"]))
    return statements


def _comment_statement(name: str, comment: str) -> sql.Composed:
    return sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(name), comment)


def _extension_statements(to_create: Sequence[str], to_drop: Sequence[str]) -> list[sql.Composable]:
    # Create in `public`, unless the extension requires another schema. Nothing else uses this path.
    create, drop = "CREATE EXTENSION IF NOT EXISTS {} CASCADE", "DROP EXTENSION IF EXISTS {}"
    return [
        sql.SQL("SET LOCAL search_path = public"),
        *(sql.SQL(drop).format(sql.Identifier(name)) for name in to_drop),
        *(sql.SQL(create).format(sql.Identifier(name)) for name in to_create),
    ]


def _must_allow_connections(observed: ExternalObject, fields: Fields) -> bool:
    is_closed = fields["allowConnections"] and not observed.fields["allowConnections"]
    return is_closed and fields["extensions"] != observed.fields["extensions"]


def _not_available(extension: str) -> str:
    return f"extension {extension!r} is not available on this server; install its package there"
