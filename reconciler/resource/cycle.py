"""Reference cycles: resources that would each wait for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

MAX_CYCLE: Final = 32
"""Maximum length of a detectable cycle."""


def find_cycle(
    start: str, targets: Iterable[str], targets_of: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """Return the shortest path of references from a resource back to itself; empty if none.

    ``targets_of`` returns the targets of a declared resource. Each reference is followed once,
    because a tenant's resources may have many paths.
    """
    referrers = dict.fromkeys(targets, start)  # the first one found for each resource
    if start in referrers:
        return start, start
    level = list(referrers)
    for _ in range(MAX_CYCLE - 1):
        next_level: list[str] = []
        for name in level:
            for target in targets_of(name):
                if target == start:
                    return *_path_to(name, start, referrers), start
                if target not in referrers:
                    referrers[target] = name
                    next_level.append(target)
        level = next_level
    return ()


def _path_to(name: str, start: str, referrers: Mapping[str, str]) -> tuple[str, ...]:
    path = [name]
    while path[-1] != start:
        path.append(referrers[path[-1]])
    return tuple(reversed(path))
