"""The history of a resource up to a moment: its events and its object."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from nats.aio.client import Client

from events.external import ExternalObject
from events.log import ActionFailed, ActionSucceeded, ExternalObserved, ResourceEvent
from events.names import ResourceKey
from reconciler.errors import PositionNotFoundError
from reconciler.ports import StoredEvent
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW
from reconciler.sdk.history import History, ResourceHistory
from reconciler.sdk.log_replay import lost_events
from reconciler.sdk.moments import Moment, format_time


async def read_past(nc: Client, key: ResourceKey) -> ResourceHistory:
    """Read a resource's history. Its damage includes lost events that the stored rows reveal."""
    past = await History(nc).get(key)
    newest = past.events[-1].position if past.events else 0
    damage = past.damage or await lost_events(nc, key, newest)
    return msgspec.structs.replace(past, damage=damage)


def past_until(past: ResourceHistory, at: Moment) -> ResourceHistory:
    """Return the history up to a moment; raises ``PositionNotFoundError`` if it begins later."""
    recorded = past.until(at.position)
    if past.events and not recorded.events:
        position, event = past.events[0]
        raise PositionNotFoundError(
            f"{past.id} did not exist yet at {at}: "
            f"its history begins at position {position}, {format_time(event.time)}"
        )
    return recorded


class LastObservation(msgspec.Struct, frozen=True, rename="camel"):
    """The last observation of the external object; ``object`` is None if it did not exist."""

    object: ExternalObject | None
    source: str
    actor: str
    time: datetime
    position: int


def last_observation(stored: Sequence[StoredEvent]) -> LastObservation | None:
    """Return the last state of the object in the log, from an observer or an action's result.

    Return None if the object was never observed, or was observed only at a former location.
    """
    state, recorded = NEW, None
    for position, event in stored:
        next_state = evolve(state, event)
        source = _describe_observer(event.data)
        if source:
            recorded = LastObservation(
                next_state.observed.object, source, event.actor, event.time, position
            )
        elif next_state.observed.object is not state.observed.object:
            recorded = None
        state = next_state
    return recorded


def _describe_observer(data: ResourceEvent) -> str:
    """Describe how an event observed the object, or return "" if it did not."""
    match data:
        case ExternalObserved(evidence="CompleteListing"):
            return "a complete listing"
        case ExternalObserved():
            return "a read by an observer"
        case ActionSucceeded(operation="Delete"):
            return "the result of the Delete action"
        case ActionSucceeded(object=None):
            return f"the parameters of the {data.operation} action: the API returned no object"
        case ActionSucceeded():
            return f"the API's response to the {data.operation} action"
        case ActionFailed(consequence="Observed"):
            return f"the API's error response to the {data.operation} action"
        case _:
            return ""
