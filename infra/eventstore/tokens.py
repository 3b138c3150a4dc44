"""Encode originator ids and names as subject tokens, and decode them.

A token contains only letters, digits, `-` and `_`. A UUID becomes `u-` and its 32 hexadecimal
digits. Text becomes `s-` and its UTF-8 bytes, with `_XX` for any byte except an ASCII letter, a
digit or `-`. Each id therefore has exactly one token.
"""

import re
from typing import Final
from uuid import UUID

from eventsourcing.persistence import DataError

MAX_TOKEN_LENGTH: Final = 1024  # a protocol line has at most 4,096 bytes, including both subjects
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z0-9-]*")
_ESCAPED_TEXT: Final = re.compile(r"(?:[A-Za-z0-9-]|_[0-9A-F]{2})*")


def escape(text: str) -> str:
    """Encode any text as token characters; raises `DataError` if it is too long."""
    if _PLAIN_TEXT.fullmatch(text) is None:
        text = "".join(
            chr(byte) if byte in _PLAIN else f"_{byte:02X}"
            for byte in text.encode(errors="surrogatepass")
        )
    if len(text) > MAX_TOKEN_LENGTH:
        raise DataError(
            f"{text[:40]}…: too long for a subject ({len(text)} characters when escaped, at "
            f"most {MAX_TOKEN_LENGTH})"
        )
    return text


def unescape(token: str) -> str:
    """Decode the result of `escape`; raises `DataError`."""
    if _ESCAPED_TEXT.fullmatch(token) is None:
        raise DataError(f"{token!r} is not escaped text")
    head, *rest = token.encode().split(b"_")
    data = head + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in rest)
    return data.decode(errors="surrogatepass")


def token_of(originator_id: UUID | str) -> str:
    """Return the token of an originator id; raises `DataError` if it is too long."""
    if isinstance(originator_id, UUID):
        return f"u-{originator_id.hex}"
    return f"s-{escape(originator_id)}"


def originator_id_of(token: str) -> UUID | str:
    """Return the originator id of a token; raises `DataError`."""
    if token.startswith("u-"):
        try:
            return UUID(token[2:])
        except ValueError:
            raise DataError(f"{token!r} is not the token of a UUID") from None
    if token.startswith("s-"):
        return unescape(token[2:])
    raise DataError(f"{token!r} is not the token of an originator id")
