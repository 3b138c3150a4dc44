"""Names of databases and roles: which are valid, and which are reserved."""

from __future__ import annotations

import hashlib
from typing import Final

MAX_NAME_BYTES: Final = 63
UNFINISHED_PREFIX: Final = "reconciler_unfinished_"
"""Prefix of a database's name until it is complete."""

PROTECTED_DATABASES: Final = frozenset({"postgres", "template0", "template1"})
INVALID_DATABASE_LIMIT: Final = -2
"""Connection limit of a database whose deletion was interrupted. It can only be dropped."""

PUBLIC: Final = "public"
"""Name that stands for all roles in a ``Grant``. No role can have it."""

_SYSTEM_PREFIX: Final = "pg_"
_RESERVED_ROLES: Final = frozenset({PUBLIC, "none"})


def unfinished_name(key: str) -> str:
    """Return the name under which the action with this key creates a database."""
    return UNFINISHED_PREFIX + hashlib.sha256(key.encode()).hexdigest()[:32]


REPLACEMENT_CHARACTER: Final = "\ufffd"
"""Replaces bytes that are not UTF-8, so several objects may share a name that contains it.
"""


def name_problem(name: str) -> str | None:
    """Describe what is wrong with a name for any object of the server; None if it is valid."""
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        return f"use 1 to {MAX_NAME_BYTES} bytes, because the server truncates longer names"
    if not name.isprintable() or name in {".", ".."}:
        return "use printable characters"
    return None


def database_problem(name: str) -> str | None:
    """Describe what is wrong with the name of a declared database; None if it is valid."""
    if name in PROTECTED_DATABASES:
        return f"database {name} belongs to the server; use another name"
    if name.startswith(UNFINISHED_PREFIX):
        return f"names that start with {UNFINISHED_PREFIX} are reserved for Reconciler"
    return name_problem(name)


def role_problem(name: str) -> str | None:
    """Describe what is wrong with the name of a declared role; None if it is valid."""
    if name.startswith(_SYSTEM_PREFIX):
        return f"names that start with {_SYSTEM_PREFIX} are reserved for the server"
    if name in _RESERVED_ROLES:
        return f"{name} is a reserved word; use another name"
    return name_problem(name)
