"""Data that vanished with the object of a resource.

A new object would be empty, and clients would use it in place of the data. So the resource is held
until the object reappears, an operator approves a new one, or the resource is withdrawn.
"""

from __future__ import annotations

from datetime import datetime

from events.external import ExternalObject
from events.hold import Hold
from reconciler.resource.situation import Situation
from reconciler.resource.state import Owned, ResourceState
from reconciler.resource.turn import Conclusion, Context, on_hold


def describe_lost_data(known: ExternalObject | None, state: ResourceState, context: Context) -> str:
    """Describe the data that vanished with the owned object; empty if it held none.

    ``known``: the object as it was known before the observation that it is missing.
    """
    owned, kind = state.owned, context.kind
    if owned is None or kind is None or not state.desired.is_declared:
        return ""
    if state.retiring is not None:
        return ""  # the replaced object still exists, and is owned again
    last = _last_known_object(known, owned, state)
    if kind.inherit is not None:  # a new object takes over the rest
        return kind.inherit(state.desired.fields, last).loss
    return kind.describe_data_loss(None, last)


def _last_known_object(
    known: ExternalObject | None, owned: Owned, state: ResourceState
) -> ExternalObject:
    if known is not None and (owned.uid is None or known.uid in (None, owned.uid)):
        return known
    if owned.applied is not None and owned.applied.result is not None:
        return owned.applied.result
    return ExternalObject(owned.external_name, state.desired.fields, owned.uid)


def hold_for_missing_data(
    situation: Situation, obstacle: ExternalObject | None = None
) -> Conclusion | None:
    """Return a hold if data vanished with the object and no operator gave it up.

    ``obstacle``: another object, which now has the declared name.
    """
    state = situation.state
    lost = state.lost
    if lost is None:
        return None
    identity = f"{lost.external_name!r}" + ("" if lost.uid is None else f" (uid {lost.uid})")
    if lost.provider_config != state.provider_config:
        identity += f" in {lost.provider_config!r}"
    last_seen = "" if lost.seen_at is None else f"; last recorded at {_format(lost.seen_at)}"
    facts = (
        f"{identity}, with {lost.description}, has been missing since {_format(lost.missing_at)}"
    )
    found_as, remedy = state.observed.found_as, "restore it"
    evidence = ""
    if found_as:
        evidence = f"; a {situation.kind.name} with its uid is now named {found_as!r}"
        remedy = "rename it back"
    elif obstacle is not None:
        evidence = f"; another object (uid {obstacle.uid}) now has the name {obstacle.name!r}"
    return on_hold(
        Hold.DATA_MISSING,
        f"{facts}{last_seen}{evidence}; {remedy}, or approve to continue without the data, or "
        "withdraw the resource",
    )


def _format(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
