"""The ``Route`` kind: a Caddy server forwards requests for hosts and paths to backends."""

from __future__ import annotations

from infra.providers.caddy.configuration import name_problem
from infra.providers.caddy.spec import (
    RouteFields,
    RouteOutputs,
    find_host_uses,
    follows_input,
    normalize,
    ready,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import lazy

ROUTE = Kind(
    name="Route",
    api_version="caddy/v1",
    provider="caddy",
    schema=RouteFields,
    capabilities=Capabilities(
        idempotency_keys=False,
        deterministic_names=True,
        labels=True,
        conditional_writes=True,
        watch=True,
    ),
    connect=lazy("infra.providers.caddy.routes:RoutesProvider", extra="caddy"),
    normalize=normalize,
    name_problem=name_problem,
    outputs=RouteOutputs,
    ready=ready,
    keeps_readiness=True,
    follows_input=follows_input,
    find_host_uses=find_host_uses,
    immutable=frozenset({"server"}),
)
"""The ``Route`` kind."""
