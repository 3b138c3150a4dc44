"""The rows that the shown readiness of one resource depends on, from their histories."""

from __future__ import annotations

from typing import Any, Final, cast

from nats.aio.client import Client

from events.composition import CHILDREN
from events.names import InvalidNameError, ResourceKey
from events.provider_config import config_key
from projections.read_models import rebuild
from projections.status import StatusRow
from reconciler.sdk.history import History
from reconciler.sdk.moments import Moment

MAX_PARTS: Final = 100
"""Maximum number of parts to read, because each has its own history."""


async def read_dependencies(nc: Client, row: StatusRow, at: Moment | None) -> dict[str, StatusRow]:
    """Return the rows of a resource, of its parts at any depth, and of their ProviderConfigs."""
    history = History(nc)
    rows, pending = {str(row.key): row}, [row]
    while pending:
        row = pending.pop()
        configs = [str(config_key(row.provider_config))] if row.provider_config else []
        children = row.outputs.get(CHILDREN)
        names = list(cast("dict[str, Any]", children)) if isinstance(children, dict) else []
        for name in [*configs, *names]:
            if name in rows or len(rows) > MAX_PARTS:
                continue
            try:
                past = await history.get(ResourceKey.parse(name))
            except InvalidNameError:  # outputs with the same name but a different meaning
                break
            past = past if at is None else past.until(at.position)
            found = rebuild(past.events).status.get(name)
            if found is not None:
                rows[name] = found
                pending.append(found)
    return rows
