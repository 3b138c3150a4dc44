"""Reference cycles: resources that would each wait for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

MAX_CYCLE: Final = 32
"""Maximum length of a detectable cycle."""


def find_cycle(
    start: str, targets: Iterable[str], targets_of: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """Return the path of references from a resource back to itself; empty if none is found.

    ``targets_of`` returns the targets of a declared resource.
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
            paths += [(*path, each) for each in targets_of(path[-1])]
    return ()
