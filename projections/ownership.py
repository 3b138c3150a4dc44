"""Ownership: the external objects that resources own, or may own because a creation is in flight.

They are computed from status rows, because separate rows caused half of the writes in a replay
(ADR 0044).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from events.names import ResourceKey
from events.reference import may_refer
from projections.status import StatusRow

_MANY: Final = 8
"""Number of owners of a key from which a set takes less time: a directory may contain many."""


class OwnershipRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An external object that a resource owns, according to the log.

    ``pending_create`` is the id of a creation in flight, which may already have created an object.
    ``pending_name`` is the name of that object, if it replaces ``external_name``. ``retiring`` is
    the replaced object, until it is deleted. ``since`` is the event that began the ownership.
    """

    provider_config: str = ""
    external_name: str = ""
    uid: str | None = None
    owned: bool = False
    since: str = ""
    since_time: datetime | None = None
    reason: str = ""
    pending_create: str = ""
    pending_name: str = ""
    retiring: str = ""
    retiring_uid: str | None = None


def ownership_of(row: StatusRow) -> OwnershipRow | None:
    """Return the object that a resource owns or may own, or None."""
    creates = row.operation == "Create"
    if not row.owned and not creates:
        return None
    return OwnershipRow(
        provider_config=row.provider_config,
        external_name=row.external_name if row.owned else row.pending_name,
        uid=row.uid,
        owned=row.owned,
        since=row.owned_by,
        since_time=row.owned_since,
        reason=row.owned_reason,
        pending_create=row.action_id if creates else "",
        pending_name=row.pending_name if row.owned else "",
        retiring=row.retiring,
        retiring_uid=row.retiring_uid,
    )


class NameOwners:
    """Which resource owns an external name, even while no object has it (ADR 0084).

    An index, so that one lookup does not depend on the size of the fleet.

    A key is a hash: at 64 bits, two names with the same one are not to be expected, and a million
    tuples would need three times the memory.
    """

    def __init__(self) -> None:
        self._owners: dict[int, tuple[str, ...] | set[str]] = {}

    def move(self, resource: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Replace the names that a resource owned by those that it owns now (`owned_names`)."""
        for key in before:
            known = self._owners.get(key, ())
            if isinstance(known, set):
                known.discard(resource)
                rest = known
            else:
                rest = tuple(each for each in known if each != resource)
            if rest:
                self._owners[key] = rest
            else:
                self._owners.pop(key, None)
        for key in after:
            known = self._owners.get(key, ())
            if isinstance(known, set):
                known.add(resource)
            elif len(known) < _MANY:
                self._owners[key] = (*known, resource)
            else:
                self._owners[key] = {*known, resource}

    def find(
        self, config: str, kind: str, external_name: str, *, other_than: str, is_path: bool = False
    ) -> str:
        """Return the resource other than ``other_than`` that owns a name, or "" if none does.

        ``is_path``: no object can have a name below that of another one, so a resource owns the
        names above and below its own, too.
        """
        owners = self.find_all(config, kind, external_name, other_than=other_than, is_path=is_path)
        return min(owners, default="")

    def find_used(
        self, config: str, kind: str, external_name: str, *, other_than: str
    ) -> Iterator[str]:
        """Return the resources that own an object, or are creating it."""
        for name in (external_name, _creation_name(external_name)):
            yield from self.find_all(config, kind, name, other_than=other_than)

    def has(self, config: str, kind: str, external_name: str, resource: str) -> bool:
        """Return whether a resource owns exactly this name."""
        return resource in self._owners.get(hash((config, kind, external_name)), ())

    def find_all(
        self, config: str, kind: str, external_name: str, *, other_than: str, is_path: bool = False
    ) -> Iterator[str]:
        """Return all resources that `find` may return, in any order."""
        names = [external_name]
        if is_path:
            names += [*_names_above(external_name), f"{external_name}/"]
        for name in names:
            for each in self._owners.get(hash((config, kind, name)), ()):
                if each != other_than:
                    yield each


def claim_name(claim: str) -> str:
    """Return the name of a claim in the index, which no object can have."""
    return f"\n{claim}"


def may_use(owner: StatusRow, user: ResourceKey) -> bool:
    """Return whether a resource may use the object of another one, as with a reference."""
    return may_refer(owner.key, user.namespace, owner.referenced_from)


def _names_above(name: str) -> list[str]:
    """Return the directories of a path: ``a`` and ``a/b`` for ``a/b/c``."""
    segments = name.split("/")
    return ["/".join(segments[:length]) for length in range(1, len(segments))]


def owned_names(row: StatusRow) -> tuple[int, ...]:
    """Return the keys of the names that a resource owns.

    A declared name that it never owned is not one of them: it may belong to another resource. That
    of a creation in flight is one for uses only: the object may exist before its result is known.
    """
    names = set[str]()
    if row.owned:
        names.add(row.external_name)
    if row.reserves_name:
        names.add(row.declared_name or row.external_name)
    if names:
        # A claim of a write in flight may be refused, so it must not block its owner.
        names |= {claim_name(each) for each in row.claims}
        names |= {f"{above}/" for name in names if "/" in name for above in _names_above(name)}
    if row.operation == "Create":
        names.add(_creation_name(row.pending_name))
    return tuple(hash((row.provider_config, row.kind, each)) for each in names)


def _creation_name(name: str) -> str:
    """Return the name in the index of an object that is being created."""
    return f"\r{name}"
