"""Build the kind for a definition with ``rest``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec

from events.external import ExternalObject
from events.kind_definition import KindDefinitionSpec
from events.manifest import Fields, InvalidManifestError
from events.provider_config import ProviderConfigSpec
from events.rest_definition import Output
from infra.providers.rest.protocol import OUTPUT_TYPES, READY, Protocol
from infra.providers.rest.provider import RestProvider, WatchingRestProvider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import READY as IS_READY
from reconciler.provider.kind import EngineKind, Kind, Readiness, always_ready
from reconciler.provider.secrets import Secrets

LABELS = "labels"


@dataclass(frozen=True)
class RestFactory:
    """Builds the providers of a definition. Factories are equal if their definitions are."""

    protocol: Protocol = field(compare=False, repr=False)
    digest: str
    extra: ClassVar[str] = "rest"

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> RestProvider:
        """Build a provider, without opening a connection."""
        watches = self.protocol.rest.changes is not None
        provider = WatchingRestProvider if watches else RestProvider
        return provider(self.protocol, config, secrets, permit)


class _EmptySchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty schema, because the definition has its own."""


def rest_kind(name: str, spec: KindDefinitionSpec) -> Kind:
    """Return the kind for a definition's API. Raises ``InvalidManifestError``."""
    protocol = Protocol(spec)
    rest = protocol.rest
    immutable = {*rest.immutable}
    if rest.update is None:
        immutable = {*protocol.document.top_level, LABELS}
    return EngineKind(
        name=name,
        api_version=spec.api_version,
        provider=spec.provider,
        schema=_EmptySchema,
        capabilities=protocol.capabilities,
        connect=RestFactory(protocol, protocol.digest),
        normalize=protocol.document.normalize,
        name_problem=protocol.name_problem,
        outputs=_outputs(name, protocol),
        ready=_ready if rest.ready else always_ready,
        immutable=frozenset(immutable),
        map_fields=protocol.document.build,
        shown_paths=protocol.document.paths,
        protocol_digest=protocol.digest,
    )


def _ready(_fields: Fields, observed: ExternalObject) -> Readiness:
    """Return the readiness that the read recorded, because the log contains no expressions."""
    if observed.outputs.get(READY) is False:
        return Readiness(False, "NotReady", "the API does not report the object as ready")
    return IS_READY


def _outputs(name: str, protocol: Protocol) -> type[msgspec.Struct] | None:
    outputs = protocol.outputs
    if not outputs:
        return None
    names = {f"output{number}": each for number, each in enumerate(outputs)}
    try:
        return msgspec.defstruct(
            f"{name}Outputs",
            [(attribute, _type(outputs[each]), msgspec.UNSET) for attribute, each in names.items()],
            rename=names,
            frozen=True,
        )
    except (TypeError, ValueError) as error:
        raise InvalidManifestError(f"spec.rest.outputs: {error}") from None


def _type(output: Output) -> Any:
    metadata = msgspec.Meta(description=output.about)
    return Annotated[OUTPUT_TYPES[output.type], metadata] | msgspec.UnsetType
