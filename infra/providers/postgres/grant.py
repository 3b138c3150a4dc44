"""The ``Grant`` kind: the privileges of a role on a database, or on the objects of a schema."""

from __future__ import annotations

from infra.providers.postgres.grant_spec import (
    GrantFields,
    GrantOutputs,
    comparable,
    find_uses,
    grant_problem,
    normalize,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import lazy

GRANT = Kind(
    name="Grant",
    api_version="postgres/v1",
    provider="postgres",
    schema=GrantFields,
    # No labels, because a grant cannot store any. Only the log records a grant's owner.
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=False, conditional_writes=True
    ),
    connect=lazy("infra.providers.postgres.grants:GrantsProvider", extra="postgres"),
    normalize=normalize,
    comparable=comparable,
    name_problem=grant_problem,
    outputs=GrantOutputs,
    find_uses=find_uses,
)
"""The ``Grant`` kind."""
