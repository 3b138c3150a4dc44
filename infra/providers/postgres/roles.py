"""The ``DatabaseRole`` provider: each write is one transaction that includes the mark.

A password is never sent: the server receives a verifier that the provider computes. The stored
verifier is compared with the current secret.
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
from infra.providers.postgres.limits import MAX_ROWS, select_bounded
from infra.providers.postgres.marks import Mark, read_mark, replace_mark
from infra.providers.postgres.memberships import (
    GRANTS,
    GrantRow,
    describe_obstacles,
    membership_statements,
    parents_of,
)
from infra.providers.postgres.names import REPLACEMENT_CHARACTER, role_problem
from infra.providers.postgres.passwords import (
    MAX_ITERATIONS,
    build_verifier,
    check_password,
    has_too_many_iterations,
)
from infra.providers.postgres.role_spec import (
    SUPERUSER_EQUIVALENTS,
    UNREVOCABLE_OUTPUT,
    normalize,
)
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

ANOTHER_PASSWORD: Final = "another"  # noqa: S105 - shown instead of a digest
UNCHECKED_PASSWORD: Final = f"unchecked: more than {MAX_ITERATIONS} SCRAM iterations"
GENERATED_BYTES: Final = 24
_MAX_REMEMBERED: Final = 10_000
_BOOTSTRAP_SUPERUSER: Final = "10"

_SELECT = sql.SQL(
    """
    SELECT a.oid::text AS uid,
        {version} || '.' || coalesce(c.xmin::text, '') || '.' || md5(m.grants::text) AS version,
        a.rolname AS name, a.rolcanlogin AS login, a.rolsuper AS superuser,
        a.rolcreatedb AS create_database, a.rolcreaterole AS create_role,
        a.rolinherit AS inherit, a.rolreplication AS replication,
        a.rolbypassrls AS bypass_row_security, a.rolconnlimit AS connection_limit,
        CASE WHEN isfinite(a.rolvaliduntil) THEN to_char(
            a.rolvaliduntil AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END AS valid_until,
        {verifier} AS verifier, m.grants,
        current_setting('server_version_num')::int AS server_version,
        {comment} AS comment, a.rolname = session_user AS is_login
    FROM {source} a
        LEFT JOIN pg_shdescription c ON c.objoid = a.oid AND c.classoid = 'pg_authid'::regclass
        CROSS JOIN LATERAL ({grants}) m
    WHERE {condition}
    """
)

_REACHABLE_ROLES: Final = sql.SQL(
    """
    WITH RECURSIVE above AS (
        SELECT rolname AS parent, oid FROM pg_roles WHERE rolname = ANY({})
        UNION SELECT a.parent, g.roleid FROM above a JOIN pg_auth_members g ON g.member = a.oid
    )
    SELECT a.parent::text AS parent, r.rolname::text AS name, r.rolsuper AS superuser,
        r.rolcreaterole AS create_role, r.rolreplication AS replication,
        r.rolname = ANY({}) AS is_superuser_equivalent
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
    """The mark in a role's comment, with the secret from which its password was last set.

    ``namespace`` is the resource's namespace, whose secrets may be read.
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
    grants: list[GrantRow]
    server_version: int
    comment: str | None
    is_login: bool

    @property
    def mark(self) -> RoleMark | None:
        return read_mark(self.comment, RoleMark)

    @property
    def labels(self) -> dict[str, str]:
        return {} if self.mark is None else self.mark.labels

    @property
    def unmanageable_reason(self) -> str:
        """Why a resource cannot manage this role; empty if it can.

        Superusers with a mark are accepted, so that they can be repaired.
        """
        if self.uid == _BOOTSTRAP_SUPERUSER:
            return f"role {self.name} is the server's first superuser"
        if self.is_login:
            return f"Reconciler logs in as role {self.name}"
        if self.superuser and self.mark is None:
            return f"role {self.name} is a superuser"
        return ""


class _ReachableRole(msgspec.Struct, frozen=True):
    """A role that members of ``parent`` can become: ``parent`` itself, or one of its parents."""

    parent: str
    name: str
    superuser: bool
    create_role: bool
    replication: bool
    is_superuser_equivalent: bool

    def describe_forbidden_rights(self, allow: Allow) -> str:
        """Describe the forbidden rights that its members would have; empty if none."""
        if self.superuser:
            return "is a superuser, and Reconciler does not grant membership in a superuser role"
        if self.is_superuser_equivalent:
            return "is equivalent to a superuser"
        for name, has_it in (("createRole", self.create_role), ("replication", self.replication)):
            if has_it and not allow.permits("privileges", name):
                return (
                    f"has the {name} privilege, which spec.allow.privileges of the ProviderConfig "
                    "does not allow"
                )
        return ""


class _Password(NamedTuple):
    """The desired password of a role. If there is no verifier, the password is not changed."""

    reference: SecretRef | None
    is_generated: bool = False
    verifier: str | None = None
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class _Role:
    """A row, and the secret's digest, which is empty if the role has a different password."""

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
            "memberOf": parents_of(row.grants),
        }
        outputs: Fields = {"name": row.name}
        if obstacles := describe_obstacles(row.grants):
            outputs[UNREVOCABLE_OUTPUT] = obstacles
        if mark is not None and mark.password is not None:
            if mark.is_generated:
                secret = {"name": mark.password.name, "store": mark.password.store}
                fields["generatedPassword"] = {**secret, "isSet": bool(self.digest)}
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
    """Creates, updates and deletes a PostgreSQL server's roles."""

    noun = "role"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._server = PostgresServer(config, secrets, permit)
        self._secrets = secrets
        self._config = config
        self._permit = permit
        self._can_read_verifiers: bool | None = None
        self._password_checks: dict[tuple[str, str], bool] = {}

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a role cannot have this name."""
        return role_problem(external_name)

    async def find(self, external_name: str) -> _Role | None:
        """Read a role. Raises ``RefusedError`` if a resource cannot manage it."""
        async with self._server.session() as session:
            row = await self._find_row(session, external_name)
        return None if row is None else await self._role(row)

    async def create_object(self, action: Action) -> _Role:
        """Create a role with its mark, after a generated password is stored."""
        name = action.external_name
        async with self._server.transaction() as session:
            row = await self._find_row(session, name)
            if row is None:
                await self._check_parents(session, action.fields["memberOf"])
                password = await self._desired_password(action, None)
                await session.run(*_create_statements(action, password))
                row = await self._find_row(session, name)
                assert row is not None
                return await self._role(row)
        raise ConflictError(f"role {name!r} already exists")

    async def update_object(self, action: Action, existing: ExistingObject[_Role]) -> _Role:
        """Change the role in one transaction, if it has not changed since it was read."""
        name, previous = action.external_name, existing.native.row
        async with self._server.transaction() as session:
            row = await self._find_row(session, name)
            if row is None or (row.uid, row.version) != (previous.uid, previous.version):
                raise ConflictError(f"role {name!r} has changed since it was read")
            # The memberships of a role without a mark were never checked.
            fields = existing.object.fields
            checked_parents = set[str]() if row.mark is None else set(fields["memberOf"])
            new_parents = set(action.fields["memberOf"]) - checked_parents
            await self._check_parents(session, sorted(new_parents))
            password = await self._desired_password(action, row)
            await session.run(*_alter_statements(action, row, fields, password))
            updated = await self._find_row(session, name)
            assert updated is not None
            role = await self._role(updated)
            await self._remove_old_secret(row.mark, password.reference, action.namespace)
        return role

    async def delete_object(self, action: Action, existing: ExistingObject[_Role]) -> None:
        """Drop the role, and the secret that was generated for it.

        Dependent objects are neither dropped nor reassigned. The error names them.
        """
        name = action.external_name
        async with self._server.transaction() as session:
            row = await self._find_row(session, name)
            if row is None or row.uid != existing.object.uid:
                raise ConflictError(f"role {name!r} was dropped or replaced by another client")
            await session.run(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
            # Before the commit, because the secret's name is lost afterwards. If the commit fails,
            # the role exists without its secret, and gets a new one or is dropped again.
            await self._remove_old_secret(row.mark, None, action.namespace)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Role]]:
        """List the roles in a scope, ordered by their ids."""
        last, page_size = "0", min(page_size, MAX_ROWS)
        while True:
            condition = sql.SQL(
                "a.oid > {}::oid AND starts_with(a.rolname, {}) AND NOT starts_with(a.rolname,"
                " 'pg_') ORDER BY a.oid LIMIT {}"
            ).format(last, scope.prefix or "", page_size)
            async with self._server.session() as session:
                rows = await session.read(_Row, await self._select(session, condition))
            for row in rows:
                if REPLACEMENT_CHARACTER in row.name:
                    unreadable.add(row.name, row.uid, "the name is not valid UTF-8")
            # Check the scope first, because the secrets of other roles may be unreadable.
            in_scope = [
                row
                for row in rows
                if REPLACEMENT_CHARACTER not in row.name and scope.has(row.name, row.labels)
            ]
            roles = list[_Role]()
            for row in in_scope:
                if not row.unmanageable_reason:
                    try:
                        roles.append(await self._role(row))
                    except Exception as error:  # noqa: BLE001 - one role must not hide the others
                        reason = f"{type(error).__name__}: {error}"
                        unreadable.add(row.name, row.uid, reason)
            yield roles
            if len(rows) < page_size:
                return
            last = rows[-1].uid

    async def probe(self) -> bool:
        """Check that the server responds."""
        await self._server.probe()
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    # --- reading

    async def _find_row(self, session: Session, name: str) -> _Row | None:
        condition = sql.SQL("a.rolname = {}").format(name)
        rows = await session.read(_Row, await self._select(session, condition))
        if rows and rows[0].unmanageable_reason:
            raise RefusedError(f"{rows[0].unmanageable_reason}; a resource cannot manage it")
        return rows[0] if rows else None

    async def _select(self, session: Session, condition: sql.Composable) -> sql.Composed:
        """Build a query. Without access to stored passwords, it reads the other fields."""
        if self._can_read_verifiers is None:
            query = sql.SQL("SELECT has_table_privilege('pg_authid', 'SELECT') AS can_read")
            self._can_read_verifiers = bool((await session.run(query))[0]["can_read"])
        can_read = self._can_read_verifiers
        return _SELECT.format(
            comment=select_bounded("c.description"),
            source=sql.SQL("pg_authid" if can_read else "pg_roles"),
            version=sql.SQL("a.xmin::text" if can_read else "md5(a::text)"),
            verifier=select_bounded("a.rolpassword") if can_read else sql.NULL,
            grants=GRANTS,
            condition=condition,
        )

    async def _role(self, row: _Row) -> _Role:
        mark = row.mark
        if mark is None or mark.password is None:
            return _Role(row, "")
        # Another client may have written the comment, to learn about the secrets of a namespace.
        caller = self._permit.namespace
        is_callers = caller in ("", mark.namespace)
        if not (is_callers and self._config.may_be_used_in(mark.namespace)):
            return _Role(row, "")
        return _Role(row, await self._digest_if_current(row, mark.password, mark.namespace))

    async def _digest_if_current(self, row: _Row, reference: SecretRef, namespace: str) -> str:
        """Return the secret's digest; empty if the role has a different password.

        If the server hides stored passwords, compare the secret with the one last written.
        """
        try:
            secret = await self._secrets.find(reference, namespace)
        except (ConfigurationError, ProviderError):
            # Only an action that uses the secret reports the error, so other roles are listed.
            return reference.digest
        if secret is None:  # nothing to compare with, unless it was generated
            return "" if row.mark is not None and row.mark.is_generated else reference.digest
        if not self._can_read_verifiers:
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
        """Raise for an impossible membership, or one that grants forbidden rights.

        Members of a role can also become every role that it is a member of.
        """
        if not parents:
            return
        rows = await session.read(
            _ReachableRole, _REACHABLE_ROLES.format(list(parents), sorted(SUPERUSER_EQUIVALENTS))
        )
        for parent in parents:
            reachable = [each for each in rows if each.parent == parent]
            if not reachable:
                raise NotDoneError(f"role {parent!r} does not exist yet", status=REFUSED)
            for role in reachable:  # not final, because another client may change it
                if rights := role.describe_forbidden_rights(self._config.allow):
                    via = "" if role.name == parent else f" is a member of {role.name!r}, which"
                    raise NotDoneError(
                        f"spec.memberOf: role {parent!r}{via} {rights}", status=REFUSED
                    )

    async def _desired_password(self, action: Action, row: _Row | None) -> _Password:
        """Return the desired password, without a verifier if the role already has it."""
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
        verifier = await asyncio.to_thread(build_verifier, value)
        return _Password(reference, generated is not None, verifier)

    async def _remove_old_secret(
        self, mark: RoleMark | None, current: SecretRef | None, namespace: str
    ) -> None:
        """Remove the secret that was generated for a role, unless the role still uses it."""
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
        # The new role has no grants yet, so no server needs their options.
        *membership_statements(action.external_name, fields, (), 0),
        _comment_statement(action, None, password),
    ]


def _alter_statements(
    action: Action, row: _Row, current: Fields, password: _Password
) -> list[sql.Composed]:
    role, fields = sql.Identifier(action.external_name), action.fields
    options = [*_options(fields, current), *_password_option(password)]
    statements = membership_statements(action.external_name, fields, row.grants, row.server_version)
    if options:  # an unnecessary ALTER ROLE could fail for lack of permission
        alter = sql.SQL("ALTER ROLE {} WITH {}").format(role, sql.SQL(" ").join(options))
        statements.append(alter)
    return [*statements, _comment_statement(action, row.comment, password)]


def _options(fields: Fields, current: Fields) -> list[sql.Composable]:
    options: list[sql.Composable] = [
        sql.SQL(on if fields[name] else off)  # pyright: ignore[reportArgumentType] - from the table
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


def _comment_statement(action: Action, comment: str | None, password: _Password) -> sql.Composed:
    mark = RoleMark(
        action.idempotency_key,
        action.labels,
        password=password.reference,
        is_generated=password.is_generated,
        namespace=action.namespace,
    )
    role = sql.Identifier(action.external_name)
    return sql.SQL("COMMENT ON ROLE {} IS {}").format(role, replace_mark(comment, mark))
