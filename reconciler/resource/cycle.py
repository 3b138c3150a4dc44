"""Circles of references: resources each of which would wait for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

MAX_CYCLE: Final = 32
"""A longer way from a resource back to itself is not looked for."""


def find_cycle(
    start: str, targets: Iterable[str], refers: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """Follow references on from a resource, and return the way if it leads back; empty for none.

    ``refers`` returns the targets of a resource that is declared.
    """
    ways = [(start, target) for target in targets]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        if way[-1] == start:
            return way
        if way[-1] in seen:
            continue
        seen.add(way[-1])
        if len(way) <= MAX_CYCLE:
            ways += [(*way, each) for each in refers(way[-1])]
    return ()
