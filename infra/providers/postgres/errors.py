"""The meaning of a failure of the server or of the connection for a provider's caller."""

from __future__ import annotations

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

DUPLICATE: Final = frozenset({"42710", "42P04"})
IN_USE: Final = "55006"
NO_DATABASE: Final = "3D000"

_RETRY_SECONDS: Final = 2.0
_MESSAGE_CHARACTERS: Final = 1_000

_BY_STATE: Final[Mapping[str, type[ProviderError]]] = {
    **dict.fromkeys(DUPLICATE, ConflictError),
    # insufficient privilege, which the administrator of the server can grant
    "42501": NotDoneError,
    "42704": NotDoneError,  # a role or an object that does not exist, or not yet
    "3F000": NotDoneError,  # a schema likewise
}
_FOR_GOOD: Final = ("0A", "22", "42")
"""Classes of statements that the server will never accept: unsupported or invalid. A circular
membership is not one of them, because another client may have caused it."""

_NOT_ANSWERED: Final = ("08", "40003", "57P", "58", "XX")
"""Classes that end a session or a disk, and a completion that the server itself does not know. The
effect until then is unknown."""

_IN_TROUBLE: Final = ("28", "53", "57", *_NOT_ANSWERED)
"""Classes of a server that serves no client. All others concern the statement."""

REFUSED: Final = HTTPStatus.CONFLICT
"""Status of an error that shows nothing about the server's health: a tenant can cause it at will,
and must not open the breaker of the server for others."""


def state_of(error: BaseException | None) -> str:
    """Return the SQLSTATE of an error; empty if the server sent none."""
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""


def classify_error(error: psycopg.Error, *, may_be_done: bool) -> ProviderError:
    """Return the meaning of a failed statement.

    ``may_be_done``: it takes effect immediately, so a lost response leaves that open. In a
    transaction, this is only its end: earlier failures are rolled back. With any other SQLSTATE,
    the server has rolled the statement back.
    """
    state, text = state_of(error), _text(error)
    if not state or (state.startswith(_NOT_ANSWERED) and "concurrently" not in text):
        return UnknownResultError(text) if may_be_done else NotDoneError(text)
    if state == "53300":
        return ThrottledError(text, retry_after_seconds=_RETRY_SECONDS)
    is_in_trouble = state.startswith(_IN_TROUBLE) and "concurrently" not in text
    status = None if is_in_trouble else REFUSED
    if state in _BY_STATE:
        return _BY_STATE[state](text, status=status)
    error_class = RefusedError if state.startswith(_FOR_GOOD) else NotDoneError
    return error_class(text, status=status)


def classify_connection_error(error: psycopg.Error) -> ProviderError:
    """Return the meaning of a failed connection: nothing was sent, and libpq has only a text."""
    text = _text(error)
    if "too many connections for database" in text:  # the limit of one tenant's database
        return NotDoneError(text, status=REFUSED)
    if "too many" in text:
        return ThrottledError(text, retry_after_seconds=_RETRY_SECONDS)
    return NotDoneError(text)


def _text(error: psycopg.Error) -> str:
    diagnostics, max_characters = (
        error.diag,
        _MESSAGE_CHARACTERS,
    )  # of each part: a server may send megabytes
    if diagnostics.message_primary is None:
        text = " ".join(str(error)[:max_characters].split())
    else:
        parts = (diagnostics.message_primary, diagnostics.message_detail)
        text = ": ".join("; ".join(part[:max_characters].splitlines()) for part in parts if part)
        text = f"{text} (SQLSTATE {error.sqlstate})"
    return text[:_MESSAGE_CHARACTERS]
