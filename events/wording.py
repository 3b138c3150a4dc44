"""Words for people in the singular or the plural."""

from __future__ import annotations


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with its words, such as ``1 place`` and ``2 places``.

    `many`: the plural, if it is not the singular with an s.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"
