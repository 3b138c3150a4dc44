"""Excerpts of long lists: a message is one line that people read, and an event stays for ever."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 3

MAX_MESSAGE_CHARACTERS = 4_000
"""Longest message for users. A message may quote a declaration, which a refusal may not repeat
whole: the decider could not publish what exceeds the bus's limit, and would retry forever."""


def some(names: Sequence[str], separator: str = ", ") -> str:
    """Name the first few, and count the others."""
    shown = separator.join(names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def shortened(message: str) -> str:
    """Return a message of at most ``MAX_MESSAGE_CHARACTERS``, and the number of those left out."""
    more = len(message) - MAX_MESSAGE_CHARACTERS
    return f"{message[:-more]}... ({more} more characters)" if more > 0 else message
