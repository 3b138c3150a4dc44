"""Classifies failures of a server or a connection as provider errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import psycopg

from reconciler.errors import (
    ConflictError,
    NotDoneError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)

DUPLICATE_STATES: Final = frozenset({"42710", "42P04"})
IN_USE: Final = "55006"
DATABASE_NOT_FOUND: Final = "3D000"

_RETRY_SECONDS: Final = 2.0
_MAX_MESSAGE_CHARACTERS: Final = 1_000

_BY_STATE: Final[Mapping[str, type[ProviderError]]] = {
    **dict.fromkeys(DUPLICATE_STATES, ConflictError),
    # insufficient privilege, which the server's administrator can grant
    "42501": NotDoneError,
    "42704": NotDoneError,  # the role or object does not exist yet
    "3F000": NotDoneError,  # the schema does not exist yet
}
_PERMANENT: Final = ("0A", "22", "42")
"""Prefixes for unsupported or invalid statements, which the server will never accept. They exclude
circular memberships, which another client may have caused."""

_UNKNOWN_RESULT: Final = ("08", "40003", "57P", "58", "XX")
"""Prefixes for a lost session, a failed disk, or an unknown result. The statement may have taken
effect."""

_UNAVAILABLE: Final = ("28", "53", "57", *_UNKNOWN_RESULT)
"""Prefixes for a server that cannot serve any client. All others concern the statement."""

_QUOTED_NAMES: Final = re.compile(r'".*"')
"""The names in a message. It is greedy, because the server does not escape quotes in them."""

REFUSED: Final = HTTPStatus.CONFLICT
"""Status of an error that a tenant can cause at will, so it must not open the server's circuit
breaker for other tenants."""


def state_of(error: BaseException | None) -> str:
    """Return the SQLSTATE of an error; empty if the server sent none."""
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""


def classify_error(error: psycopg.Error, *, may_be_done: bool) -> ProviderError:
    """Classify the failure of a statement.

    ``may_be_done``: whether it takes effect immediately, so that its result is unknown if the
    response is lost. In a transaction, only COMMIT does: earlier failures are rolled back. Unless
    the SQLSTATE is in ``_UNKNOWN_RESULT``, the server has rolled the statement back.
    """
    state, text = state_of(error), _text(error)
    if not state or (state.startswith(_UNKNOWN_RESULT) and "concurrently" not in text):
        return UnknownResultError(text) if may_be_done else NotDoneError(text)
    if state == "53300":
        return ThrottledError(text, retry_after_seconds=_RETRY_SECONDS)
    is_unavailable = state.startswith(_UNAVAILABLE) and "concurrently" not in text
    status = None if is_unavailable else REFUSED
    if state in _BY_STATE:
        return _BY_STATE[state](text, status=status)
    error_class = RefusedError if state.startswith(_PERMANENT) else NotDoneError
    return error_class(text, status=status)


def classify_connection_error(error: psycopg.Error) -> ProviderError:
    """Classify a failed connection. Nothing was sent, and libpq only provides a message."""
    text = _text(error)
    unnamed = _QUOTED_NAMES.sub('""', text)  # a tenant may choose any name
    if "too many connections for database" in unnamed:  # a limit on one tenant's database
        return NotDoneError(text, status=REFUSED)
    if "too many" in unnamed:
        return ThrottledError(text, retry_after_seconds=_RETRY_SECONDS)
    return NotDoneError(text)


def _text(error: psycopg.Error) -> str:
    # The limit also applies to each part, because a server may send megabytes.
    diagnostics, max_characters = error.diag, _MAX_MESSAGE_CHARACTERS
    if diagnostics.message_primary is None:
        text = " ".join(str(error)[:max_characters].split())
    else:
        parts = (diagnostics.message_primary, diagnostics.message_detail)
        text = ": ".join("; ".join(part[:max_characters].splitlines()) for part in parts if part)
        text = f"{text} (SQLSTATE {error.sqlstate})"
    return text[:_MAX_MESSAGE_CHARACTERS]
