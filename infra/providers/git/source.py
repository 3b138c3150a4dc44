"""The kind ``GitSource``: what a folder of a repository says, declared by this reconciler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.provider_config import ProviderConfigSpec
from infra.providers.composition.kind import Summary, composed_kind
from reconciler.composites.git_source import (
    KIND,
    GitSourceFields,
    GitSourceOutputs,
    compose,
    ready,
    refers,
    removes,
    summary,
    uses,
)
from reconciler.provider.secrets import Secrets

if TYPE_CHECKING:
    from infra.providers.git.sources import GitSourceProvider


def _provider(
    config: ProviderConfigSpec, secrets: Secrets, *, kind: str, summary: Summary
) -> GitSourceProvider:
    from infra.providers.git.sources import GitSourceProvider  # noqa: PLC0415 - who has one pays

    return GitSourceProvider(config, secrets, kind=kind, summary=summary)


GIT_SOURCE = composed_kind(
    KIND,
    "git/v1",
    GitSourceFields,
    composes=compose,
    summary=summary,
    ready=ready,
    outputs=GitSourceOutputs,
    provider=_provider,
    refers=refers,
    removes=removes,
    uses=uses,
)
