"""The ``Grant`` provider: each write is one transaction, so it is complete or has no effect.

The state is read from access control lists, with the server's defaults for a missing list. Owners
are excluded, because their privileges follow from ownership.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final, LiteralString

import msgspec
from psycopg import sql

from events.excerpt import list_first, quote
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.postgres.errors import REFUSED
from infra.providers.postgres.grant_spec import (
    PRIVILEGES,
    GrantTarget,
    Level,
    grant_problem,
    normalize,
    parse_target,
)
from infra.providers.postgres.names import (
    INVALID_DATABASE_LIMIT,
    PROTECTED_DATABASES,
    PUBLIC,
    UNFINISHED_PREFIX,
)
from infra.providers.postgres.server import PostgresServer, Session, blame_database
from infra.providers.postgres.tenant_reads import (
    IS_LOCKED,
    TenantListing,
    TenantReads,
    check_unlocked,
)
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import check_uid
from reconciler.provider.secrets import Secrets

_DIGEST_BYTES: Final = 12

_DATABASES = sql.SQL(
    """
    SELECT d.oid::text AS uid, d.datname AS name,
        d.datallowconn AND d.datconnlimit <> {invalid} AS allow_connections, {is_locked}
    FROM pg_database d WHERE d.datname <> ALL({protected})
        AND NOT starts_with(d.datname, {unfinished}) AND {condition}
    """
)

# For each grantee and object type in a schema: how many objects the grantee does not own, and on
# how many of those it has each privilege. Owned objects are counted through an entry without a
# privilege, because a join would cost objects times entries, and a tenant may create many of both.
_SELECT = sql.SQL(
    """
    WITH objects AS (
        SELECT found.*, count(*) OVER (PARTITION BY target, level) AS number FROM ({objects}) found
    ),
    entries AS (
        SELECT o.schema, o.level, o.target, o.number, x.grantee, x.privilege,
            count(DISTINCT o.oid) AS held,
            count(DISTINCT o.oid) FILTER (WHERE x.is_grantable) AS grantable,
            array_agg(DISTINCT x.grantor::text) AS grantors,
            bool_or(x.grantor <> o.owner) AS by_others
        FROM objects o CROSS JOIN LATERAL (
            SELECT grantee, privilege_type, is_grantable, grantor
                FROM aclexplode(o.acl) WHERE grantee <> o.owner
            UNION ALL SELECT o.owner, NULL, NULL, NULL
        ) x (grantee, privilege, is_grantable, grantor)
        GROUP BY 1, 2, 3, 4, 5, 6
    ),
    counted AS (
        SELECT e.*, e.number - coalesce(sum(e.held) FILTER (WHERE e.privilege IS NULL)
            OVER (PARTITION BY e.target, e.level, e.grantee), 0) AS objects
        FROM entries e
    )
    SELECT e.schema, e.level, e.target::text AS target, e.grantee::text AS grantee_uid,
        coalesce(g.rolname::text, 'public') AS grantee, e.privilege, e.held, e.grantable,
        e.grantors, e.by_others, e.objects::bigint AS objects
    FROM counted e LEFT JOIN pg_roles g ON g.oid = e.grantee
    WHERE e.privilege IS NOT NULL AND (e.grantee = 0 OR g.rolname IS NOT NULL) AND {condition}
    ORDER BY e.schema, e.level, grantee, e.privilege
    """
)
_DATABASE_OBJECTS = sql.SQL(
    """
    SELECT '' AS schema, 'database' AS level, d.oid AS target, d.oid, d.datdba AS owner,
        coalesce(d.datacl, acldefault('d', d.datdba)) AS acl
    FROM pg_database d WHERE d.datname = {database}
    """
)
_SCHEMA_OBJECTS = sql.SQL(
    """
    SELECT n.nspname::text AS schema, 'schema' AS level, n.oid AS target, n.oid,
        n.nspowner AS owner, coalesce(n.nspacl, acldefault('n', n.nspowner)) AS acl
    FROM pg_namespace n WHERE {schema}
    UNION ALL
    SELECT n.nspname, CASE c.relkind WHEN 'S' THEN 'sequences' ELSE 'tables' END, n.oid, c.oid,
        c.relowner, coalesce(c.relacl,
            acldefault((CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END)::"char", c.relowner))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND {schema}
    UNION ALL
    SELECT n.nspname, 'functions', n.oid, p.oid, p.proowner,
        coalesce(p.proacl, acldefault('f', p.proowner))
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {schema}
    """
)
_ANY_SCHEMA = sql.SQL("NOT starts_with(n.nspname, 'pg_') AND n.nspname <> 'information_schema'")

_ALL_IN_SCHEMA: Final[Mapping[Level, LiteralString]] = {
    "tables": "ALL TABLES IN SCHEMA",
    "sequences": "ALL SEQUENCES IN SCHEMA",
    "functions": "ALL ROUTINES IN SCHEMA",
}


class _Database(msgspec.Struct, frozen=True):
    uid: str
    name: str
    allow_connections: bool
    is_locked: bool = False


class _Row(msgspec.Struct, frozen=True):
    """A privilege of a grantee on the objects of one target."""

    schema: str
    level: Level
    target: str
    grantee_uid: str
    grantee: str
    privilege: str
    held: int
    grantable: int
    grantors: list[str]
    by_others: bool
    objects: int


class GrantsProvider:
    """Grants and revokes the privileges of a PostgreSQL server's roles."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._server = PostgresServer(config, secrets, permit)
        self._protected = sorted(PROTECTED_DATABASES | {self._server.address.database})
        self._reads = TenantReads()

    async def create(self, action: Action) -> Effect:
        """Grant privileges to a grantee that has none on the target."""
        target = self._check_action(action)
        database = await self._database(target)
        if database is None:
            raise NotDoneError(f"database {target.database!r} does not exist yet", status=REFUSED)
        async with self._server.transaction(_session_database(target)) as session:
            existing = await self._find(session, target, database)
            if existing is not None:
                raise ConflictError(f"{target.name!r} already has privileges", obstacle=existing)
            await _check_requirements(session, target)
            return Effect(await self._write_grants(session, target, database, action, None))

    async def update(self, action: Action) -> Effect:
        """Grant missing privileges and revoke undeclared ones, if the version is the action's."""
        target = self._check_action(action)
        database = await self._database(target)
        if database is None:
            raise NotFoundError(f"database {target.database!r} does not exist")
        async with self._server.transaction(_session_database(target)) as session:
            existing = await self._find(session, target, database)
            if existing is None:
                raise NotFoundError(f"{target.name!r} has no privileges")
            check_uid(existing, action)
            if action.version not in (None, existing.version):
                raise ConflictError(
                    f"{target.name!r} has changed since it was read", obstacle=existing
                )
            return Effect(await self._write_grants(session, target, database, action, existing))

    async def delete(self, action: Action) -> Effect:
        """Revoke all of a grantee's privileges on the target."""
        target = self._check_action(action)
        database = await self._database(target)
        if database is None:
            return Effect(None, absent=True)
        async with self._server.transaction(_session_database(target)) as session:
            existing = await self._find(session, target, database)
            if existing is None:
                return Effect(None, absent=True)
            check_uid(existing, action)
            await session.run(_statement("REVOKE", ["ALL PRIVILEGES"], target))
            remaining = await self._find(session, target, database)
            if remaining is not None:
                raise _build_other_grantor_error(remaining)
        return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read a grantee's privileges on a target; None if it has none."""
        del uid  # names are unique
        target = self._parse_target(external_name)
        database = await self._database(target)
        if database is None:
            return None
        async with self._server.session(_session_database(target)) as session:
            return await self._find(session, target, database)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the grants in a scope, database by database, ordered by database name."""
        unreadable, prefix = Unreadable(), scope.prefix or ""

        async def record(database: _Database, error: ProviderError) -> None:
            rows = await self._databases(sql.SQL("d.oid = {}").format(int(database.uid)))
            if rows:  # otherwise it has since been dropped
                unreadable_databases.update({database.name, rows[0].name})
                reasons.append(f"{quote(database.name)} ({error.message})")

        unreadable_databases, reasons = set[str](), list[str]()
        listing = TenantListing(
            self._reads, lambda each: self._list_grants(each, prefix, unreadable), record
        )

        def in_scope(grants: Sequence[ExternalObject]) -> list[ExternalObject]:
            return [each for each in grants if scope.has(each.name, each.labels)]

        last = ""
        while True:
            condition = sql.SQL("d.datname > {} AND {} ORDER BY d.datname LIMIT {}").format(
                last, _databases_of(prefix), page_size
            )
            databases = await self._databases(condition)
            for database in databases:
                yield in_scope(await listing.read(database) or [])
            if len(databases) < page_size:
                break
            last = databases[-1].name
        async for grants in listing.read_postponed():
            yield in_scope(grants)
        if reasons:
            unreadable.add_group(
                "grants in databases",
                partial(_is_in, unreadable_databases),
                list_first(reasons, "; "),
            )
        unreadable.check()

    async def probe(self) -> bool:
        """Check that the server responds."""
        await self._server.probe()
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    # --- reading

    def _parse_target(self, name: str) -> GrantTarget:
        problem, target = grant_problem(name), parse_target(name)
        if problem is not None or target is None:
            raise RefusedError(f"invalid name {name!r}: {problem}")
        if target.database in self._protected or target.database.startswith(UNFINISHED_PREFIX):
            raise RefusedError(
                f"{name!r}: database {target.database} belongs to the server, or Reconciler is "
                "connected to it"
            )
        return target

    def _check_action(self, action: Action) -> GrantTarget:
        target = self._parse_target(action.external_name)
        for field, value in (("role", target.grantee), ("database", target.database)):
            if action.fields.get(field, value) != value:
                raise RefusedError(
                    f"spec.{field}: {action.fields[field]!r} does not match "
                    f"{action.external_name!r}; use {value!r}"
                )
        unknown = set(action.fields.get("privileges", [])) - PRIVILEGES[target.level]
        if unknown:
            raise RefusedError(
                f"spec.privileges: {', '.join(sorted(unknown))} cannot be granted on "
                f"{target.name!r}; use {', '.join(sorted(PRIVILEGES[target.level]))}"
            )
        return target

    async def _databases(self, condition: sql.Composable) -> list[_Database]:
        query = _DATABASES.format(
            protected=self._protected,
            unfinished=UNFINISHED_PREFIX,
            invalid=INVALID_DATABASE_LIMIT,
            is_locked=IS_LOCKED,
            condition=condition,
        )
        return await self._server.read(_Database, query)

    async def _database(self, target: GrantTarget) -> _Database | None:
        """Return a grant's database; None if it is missing, or the grant has no effect in it."""
        rows = await self._databases(sql.SQL("d.datname = {}").format(target.database))
        if not rows or (target.schema and not rows[0].allow_connections):
            return None
        if target.schema:
            check_unlocked(rows[0])
        return rows[0]

    async def _find(
        self, session: Session, target: GrantTarget, database: _Database
    ) -> ExternalObject | None:
        if target.schema:
            objects = _SCHEMA_OBJECTS.format(schema=sql.SQL("n.nspname = {}").format(target.schema))
        else:
            objects = _DATABASE_OBJECTS.format(database=target.database)
        condition = sql.SQL("e.level = {} AND coalesce(g.rolname::text, 'public') = {}").format(
            target.level, target.grantee
        )
        rows = await session.read(_Row, _SELECT.format(objects=objects, condition=condition))
        return _as_object(database, rows) if rows else None

    async def _list_grants(
        self, database: _Database, prefix: str, unreadable: Unreadable
    ) -> list[ExternalObject]:
        """Return the grants on a database and on its schemas.

        Raises an error with the status ``REFUSED`` if only this database cannot be read.
        """
        condition = sql.SQL("starts_with(coalesce(g.rolname::text, 'public'), {})").format(
            prefix.partition("@")[0]
        )
        on_database = _DATABASE_OBJECTS.format(database=database.name)
        with blame_database():  # its owner may have granted privileges to thousands of roles
            rows = await self._server.read(
                _Row, _SELECT.format(objects=on_database, condition=condition)
            )
        # Grants in a database that does not accept connections have no effect.
        if database.allow_connections:
            in_schemas = _SCHEMA_OBJECTS.format(schema=_ANY_SCHEMA)
            async with self._server.session(database.name) as session:
                query = _SELECT.format(objects=in_schemas, condition=condition)
                rows += await session.read(_Row, query)
        grants = list[ExternalObject]()
        for target, group in groupby(rows, lambda row: _build_target(database, row)):
            if _has_unique_name(target):
                convert = partial(_as_object, database, list(group))
                grant = unreadable.convert_or_record(convert, partial(_identify, target))
                grants += [] if grant is None else [grant]
        return grants

    # --- writing

    async def _write_grants(
        self,
        session: Session,
        target: GrantTarget,
        database: _Database,
        action: Action,
        existing: ExternalObject | None,
    ) -> ExternalObject:
        statements = _statements(
            target, action.fields, None if existing is None else existing.fields
        )
        if statements:
            await session.run(*statements)
        updated = await self._find(session, target, database)
        if updated is None:
            raise NotDoneError(
                f"{target.name!r}: there is no object to grant privileges on yet, or the role "
                "owns all of them",
                status=REFUSED,
            )
        desired = normalize(action.fields)
        compared_fields = ("privileges", "grantable", "partial")
        if any(updated.fields[name] != desired[name] for name in compared_fields):
            raise _build_other_grantor_error(updated)
        return updated


async def _check_requirements(session: Session, target: GrantTarget) -> None:
    query = sql.SQL(
        "SELECT {grantee} = 'public' OR EXISTS (SELECT FROM pg_roles WHERE rolname = {grantee})"
        " AS has_role, {schema} = '' OR EXISTS (SELECT FROM pg_namespace WHERE nspname = {schema})"
        " AS has_schema"
    ).format(grantee=target.grantee, schema=target.schema)
    (existence,) = await session.run(query)
    if not existence["has_role"]:
        raise NotDoneError(f"role {target.grantee!r} does not exist yet", status=REFUSED)
    if not existence["has_schema"]:
        raise NotDoneError(
            f"schema {target.schema!r} does not exist in database {target.database!r} yet",
            status=REFUSED,
        )


def _session_database(target: GrantTarget) -> str | None:
    return target.database if target.schema else None


def _is_in(databases: Container[str], name: str) -> bool:
    """Return whether a grant with a name concerns one of some databases."""
    target = parse_target(name)
    return target is not None and target.database in databases


def _identify(target: GrantTarget) -> tuple[str, None]:
    return target.name, None


def _databases_of(prefix: str) -> sql.Composable:
    """Return a condition for the databases that a scope's prefix can match."""
    rest = prefix.partition("@")[2]
    database, slash, _ = rest.partition("/")
    if slash:
        return sql.SQL("d.datname = {}").format(database)
    return sql.SQL("starts_with(d.datname, {})").format(database)


def _as_object(database: _Database, rows: Sequence[_Row]) -> ExternalObject:
    first = rows[0]
    target = _build_target(database, first)
    parts = [first.grantee_uid, database.uid]
    if first.schema:
        parts += [first.target, first.level]
    fields = normalize(
        {
            "privileges": [row.privilege for row in rows if row.held == row.objects],
            "grantable": [row.privilege for row in rows if row.grantable == row.objects],
            "partial": _partial(rows),
        }
    )
    return ExternalObject(
        target.name,
        fields,
        uid=".".join(parts),
        version=_digest(rows),
        outputs={"role": first.grantee, "database": database.name},
    )


def _build_target(database: _Database, row: _Row) -> GrantTarget:
    return GrantTarget(row.grantee, database.name, row.schema, row.level)


def _has_unique_name(target: GrantTarget) -> bool:
    """Return whether the target's name can be declared and is unambiguous.

    A database owner may use slashes in names, so two targets may have the same name.
    """
    return grant_problem(target.name) is None and parse_target(target.name) == target


def _partial(rows: Iterable[_Row]) -> list[str]:
    """Return the privileges that are held, or can be granted, on only some of the objects."""
    return [
        row.privilege for row in rows if row.held < row.objects or 0 < row.grantable < row.objects
    ]


def _digest(rows: Sequence[_Row]) -> str:
    content = [(row.privilege, row.held, row.grantable, row.grantors, row.objects) for row in rows]
    encoded = msgspec.json.encode(content)
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()


def _statements(target: GrantTarget, fields: Fields, current: Fields | None) -> list[sql.Composed]:
    desired, grantable = set(fields["privileges"]), set(fields["grantable"])
    held = set[str]() if current is None else {*current["privileges"], *current["partial"]}
    held_with_option = (
        set[str]() if current is None else {*current["grantable"], *current["partial"]}
    )
    held_on_all = (
        set[str]() if current is None else set(current["privileges"]) - set(current["partial"])
    )
    grantable_on_all = set[str]() if current is None else set(current["grantable"])
    changes: list[tuple[LiteralString, set[str], LiteralString]] = [
        ("REVOKE", held - desired, ""),
        ("REVOKE GRANT OPTION FOR", (held_with_option & desired) - grantable, ""),
        ("GRANT", desired - grantable - held_on_all, ""),
        ("GRANT", grantable - grantable_on_all, "WITH GRANT OPTION"),
    ]
    return [
        _statement(verb, sorted(privileges), target, end)
        for verb, privileges, end in changes
        if privileges
    ]


def _statement(
    verb: LiteralString, privileges: Sequence[str], target: GrantTarget, end: LiteralString = ""
) -> sql.Composed:
    if target.level == "database":
        object_clause = sql.SQL("DATABASE {}").format(sql.Identifier(target.database))
    elif target.level == "schema":
        object_clause = sql.SQL("SCHEMA {}").format(sql.Identifier(target.schema))
    else:
        object_clause = sql.SQL(_ALL_IN_SCHEMA[target.level] + " {}").format(
            sql.Identifier(target.schema)
        )
    grantee = sql.SQL("PUBLIC") if target.grantee == PUBLIC else sql.Identifier(target.grantee)
    return sql.SQL("{} {} ON {} {} {} {}").format(
        sql.SQL(verb),
        # Keywords are not quoted. Each comes from the schema or the server.
        sql.SQL(", ").join(sql.SQL(each) for each in privileges),  # pyright: ignore[reportArgumentType]
        object_clause,
        sql.SQL("TO" if verb == "GRANT" else "FROM"),
        grantee,
        sql.SQL(end),
    )


def _build_other_grantor_error(existing: ExternalObject) -> ProviderError:
    privileges = [f"{name}: {', '.join(each)}" for name, each in existing.fields.items() if each]
    text = list_first(privileges, "; ") or "no privileges"
    return NotDoneError(
        f"{existing.name!r} differs from the declaration ({text}), because a role other than the "
        "owner granted privileges; revoke them as that role",
        status=REFUSED,
    )
