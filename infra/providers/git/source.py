"""The ``GitSource`` kind, which declares the manifests in a folder of a repository."""

from __future__ import annotations

from infra.providers.composition.kind import composed_kind
from reconciler.composites.git_source import (
    KIND,
    GitSourceFields,
    GitSourceOutputs,
    compose,
    count_removed,
    find_host_uses,
    find_references,
    ready,
    summary,
)

GIT_SOURCE = composed_kind(
    KIND,
    "git/v1",
    GitSourceFields,
    compose=compose,
    summary=summary,
    ready=ready,
    outputs=GitSourceOutputs,
    provider="infra.providers.git.sources:GitSourceProvider",
    extra="git",
    find_references=find_references,
    count_removed=count_removed,
    find_host_uses=find_host_uses,
)
