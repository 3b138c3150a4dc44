"""An index of references in the read models, so that an event costs only what it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from projections.status import StatusRow

_MAX_REFERRERS = 1_000


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
        self._secret_referrers: dict[NamedSecret, set[str]] = {}
        self._changed: set[str] = set()

    @property
    def secrets(self) -> list[NamedSecret]:
        """All referenced secrets."""
        return sorted(self._secret_referrers)

    def secret_referrers(self, secret: NamedSecret) -> Iterable[str]:
        """Return the names of resources that reference a secret, or did so earlier."""
        return self._secret_referrers.get(secret, ())

    def build(self, rows: Iterable[tuple[str, StatusRow]]) -> None:
        """Replace the index with the references of these rows, and mark all of them as changed."""
        self._targets_of.clear()
        self._referrers_of.clear()
        self._secret_referrers.clear()
        for name, row in rows:
            if row.refers:
                self._link(name, frozenset(each.target for each in row.refers))
            self._update_secrets(name, row)
            if row.refers or row.references or row.secrets:
                self._changed.add(name)

    def update(self, name: str, row: StatusRow | None) -> bool:
        """Update a resource's row. Return whether a reference may depend on it."""
        old_targets = self._targets_of.get(name, frozenset())
        new_targets = frozenset(() if row is None else (each.target for each in row.refers))
        if new_targets != old_targets:
            self._changed |= old_targets  # this resource no longer references them
            self._link(name, new_targets)
            self._changed |= self._reachable_referrers(name)
        if row is not None:
            self._update_secrets(name, row)
        is_linked = new_targets or old_targets or name in self._referrers_of
        if is_linked or (row is not None and (row.references or row.secrets)):
            self._changed.add(name)
            return True
        return False

    def referrers(self, target: str) -> Iterable[str]:
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

    def _update_secrets(self, name: str, row: StatusRow) -> None:
        for secret in row.secrets if row.declared else ():
            self._secret_referrers.setdefault(NamedSecret(row.namespace, secret), set()).add(name)

    def _link(self, name: str, targets: frozenset[str]) -> None:
        for removed in self._targets_of.get(name, frozenset()) - targets:
            known = self._referrers_of[removed]
            known.discard(name)
            if not known:
                del self._referrers_of[removed]
        if targets:
            self._targets_of[name] = targets
        else:
            self._targets_of.pop(name, None)
        for target in targets:
            self._referrers_of.setdefault(target, set()).add(name)


def select_rows(names: Iterable[str], every_row: Mapping[str, StatusRow]) -> list[StatusRow]:
    """Return the rows of resources, sorted by name, because sets have no order."""
    return [every_row[name] for name in sorted(names) if name in every_row]
