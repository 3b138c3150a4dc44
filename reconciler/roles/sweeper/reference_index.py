"""An index of references in the read models, so that an event costs only what it changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from projections.status import StatusRow

_MAX_REFERRERS = 1_000
_T = TypeVar("_T")


class AffectedResources(NamedTuple):
    """The affected resources of one sweep: referrers and targets."""

    referrers: frozenset[str]
    targets: frozenset[str]


class NamedSecret(NamedTuple):
    """A secret's location, and the namespace of the resources that reference it."""

    reader: str
    path: str


class ReferenceIndex:
    """The references of all rows in both directions, and the rows changed since the last sweep."""

    def __init__(self) -> None:
        self._targets_of: dict[str, frozenset[str]] = {}
        self._referrers_of: dict[str, set[str]] = {}
        self._secrets_of: dict[str, frozenset[NamedSecret]] = {}
        self._secret_referrers: dict[NamedSecret, set[str]] = {}
        self._changed: set[str] = set()

    @property
    def secrets(self) -> list[NamedSecret]:
        """All referenced secrets."""
        return sorted(self._secret_referrers)

    @property
    def names(self) -> list[str]:
        """The names of all resources that reference others or secrets."""
        return list(self._targets_of | self._secrets_of)

    def secret_referrers(self, secret: NamedSecret) -> Iterable[str]:
        """Return the names of resources that reference a secret."""
        return self._secret_referrers.get(secret, ())

    def add(self, name: str, row: StatusRow | None) -> None:
        """Add or correct the references of a row, and mark it as changed if it is linked.

        Unlike ``update``, this does not mark the resources that the change affects.
        """
        self._link(name, _targets(row))
        self._update_secrets(name, row)
        if row is not None and (row.refers or row.references or row.secrets):
            self._changed.add(name)

    def update(self, name: str, row: StatusRow | None) -> bool:
        """Update a resource's row. Return whether a reference may depend on it."""
        is_known = (
            name in self._targets_of or name in self._secrets_of or name in self._referrers_of
        )
        if not is_known and (row is None or not row.is_linked):
            return False
        old_targets = self._targets_of.get(name, frozenset())
        new_targets = _targets(row)
        if new_targets != old_targets:
            self._changed |= old_targets  # this resource no longer references them
            self._link(name, new_targets)
            self._changed |= self._reachable_referrers(name)
        self._update_secrets(name, row)
        is_linked = new_targets or old_targets or name in self._referrers_of
        if is_linked or (row is not None and (row.references or row.secrets)):
            self._changed.add(name)
            return True
        return False

    def referrers(self, target: str) -> Collection[str]:
        """Return the names of the resources that reference a target."""
        return self._referrers_of.get(target, ())

    def take_changed(self) -> AffectedResources:
        """Return the resources changed since the last call, with their referrers and targets."""
        changed, self._changed = self._changed, set()
        referrers = {name for name in changed if name in self._targets_of}
        targets = set(changed)
        for name in changed:
            referrers |= self._referrers_of.get(name, set())
            targets |= self._targets_of.get(name, frozenset())
        return AffectedResources(frozenset(referrers), frozenset(targets))

    def _reachable_referrers(self, name: str) -> set[str]:
        """Return all resources whose references lead to ``name``: their cycles may change."""
        referrers: set[str] = set()
        frontier = [name]
        while frontier and len(referrers) < _MAX_REFERRERS:
            more = self._referrers_of.get(frontier.pop(), set()) - referrers
            referrers |= more
            frontier += more
        return referrers

    def _update_secrets(self, name: str, row: StatusRow | None) -> None:
        _replace_links(name, _secrets(row), self._secrets_of, self._secret_referrers)

    def _link(self, name: str, targets: frozenset[str]) -> None:
        _replace_links(name, targets, self._targets_of, self._referrers_of)


def _targets(row: StatusRow | None) -> frozenset[str]:
    return frozenset(() if row is None else (each.target for each in row.refers))


def _secrets(row: StatusRow | None) -> frozenset[NamedSecret]:
    if row is None or not row.declared:
        return frozenset()
    return frozenset(NamedSecret(row.namespace, secret) for secret in row.secrets)


def _replace_links(
    name: str,
    targets: frozenset[_T],
    targets_of: dict[str, frozenset[_T]],
    referrers_of: dict[_T, set[str]],
) -> None:
    """Replace what a resource references, in both directions."""
    old_targets = targets_of.get(name, frozenset())
    if targets == old_targets:
        return
    for removed in old_targets - targets:
        known = referrers_of[removed]
        known.discard(name)
        if not known:
            del referrers_of[removed]
    for target in targets - old_targets:
        referrers_of.setdefault(target, set()).add(name)
    if targets:
        targets_of[name] = targets
    else:
        del targets_of[name]


def select_rows(names: Iterable[str], all_rows: Mapping[str, StatusRow]) -> list[StatusRow]:
    """Return the rows of resources, sorted by name, because sets have no order."""
    return [all_rows[name] for name in sorted(names) if name in all_rows]
