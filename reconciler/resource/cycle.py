"""Reference cycles: resources that would each wait for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

MAX_CYCLE: Final = 32
"""Maximum length of a detectable cycle."""

MAX_REFERENCES: Final = 4_096
"""Limit on references that a search follows, because a tenant's graph may have any size.

It takes less than a millisecond, and begins with the shortest paths.
"""

_TargetsOf = Callable[[str], Iterable[str]]


def find_reachable(targets: Iterable[str], targets_of: _TargetsOf) -> Mapping[str, list[str]]:
    """Return the targets and all resources that their references lead to, with their referrers.

    ``targets_of`` returns the targets of a declared resource. Each reference is followed once,
    because a tenant's resources may have many paths.
    """
    referrers: dict[str, list[str]] = {target: [] for target in targets}
    level, followed = list(referrers), 0
    for _ in range(MAX_CYCLE - 1):
        next_level: list[str] = []
        for name in level:
            for target in targets_of(name):
                known = referrers.get(target)
                if known is None:
                    known = referrers[target] = []
                    next_level.append(target)
                known.append(name)
                followed += 1
            if followed > MAX_REFERENCES:
                return referrers
        level = next_level
    return referrers


def find_cycles(
    start: str, targets: Iterable[str], targets_of: _TargetsOf
) -> Mapping[str, tuple[str, ...]]:
    """Return the targets from which references lead back to a resource, with the shortest path.

    A path begins and ends with the resource. All targets are searched together, since each may
    lead to a thousand resources.
    """
    targets = list(targets)
    referrers = find_reachable(targets, targets_of)
    if start not in referrers:
        return {}
    next_on_path = {start: start}
    level = [start]
    while level:
        previous_level: list[str] = []
        for name in level:
            for referrer in referrers[name]:
                if referrer not in next_on_path:
                    next_on_path[referrer] = name
                    previous_level.append(referrer)
        level = previous_level
    paths = {each: _path(each, start, next_on_path) for each in targets if each in next_on_path}
    return {target: path for target, path in paths.items() if len(path) <= MAX_CYCLE + 1}


def find_cycle(start: str, targets: Iterable[str], targets_of: _TargetsOf) -> tuple[str, ...]:
    """Return the shortest path of references from a resource back to itself; empty if none."""
    return min(find_cycles(start, targets, targets_of).values(), key=len, default=())


def _path(target: str, start: str, next_on_path: Mapping[str, str]) -> tuple[str, ...]:
    path = [start, target]
    while path[-1] != start:
        path.append(next_on_path[path[-1]])
    return tuple(path)
