"""The common properties of all composed kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import msgspec

from events.composition import RETRY_AT
from events.external import ExternalObject
from events.manifest import Fields
from events.names import ResourceKey
from events.reference import Reference
from infra.providers.composition.spec import MAX_NAME_CHARACTERS, Summary, name_problem
from reconciler.provider import Capabilities
from reconciler.provider.host_access import HostUse, no_host_uses
from reconciler.provider.kind import (
    ComposedKind,
    Progress,
    Readiness,
    Removal,
    no_removal,
)
from reconciler.provider.lazy import lazy

CAPABILITIES = Capabilities(
    idempotency_keys=False,  # a set stores only the newest key
    deterministic_names=True,
    labels=True,
    conditional_writes=True,
    watch=True,
)


def _renewal_time(_fields: Fields, observed: ExternalObject) -> datetime | None:
    """Return when to declare a refused part again."""
    at = observed.outputs.get(RETRY_AT)
    return None if at is None else datetime.fromisoformat(at)


def composed_kind(
    name: str,
    api_version: str,
    schema: type[msgspec.Struct],
    *,
    compose: Callable[[ResourceKey, Fields, ExternalObject | None], Fields],
    summary: Summary,
    ready: Callable[[Fields, ExternalObject], Readiness],
    outputs: type[msgspec.Struct],
    progress: Callable[[Fields, ExternalObject], Progress | None] | None = None,
    min_ready_seconds: Callable[[Fields], float] | None = None,
    provider: str = "infra.providers.composition.provider:CompositionProvider",
    extra: str = "",
    find_references: Callable[[Fields, str], Sequence[Reference]] | None = None,
    count_removed: Callable[[Fields, ExternalObject], Removal] = no_removal,
    find_host_uses: Callable[[Fields], Sequence[HostUse]] = no_host_uses,
) -> ComposedKind:
    """Build a kind whose objects are sets of other resources.

    For the format of ``provider``, see ``lazy``.
    """
    return ComposedKind(
        name=name,
        api_version=api_version,
        schema=schema,
        provider="composition",
        capabilities=CAPABILITIES,
        connect=lazy(provider, extra=extra, kind=name, summary=summary),
        name_problem=partial(name_problem, max_characters=MAX_NAME_CHARACTERS),
        outputs=outputs,
        find_references=find_references,
        count_removed=count_removed,
        find_host_uses=find_host_uses,
        ready=ready,
        renewal_time=_renewal_time,
        progress=progress,
        compose=compose,
        min_ready_seconds=min_ready_seconds,
    )
