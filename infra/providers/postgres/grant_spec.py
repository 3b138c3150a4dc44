"""The fields, outputs and names of a ``Grant``.

PostgreSQL has no such object: a grant is the set of privileges of one grantee on one object, and
exists while that set is not empty. So its name contains both: ``GRANTEE@DATABASE``,
``GRANTEE@DATABASE/SCHEMA`` or ``GRANTEE@DATABASE/SCHEMA/tables``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from events.manifest import Fields
from infra.providers.postgres.database_spec import Name
from infra.providers.postgres.names import PUBLIC, name_problem, role_problem
from reconciler.provider.kind import ObjectUse

Level = Literal["database", "schema", "tables", "sequences", "functions"]
Privilege = Literal[
    "CONNECT",
    "CREATE",
    "DELETE",
    "EXECUTE",
    "INSERT",
    "MAINTAIN",
    "REFERENCES",
    "SELECT",
    "TEMPORARY",
    "TRIGGER",
    "TRUNCATE",
    "UPDATE",
    "USAGE",
]

PRIVILEGES: Final[Mapping[Level, frozenset[str]]] = {
    "database": frozenset({"CONNECT", "CREATE", "TEMPORARY"}),
    "schema": frozenset({"CREATE", "USAGE"}),
    "tables": frozenset(
        {
            "DELETE",
            "INSERT",
            "MAINTAIN",
            "REFERENCES",
            "SELECT",
            "TRIGGER",
            "TRUNCATE",
            "UPDATE",
        }
    ),
    "sequences": frozenset({"SELECT", "UPDATE", "USAGE"}),
    "functions": frozenset({"EXECUTE"}),
}
"""Privileges at each level. ``tables``, ``sequences`` and ``functions`` cover all in a schema."""

_SCHEMA_LEVELS: Final[Mapping[str, Level]] = {
    "tables": "tables",
    "sequences": "sequences",
    "functions": "functions",
}


class GrantFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Privileges of a PostgreSQL role on a database.

    The external name selects the role and the object: ROLE@DATABASE, ROLE@DATABASE/SCHEMA, or
    ROLE@DATABASE/SCHEMA/tables (also sequences or functions).
    """

    privileges: Annotated[
        list[Privilege],
        msgspec.Meta(
            min_length=1,
            max_length=20,
            description="Exactly these privileges, in any order. Reconciler revokes all others.",
        ),
    ]
    grantable: Annotated[
        list[Privilege],
        msgspec.Meta(
            max_length=20,
            description="Subset of privileges that the role may grant to other roles.",
        ),
    ] = []
    role: Annotated[
        Name | None,
        msgspec.Meta(
            description="Role in the external name. With a reference, {$ref: "
            "DatabaseRole/NAME, field: name}, Reconciler creates the grant after "
            "the role and deletes it before the role."
        ),
    ] = None
    database: Annotated[
        Name | None,
        msgspec.Meta(
            description="Database in the external name. With a reference, {$ref: "
            "Database/NAME, field: name}, Reconciler creates the grant after the "
            "database and deletes it before the database."
        ),
    ] = None

    def __post_init__(self) -> None:
        if not set(self.grantable) <= set(self.privileges):
            raise ValueError("grantable: must contain only privileges that are in privileges")


class GrantOutputs(msgspec.Struct, frozen=True):
    """The grantee, and the database."""

    role: Annotated[str, msgspec.Meta(description="Name of the role.")]
    database: Annotated[str, msgspec.Meta(description="Name of the database.")]


class GrantTarget(NamedTuple):
    """A grantee, and the object that it has privileges on."""

    grantee: str
    database: str
    schema: str = ""
    level: Level = "database"

    @property
    def name(self) -> str:
        """The external name."""
        parts = [self.database, self.schema, "" if self.level == "schema" else self.level]
        end = "/".join(parts[: {"database": 1, "schema": 2}.get(self.level, 3)])
        return f"{self.grantee}@{end}"


def parse_target(name: str) -> GrantTarget | None:
    """Parse an external name; None if it is invalid."""
    grantee, _, rest = name.partition("@")
    parts = rest.split("/")
    if not all((grantee, *parts)) or "@" in rest or "/" in grantee:
        return None
    match parts:
        case [database]:
            return GrantTarget(grantee, database)
        case [database, schema]:
            return GrantTarget(grantee, database, schema, "schema")
        case [database, schema, each] if each in _SCHEMA_LEVELS:
            return GrantTarget(grantee, database, schema, _SCHEMA_LEVELS[each])
        case _:
            return None


def find_uses(external_name: str, _fields: Fields) -> Sequence[ObjectUse]:
    """Return the role and the database of a grant."""
    target = parse_target(external_name)
    if target is None:
        return ()
    return (
        ObjectUse("role", "DatabaseRole", target.grantee),
        ObjectUse("database", "Database", target.database),
    )


def grant_problem(name: str) -> str | None:
    """Describe what is wrong with a grant's external name; None if it is valid."""
    target = parse_target(name)
    if target is None:
        return (
            "set the annotation reconciler/external-name to ROLE@DATABASE, "
            "ROLE@DATABASE/SCHEMA, or ROLE@DATABASE/SCHEMA/ with one of tables, sequences and "
            "functions; the name public stands for all roles"
        )
    grantee = None if target.grantee == PUBLIC else role_problem(target.grantee)
    schema = name_problem(target.schema) if target.schema else None
    if target.schema.startswith("pg_") or target.schema == "information_schema":
        schema = f"schema {target.schema} belongs to the server"
    return grantee or name_problem(target.database) or schema


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a grant's fields: sorted sets, and no partial privileges."""
    present = {name: value for name, value in fields.items() if value is not None}
    return {
        "partial": [],
        **present,
        "privileges": sorted(set(fields.get("privileges") or [])),
        "grantable": sorted(set(fields.get("grantable") or [])),
    }


def comparable(fields: Fields) -> Fields:
    """Return fields without role and database, which the external name determines."""
    return {name: value for name, value in fields.items() if name not in ("role", "database")}
