"""The provider of ``Grant``: each write is one transaction, which is complete or has no effect.

The state is read from the access lists, with the server's defaults for a missing list. Owners are
left out, because their privileges follow from the ownership.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, LiteralString

import msgspec
from psycopg import sql

from events.excerpt import list_first
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.postgres.errors import REFUSED
from infra.providers.postgres.grant_spec import (
    PRIVILEGES,
    GrantPlace,
    Level,
    grant_problem,
    normalize,
    place_of,
)
from infra.providers.postgres.names import (
    INVALID,
    PROTECTED_DATABASES,
    PUBLIC,
    UNFINISHED_PREFIX,
)
from infra.providers.postgres.server import PostgresServer, Session
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.named_objects import check_uid
from reconciler.provider.secrets import Secrets

_DIGEST_BYTES: Final = 12

_DATABASES = sql.SQL(
    """
    SELECT d.oid::text AS uid, d.datname AS name,
        d.datallowconn AND d.datconnlimit <> {invalid} AS allow_connections
    FROM pg_database d WHERE d.datname <> ALL({protected}) AND NOT starts_with(d.datname, {ours})
        AND {condition}
    """
)

# For each grantee and type of object in one schema: the number of objects that the grantee does not
# own, and on how many of them it has a privilege. Its own are counted as an entry without a
# privilege, because a join would cost objects times entries, of which a tenant may create many.
_SELECT = sql.SQL(
    """
    WITH objects AS (
        SELECT found.*, count(*) OVER (PARTITION BY place, level) AS number FROM ({objects}) found
    ),
    entries AS (
        SELECT o.schema, o.level, o.place, o.number, x.grantee, x.privilege,
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
            OVER (PARTITION BY e.place, e.level, e.grantee), 0) AS objects
        FROM entries e
    )
    SELECT e.schema, e.level, e.place::text AS place, e.grantee::text AS grantee_uid,
        coalesce(g.rolname::text, 'public') AS grantee, e.privilege, e.held, e.grantable,
        e.grantors, e.by_others, e.objects::bigint AS objects
    FROM counted e LEFT JOIN pg_roles g ON g.oid = e.grantee
    WHERE e.privilege IS NOT NULL AND (e.grantee = 0 OR g.rolname IS NOT NULL) AND {condition}
    ORDER BY e.schema, e.level, grantee, e.privilege
    """
)
_OF_DATABASE = sql.SQL(
    """
    SELECT '' AS schema, 'database' AS level, d.oid AS place, d.oid, d.datdba AS owner,
        coalesce(d.datacl, acldefault('d', d.datdba)) AS acl
    FROM pg_database d WHERE d.datname = {database}
    """
)
_OF_SCHEMAS = sql.SQL(
    """
    SELECT n.nspname::text AS schema, 'schema' AS level, n.oid AS place, n.oid,
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

_ON: Final[Mapping[Level, LiteralString]] = {
    "tables": "ALL TABLES IN SCHEMA",
    "sequences": "ALL SEQUENCES IN SCHEMA",
    "functions": "ALL ROUTINES IN SCHEMA",
}


class _Database(msgspec.Struct, frozen=True):
    uid: str
    name: str
    allow_connections: bool


class _Row(msgspec.Struct, frozen=True):
    """One privilege of one grantee on the objects of one place."""

    schema: str
    level: Level
    place: str
    grantee_uid: str
    grantee: str
    privilege: str
    held: int
    grantable: int
    grantors: list[str]
    by_others: bool
    objects: int


class GrantsProvider:
    """A client of a PostgreSQL server, for the privileges of its roles."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._server = PostgresServer(config, secrets, permit)
        self._protected = sorted(PROTECTED_DATABASES | {self._server.place.database})

    async def create(self, action: Action) -> Effect:
        """Grant privileges to a grantee without any there."""
        place = self._check_action(action)
        database = await self._database(place)
        if database is None:
            raise NotDoneError(f"database {place.database!r} does not exist (yet)", status=REFUSED)
        async with self._server.transaction(_session_database(place)) as session:
            existing = await self._find(session, place, database)
            if existing is not None:
                raise ConflictError(f"{place.name!r} already has privileges", obstacle=existing)
            await _check_requirements(session, place)
            return Effect(await self._write_grants(session, place, database, action, None))

    async def update(self, action: Action) -> Effect:
        """Grant missing privileges and revoke undeclared ones, at the action's version."""
        place = self._check_action(action)
        database = await self._database(place)
        if database is None:
            raise NotFoundError(f"database {place.database!r} does not exist")
        async with self._server.transaction(_session_database(place)) as session:
            existing = await self._find(session, place, database)
            if existing is None:
                raise NotFoundError(f"{place.name!r} has no privileges")
            check_uid(existing, action)
            if action.version not in (None, existing.version):
                raise ConflictError(
                    f"{place.name!r} has changed since it was read", obstacle=existing
                )
            return Effect(await self._write_grants(session, place, database, action, existing))

    async def delete(self, action: Action) -> Effect:
        """Revoke all privileges of one grantee there."""
        place = self._check_action(action)
        database = await self._database(place)
        if database is None:
            return Effect(None, absent=True)
        async with self._server.transaction(_session_database(place)) as session:
            existing = await self._find(session, place, database)
            if existing is None:
                return Effect(None, absent=True)
            check_uid(existing, action)
            await session.run(_statement("REVOKE", ["ALL PRIVILEGES"], place))
            remaining = await self._find(session, place, database)
            if remaining is not None:
                raise _build_foreign_grant_error(remaining)
        return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read the privileges of one grantee at one place; None if it has none."""
        del uid  # names are unique
        place = self._place(external_name)
        database = await self._database(place)
        if database is None:
            return None
        async with self._server.session(_session_database(place)) as session:
            return await self._find(session, place, database)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the grants of a scope, database by database, in the order of their names."""
        last = ""
        while True:
            condition = sql.SQL("d.datname > {} AND {} ORDER BY d.datname LIMIT {}").format(
                last, _databases_of(scope.prefix or ""), page_size
            )
            databases = await self._databases(condition)
            for database in databases:
                grants = await self._list_grants(database, scope.prefix or "")
                yield [each for each in grants if scope.has(each.name, each.labels)]
            if len(databases) < page_size:
                return
            last = databases[-1].name

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    # --- reading

    def _place(self, name: str) -> GrantPlace:
        problem, place = grant_problem(name), place_of(name)
        if problem is not None or place is None:
            raise RefusedError(f"invalid name {name!r}: {problem}")
        if place.database in self._protected or place.database.startswith(UNFINISHED_PREFIX):
            raise RefusedError(
                f"{name!r}: database {place.database} belongs to the server, or Reconciler is "
                "connected to it"
            )
        return place

    def _check_action(self, action: Action) -> GrantPlace:
        place = self._place(action.external_name)
        for field, value in (("role", place.grantee), ("database", place.database)):
            if action.fields.get(field, value) != value:
                raise RefusedError(
                    f"spec.{field}: {action.fields[field]!r} does not match "
                    f"{action.external_name!r}; use {value!r}"
                )
        unknown = set(action.fields.get("privileges", [])) - PRIVILEGES[place.level]
        if unknown:
            raise RefusedError(
                f"spec.privileges: {', '.join(sorted(unknown))} cannot be granted on "
                f"{place.name!r}; use {', '.join(sorted(PRIVILEGES[place.level]))}"
            )
        return place

    async def _databases(self, condition: sql.Composable) -> list[_Database]:
        query = _DATABASES.format(
            protected=self._protected,
            ours=UNFINISHED_PREFIX,
            invalid=INVALID,
            condition=condition,
        )
        return await self._server.read(_Database, query)

    async def _database(self, place: GrantPlace) -> _Database | None:
        """Return the database of a grant; None if it does not exist, or grants have no effect."""
        rows = await self._databases(sql.SQL("d.datname = {}").format(place.database))
        if not rows or (place.schema and not rows[0].allow_connections):
            return None
        return rows[0]

    async def _find(
        self, session: Session, place: GrantPlace, database: _Database
    ) -> ExternalObject | None:
        if place.schema:
            objects = _OF_SCHEMAS.format(schema=sql.SQL("n.nspname = {}").format(place.schema))
        else:
            objects = _OF_DATABASE.format(database=place.database)
        condition = sql.SQL("e.level = {} AND coalesce(g.rolname::text, 'public') = {}").format(
            place.level, place.grantee
        )
        rows = await session.read(_Row, _SELECT.format(objects=objects, condition=condition))
        return _as_object(database, rows) if rows else None

    async def _list_grants(self, database: _Database, prefix: str) -> list[ExternalObject]:
        """Return the grants on a database and in it."""
        condition = sql.SQL("starts_with(coalesce(g.rolname::text, 'public'), {})").format(
            prefix.partition("@")[0]
        )
        on_database = _OF_DATABASE.format(database=database.name)
        rows = await self._server.read(
            _Row, _SELECT.format(objects=on_database, condition=condition)
        )
        # Grants in a database without connections have no effect.
        if database.allow_connections:
            in_schemas = _OF_SCHEMAS.format(schema=_ANY_SCHEMA)
            try:
                async with self._server.session(database.name) as session:
                    query = _SELECT.format(objects=in_schemas, condition=condition)
                    rows += await session.read(_Row, query)
            except ProviderError:
                if await self._databases(sql.SQL("d.oid = {}").format(int(database.uid))):
                    raise
                return []  # dropped in the meantime
        grouped = groupby(rows, lambda row: _place(database, row))
        return [_as_object(database, list(each)) for place, each in grouped if _is_named(place)]

    # --- writing

    async def _write_grants(
        self,
        session: Session,
        place: GrantPlace,
        database: _Database,
        action: Action,
        existing: ExternalObject | None,
    ) -> ExternalObject:
        statements = _statements(
            place, action.fields, None if existing is None else existing.fields
        )
        if statements:
            await session.run(*statements)
        updated = await self._find(session, place, database)
        if updated is None:
            raise NotDoneError(
                f"{place.name!r}: there is no object (yet) to grant privileges on, or the role "
                "owns all of them",
                status=REFUSED,
            )
        desired = normalize(action.fields)
        compared_fields = ("privileges", "grantable", "partial")
        if any(updated.fields[name] != desired[name] for name in compared_fields):
            raise _build_foreign_grant_error(updated)
        return updated


async def _check_requirements(session: Session, place: GrantPlace) -> None:
    query = sql.SQL(
        "SELECT {grantee} = 'public' OR EXISTS (SELECT FROM pg_roles WHERE rolname = {grantee})"
        " AS has_role, {schema} = '' OR EXISTS (SELECT FROM pg_namespace WHERE nspname = {schema})"
        " AS has_schema"
    ).format(grantee=place.grantee, schema=place.schema)
    (existence,) = await session.run(query)
    if not existence["has_role"]:
        raise NotDoneError(f"role {place.grantee!r} does not exist (yet)", status=REFUSED)
    if not existence["has_schema"]:
        raise NotDoneError(
            f"schema {place.schema!r} does not exist in database {place.database!r} (yet)",
            status=REFUSED,
        )


def _session_database(place: GrantPlace) -> str | None:
    return place.database if place.schema else None


def _databases_of(prefix: str) -> sql.Composable:
    """Return the databases that a scope's prefix may concern."""
    rest = prefix.partition("@")[2]
    database, slash, _ = rest.partition("/")
    if slash:
        return sql.SQL("d.datname = {}").format(database)
    return sql.SQL("starts_with(d.datname, {})").format(database)


def _as_object(database: _Database, rows: Sequence[_Row]) -> ExternalObject:
    first = rows[0]
    place = _place(database, first)
    parts = [first.grantee_uid, database.uid]
    if first.schema:
        parts += [first.place, first.level]
    fields = normalize(
        {
            "privileges": [row.privilege for row in rows if row.held == row.objects],
            "grantable": [row.privilege for row in rows if row.grantable == row.objects],
            "partial": _partial(rows),
        }
    )
    return ExternalObject(
        place.name,
        fields,
        uid=".".join(parts),
        version=_digest(rows),
        outputs={"role": first.grantee, "database": database.name},
    )


def _place(database: _Database, row: _Row) -> GrantPlace:
    return GrantPlace(row.grantee, database.name, row.schema, row.level)


def _is_named(place: GrantPlace) -> bool:
    """Return whether its name can be declared, and is not that of another place.

    The owner of a database may use a slash in names, and so give two places one name.
    """
    return grant_problem(place.name) is None and place_of(place.name) == place


def _partial(rows: Iterable[_Row]) -> list[str]:
    """Return privileges on only some of the objects, or with a grant option on only some."""
    return [
        row.privilege for row in rows if row.held < row.objects or 0 < row.grantable < row.objects
    ]


def _digest(rows: Sequence[_Row]) -> str:
    content = [(row.privilege, row.held, row.grantable, row.grantors, row.objects) for row in rows]
    encoded = msgspec.json.encode(content)
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()


def _statements(place: GrantPlace, fields: Fields, current: Fields | None) -> list[sql.Composed]:
    desired, grantable = set(fields["privileges"]), set(fields["grantable"])
    held = set[str]() if current is None else {*current["privileges"], *current["partial"]}
    held_with_option = (
        set[str]() if current is None else {*current["grantable"], *current["partial"]}
    )
    held_on_all = (
        set[str]() if current is None else set(current["privileges"]) - set(current["partial"])
    )
    has_grantable = set[str]() if current is None else set(current["grantable"])
    changes: list[tuple[LiteralString, set[str], LiteralString]] = [
        ("REVOKE", held - desired, ""),
        ("REVOKE GRANT OPTION FOR", (held_with_option & desired) - grantable, ""),
        ("GRANT", desired - grantable - held_on_all, ""),
        ("GRANT", grantable - has_grantable, "WITH GRANT OPTION"),
    ]
    return [
        _statement(verb, sorted(privileges), place, end)
        for verb, privileges, end in changes
        if privileges
    ]


def _statement(
    verb: LiteralString, privileges: Sequence[str], place: GrantPlace, end: LiteralString = ""
) -> sql.Composed:
    if place.level == "database":
        target = sql.SQL("DATABASE {}").format(sql.Identifier(place.database))
    elif place.level == "schema":
        target = sql.SQL("SCHEMA {}").format(sql.Identifier(place.schema))
    else:
        target = sql.SQL(_ON[place.level] + " {}").format(sql.Identifier(place.schema))
    grantee = sql.SQL("PUBLIC") if place.grantee == PUBLIC else sql.Identifier(place.grantee)
    return sql.SQL("{} {} ON {} {} {} {}").format(
        sql.SQL(verb),
        # Keywords, which are not quoted: each comes from the schema or the server.
        sql.SQL(", ").join(sql.SQL(each) for each in privileges),  # pyright: ignore[reportArgumentType]
        target,
        sql.SQL("TO" if verb == "GRANT" else "FROM"),
        grantee,
        sql.SQL(end),
    )


def _build_foreign_grant_error(existing: ExternalObject) -> ProviderError:
    privileges = [f"{name}: {', '.join(each)}" for name, each in existing.fields.items() if each]
    text = list_first(privileges, "; ") or "no privileges"
    return NotDoneError(
        f"{existing.name!r} differs from the declaration ({text}), because a role other than the "
        "owner granted privileges; revoke them as that role",
        status=REFUSED,
    )
