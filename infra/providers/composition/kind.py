"""What all composed kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from events.composition import COMPOSED_SET_KIND, RETRY_AT, Child
from events.external import ExternalObject
from events.manifest import Fields
from events.names import InvalidNameError, ResourceKey
from events.reference import Reference
from reconciler.provider import Capabilities
from reconciler.provider.host_access import HostUse, uses_nothing
from reconciler.provider.kind import (
    Kind,
    Progress,
    Readiness,
    Removal,
    removes_nothing,
)
from reconciler.provider.lazy import lazy

Summary = Callable[[Fields, Mapping[str, Child]], Fields]
"""Makes a kind's own outputs of an object's fields and of how its children stand."""

MAX_NAME_CHARACTERS: Final = 46
"""A set's name has the kind before it, and a child's what its kind puts behind it; 63 in all."""

CAPABILITIES = Capabilities(
    idempotency_keys=False,  # the newest key is known, and no older one
    deterministic_names=True,
    labels=True,
    conditional_writes=True,
    watch=True,
)


def name_problem(name: str, *, max_characters: int) -> str | None:
    """Describe what is wrong with the name of a composed object: it has its namespace before it."""
    namespace, dot, rest = name.partition(".")
    try:
        ResourceKey.checked(namespace, COMPOSED_SET_KIND, rest)
    except InvalidNameError as error:
        return str(error)
    if len(rest) > max_characters:
        return f"use at most {max_characters} characters, because other names contain it"
    return None if dot else "use the form NAMESPACE.NAME"


def _due(_fields: Fields, shown: ExternalObject) -> datetime | None:
    """Return when a part that a decider has refused is declared again."""
    at = shown.outputs.get(RETRY_AT)
    return None if at is None else datetime.fromisoformat(at)


def composed_kind(
    name: str,
    api_version: str,
    schema: type[msgspec.Struct],
    *,
    composes: Callable[[ResourceKey, Fields, ExternalObject | None], Fields],
    summary: Summary,
    ready: Callable[[Fields, ExternalObject], Readiness],
    outputs: type[msgspec.Struct],
    progress: Callable[[Fields, ExternalObject], Progress | None] | None = None,
    provider: str = "infra.providers.composition.provider:CompositionProvider",
    extra: str = "",
    refers: Callable[[Fields, str], Sequence[Reference]] | None = None,
    removes: Callable[[Fields, ExternalObject], Removal] = removes_nothing,
    uses: Callable[[Fields], Sequence[HostUse]] = uses_nothing,
) -> Kind:
    """Make a kind whose objects are sets of other resources; ``provider``: as for ``lazy``."""
    return Kind(
        name=name,
        api_version=api_version,
        schema=schema,
        provider="composition",
        capabilities=CAPABILITIES,
        connect=lazy(provider, extra=extra, kind=name, summary=summary),
        name_problem=partial(name_problem, max_characters=MAX_NAME_CHARACTERS),
        outputs=outputs,
        refers=refers,
        removes=removes,
        uses=uses,
        ready=ready,
        due=_due,
        progress=progress,
        composes=composes,
    )
