"""The kind ``GitSource``, which declares the manifests in a folder of a repository."""

from __future__ import annotations

from infra.providers.composition.kind import composed_kind
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

GIT_SOURCE = composed_kind(
    KIND,
    "git/v1",
    GitSourceFields,
    composes=compose,
    summary=summary,
    ready=ready,
    outputs=GitSourceOutputs,
    provider="infra.providers.git.sources:GitSourceProvider",
    extra="git",
    refers=refers,
    removes=removes,
    uses=uses,
)
