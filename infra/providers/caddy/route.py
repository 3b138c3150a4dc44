"""The kind ``Route``: requests for hosts and paths, which a Caddy server passes on to backends."""

from __future__ import annotations

from events.provider_config import ProviderConfigSpec
from infra.providers.caddy.configuration import name_problem
from infra.providers.caddy.spec import RouteFields, RouteOutputs, normalize, ready, uses
from reconciler.provider import Capabilities, Provider
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets


def _connect(config: ProviderConfigSpec, secrets: Secrets) -> Provider:
    from infra.providers.caddy.routes import RoutesProvider  # noqa: PLC0415 - who has a proxy pays

    return RoutesProvider(config, secrets)


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
    connect=_connect,
    normalize=normalize,
    name_problem=name_problem,
    outputs=RouteOutputs,
    ready=ready,
    uses=uses,
    immutable=frozenset({"server"}),
)
"""The kind ``Route``."""
