"""Which resource owns an external name, even while no object has it (ADR 0084)."""

from __future__ import annotations

from projections.status import StatusRow


class NameOwners:
    """An index of the owned names, so that one lookup does not depend on the size of the fleet.

    A key is a hash: at 64 bits, two names with the same one are not to be expected, and a million
    tuples would need three times the memory.
    """

    def __init__(self) -> None:
        self._owners: dict[int, tuple[str, ...]] = {}

    def move(self, resource: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Replace the names that a resource owned by those that it owns now (`owned_names`)."""
        for key in before:
            rest = tuple(each for each in self._owners.get(key, ()) if each != resource)
            if rest:
                self._owners[key] = rest
            else:
                self._owners.pop(key, None)
        for key in after:
            self._owners[key] = (*self._owners.get(key, ()), resource)

    def find(self, config: str, kind: str, external_name: str, *, besides: str) -> str:
        """Return the resource other than ``besides`` that owns a name, or "" if none does."""
        owners = self._owners.get(hash((config, kind, external_name)), ())
        return min((each for each in owners if each != besides), default="")


def owned_names(row: StatusRow) -> tuple[int, ...]:
    """Return the keys of the names that a resource owns.

    A declared name that it never owned is not one of them: it may belong to another resource.
    """
    if not (row.owned or row.reserves_name):
        return ()
    names = {row.external_name} if row.owned else set[str]()
    if row.reserves_name:
        names.add(row.declared_name or row.external_name)
    return tuple(hash((row.provider_config, row.kind, each)) for each in names)
