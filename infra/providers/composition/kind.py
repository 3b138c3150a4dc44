"""What all composed kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec

from events.composition import RETRY_AT
from events.external import ExternalObject
from events.manifest import Fields
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from events.reference import Reference
from infra.providers.composition.provider import (
    MAX_NAME_CHARACTERS,
    CompositionProvider,
    Summary,
    name_problem,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import (
    Kind,
    Progress,
    Readiness,
    Removal,
    refers_to_nothing,
    removes_nothing,
)
from reconciler.provider.secrets import Secrets

CAPABILITIES = Capabilities(
    idempotency_keys=False,  # the newest key is known, and no older one
    deterministic_names=True,
    labels=True,
    conditional_writes=True,
    watch=True,
)


@dataclass(frozen=True)
class CompositionFactory:
    """Builds the providers of one composed kind."""

    kind: str
    summary: Summary
    provider: Callable[..., CompositionProvider] = CompositionProvider

    def __call__(self, config: ProviderConfigSpec, secrets: Secrets) -> CompositionProvider:
        """Build a client; opens no connection yet."""
        return self.provider(config, secrets, kind=self.kind, summary=self.summary)


def _due(_fields: Fields, shown: ExternalObject) -> datetime | None:
    """Return when a part that a decider has refused is declared again."""
    at = shown.outputs.get(RETRY_AT)
    return None if at is None else datetime.fromisoformat(at)


def composed_kind(
    name: str,
    api_version: str,
    schema: type[msgspec.Struct],
    *,
    composes: Callable[[ResourceKey, Fields, ExternalObject | None], Fields],
    summary: Summary,
    ready: Callable[[Fields, ExternalObject], Readiness],
    outputs: type[msgspec.Struct],
    progress: Callable[[Fields, ExternalObject], Progress | None] | None = None,
    provider: Callable[..., CompositionProvider] = CompositionProvider,
    refers: Callable[[Fields, str], Sequence[Reference]] = refers_to_nothing,
    removes: Callable[[Fields, ExternalObject], Removal] = removes_nothing,
) -> Kind:
    """Make a kind whose objects are sets of other resources."""
    return Kind(
        name=name,
        api_version=api_version,
        schema=schema,
        provider="composition",
        capabilities=CAPABILITIES,
        connect=CompositionFactory(name, summary, provider),
        name_problem=partial(name_problem, max_characters=MAX_NAME_CHARACTERS),
        outputs=outputs,
        refers=refers,
        removes=removes,
        ready=ready,
        due=_due,
        progress=progress,
        composes=composes,
    )
