"""The fields and outputs of a ``DatabaseRole``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, cast

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from events.secret import DEFAULT_STORE, SecretRef
from infra.providers.postgres.database_spec import UNLIMITED, ConnectionLimit, Name
from infra.providers.times import check_time, in_utc
from reconciler.provider.host_access import HostUse
from reconciler.provider.kind import ObjectUse

SUPERUSER_EQUIVALENTS = frozenset(
    {"pg_execute_server_program", "pg_read_server_files", "pg_write_server_files"}
)
"""Roles whose members can become superusers through the server's files."""

UNREVOCABLE_OUTPUT: Final = "unrevocableMemberships"


class GeneratedPassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret of the role, created if it is missing and removed with the role.

    ``is_set`` is read-only and indicates whether the role has this password.
    """

    name: Annotated[str, msgspec.Meta(description="Name of the secret.")]
    store: Annotated[str, msgspec.Meta(description="Store of the secret.")] = DEFAULT_STORE
    is_set: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the role has this password. Read-only: do not declare it."
        ),
    ] = msgspec.field(default=True, name="isSet")

    def __post_init__(self) -> None:
        SecretRef(self.name, self.store)  # validates the characters of both
        if not self.is_set:
            raise ValueError("isSet: must not be declared, because Reconciler sets it")


class DatabaseRoleFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A PostgreSQL role: a user or a group."""

    login: Annotated[bool, msgspec.Meta(description="Whether the role can log in.")] = False
    password: Annotated[
        SecretRef | None,
        msgspec.Meta(
            description="Password, as a reference to a secret: {$secret: NAME}. Default: unchanged."
        ),
    ] = None
    generated_password: Annotated[
        GeneratedPassword | None,
        msgspec.Meta(
            description="A secret that Reconciler generates for the role, and deletes with "
            "it. Declare it instead of password."
        ),
    ] = None
    superuser: Annotated[
        bool, msgspec.Meta(description="Must be false: Reconciler does not create superusers.")
    ] = False
    create_database: Annotated[
        bool, msgspec.Meta(description="Whether the role can create databases.")
    ] = False
    create_role: Annotated[bool, msgspec.Meta(description="Whether the role can create roles.")] = (
        False
    )
    inherit: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the role inherits the privileges of the roles in memberOf."
        ),
    ] = True
    replication: Annotated[
        bool, msgspec.Meta(description="Whether the role can start replication.")
    ] = False
    bypass_row_security: Annotated[
        bool, msgspec.Meta(description="Whether the role bypasses row-level security.")
    ] = False
    connection_limit: Annotated[
        ConnectionLimit,
        msgspec.Meta(description="Maximum number of connections; -1 means no limit."),
    ] = UNLIMITED
    valid_until: Annotated[
        Annotated[datetime, msgspec.Meta(tz=True)] | None,
        msgspec.Meta(description="Time at which the password expires (ISO 8601). Default: never."),
    ] = None
    member_of: Annotated[
        list[Name],
        msgspec.Meta(
            max_length=1_000,
            description="Roles that this role is a member of, in any order. Reconciler "
            "revokes all other memberships.",
        ),
    ] = []

    def __post_init__(self) -> None:
        if self.superuser:
            raise ValueError(
                "superuser: must not be true, because no restriction applies to a superuser"
            )
        if self.password is not None and self.generated_password is not None:
            raise ValueError("password and generatedPassword: set only one of them")
        check_time("validUntil", self.valid_until)
        for role in self.member_of:
            if role in SUPERUSER_EQUIVALENTS:
                raise ValueError(
                    f"memberOf: {role} is not allowed, because it is equivalent to superuser"
                )


class DatabaseRoleOutputs(msgspec.Struct, frozen=True):
    """Outputs of a role: its name, the secret of its password, and memberships that stay."""

    name: Annotated[str, msgspec.Meta(description="Name of the role.")]
    password: Annotated[
        SecretRef | None,
        msgspec.Meta(description="Reference to the secret that holds the role's password."),
    ] = None
    unrevocable_memberships: Annotated[
        dict[str, str] | None,
        msgspec.Meta(
            description="Memberships that Reconciler cannot revoke, each with the reason."
        ),
    ] = msgspec.field(default=None, name=UNREVOCABLE_OUTPUT)


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a role's fields, with the server's defaults."""
    present = {name: value for name, value in fields.items() if value is not None}
    result: Fields = {
        "login": False,
        "superuser": False,
        "createDatabase": False,
        "createRole": False,
        "inherit": True,
        "replication": False,
        "bypassRowSecurity": False,
        "connectionLimit": UNLIMITED,
        **present,
        "validUntil": in_utc(fields.get("validUntil"), to_seconds=True),
        "memberOf": sorted(set(fields.get("memberOf") or [])),
    }
    if generated := present.get("generatedPassword"):
        result["generatedPassword"] = {"store": DEFAULT_STORE, "isSet": True, **generated}
    return result


def comparable(fields: Fields) -> Fields:
    """Return fields with a keyed digest instead of the password, as in an observed role."""
    password = fields.get("password")
    if isinstance(password, dict) and "$secret" in password:
        return {**fields, "password": {"secret": cast("Fields", password).get("digest", "")}}
    return fields


def find_uses(_external_name: str, fields: Fields) -> Sequence[ObjectUse]:
    """Return the roles of which a role is a member."""
    return [
        ObjectUse("spec.memberOf", "DatabaseRole", each) for each in fields.get("memberOf") or ()
    ]


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return the attributes that grant access beyond the databases (ADR 0060).

    Up to PostgreSQL 15, a role that can create roles can grant itself the right to run programs on
    the host. A role that can start replication can read the server's files. Predefined roles read
    the data of all databases, or end the sessions of other roles.
    """
    predefined = [each for each in fields.get("memberOf") or () if each.startswith("pg_")]
    return [
        HostUse(f"spec.{name}", "privileges", name, "set it to false")
        for name in ("createRole", "replication")
        if fields.get(name)
    ] + [HostUse("spec.memberOf", "privileges", each) for each in predefined]


def explain_kept(fields: Fields, observed: ExternalObject) -> str:
    """Explain which undeclared memberships were not revoked, and why; empty if all were."""
    obstacles: dict[str, str] = observed.outputs.get(UNREVOCABLE_OUTPUT) or {}
    kept = [
        f"{parent} ({reason})"
        for parent, reason in sorted(obstacles.items())
        if parent not in fields.get("memberOf", ())
    ]
    if not kept:
        return ""
    return f"revoke these memberships as a superuser or as their grantor: {', '.join(kept)}"
