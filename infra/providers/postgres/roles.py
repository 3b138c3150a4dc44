"""The provider of ``DatabaseRole``: each write is one transaction that includes the mark.

A password is never sent: the server gets a verifier that is made here. The stored verifier is
compared with the current secret.
"""

from __future__ import annotations

import asyncio
import secrets as random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from psycopg import sql

from events.allow import Allow
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.names import DEFAULT_NAMESPACE
from events.provider_config import ProviderConfigSpec, Scope
from events.secret import SecretRef
from infra.providers.postgres.errors import REFUSED
from infra.providers.postgres.limits import MAX_ROWS, bounded
from infra.providers.postgres.marks import Mark, mark_in, with_mark
from infra.providers.postgres.names import INVALID_TEXT, role_problem
from infra.providers.postgres.passwords import (
    MAX_ITERATIONS,
    check_password,
    has_too_many_iterations,
    make_verifier,
)
from infra.providers.postgres.role_spec import GOOD_AS_SUPERUSER, normalize
from infra.providers.postgres.server import PostgresServer, Session
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotDoneError,
    ProviderError,
    RefusedError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets

ANOTHER_PASSWORD: Final = "another"  # noqa: S105 - what is shown in the place of a digest
UNCHECKED_PASSWORD: Final = f"unchecked: more than {MAX_ITERATIONS} SCRAM iterations"
GENERATED_BYTES: Final = 24
_MAX_REMEMBERED: Final = 10_000
_BOOTSTRAP_SUPERUSER: Final = "10"

_SELECT = sql.SQL(
    """
    SELECT a.oid::text AS uid,
        {version} || '.' || coalesce(c.xmin::text, '') || '.' || md5(m.of::text) AS version,
        a.rolname AS name, a.rolcanlogin AS login, a.rolsuper AS superuser,
        a.rolcreatedb AS create_database, a.rolcreaterole AS create_role,
        a.rolinherit AS inherit, a.rolreplication AS replication,
        a.rolbypassrls AS bypass_row_security, a.rolconnlimit AS connection_limit,
        CASE WHEN isfinite(a.rolvaliduntil) THEN to_char(
            a.rolvaliduntil AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END AS valid_until,
        {verifier} AS verifier, m.of AS member_of,
        {comment} AS comment, a.rolname = session_user AS is_login
    FROM {source} a
        LEFT JOIN pg_shdescription c ON c.objoid = a.oid AND c.classoid = 'pg_authid'::regclass
        CROSS JOIN LATERAL (
            SELECT coalesce(array_agg(DISTINCT p.rolname::text ORDER BY p.rolname::text), '{{}}')
                AS of
            FROM pg_auth_members g JOIN pg_roles p ON p.oid = g.roleid WHERE g.member = a.oid
        ) m
    WHERE {condition}
    """
)

_ABOVE: Final = sql.SQL(
    """
    WITH RECURSIVE above AS (
        SELECT rolname AS parent, oid FROM pg_roles WHERE rolname = ANY({})
        UNION SELECT a.parent, g.roleid FROM above a JOIN pg_auth_members g ON g.member = a.oid
    )
    SELECT a.parent::text AS parent, r.rolname::text AS name, r.rolsuper AS superuser,
        r.rolcreaterole AS create_role, r.rolreplication AS replication,
        r.rolname = ANY({}) AS is_good_as_superuser
    FROM above a JOIN pg_roles r ON r.oid = a.oid ORDER BY a.parent, r.rolname
    """
)

_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "login": ("LOGIN", "NOLOGIN"),
    "superuser": ("SUPERUSER", "NOSUPERUSER"),
    "createDatabase": ("CREATEDB", "NOCREATEDB"),
    "createRole": ("CREATEROLE", "NOCREATEROLE"),
    "inherit": ("INHERIT", "NOINHERIT"),
    "replication": ("REPLICATION", "NOREPLICATION"),
    "bypassRowSecurity": ("BYPASSRLS", "NOBYPASSRLS"),
}


class RoleMark(Mark, frozen=True, omit_defaults=True):
    """The mark in a role's comment: from which secret its password was last made.

    ``namespace`` is that of the resource, whose secrets may be read.
    """

    password: SecretRef | None = None
    is_generated: bool = False
    namespace: str = DEFAULT_NAMESPACE


class _Row(msgspec.Struct, frozen=True):
    uid: str
    version: str
    name: str
    login: bool
    superuser: bool
    create_database: bool
    create_role: bool
    inherit: bool
    replication: bool
    bypass_row_security: bool
    connection_limit: int
    valid_until: str | None
    verifier: str | None
    member_of: list[str]
    comment: str | None
    is_login: bool

    @property
    def mark(self) -> RoleMark | None:
        return mark_in(self.comment, RoleMark)

    @property
    def labels(self) -> dict[str, str]:
        return {} if self.mark is None else self.mark.labels

    @property
    def out_of_bounds(self) -> str:
        """Why no resource can be this role.

        Superusers that were ours are accepted, to be repaired.
        """
        if self.uid == _BOOTSTRAP_SUPERUSER:
            return f"role {self.name} is the server's first superuser"
        if self.is_login:
            return f"Reconciler logs in as role {self.name}"
        if self.superuser and self.mark is None:
            return f"role {self.name} is a superuser"
        return ""


class _ReachableRole(msgspec.Struct, frozen=True):
    """A role that the members of ``parent`` can become: itself, or one of its own parents."""

    parent: str
    name: str
    superuser: bool
    create_role: bool
    replication: bool
    is_good_as_superuser: bool

    def describe_forbidden_rights(self, allow: Allow) -> str:
        """Describe which forbidden rights its members would have; empty if none."""
        if self.superuser:
            return "is a superuser, and Reconciler does not grant membership in a superuser role"
        if self.is_good_as_superuser:
            return "is equivalent to a superuser"
        for name, has_it in (("createRole", self.create_role), ("replication", self.replication)):
            if has_it and not allow.permits("privileges", name):
                return (
                    f"has the privilege {name}, which spec.allow.privileges of the ProviderConfig "
                    "does not allow"
                )
        return ""


class _Password(NamedTuple):
    """The desired password of a role. Without a verifier, it stays unchanged."""

    reference: SecretRef | None
    is_generated: bool = False
    verifier: str | None = None
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class _Role:
    """A row, and the digest of the secret that is the role's password; otherwise empty."""

    row: _Row
    digest: str

    @property
    def name(self) -> str:
        return self.row.name

    def as_object(self) -> ExternalObject:
        row, mark = self.row, self.row.mark
        fields: Fields = {
            "login": row.login,
            "superuser": row.superuser,
            "createDatabase": row.create_database,
            "createRole": row.create_role,
            "inherit": row.inherit,
            "replication": row.replication,
            "bypassRowSecurity": row.bypass_row_security,
            "connectionLimit": row.connection_limit,
            "validUntil": row.valid_until,
            "memberOf": row.member_of,
        }
        outputs: Fields = {"name": row.name}
        if mark is not None and mark.password is not None:
            if mark.is_generated:
                place = {"name": mark.password.name, "store": mark.password.store}
                fields["generatedPassword"] = {**place, "isSet": bool(self.digest)}
            else:
                is_unchecked = has_too_many_iterations(row.verifier)
                placeholder = UNCHECKED_PASSWORD if is_unchecked else ANOTHER_PASSWORD
                fields["password"] = {"secret": self.digest or placeholder}
            if self.digest:
                reference = msgspec.structs.replace(mark.password, digest=self.digest)
                outputs["password"] = msgspec.to_builtins(reference)
        return ExternalObject(
            row.name,
            normalize(fields),
            uid=row.uid,
            version=row.version,
            labels=row.labels,
            written_by=None if mark is None else mark.key,
            outputs=outputs,
        )


class DatabaseRolesProvider(NamedObjects[_Role]):
    """A client of a PostgreSQL server, for its roles."""

    noun = "role"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._server = PostgresServer(config, secrets, permit)
        self._secrets = secrets
        self._allow = config.allow
        self._sees_verifiers: bool | None = None
        self._password_checks: dict[tuple[str, str], bool] = {}

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a role cannot have this name."""
        return role_problem(external_name)

    async def find(self, external_name: str) -> _Role | None:
        """Read a role; raises ``RefusedError`` for one that is out of bounds."""
        async with self._server.session() as session:
            row = await self._row_of(session, external_name)
        return None if row is None else await self._role(row)

    async def create_object(self, action: Action) -> _Role:
        """Create a role with its mark; a generated password is in its store before."""
        name = action.external_name
        async with self._server.transaction() as session:
            row = await self._row_of(session, name)
            if row is None:
                await self._check_parents(session, action.fields["memberOf"])
                password = await self._desired_password(action, None)
                await session.run(*_create_statements(action, password))
                row = await self._row_of(session, name)
                assert row is not None
                return await self._role(row)
        raise ConflictError(f"role {name!r} already exists")

    async def update_object(self, action: Action, existing: ExistingObject[_Role]) -> _Role:
        """Change the role in one transaction, unless it changed after it was found."""
        name, previous = action.external_name, existing.native.row
        async with self._server.transaction() as session:
            row = await self._row_of(session, name)
            if row is None or (row.uid, row.version) != (previous.uid, previous.version):
                raise ConflictError(f"role {name!r} has changed since it was read")
            # Memberships that the role had before it was ours were never checked.
            fields = existing.object.fields
            checked_parents = set[str]() if row.mark is None else set(fields["memberOf"])
            new_parents = set(action.fields["memberOf"]) - checked_parents
            await self._check_parents(session, sorted(new_parents))
            password = await self._desired_password(action, row)
            await session.run(*_alter_statements(action, row, fields, password))
            updated = await self._row_of(session, name)
            assert updated is not None
            role = await self._role(updated)
            await self._remove_old_secret(row.mark, password.reference, action.namespace)
        return role

    async def delete_object(self, action: Action, existing: ExistingObject[_Role]) -> None:
        """Drop the role, and the secret that was generated for it.

        The error names dependent objects. They are neither dropped nor given to another role.
        """
        name = action.external_name
        async with self._server.transaction() as session:
            row = await self._row_of(session, name)
            if row is None or row.uid != existing.object.uid:
                raise ConflictError(f"role {name!r} was dropped or replaced by another client")
            await session.run(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
            # Not after the end of the transaction, because the name of the secret would be lost. If
            # this fails, the role exists without its secret, and gets another or is dropped again.
            await self._remove_old_secret(row.mark, None, action.namespace)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Role]]:
        """List the roles of a scope in the order of their ids."""
        last, page_size = "0", min(page_size, MAX_ROWS)
        while True:
            condition = sql.SQL(
                "a.oid > {}::oid AND starts_with(a.rolname, {}) AND NOT starts_with(a.rolname,"
                " 'pg_') ORDER BY a.oid LIMIT {}"
            ).format(last, scope.prefix or "", page_size)
            async with self._server.session() as session:
                rows = await session.read(_Row, await self._select(session, condition))
            for row in rows:
                if INVALID_TEXT in row.name:
                    unreadable.add(row.name, row.uid, "the name is not valid UTF-8")
            # The scope is checked here, too, because the secrets of other roles may not be
            # readable.
            in_scope = [
                row
                for row in rows
                if INVALID_TEXT not in row.name and scope.has(row.name, row.labels)
            ]
            yield [await self._role(row) for row in in_scope if not row.out_of_bounds]
            if len(rows) < page_size:
                return
            last = rows[-1].uid

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    # --- reading

    async def _row_of(self, session: Session, name: str) -> _Row | None:
        condition = sql.SQL("a.rolname = {}").format(name)
        rows = await session.read(_Row, await self._select(session, condition))
        if rows and rows[0].out_of_bounds:
            raise RefusedError(f"{rows[0].out_of_bounds}; a resource cannot manage it")
        return rows[0] if rows else None

    async def _select(self, session: Session, condition: sql.Composable) -> sql.Composed:
        """Compose a query. A user without access to stored passwords reads the other fields."""
        if self._sees_verifiers is None:
            query = sql.SQL("SELECT has_table_privilege('pg_authid', 'SELECT') AS sees")
            self._sees_verifiers = bool((await session.run(query))[0]["sees"])
        sees = self._sees_verifiers
        return _SELECT.format(
            comment=bounded("c.description"),
            source=sql.SQL("pg_authid" if sees else "pg_roles"),
            version=sql.SQL("a.xmin::text" if sees else "md5(a::text)"),
            verifier=bounded("a.rolpassword") if sees else sql.NULL,
            condition=condition,
        )

    async def _role(self, row: _Row) -> _Role:
        mark = row.mark
        if mark is None or mark.password is None:
            return _Role(row, "")
        return _Role(row, await self._digest_of_password(row, mark.password, mark.namespace))

    async def _digest_of_password(self, row: _Row, reference: SecretRef, namespace: str) -> str:
        """Return the digest of the secret that is the role's password; empty for another password.

        If the server does not show stored passwords, it is that of the last written one.
        """
        try:
            secret = await self._secrets.find(reference, namespace)
        except (
            ConfigurationError,
            ProviderError,
        ):  # the user of the secret gets the error; other roles are listed
            return reference.digest
        if secret is None:  # nothing to compare with; for a generated secret, that is a difference
            return "" if row.mark is not None and row.mark.is_generated else reference.digest
        if not self._sees_verifiers:
            return secret.digest if secret.digest == reference.digest else ""
        if row.verifier is None:
            return ""
        check_key = (row.verifier, secret.digest)
        if check_key not in self._password_checks:
            value = await self._secrets.value(reference, namespace)
            if len(self._password_checks) >= _MAX_REMEMBERED:
                self._password_checks.clear()
            self._password_checks[check_key] = await check_password(row.verifier, value)
        return secret.digest if self._password_checks[check_key] else ""

    # --- writing

    async def _check_parents(self, session: Session, parents: Sequence[str]) -> None:
        """Raise for an impossible membership, or one that reaches beyond the allowed rights.

        A member can become each role of which its own roles are members.
        """
        if not parents:
            return
        rows = await session.read(
            _ReachableRole, _ABOVE.format(list(parents), sorted(GOOD_AS_SUPERUSER))
        )
        for parent in parents:
            reachable = [each for each in rows if each.parent == parent]
            if not reachable:
                raise NotDoneError(f"role {parent!r} does not exist (yet)", status=REFUSED)
            for each in reachable:  # for a short time, because of another client's change
                if power := each.describe_forbidden_rights(self._allow):
                    via = "" if each.name == parent else f" is a member of {each.name!r}, which"
                    raise NotDoneError(
                        f"spec.memberOf: role {parent!r}{via} {power}", status=REFUSED
                    )

    async def _desired_password(self, action: Action, row: _Row | None) -> _Password:
        """Return the desired password. The current one is not written again."""
        mark = None if row is None else row.mark
        password = action.fields.get("password")
        generated = action.fields.get("generatedPassword")
        if generated is not None:
            reference = SecretRef(generated["name"], generated["store"])
            value = await self._generate_secret(reference, action.namespace)
        elif password is not None and "$secret" in password:
            reference = msgspec.convert(password, SecretRef)
            value = await self._secrets.value(reference, action.namespace)
        elif mark is None or mark.password is None:
            return _Password(None)
        elif password is not None:  # a digest stands for the current password
            return _Password(mark.password, mark.is_generated)
        else:
            return _Password(None, is_removed=True)
        if not value or "\0" in value:
            raise RefusedError(
                f"secret {reference.name!r} is not a valid password: it is empty or contains NUL"
            )
        reference = msgspec.structs.replace(reference, digest=self._secrets.digest(value))
        verifier = None if row is None else row.verifier
        if await check_password(verifier, value):
            return _Password(reference, generated is not None)
        verifier = await asyncio.to_thread(make_verifier, value)
        return _Password(reference, generated is not None, verifier)

    async def _remove_old_secret(
        self, mark: RoleMark | None, current: SecretRef | None, namespace: str
    ) -> None:
        """Remove a secret that was generated for a role, unless the role still has it."""
        if mark is None or mark.password is None or not mark.is_generated:
            return
        if current is None or (current.name, current.store) != (
            mark.password.name,
            mark.password.store,
        ):
            await self._secrets.remove(mark.password, namespace)

    async def _generate_secret(self, reference: SecretRef, namespace: str) -> str:
        if await self._secrets.find(reference, namespace) is None:
            value = random.token_urlsafe(GENERATED_BYTES)
            await self._secrets.store(reference, value, namespace)
        return await self._secrets.value(reference, namespace)


def _create_statements(action: Action, password: _Password) -> list[sql.Composed]:
    role, fields = sql.Identifier(action.external_name), action.fields
    options = [*_options(fields, {}), *_password_option(password)]
    return [
        sql.SQL("CREATE ROLE {} WITH {}").format(role, sql.SQL(" ").join(options)),
        *_membership_statements(role, fields["memberOf"], []),
        _comment_statement(action, None, password),
    ]


def _alter_statements(
    action: Action, row: _Row, current: Fields, password: _Password
) -> list[sql.Composed]:
    role, fields = sql.Identifier(action.external_name), action.fields
    options = [*_options(fields, current), *_password_option(password)]
    statements = _membership_statements(role, fields["memberOf"], current["memberOf"])
    if options:  # unchanged options need no permission
        alter = sql.SQL("ALTER ROLE {} WITH {}").format(role, sql.SQL(" ").join(options))
        statements.append(alter)
    return [*statements, _comment_statement(action, row.comment, password)]


def _options(fields: Fields, current: Fields) -> list[sql.Composable]:
    options: list[sql.Composable] = [
        sql.SQL(on if fields[name] else off)  # pyright: ignore[reportArgumentType] - of the table
        for name, (on, off) in _OPTIONS.items()
        if fields[name] != current.get(name) and (current or name != "superuser")
    ]
    if fields["connectionLimit"] != current.get("connectionLimit"):
        options.append(sql.SQL("CONNECTION LIMIT {}").format(fields["connectionLimit"]))
    if fields["validUntil"] != current.get("validUntil"):
        options.append(sql.SQL("VALID UNTIL {}").format(fields["validUntil"] or "infinity"))
    return options


def _password_option(password: _Password) -> list[sql.Composable]:
    if password.verifier is not None:
        return [sql.SQL("PASSWORD {}").format(password.verifier)]
    return [sql.SQL("PASSWORD NULL")] if password.is_removed else []


def _membership_statements(
    role: sql.Identifier, desired: Sequence[str], current: Sequence[str]
) -> list[sql.Composed]:
    granted = [
        sql.SQL("GRANT {} TO {}").format(sql.Identifier(parent), role)
        for parent in sorted(set(desired) - set(current))
    ]
    revoked = [
        sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(parent), role)
        for parent in sorted(set(current) - set(desired))
    ]
    return [*revoked, *granted]


def _comment_statement(action: Action, comment: str | None, password: _Password) -> sql.Composed:
    mark = RoleMark(
        action.idempotency_key,
        action.labels,
        password=password.reference,
        is_generated=password.is_generated,
        namespace=action.namespace,
    )
    role = sql.Identifier(action.external_name)
    return sql.SQL("COMMENT ON ROLE {} IS {}").format(role, with_mark(comment, mark))
