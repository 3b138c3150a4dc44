"""The kind ``DatabaseRole``: a role of a PostgreSQL server, its password and its memberships."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, cast

import msgspec

from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from events.secret import DEFAULT_STORE, SecretRef
from infra.providers.postgres.database import UNLIMITED, ConnectionLimit, Name
from infra.providers.postgres.names import role_problem
from infra.providers.postgres.psycopg_needed import psycopg_needed
from reconciler.provider import Capabilities, Provider
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets

AS_GOOD_AS_SUPERUSERS = frozenset(
    {"pg_execute_server_program", "pg_read_server_files", "pg_write_server_files"}
)
"""Roles whose members can make themselves superusers, by way of the server's files."""


class GeneratedPassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret of the role's own: made if it is missing, and removed with the role.

    ``is_set`` is shown: whether the role has that password. It need not be declared.
    """

    name: str
    store: str = DEFAULT_STORE
    is_set: bool = msgspec.field(default=True, name="isSet")

    def __post_init__(self) -> None:
        SecretRef(self.name, self.store)  # the same characters
        if not self.is_set:
            raise ValueError("isSet is shown, and not declared: leave it out")


class DatabaseRoleFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The fields of a ``DatabaseRole``'s spec, with the server's defaults.

    The order of ``member_of`` has no meaning; memberships that are not declared are taken away.
    Without a password, one that others have set is left alone.
    """

    login: bool = False
    password: SecretRef | None = None
    generated_password: GeneratedPassword | None = None
    superuser: bool = False
    create_database: bool = False
    create_role: bool = False
    inherit: bool = True
    replication: bool = False
    bypass_row_security: bool = False
    connection_limit: ConnectionLimit = UNLIMITED
    valid_until: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    member_of: Annotated[list[Name], msgspec.Meta(max_length=1_000)] = []

    def __post_init__(self) -> None:
        if self.superuser:
            raise ValueError("superuser: no declaration makes one, since nothing would bind it")
        if self.password is not None and self.generated_password is not None:
            raise ValueError("password and generatedPassword exclude each other")
        for role in self.member_of:
            if role in AS_GOOD_AS_SUPERUSERS:
                raise ValueError(f"memberOf: {role} is as good as superuser")


class DatabaseRoleOutputs(msgspec.Struct, frozen=True):
    """What a role gives to others: its name, and where its password is."""

    name: str
    password: SecretRef | None = None


def normalize(fields: Fields) -> Fields:
    """Return a role's fields their canonical form, with the server's defaults."""
    given = {name: value for name, value in fields.items() if value is not None}
    result: Fields = {
        "login": False,
        "superuser": False,
        "createDatabase": False,
        "createRole": False,
        "inherit": True,
        "replication": False,
        "bypassRowSecurity": False,
        "connectionLimit": UNLIMITED,
        **given,
        "validUntil": _in_utc(fields.get("validUntil")),
        "memberOf": sorted(set(fields.get("memberOf") or [])),
    }
    if generated := given.get("generatedPassword"):
        result["generatedPassword"] = {"store": DEFAULT_STORE, "isSet": True, **generated}
    return result


def comparable(fields: Fields) -> Fields:
    """Return fields with a keyed digest in the place of the password, as a role's object shows."""
    password = fields.get("password")
    if isinstance(password, dict) and "$secret" in password:
        return {**fields, "password": {"secret": cast("Fields", password).get("digest", "")}}
    return fields


def _in_utc(value: str | None) -> str | None:
    if value is None:
        return None
    instant = msgspec.convert(value, datetime).astimezone(UTC)
    return str(msgspec.to_builtins(instant.replace(microsecond=0)))


def _connect(config: ProviderConfigSpec, secrets: Secrets) -> Provider:
    with psycopg_needed():
        from infra.providers.postgres.roles import DatabaseRolesProvider  # noqa: PLC0415
    return DatabaseRolesProvider(config, secrets)


DATABASE_ROLE = Kind(
    name="DatabaseRole",
    api_version="postgres/v1",
    provider="postgres",
    schema=DatabaseRoleFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=_connect,
    normalize=normalize,
    comparable=comparable,
    name_problem=role_problem,
    outputs=DatabaseRoleOutputs,
)
"""The kind ``DatabaseRole``."""
