"""Excerpts of long lists and messages, for events and log lines."""

from __future__ import annotations

from collections.abc import Sequence

MAX_LISTED = 3

MAX_MESSAGE_CHARACTERS = 4_000
"""Maximum length of a message for users. A message may quote a declaration. If a refusal exceeded
the bus's limit, the decider could not publish it, and would retry forever."""

_MAX_QUOTED_CHARACTERS = 256


def list_first(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first names as text, with the number of omitted names."""
    first = separator.join(names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{first} and {more} more" if more > 0 else first


def shorten(message: str) -> str:
    """Return a message of at most ``MAX_MESSAGE_CHARACTERS``, with the number of omitted ones."""
    more = len(message) - MAX_MESSAGE_CHARACTERS
    return f"{message[:-more]}... ({more} more characters)" if more > 0 else message


def quote(text: str | None) -> str:
    """Return text from an API as a truncated quotation, because it may be megabytes long."""
    if text is None or len(text) <= _MAX_QUOTED_CHARACTERS:
        return repr(text)
    return f"{text[:_MAX_QUOTED_CHARACTERS]!r}..."
