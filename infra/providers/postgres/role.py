"""The ``DatabaseRole`` kind: a role on a PostgreSQL server, its password and its memberships."""

from __future__ import annotations

from infra.providers.postgres.names import role_problem
from infra.providers.postgres.role_spec import (
    DatabaseRoleFields,
    DatabaseRoleOutputs,
    comparable,
    explain_kept,
    find_host_uses,
    find_uses,
    normalize,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import lazy

DATABASE_ROLE = Kind(
    name="DatabaseRole",
    api_version="postgres/v1",
    provider="postgres",
    schema=DatabaseRoleFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=lazy("infra.providers.postgres.roles:DatabaseRolesProvider", extra="postgres"),
    normalize=normalize,
    comparable=comparable,
    name_problem=role_problem,
    outputs=DatabaseRoleOutputs,
    find_host_uses=find_host_uses,
    find_uses=find_uses,
    explain_kept=explain_kept,
)
"""The ``DatabaseRole`` kind."""
