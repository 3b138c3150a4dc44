"""In which order routes are asked: Caddy takes the first that matches, wherever it came from.

The more precise goes first: a named host before a wildcard before any host; then the longest path.
A route of several hosts or paths goes where its most precise one belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

MAX_PAIRS: Final = 1000
"""Hosts times paths of a route: so much work is each read of it. A route of others has more."""

Rank = tuple[int, int]
Pair = tuple[str, str]


class Reach(NamedTuple):
    """What a route matches; no hosts and no paths are all of them.

    ``is_known``: it looks at nothing but these. Of one that looks at more nobody knows whether it
    takes a request away from another.
    """

    name: str
    hosts: Sequence[str]
    paths: Sequence[str]
    is_known: bool = True

    @property
    def pairs(self) -> Iterator[Pair]:
        """Each host with each path."""
        for host in self.hosts or ("",):
            for path in self.paths or ("/",):
                yield host, path

    @property
    def rank(self) -> Rank:
        """How precise it is; the greater goes first."""
        return max(map(_precision, self.hosts or ("",))), max(map(_length, self.paths or ("/",)))


class Standing(NamedTuple):
    """How a route stands among the others of its server."""

    is_misplaced: bool
    shadowed_by: str | None


def _precision(host: str) -> int:
    return 0 if not host else 1 if host.startswith("*.") else 2


def _length(path: str) -> int:
    return 0 if path == "/" else len(path)


def _hosts_before(host: str) -> tuple[str, ...]:
    """Return the hosts whose routes take requests for this one."""
    if not host:
        return ("",)
    if host.startswith("*."):
        return (host, "")
    return (host, f"*.{host.partition('.')[2]}", "")


def standings(routes: Iterable[Reach]) -> Iterator[Standing]:
    """Say of each route, in the order of the configuration, how it stands among all of them."""
    least: dict[str, Rank] = {}
    taken: dict[Pair, str] = {}
    for route in routes:
        if not route.is_known:
            yield Standing(False, None)
            continue
        rank = route.rank
        hosts = route.hosts or ("",)
        before = [least[each] for host in hosts for each in _hosts_before(host) if each in least]
        winners = [taken[pair] for pair in route.pairs if pair in taken]
        yield Standing(any(each < rank for each in before), winners[0] if winners else None)
        for host in hosts:
            least[host] = min(rank, least.get(host, rank))
        for pair in route.pairs:
            taken.setdefault(pair, route.name)


def place(route: Reach, others: Sequence[Reach]) -> int:
    """Return the index at which a route goes in among the others."""
    rank = route.rank
    reaching = {each for host in route.hosts or ("",) for each in _hosts_before(host)}
    for index, other in enumerate(others):
        is_concerned = other.is_known and not reaching.isdisjoint(other.hosts or ("",))
        if is_concerned and other.rank < rank:
            return index
    return len(others)
