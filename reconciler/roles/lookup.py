"""Looks what came of an action: the second rung of the ladder (ADR 0012)."""

from __future__ import annotations

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.provider import Capabilities, Provider
from reconciler.resource.owner_label import OWNER_LABEL


async def look_up(
    provider: Provider,
    action: Action,
    config: ProviderConfigSpec | None,
    capabilities: Capabilities | None,
) -> ExternalObject | None:
    """Return the object that an action is about, as it is now; raises as ``Provider.read``.

    Of what was created where names are not unique nobody knows the id, and the first of its name
    may be anybody's: the one that carries our mark is searched for (ADR 0031).
    """
    if capabilities is None or capabilities.deterministic_names:
        return await provider.read(action.external_name, action.uid)
    if action.operation != "Create" or config is None:
        return await provider.read(action.external_name, action.uid)
    page_size, ours = config.limits.page_size, action.labels.get(OWNER_LABEL)
    if capabilities.listing:
        return await _search(provider, action, config.scope, page_size)
    found: ExternalObject | None = None
    if ours is not None:  # a read would show another object of the name, with a label of its own
        scope = Scope(prefix=action.external_name, labels={OWNER_LABEL: ours})
        found = await _search(provider, action, scope, page_size)
    return found or await provider.read(action.external_name)


async def _search(
    provider: Provider, action: Action, scope: Scope, page_size: int
) -> ExternalObject | None:
    """Return the object that a creation has made, or another one of its name."""
    another: ExternalObject | None = None
    async for page in provider.pages(scope, page_size=page_size):
        for each in page:
            if each.name != action.external_name:
                continue
            if _is_marked(each, action):
                return each
            another = another or each
    return another


def _is_marked(found: ExternalObject, action: Action) -> bool:
    ours = action.labels.get(OWNER_LABEL)
    by_label = ours is not None and found.labels.get(OWNER_LABEL) == ours
    return by_label or found.written_by == action.idempotency_key
