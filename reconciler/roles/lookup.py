"""Looks what came of an action: the second rung of the ladder (ADR 0012)."""

from __future__ import annotations

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec
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
    is_plain = capabilities is None or capabilities.deterministic_names or not capabilities.listing
    if action.operation != "Create" or is_plain or config is None:
        return await provider.read(action.external_name, action.uid)
    another: ExternalObject | None = None
    async for page in provider.pages(config.scope, page_size=config.limits.page_size):
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
