"""The kinds that the log defines: each ``KindDefinition`` becomes a kind of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import structlog

from events.field_hints import with_hint
from events.kind_definition import KindDefinitionSpec
from events.log import SpecDeclared
from events.manifest import Fields, InvalidManifestError
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from reconciler.ports import EventLog
from reconciler.provider.definition import check_declarable, kind_of
from reconciler.provider.engine import COMPOSITION, REST, installed_engine
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.roles.system_resources import SystemResources

_log = structlog.get_logger(__name__)


class Definitions(SystemResources):
    """Puts every defined kind into the registry, as the log has it.

    A withdrawn one stays known: what was made by it can still be deleted.
    """

    kind = KIND_DEFINITION_KIND

    def __init__(self, kinds: KindRegistry) -> None:
        super().__init__()
        self._kinds = kinds
        self._generations: dict[str, int] = {}

    async def catch_up(self, log: EventLog, met: Mapping[str, int]) -> None:
        """Read the definitions of which others know a generation that is not known here yet.

        ``met``: by the kind's name, at least 1 for one of which nothing is known.
        """
        behind = [
            name
            for name, generation in met.items()
            if self._generations.get(name, 0) < generation and self._may_be_defined(name)
        ]
        if behind:
            keys = [ResourceKey(SYSTEM_NAMESPACE, self.kind, name) for name in behind]
            await self.look_closer(log, keys)

    def _may_be_defined(self, name: str) -> bool:
        known = self._kinds.find(name)
        return name not in self._damaged and (known is None or known.definition is not None)

    def declare(self, name: str, data: SpecDeclared) -> None:
        """Know a kind by its newest definition."""
        self._generations[name] = data.generation
        try:
            self._kinds.define(self._built(name, data.fields, data.generation))
        except InvalidManifestError as error:  # its installed kind may be missing here
            _log.error("a KindDefinition cannot be used", name=name, error=str(error))
            self.withdraw(name)

    def withdraw(self, name: str) -> None:
        """Accept nothing new of a kind."""
        known = self._kinds.find(name)
        if known is not None and known.definition is not None:
            self._kinds.define(replace(known, is_withdrawn=True))

    def check(self, key: ResourceKey, fields: Fields) -> None:
        """Raise ``InvalidManifestError`` for a definition that could not be used here."""
        if key.kind == KIND_DEFINITION_KIND:
            self._built(key.name, fields, 1)

    def _built(self, name: str, fields: Fields, generation: int) -> Kind:
        return defined(self._kinds, name, fields, generation)


def defined(kinds: KindRegistry, name: str, fields: Fields, generation: int) -> Kind:
    """Build the kind of a definition; raises ``InvalidManifestError`` with what to do."""
    try:
        spec = msgspec.convert(fields, KindDefinitionSpec)
    except msgspec.ValidationError as error:
        raise InvalidManifestError(f"spec: {with_hint(error, KindDefinitionSpec)}") from None
    known = kinds.find(name)
    if known is not None and known.definition is None:
        raise InvalidManifestError(f"metadata.name: {name!r} is an installed kind: use another")
    others = [each for each in kinds.of_provider(spec.provider) if each.name != name]
    if others:
        raise InvalidManifestError(
            f"spec.provider: {spec.provider!r} is the provider of {others[0].name}: use another"
        )
    check_declarable(spec)
    return kind_of(name, spec, generation, _beneath(kinds, name, spec))


def _beneath(kinds: KindRegistry, name: str, spec: KindDefinitionSpec) -> Kind:
    if sum(each is not None for each in (spec.over, spec.rest, spec.composition)) != 1:
        raise InvalidManifestError(
            "spec: give either over, an installed kind, or rest, how an HTTP API is called, "
            "or composition, which resources it is made of"
        )
    if spec.over is None:
        return installed_engine(COMPOSITION if spec.rest is None else REST)(name, spec)
    over = kinds.find(spec.over)
    if over is not None and over.composes is not None:
        raise InvalidManifestError(
            f"spec.over: {spec.over} is made of resources: say by composition that it is a part"
        )
    if over is None or over.definition is not None or not over.is_external:
        usable = (each for each in kinds.values() if each.is_external and not each.definition)
        names = ", ".join(sorted(each.name for each in usable))
        raise InvalidManifestError(f"spec.over: {spec.over!r} is no installed kind: use {names}")
    return over
