"""The ``Service`` kind: a virtual address and port, in front of some backends."""

from __future__ import annotations

from infra.providers.nftables.spec import (
    ServiceFields,
    ServiceOutputs,
    find_claims,
    find_host_uses,
    name_problem,
    normalize,
    ready,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import lazy

SERVICE = Kind(
    name="Service",
    api_version="nftables/v1",
    provider="nftables",
    schema=ServiceFields,
    capabilities=Capabilities(
        idempotency_keys=False,
        deterministic_names=True,
        labels=True,
        conditional_writes=True,
        watch=True,
    ),
    connect=lazy("infra.providers.nftables.services:ServicesProvider"),
    normalize=normalize,
    name_problem=name_problem,
    outputs=ServiceOutputs,
    ready=ready,
    keeps_readiness=True,
    find_claims=find_claims,
    find_host_uses=find_host_uses,
)
"""The ``Service`` kind."""
