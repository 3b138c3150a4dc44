"""The ``Deployment`` kind, whose API is Reconciler itself."""

from __future__ import annotations

from infra.providers.composition.kind import composed_kind
from reconciler.composites.deployment import (
    DeploymentFields,
    DeploymentOutputs,
    compose,
    min_ready_seconds,
    progress,
    ready,
    summary,
)

DEPLOYMENT = composed_kind(
    "Deployment",
    "composition/v1",
    DeploymentFields,
    compose=compose,
    summary=summary,
    ready=ready,
    outputs=DeploymentOutputs,
    progress=progress,
    min_ready_seconds=min_ready_seconds,
)
