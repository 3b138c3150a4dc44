"""The order of routes in the configuration. Caddy uses the first route that matches.

A more specific route comes first where two routes match the same request: a named host, then
wildcards, then any host. For the same host, longer paths come first. Routes that share no request
have no order. With several hosts or paths, two routes can each be more specific for one of them. No
order satisfies both, so the second one is shadowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

MAX_PAIRS: Final = 1000
"""Limit on a route's host-path pairs, which each read must process. Foreign routes may
exceed it."""

MAX_SHADOWED: Final = 10
"""Limit on the requests that a shadowed route names."""

MAX_PATTERNS: Final = 100
"""Limit on unusual patterns of foreign routes per server, each of which is tried for each pair."""

MIN_COMPARISONS: Final = 5000
"""Comparisons that may find a better position for one misplaced route, or five times the number of
routes. With more conflicts, it stays shadowed until other routes have moved."""

ANY_HOST: Final = ""
ANY_PATH: Final = "/"

_ITSELF: Final = "\0"
_UNNAMED: Final = "\1"  # stands for a segment or label that no route names


class Rule(NamedTuple):
    """Hosts and paths in lower case. A request must match one of each.

    ``paths``: prefixes of whole segments, or ``exact_path``. ``text_prefixes``: prefixes of any
    text, which are also in ``paths``. ``wider_hosts``, ``wider_paths``: everything that matches
    strictly more than one of the hosts or paths.
    """

    hosts: frozenset[str]
    paths: frozenset[str]
    text_prefixes: frozenset[str]
    wider_hosts: frozenset[str]
    wider_paths: frozenset[str]


class Reach(NamedTuple):
    """The requests that a route takes. Without rules, they are unknown.

    ``is_movable``: whether the route belongs to Reconciler, which may then change its position.
    ``namespace``: the namespace of its owner; empty for another client's route.
    """

    name: str
    rules: Sequence[Rule]
    is_movable: bool = True
    namespace: str = ""


class Position(NamedTuple):
    """The position of a route relative to the others on its server.

    ``shadowed``: requests that the route ``shadowed_by`` receives instead. Only a route in the same
    namespace is named.
    """

    is_misplaced: bool = False
    shadowed_by: str | None = None
    shadowed: Sequence[str] = ()


class _Loss(NamedTuple):
    """Requests that an earlier route takes from a later one.

    ``is_partial``: only some requests for this host and path. ``is_tied``: the earlier route has
    the same host and path, so the order is correct.
    """

    winner: int
    host: str
    path: str
    is_partial: bool = False
    is_tied: bool = False


def exact_path(path: str) -> str:
    """Return the path that only matches requests for ``path``, and for nothing below it."""
    return f"{path.rstrip('/')}/{_ITSELF}"


def build_rule(
    hosts: Iterable[str] = (), paths: Iterable[str] = (), text_prefixes: Iterable[str] = ()
) -> Rule:
    """Return the rule for hosts and paths. No hosts or no paths match all of them."""
    own_hosts = frozenset(map(str.lower, hosts)) or frozenset({ANY_HOST})
    own_texts = frozenset(map(str.lower, text_prefixes))
    own_paths = frozenset(map(str.lower, paths)) | {_cut(each) for each in own_texts}
    own_paths = own_paths or frozenset({ANY_PATH})
    return Rule(
        own_hosts,
        own_paths,
        own_texts,
        frozenset(wider for each in own_hosts for wider in _wider_hosts(each)),
        frozenset(wider for each in own_paths for wider in _wider_paths(each)),
    )


def _cut(text_prefix: str) -> str:
    return text_prefix.rstrip("/") or ANY_PATH


def _wider_hosts(host: str) -> tuple[str, ...]:
    """Return the other hosts whose routes match requests for this one, except unusual patterns."""
    if not host:
        return ()
    return (ANY_HOST,) if "*" in host else (f"*.{host.partition('.')[2]}", ANY_HOST)


def _wider_paths(path: str) -> Iterator[str]:
    while path != ANY_PATH:
        path = path.rpartition("/")[0] or ANY_PATH
        yield path


def _is_unusual(host: str) -> bool:
    return "*" in host.removeprefix("*.")


def _matches(pattern: str, host: str) -> bool:
    """Return whether a host pattern matches every request for a host, as in Caddy."""
    labels, pattern_labels = host.split("."), pattern.split(".")
    return len(labels) == len(pattern_labels) and all(
        each in ("*", label) for each, label in zip(pattern_labels, labels, strict=True)
    )


# --- two routes


def _precedes(route: Reach, following: Reach) -> bool:
    """Return whether a route is more specific than another one for a request that both match."""
    return any(_is_narrower(own, each) for own in route.rules for each in following.rules)


def _is_narrower(rule: Rule, wider: Rule) -> bool:
    if not rule.wider_hosts.isdisjoint(wider.hosts) and _share_path(rule, wider):
        return True
    has_longer_path = not rule.wider_paths.isdisjoint(wider.paths)
    return has_longer_path and not rule.hosts.isdisjoint(wider.hosts)


def _share_path(first: Rule, second: Rule) -> bool:
    return not (
        first.paths.isdisjoint(second.paths)
        and first.wider_paths.isdisjoint(second.paths)
        and second.wider_paths.isdisjoint(first.paths)
    )


def _is_tied(first: Reach, second: Reach) -> bool:
    return any(
        not own.hosts.isdisjoint(each.hosts) and not own.paths.isdisjoint(each.paths)
        for own in first.rules
        for each in second.rules
    )


# --- the position of one route


def find_index(route: Reach, routes: Sequence[Reach]) -> int:
    """Return the index at which to insert a route among the others.

    The index is before all less specific routes, unless a more specific or older one follows them.
    """
    lowest, highest = 0, len(routes)
    for index, each in enumerate(routes):
        if _precedes(each, route) or (each.is_movable and _is_tied(each, route)):
            lowest = index + 1
        if highest == len(routes) and _precedes(route, each):
            highest = index
    return max(lowest, highest)


def rearrange(routes: Sequence[Reach], index: int) -> list[int]:
    """Return the indexes of all routes in the order that is correct for one of them.

    Routes that are in the correct order keep it, so repeated calls terminate. Foreign routes keep
    their order.
    """
    order = list(range(len(routes)))
    move = _find_move(routes, index)
    if move is not None:
        target, block = move
        others = [each for each in order[target:] if each not in block]
        return [*order[:target], *sorted(block), *others]
    lowest = max(
        (each for each in order[index + 1 :] if _precedes(routes[each], routes[index])), default=0
    )
    overtaken = order[index + 1 : lowest + 1]
    if not overtaken or any(_precedes(routes[index], routes[each]) for each in overtaken):
        return order
    return [*order[:index], *overtaken, index, *order[lowest + 1 :]]


def _find_move(routes: Sequence[Reach], index: int) -> tuple[int, set[int]] | None:
    """Return the index of a less specific route, and the routes to move before it; None if none.

    A route moves together with those that must stay before it.
    """
    route, remaining = routes[index], max(MIN_COMPARISONS, 5 * len(routes))
    targets = [each for each in range(index) if _precedes(route, routes[each])]
    for keeps_ties in (True, False) if targets else ():
        for target in targets:
            block, remaining = _find_block(routes, index, target, remaining, keeps_ties=keeps_ties)
            if block:
                return target, block
    return None


def _find_block(
    routes: Sequence[Reach], index: int, target: int, remaining: int, *, keeps_ties: bool
) -> tuple[set[int], int]:
    """Return the routes to move before the target, and the comparisons that remain."""
    block, queue = {index}, [index]
    while queue:
        at = queue.pop()
        moved = routes[at]
        remaining -= at - target
        # In the first case, each of two routes is more specific for some requests.
        if _precedes(routes[target], moved) or remaining < 0:
            return set(), remaining
        for each in range(target + 1, at):
            other = routes[each]
            if each in block or not (
                _precedes(other, moved)
                or (keeps_ties and other.is_movable and _is_tied(other, moved))
            ):
                continue
            if not other.is_movable:
                return set(), remaining
            block.add(each)
            queue.append(each)
    return block, remaining


# --- the requests that each route receives


class _Paths:
    """The first route for each path of a host."""

    def __init__(self) -> None:
        self.first: dict[str, int] = {}
        self.first_below: dict[str, int] = {}  # the first with a longer path
        self.is_shared = False  # hosts of one route have the same paths

    def add(self, index: int, rule: Rule) -> None:
        for path in rule.paths:
            self.first.setdefault(path, index)
        for path in rule.wider_paths:
            self.first_below.setdefault(path, index)

    def copy(self) -> _Paths:
        copied = _Paths()
        copied.first, copied.first_below = dict(self.first), dict(self.first_below)
        return copied


class _Server:
    """The routes of a server up to a position, by host and path."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Paths] = {}
        self._unusual_hosts: list[str] = []
        self._text_prefixes: list[tuple[str, str, int]] = []

    def add(self, index: int, rule: Rule) -> None:
        shared = _Paths()
        shared.add(index, rule)
        shared.is_shared = True
        for host in rule.hosts:
            known = self._hosts.get(host)
            if known is None:
                self._hosts[host] = shared
                if _is_unusual(host) and len(self._unusual_hosts) < MAX_PATTERNS:
                    self._unusual_hosts.append(host)
                continue
            if known.is_shared:
                known = self._hosts[host] = known.copy()
            known.add(index, rule)
        for host in rule.hosts if rule.text_prefixes else ():
            for text in rule.text_prefixes:
                if len(self._text_prefixes) < MAX_PATTERNS:
                    self._text_prefixes.append((host, text, index))

    def find_losses(self, rule: Rule) -> Iterator[_Loss]:
        """Return the requests of a rule that the routes so far take, although they should not.

        A more specific route may take requests.
        """
        for host in sorted(rule.hosts):
            wider_hosts = [*_wider_hosts(host), *self._find_unusual_hosts(host)]
            same = self._hosts.get(host)
            wider = [self._hosts[each] for each in wider_hosts if each in self._hosts]
            if same is None and not wider:
                continue
            for path in sorted(rule.paths):
                yield from self._find_loss(host, path, same, wider)

    def _find_unusual_hosts(self, host: str) -> list[str]:
        return [each for each in self._unusual_hosts if each != host and _matches(each, host)]

    def _find_loss(
        self, host: str, path: str, same: _Paths | None, wider: Sequence[_Paths]
    ) -> Iterator[_Loss]:
        paths = (path, *_wider_paths(path))
        winners = [each.first[at] for each in wider for at in paths if at in each.first]
        if same is not None:
            winners += [same.first[at] for at in paths[1:] if at in same.first]
        if self._text_prefixes:
            request = f"{path.rstrip('/')}/{_UNNAMED}"
            winners += [
                index
                for pattern, text, index in self._text_prefixes
                if request.startswith(text)
                and (pattern in (host, ANY_HOST) or _matches(pattern, host))
            ]
        tied = None if same is None else same.first.get(path)
        if winners:
            first = min(winners)
            yield _Loss(first if tied is None else min(first, tied), host, path)
            return
        if tied is not None:
            yield _Loss(tied, host, path, is_tied=True)
        partial = [each.first_below[path] for each in wider if path in each.first_below]
        if partial:
            yield _Loss(min(partial), host, path, is_partial=True)


def positions(routes: Iterable[Reach]) -> Iterator[Position]:
    """Return the position of each route, in the order of the configuration."""
    routes, server = list(routes), _Server()
    for index, route in enumerate(routes):
        yield _find_position(routes, index, server)
        for rule in route.rules:
            server.add(index, rule)


def find_position(routes: Sequence[Reach], index: int) -> Position:
    """Return the position of one route."""
    server = _Server()
    for earlier in range(index):
        for rule in routes[earlier].rules:
            server.add(earlier, rule)
    return _find_position(routes, index, server)


def _find_position(routes: Sequence[Reach], index: int, server: _Server) -> Position:
    losses = [each for rule in routes[index].rules for each in server.find_losses(rule)]
    is_wrong = not all(each.is_tied for each in losses)
    is_misplaced = is_wrong and _find_move(routes, index) is not None
    # Ignore that a misplaced route still loses some of its requests: it is moved soon.
    lasting = [each for each in losses if not (each.is_partial and is_misplaced)]
    winner = min((each.winner for each in lasting), default=None)
    if winner is None:
        return Position(is_misplaced)
    requests = [_show(each) for each in lasting if each.winner == winner]
    names = list(dict.fromkeys(requests))[:MAX_SHADOWED]
    return Position(is_misplaced, _describe_to(routes[index], routes[winner]), names)


def _describe_to(route: Reach, other: Reach) -> str:
    """Return the name of the other route, unless it is not in the namespace of this route."""
    if not other.namespace:
        return "a route of another client"
    is_same = other.namespace == route.namespace
    return other.name if is_same else "a route in another namespace"


def _show(loss: _Loss) -> str:
    return f"{loss.host or '*'}{loss.path.removesuffix(_ITSELF)}"
