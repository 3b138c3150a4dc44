"""The order of routes in the configuration. Caddy uses the first route that matches.

More specific routes come first: named hosts, then wildcards, then any host. For the same host,
longer paths come first. A route with several hosts or paths is ordered by its most specific ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

MAX_PAIRS: Final = 1000
"""Limit on a route's host-path pairs, which each read must process. Foreign routes may
exceed it."""

Rank = tuple[int, int]
Pair = tuple[str, str]


class Reach(NamedTuple):
    """The hosts and paths that a route matches. An empty sequence matches everything.

    ``is_known``: whether it has no other matchers. If it has, it is unknown whether it takes
    requests from another route.
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
        """Its specificity. More specific routes have a higher rank."""
        return max(map(_host_rank, self.hosts or ("",))), max(map(_path_rank, self.paths or ("/",)))


class Position(NamedTuple):
    """The position of a route relative to the others on its server."""

    is_misplaced: bool
    shadowed_by: str | None


def _host_rank(host: str) -> int:
    return 0 if not host else 1 if host.startswith("*.") else 2


def _path_rank(path: str) -> int:
    return 0 if path == "/" else len(path)


def _covering_hosts(host: str) -> tuple[str, ...]:
    """Return the hosts whose routes match requests for this one."""
    if not host:
        return ("",)
    if host.startswith("*."):
        return (host, "")
    return (host, f"*.{host.partition('.')[2]}", "")


def positions(routes: Iterable[Reach]) -> Iterator[Position]:
    """Return the position of each route, in the order of the configuration."""
    lowest_ranks: dict[str, Rank] = {}
    first_routes: dict[Pair, str] = {}
    for route in routes:
        if not route.is_known:
            yield Position(False, None)
            continue
        rank = route.rank
        hosts = route.hosts or ("",)
        earlier_ranks = [
            lowest_ranks[each]
            for host in hosts
            for each in _covering_hosts(host)
            if each in lowest_ranks
        ]
        winners = [first_routes[pair] for pair in route.pairs if pair in first_routes]
        yield Position(any(each < rank for each in earlier_ranks), winners[0] if winners else None)
        for host in hosts:
            lowest_ranks[host] = min(rank, lowest_ranks.get(host, rank))
        for pair in route.pairs:
            first_routes.setdefault(pair, route.name)


def find_index(route: Reach, routes: Sequence[Reach]) -> int:
    """Return the index at which to insert a route among the others."""
    rank = route.rank
    reaching = {each for host in route.hosts or ("",) for each in _covering_hosts(host)}
    for index, candidate in enumerate(routes):
        is_relevant = candidate.is_known and not reaching.isdisjoint(candidate.hosts or ("",))
        if is_relevant and candidate.rank < rank:
            return index
    return len(routes)
