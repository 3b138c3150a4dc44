"""The kinds that the log defines: each ``KindDefinition`` becomes a kind of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import structlog

from events.log import SpecDeclared
from events.manifest import Fields, InvalidManifestError
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from reconciler.ports import EventLog
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import DefinedKind, Kind, KindRegistry
from reconciler.roles.runtime.system_resources import SystemResources

_log = structlog.get_logger(__name__)


class Definitions(SystemResources):
    """Registers every kind that the log defines.

    A withdrawn kind stays registered, so that its objects can still be deleted.
    """

    kind = KIND_DEFINITION_KIND

    def __init__(self, kinds: KindRegistry) -> None:
        super().__init__()
        self._kinds = kinds
        self._generations: dict[str, int] = {}

    async def catch_up(self, log: EventLog, generations: Mapping[str, int]) -> None:
        """Read definitions for which another process has used a newer generation.

        ``generations``: generation by kind, at least 1 for an unknown kind.
        """
        outdated = [
            name
            for name, generation in generations.items()
            if self._generations.get(name, 0) < generation and self._may_be_defined(name)
        ]
        if outdated:
            keys = [ResourceKey(SYSTEM_NAMESPACE, self.kind, name) for name in outdated]
            await self.load_histories(log, keys)

    def _may_be_defined(self, name: str) -> bool:
        known = self._kinds.find(name)
        return name not in self._damaged and (known is None or known.definition is not None)

    def declare(self, name: str, data: SpecDeclared) -> None:
        """Register the newest definition of a kind."""
        self._generations[name] = data.generation
        try:
            self._kinds.define(self._build_kind(name, data.fields, data.generation))
        except InvalidManifestError as error:  # this process may lack the installed kind
            _log.error("invalid KindDefinition", name=name, error=str(error))
            self.remove(name)

    def remove(self, name: str) -> None:
        """Reject new declarations of a kind."""
        known = self._kinds.find(name)
        if isinstance(known, DefinedKind):
            self._kinds.define(replace(known, is_withdrawn=True))

    def check(self, key: ResourceKey, fields: Fields) -> None:
        """Raise ``InvalidManifestError`` for a definition that this process cannot use."""
        if key.kind == KIND_DEFINITION_KIND:
            self._build_kind(key.name, fields, 1)

    def _build_kind(self, name: str, fields: Fields, generation: int) -> Kind:
        return build_defined_kind(self._kinds, name, fields, generation)
