"""The settings of a connection, which the owner of its database must not choose.

``ALTER DATABASE … SET`` sets defaults for each new session. Options of the connection override
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIXED: Final[Mapping[str, str]] = {
    # No user's schema is searched, because its functions would run with the provider's privileges.
    "search_path": "pg_catalog",
    "local_preload_libraries": "",
    "row_security": "on",
    # These must not end the connection.
    "exit_on_error": "off",
    "idle_in_transaction_session_timeout": "0",
    # These must not refuse or undo a write.
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    # The meaning of statements, and the form of results.
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "bytea_output": "hex",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "client_min_messages": "warning",
    "jit": "off",
}

INHERITED: Final = ("role", "synchronous_commit", "work_mem", "default_tablespace")
"""Settings that an operator may choose. In a tenant's database, they are those of the operator's.
"""

TIMEOUTS_SINCE: Final[Mapping[str, int]] = {
    "tcp_user_timeout": 120_000,
    "idle_session_timeout": 140_000,
    "transaction_timeout": 170_000,
}
"""Settings that could end a session, with the server version that introduced them. An older server
refuses a connection that sets them."""


def as_options(settings: Mapping[str, str]) -> str:
    """Return settings as the ``options`` of a connection."""
    return " ".join(f"-c {name}={_escape(value)}" for name, value in settings.items())


def _escape(value: str) -> str:
    return "".join(f"\\{each}" if each in "\\ \t\n\r\f\v" else each for each in value)
