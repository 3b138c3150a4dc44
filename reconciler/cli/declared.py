"""What was declared of a resource, generation by generation, as manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from events.log import SpecDeclared, SpecWithdrawn
from events.manifest import DEFAULT_PROVIDER_CONFIG, Manifest, Metadata
from events.names import ResourceKey
from reconciler.cli.errors import CommandError
from reconciler.ports import StoredEvent

_SHOWN = 12


def manifest_of(key: ResourceKey, declared: SpecDeclared) -> Manifest:
    """Write the manifest that declares the same."""
    spec: dict[str, Any] = dict(declared.fields)
    if declared.provider_config not in ("", DEFAULT_PROVIDER_CONFIG):
        spec["providerConfigRef"] = {"name": declared.provider_config}
    if policy := msgspec.to_builtins(declared.policy):
        spec["policy"] = policy
    metadata = Metadata(key.name, key.namespace, declared.labels, declared.annotations)
    return Manifest(declared.api_version, key.kind, metadata, spec)


def last_declared(history: Iterable[StoredEvent]) -> SpecDeclared | None:
    """Return the declaration that holds after some events of a resource; None for none."""
    found: SpecDeclared | None = None
    for stored in history:
        if isinstance(stored.event.data, SpecDeclared):
            found = stored.event.data
        elif isinstance(stored.event.data, SpecWithdrawn):
            found = None
    return found


class Generations:
    """The generations of one resource: declarations, and withdrawals."""

    def __init__(self, key: ResourceKey, history: Sequence[StoredEvent]) -> None:
        self._key = key
        self._history = history
        self._begins: dict[int, tuple[int, SpecDeclared | SpecWithdrawn]] = {}
        for number, stored in enumerate(history):
            data = stored.event.data
            if isinstance(data, (SpecDeclared, SpecWithdrawn)):
                self._begins[data.generation] = (number, data)

    @property
    def newest(self) -> int:
        """The resource's generation as of now; 0 if nothing was ever declared."""
        return max(self._begins, default=0)

    def declared(self, generation: int) -> SpecDeclared:
        """Return what a generation declared; ``CommandError`` says which there are."""
        data = self._begin(generation)[1]
        if isinstance(data, SpecWithdrawn):
            raise CommandError(
                f"generation {generation} of {self._key} was a withdrawal, which declares nothing: "
                f"{self._which_there_are()}"
            )
        return data

    def end(self, generation: int) -> int:
        """Return the position of a generation's newest event; raises ``CommandError``."""
        self._begin(generation)
        later = [number for each, (number, _) in self._begins.items() if each > generation]
        return self._history[min(later, default=len(self._history)) - 1].position

    def _begin(self, generation: int) -> tuple[int, SpecDeclared | SpecWithdrawn]:
        if generation not in self._begins:
            raise CommandError(
                f"{self._key} has no generation {generation}: {self._which_there_are()}"
            )
        return self._begins[generation]

    def _which_there_are(self) -> str:
        by_class: Mapping[type, list[int]] = {SpecDeclared: [], SpecWithdrawn: []}
        for generation, (_, data) in self._begins.items():
            by_class[type(data)].append(generation)
        if not self._begins:
            return "it was never declared"
        withdrawn = by_class[SpecWithdrawn]
        told = f"declared were {_listed(by_class[SpecDeclared])}"
        return f"{told}; withdrawn with {_listed(withdrawn)}" if withdrawn else told


def _listed(generations: Sequence[int]) -> str:
    newest = ", ".join(map(str, generations[-_SHOWN:]))
    return f"..., {newest}" if len(generations) > _SHOWN else newest
