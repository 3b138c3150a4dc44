"""What was known of a resource at a moment: its events, and its object."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from nats.aio.client import Client

from events.external import ExternalObject
from events.log import ActionFailed, ActionSucceeded, ExternalObserved, ResourceEvent
from events.names import ResourceKey
from reconciler.errors import NoSuchMomentError
from reconciler.ports import StoredEvent
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW
from reconciler.sdk.history import History, Past
from reconciler.sdk.log_replay import lost_events
from reconciler.sdk.moments import Moment, shown


async def whole_past(nc: Client, key: ResourceKey) -> Past:
    """Read the past of a resource, and what the log has lost of it by what the rows remember."""
    past = await History(nc).get(key)
    newest = past.events[-1].position if past.events else 0
    damage = past.damage or await lost_events(nc, key, newest)
    return msgspec.structs.replace(past, damage=damage)


def past_of(past: Past, at: Moment) -> Past:
    """Return what was known at a moment; raises ``NoSuchMomentError`` if it was nothing yet."""
    known = past.until(at.position)
    if past.events and not known.events:
        position, event = past.events[0]
        raise NoSuchMomentError(
            f"{past.id} did not exist yet at {at}: "
            f"its history begins at position {position}, {shown(event.time)}"
        )
    return known


class KnownObject(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of the external object, from whom, and as of when; None: it is not there."""

    object: ExternalObject | None
    source: str
    actor: str
    time: datetime
    position: int


def known_object(stored: Sequence[StoredEvent]) -> KnownObject | None:
    """Return what the log knows of the object: an observer's word, or what came of our own calls.

    None if nothing was ever known of it, or it was in another place.
    """
    state, known = NEW, None
    for position, event in stored:
        after = evolve(state, event)
        source = _source(event.data)
        if source:
            known = KnownObject(after.observed.object, source, event.actor, event.time, position)
        elif after.observed.object is not state.observed.object:
            known = None
        state = after
    return known


def _source(data: ResourceEvent) -> str:
    """Describe how an event knows of the object; nothing if it does not."""
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
