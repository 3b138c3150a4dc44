"""The ``ManifestSet`` kind, whose API is Reconciler itself."""

from __future__ import annotations

from infra.providers.composition.kind import composed_kind
from reconciler.composites import stored
from reconciler.composites.manifest_set import ManifestSetFields, compose
from reconciler.composites.stored import StoredOutputs

MANIFEST_SET = composed_kind(
    "ManifestSet",
    "composition/v1",
    ManifestSetFields,
    compose=compose,
    summary=stored.summary,
    ready=stored.ready,
    outputs=StoredOutputs,
)
