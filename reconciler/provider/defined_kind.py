"""The kind of a definition and its underlying kind, which is installed or from an engine."""

from __future__ import annotations

import msgspec

from events.field_hints import field_error
from events.kind_definition import KindDefinitionSpec
from events.manifest import Fields, InvalidManifestError
from reconciler.provider.definition import build_kind, check_declarable
from reconciler.provider.engine import COMPOSITION, REST, load_engine
from reconciler.provider.kind import Kind, KindRegistry


def build_defined_kind(kinds: KindRegistry, name: str, fields: Fields, generation: int) -> Kind:
    """Build the kind of a definition. Raises ``InvalidManifestError`` with a remedy."""
    try:
        spec = msgspec.convert(fields, KindDefinitionSpec)
    except msgspec.ValidationError as error:
        raise InvalidManifestError(field_error(error, KindDefinitionSpec, "spec")) from None
    existing = kinds.find(name)
    if existing is not None and existing.definition is None:
        raise InvalidManifestError(
            f"metadata.name: {name!r} is an installed kind; use another name"
        )
    other_kinds = [each for each in kinds.of_provider(spec.provider) if each.name != name]
    if other_kinds:
        raise InvalidManifestError(
            f"spec.provider: {spec.provider!r} is already the provider of {other_kinds[0].name}; "
            "use another name"
        )
    check_declarable(spec)
    return build_kind(name, spec, generation, _underlying(kinds, name, spec))


def _underlying(kinds: KindRegistry, name: str, spec: KindDefinitionSpec) -> Kind:
    if sum(each is not None for each in (spec.over, spec.rest, spec.composition)) != 1:
        raise InvalidManifestError(
            "spec: set exactly one of over (an installed kind), rest (how to call an HTTP API) "
            "and composition (the resources that make up the kind)"
        )
    if spec.over is None:
        return load_engine(COMPOSITION if spec.rest is None else REST)(name, spec)
    base = kinds.find(spec.over)
    if base is not None and base.composition is not None:
        raise InvalidManifestError(
            f"spec.over: {spec.over} is a composed kind; use spec.composition with a part of "
            "that kind"
        )
    if base is None or base.definition is not None or not base.is_external:
        usable = (each for each in kinds.values() if each.is_external and not each.definition)
        names = ", ".join(sorted(each.name for each in usable))
        raise InvalidManifestError(
            f"spec.over: {spec.over!r} is not an installed kind; use one of {names}"
        )
    return base
