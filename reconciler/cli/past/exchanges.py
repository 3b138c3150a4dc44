"""Why the API refuses the update of a resource: another one must give the value up first."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from nats.aio.client import Client

from events.intake import ActionError
from events.log import ActionDecided, FieldDifference
from events.names import ResourceKey
from projections.status import StatusRow
from reconciler.cli.folded_log import current_models
from reconciler.ports import StoredEvent
from reconciler.provider.kind import installed_kinds
from reconciler.resource.evolve import evolve
from reconciler.resource.exchange import Changes, describe_exchange, find_exchange
from reconciler.resource.state import NEW
from reconciler.sdk.history import History

MAX_CANDIDATES: Final = 50
"""Maximum number of other resources to read, because each has its own history."""

_WAY_OUT: Final = (
    "Declare one of them with a temporary value. Wait until the others have converged, and then "
    "declare its final value. A resource whose outcome is Failed retries only a changed declaration"
)


async def explain_exchange(nc: Client, row: StatusRow, history: Sequence[StoredEvent]) -> str:
    """Return the circle that a refused update is part of, and the way out; "" if there is none.

    Only resources of the same namespace, kind and ProviderConfig are read.
    """
    pending = find_refused_changes(history)
    if not pending:
        return ""
    rows = (await current_models(nc)).status.values()
    others = [each.key for each in rows if _may_exchange(each, row)][:MAX_CANDIDATES]
    reader = History(nc)
    changes = {str(row.key): pending}
    for key in others:
        changes[str(key)] = find_refused_changes((await reader.get(key)).events)
    return describe_circle(row.key, changes)


def describe_circle(key: ResourceKey, changes: Changes) -> str:
    """Return the circle of refused updates that a resource is part of, and the way out."""
    kinds = installed_kinds()
    kind = kinds.find(key.kind)
    exchange = find_exchange(str(key), changes, (kind.unique or None) if kind else None)
    return "" if exchange is None else f"{describe_exchange(exchange)}. {_WAY_OUT}"


def find_refused_changes(history: Sequence[StoredEvent]) -> Sequence[FieldDifference]:
    """Return the changes that the API refused to make to an object; none if it refused nothing."""
    state = NEW
    for stored in history:
        state = evolve(state, stored.event)
    failure, existing = state.waits.failure, state.observed.object
    if failure is None or existing is None or not state.desired.is_declared:
        return ()
    if not _is_refusal(failure):
        return ()
    decided = (each.event.data for each in reversed(history))
    action = next((each.action for each in decided if isinstance(each, ActionDecided)), None)
    if action is None or action.operation != "Update":
        return ()
    return tuple(
        FieldDifference(path, value, existing.fields.get(path))
        for path, value in action.fields.items()
        if value != existing.fields.get(path)
    )


def _is_refusal(failure: ActionError) -> bool:
    """Return whether the API refused a call, rather than being unable to process it."""
    status = failure.status or 0
    is_client_error = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    is_certain = failure.error_class in ("Refused", "Conflict")
    return failure.attempted and (
        is_certain or (failure.error_class == "NotDone" and is_client_error)
    )


def _may_exchange(other: StatusRow, row: StatusRow) -> bool:
    """Return whether another resource may be part of the same circle."""
    location = (row.namespace, row.kind, row.provider_config)
    is_alike = (other.namespace, other.kind, other.provider_config) == location
    return is_alike and other.declared and other.name != row.name and other.outcome != "Converged"
