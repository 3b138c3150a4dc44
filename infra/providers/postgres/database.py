"""The ``Database`` kind: a database on a PostgreSQL server, its owner and its extensions."""

from __future__ import annotations

from infra.providers.postgres.database_spec import (
    DatabaseFields,
    DatabaseOutputs,
    comparable,
    describe_data_loss,
    find_host_uses,
    find_uses,
    normalize,
)
from infra.providers.postgres.names import database_problem
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import lazy

DATABASE = Kind(
    name="Database",
    api_version="postgres/v1",
    provider="postgres",
    schema=DatabaseFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=lazy("infra.providers.postgres.databases:DatabasesProvider", extra="postgres"),
    normalize=normalize,
    comparable=comparable,
    name_problem=database_problem,
    outputs=DatabaseOutputs,
    find_host_uses=find_host_uses,
    find_uses=find_uses,
    immutable=frozenset({"encoding", "locale"}),
    describe_data_loss=describe_data_loss,
)
"""The ``Database`` kind."""
