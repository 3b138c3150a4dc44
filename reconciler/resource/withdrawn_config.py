"""A withdrawn ProviderConfig stays in effect while resources use it (ADR 0086)."""

from __future__ import annotations

from events.excerpt import list_first
from events.hold import Hold
from events.intake import UsersReported
from events.log import ActionDecided, OwnershipClaimed, UsersCounted
from events.wording import plural
from reconciler.resource.api_health import hold_for_newer_objects
from reconciler.resource.state import ApiHealth, ResourceState, Users
from reconciler.resource.turn import NOTHING_NEW, CommandResult, Conclusion, Context, Step, on_hold

_OWN_OBJECT_CLAIMS = ("Returned", "Found", "Moved")
"""Reasons for a claim that record which object the resource already had."""


def record_users(data: UsersReported, state: ResourceState) -> CommandResult:
    """Record the resources that use the withdrawn configuration, if they changed."""
    known = state.holds.users
    if known is None or data.generation != state.desired.generation:
        return NOTHING_NEW  # it was declared again, or has ended
    if (data.count, data.names) == (known.count, known.names):
        return NOTHING_NEW
    return CommandResult((UsersCounted(data.count, data.names),))


def keep_for_users(users: Users, health: ApiHealth) -> Conclusion:
    """Return the conclusion for a withdrawn configuration that is still in effect."""
    # First: its users may need an approval of this hold before they can be deleted.
    held = hold_for_newer_objects(health)
    if held is not None:
        return held
    if users.count is None:
        return Conclusion(
            "Waiting", "UsersUnknown", "waiting for a report of the resources that use it"
        )
    more = users.count - len(users.names)
    names = list_first(list(users.names)) + (f" and {more} more" if more > 0 else "")
    return on_hold(
        Hold.REFERENCED,
        f"kept because {plural(users.count, 'resource uses', 'resources use')} it: {names}",
    )


def hold_for_withdrawn_config(
    step: ActionDecided | OwnershipClaimed, state: ResourceState, context: Context
) -> Step:
    """Return the step, or a hold if it would give a withdrawn configuration another user.

    Otherwise, the configuration could end between the count of its users and this step.
    """
    name = state.provider_config
    if name not in context.withdrawn_configs or _has_had_object(state):
        return step
    if isinstance(step, OwnershipClaimed) and step.reason in _OWN_OBJECT_CLAIMS:
        return step
    return on_hold(
        Hold.PROVIDER_CONFIG_MISSING, f"ProviderConfig {name!r} was withdrawn; declare it again"
    )


def _has_had_object(state: ResourceState) -> bool:
    """Return whether the resource has, or has had, an object since its declaration."""
    return (
        state.owned is not None
        or state.predecessor is not None
        or (state.desired.is_declared and state.actions.has_created)
    )
