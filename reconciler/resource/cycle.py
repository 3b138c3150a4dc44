"""Circles of references: resources each of which would wait for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

MAX_CYCLE: Final = 32
"""A longer path from a resource back to itself is not looked for."""


def find_cycle(
    start: str, targets: Iterable[str], refers: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """Follow references on from a resource, and return the path if it leads back; empty for none.

    ``refers`` returns the targets of a resource that is declared.
    """
    paths = [(start, target) for target in targets]
    visited: set[str] = set()
    while paths:
        path = paths.pop()
        if path[-1] == start:
            return path
        if path[-1] in visited:
            continue
        visited.add(path[-1])
        if len(path) <= MAX_CYCLE:
            paths += [(*path, each) for each in refers(path[-1])]
    return ()
