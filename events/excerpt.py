"""Excerpts of long lists: a message is one line that people read, and an event stays for ever."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 3


def some(names: Sequence[str], separator: str = ", ") -> str:
    """Name the first few, and count the others."""
    shown = separator.join(names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
