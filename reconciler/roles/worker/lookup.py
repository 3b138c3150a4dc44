"""Look up the result of an action: the second step for unknown results (ADR 0012)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.errors import UnreadableObjectsError
from reconciler.provider import Capabilities, Effect, Provider
from reconciler.resource.owner_label import OWNER_LABEL

MAX_LABELED_UIDS: Final = 8
"""Limit on reported uids of objects with the same owner label, which an operator must check."""


class LookupResult(Effect, frozen=True):
    """The current object of an action.

    ``labeled_uids``: if several objects have the creation's label, their uids. Another client may
    have copied the label.
    """

    labeled_uids: tuple[str, ...] = ()


async def look_up(
    provider: Provider,
    action: Action,
    config: ProviderConfigSpec | None,
    capabilities: Capabilities | None,
    *,
    known_uids: Collection[str] = (),
) -> LookupResult:
    """Return the current object of an action; raises the same errors as ``Provider.read``.

    If names are not unique, the id of a created object is unknown, and the first object with its
    name may be another client's. The owner label or idempotency key then identifies the created
    object (ADR 0031).
    ``known_uids``: uids of objects that existed before the action.
    """
    if capabilities is None or capabilities.deterministic_names:
        return LookupResult(await provider.read(action.external_name, action.uid))
    if action.operation != "Create" or config is None:
        return LookupResult(await provider.read(action.external_name, action.uid))
    page_size, own_label = config.limits.page_size, action.labels.get(OWNER_LABEL)
    if capabilities.listing:
        return await _search(provider, action, config.scope, page_size, known_uids)
    # A plain read might return another client's object with this name and another label.
    if own_label is not None:
        scope = Scope(prefix=action.external_name, labels={OWNER_LABEL: own_label})
        result = await _search(provider, action, scope, page_size, known_uids)
        if result.object is not None:
            return result
    return LookupResult(await provider.read(action.external_name))


async def _search(
    provider: Provider, action: Action, scope: Scope, page_size: int, known_uids: Collection[str]
) -> LookupResult:
    """Return the object that the action created, or else another object with its name.

    The idempotency key identifies the created object, as does a label that no other object has.
    """
    own_label, labeled = action.labels.get(OWNER_LABEL), list[ExternalObject]()
    same_name: ExternalObject | None = None
    try:
        async for page in provider.pages(scope, page_size=page_size):
            for candidate in page:
                if candidate.name != action.external_name or candidate.uid in known_uids:
                    continue
                if candidate.written_by == action.idempotency_key:
                    return LookupResult(candidate)
                if own_label is not None and candidate.labels.get(OWNER_LABEL) == own_label:
                    labeled.append(candidate)
                same_name = same_name or candidate
    except UnreadableObjectsError as error:
        if error.may_have(action.external_name):
            raise
    if len(labeled) > 1:
        uids = [each.uid or "" for each in labeled[:MAX_LABELED_UIDS]]
        return LookupResult(labeled[0], labeled_uids=tuple(uids))
    return LookupResult(labeled[0] if labeled else same_name)
