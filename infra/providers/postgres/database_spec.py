"""The fields and outputs of a ``Database``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.postgres.names import MAX_NAME_BYTES
from reconciler.provider.host_access import HostUse
from reconciler.provider.kind import ObjectUse

UNLIMITED = -1
ENCODINGS = (
    *("SQL_ASCII", "UTF8", "EUC_JP", "EUC_CN", "EUC_KR", "EUC_TW", "EUC_JIS_2004", "MULE_INTERNAL"),
    *(f"LATIN{number}" for number in range(1, 11)),
    *(f"ISO_8859_{number}" for number in range(5, 9)),
    *(f"WIN{number}" for number in (866, 874, *range(1250, 1259))),
    *("KOI8R", "KOI8U"),
)
"""Encodings by the names that the server reports. It also accepts other names for them."""

TRUSTED_EXTENSIONS = frozenset(
    {
        *("bool_plperl", "btree_gin", "btree_gist", "citext", "cube", "dict_int"),
        *("fuzzystrmatch", "hstore", "hstore_plperl", "intarray", "isn", "jsonb_plperl", "lo"),
        *("ltree", "pg_trgm", "pgcrypto", "plperl", "plpgsql", "pltcl", "seg", "tablefunc", "tcn"),
        *("tsm_system_rows", "tsm_system_time", "unaccent", "uuid-ossp"),
    }
)
"""Extensions that PostgreSQL allows a database owner to create. Others, such as ``dblink``,
``file_fdw`` and untrusted languages, can reach the server's machine or its network."""

ALWAYS_INSTALLED = "plpgsql"
"""An extension that every database has. Comparisons ignore it."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
ConnectionLimit = Annotated[int, msgspec.Meta(ge=UNLIMITED, le=2**31 - 1)]


class DatabaseFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A PostgreSQL database."""

    owner: Annotated[
        Name | None,
        msgspec.Meta(
            description="Role that owns the database. Default: the role that Reconciler logs in as."
        ),
    ] = None
    encoding: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,32}(?!\n)$")] | None,
        msgspec.Meta(
            description="Encoding, as the server names it, such as UTF8 or LATIN1. Default:"
            " the template's."
        ),
    ] = None
    locale: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=63)] | None,
        msgspec.Meta(description="Locale, or COLLATION/CTYPE. Default: the template's."),
    ] = None
    template: Annotated[
        Name | None,
        msgspec.Meta(
            description="Database to copy when this one is created. Default: template1, or "
            "template0 if encoding or locale is set."
        ),
    ] = None
    extensions: Annotated[
        list[Name],
        msgspec.Meta(
            max_length=100,
            description="Extensions to install, in any order. Other extensions are kept, unless "
            "an earlier declaration included them.",
        ),
    ] = []
    connection_limit: Annotated[
        ConnectionLimit,
        msgspec.Meta(description="Maximum number of connections; -1 means no limit."),
    ] = UNLIMITED
    allow_connections: Annotated[
        bool, msgspec.Meta(description="Whether the database accepts connections.")
    ] = True

    def __post_init__(self) -> None:
        if self.encoding is not None and _encoding(self.encoding) not in ENCODINGS:
            raise ValueError(
                f"encoding: {self.encoding!r} is not an encoding that the server supports; "
                "use one such as UTF8 or LATIN1"
            )


class DatabaseOutputs(msgspec.Struct, frozen=True):
    """The address of a database. The URL contains no user or password."""

    host: Annotated[str, msgspec.Meta(description="Host name of the server.")]
    port: Annotated[int, msgspec.Meta(description="Port of the server.")]
    name: Annotated[str, msgspec.Meta(description="Name of the database.")]
    url: Annotated[str, msgspec.Meta(description="URL of the database, without user and password.")]


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a database's fields, with its extensions as a mapping."""
    present = {name: value for name, value in fields.items() if value is not None}
    extensions: Any = present.get("extensions") or {}
    result: Fields = {
        "connectionLimit": UNLIMITED,
        "allowConnections": True,
        **present,
        # A mapping, so that a comparison ignores other clients' extensions.
        "extensions": {
            name: True
            for name in sorted(set(cast("list[str]", extensions)))
            if name != ALWAYS_INSTALLED
        },
    }
    if "encoding" in present:
        result["encoding"] = _encoding(str(present["encoding"]))
    if "locale" in present:
        collation, _, ctype = str(present["locale"]).partition("/")
        result["locale"] = collation if ctype in ("", collation) else f"{collation}/{ctype}"
    return result


def _encoding(encoding: str) -> str:
    """Return the canonical name of an encoding. The server compares only letters and digits."""
    name = _plain(encoding)
    return _BY_PLAIN_NAME.get(name, name)


def _plain(encoding: str) -> str:
    return "".join(each for each in encoding.upper() if each.isalnum())


_BY_PLAIN_NAME = {"UNICODE": "UTF8", **{_plain(each): each for each in ENCODINGS}}


def comparable(fields: Fields) -> Fields:
    """Return fields without the template, because the server does not record it."""
    return {name: value for name, value in fields.items() if name != "template"}


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe the data that an update or a deletion would lose; empty if none."""
    if fields is None:
        return f"all data of database {observed.name}"
    removed = observed.fields.get("extensions", {}).keys() - fields.get("extensions", {}).keys()
    if not removed:
        return ""
    return f"the data of these extensions in database {observed.name}: {', '.join(sorted(removed))}"


def find_uses(_external_name: str, fields: Fields) -> Sequence[ObjectUse]:
    """Return the owner of a database, and the database that it copies."""
    owner, template = fields.get("owner"), fields.get("template")
    uses = [ObjectUse("spec.owner", "DatabaseRole", owner)] if owner else []
    return [*uses, ObjectUse("spec.template", "Database", template)] if template else uses


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return the extensions that can reach beyond the database (ADR 0060)."""
    return [
        HostUse("spec.extensions", "privileges", f"extension:{name}", "omit it")
        for name in fields.get("extensions") or ()
        if name not in TRUSTED_EXTENSIONS
    ]
