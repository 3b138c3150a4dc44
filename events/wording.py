"""Singular and plural forms for messages."""

from __future__ import annotations


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as ``1 file`` and ``2 files``.

    `many` is the plural, if it is not the singular with an s.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"
