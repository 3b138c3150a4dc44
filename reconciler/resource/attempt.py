"""An action from its decision to its end: key, attempts, lookups, waits and abandonment.

A call without a conclusive response may or may not have taken effect. There are three steps for
unknown results (ADR 0012). First the call is repeated with the same key, if that is safe. Then a
worker looks up the object, after the consistency grace of the API. If the lookup is inconclusive,
an operator decides.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Final, Literal

from msgspec.structs import replace

from events.external import ExternalObject
from events.hold import Hold
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionRetried,
    FoundBy,
    LookupDecided,
    Operation,
    Purpose,
    RetryScheduled,
    event_id,
)
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Retry
from reconciler.provider import Capabilities
from reconciler.resource.backoff import MAX_SECONDS, delay, is_over
from reconciler.resource.difference import Wanted, differences
from reconciler.resource.evolve import CHECKED_NOT_DONE, NOT_DONE
from reconciler.resource.owner_label import label_in
from reconciler.resource.situation import Situation
from reconciler.resource.state import InFlight, ResourceState
from reconciler.resource.turn import (
    NOTHING_TO_REPORT,
    PAUSED,
    Conclusion,
    Context,
    NothingToReport,
    Step,
    on_hold,
)

# consecutive conflicts after which the write is retried immediately; later ones wait like failures
MAX_CONFLICTS = 3
MAX_REPEATS = 3  # consecutive unknown results before a lookup replaces the next retry

_CLOCK_LAG = timedelta(seconds=1)  # of the bus clock, which is read from the newest message

_NO_RESPONSE = ("NotDone", "Throttled")  # errors of attempts that the API did not process

OPERATOR_ABANDONED: Final = "an operator abandoned the action"

NextCall = Literal["Repeat", "Lookup"]


# --- the decision


def new_action(
    state: ResourceState,
    context: Context,
    operation: Operation,
    fields: Fields,
    labels: dict[str, str],
    *,
    purpose: Purpose = "Converge",
    external_name: str = "",
    data_loss: str | None = None,
) -> ActionDecided:
    """Return the decision for an operation on the object, with its key and fixed parameters.

    `purpose` Retire deletes the replaced object. `external_name` is the name of a created object.
    `data_loss` is the data whose loss an operator or an earlier decision accepted. Its default is
    the data of the known object.
    """
    action_id = event_id(context.key, state.version + 1)
    owned = state.retiring if purpose == "Retire" else state.owned
    spec, existing = state.desired.spec, state.observed.object
    location = owned or spec
    assert location is not None
    name = external_name or location.external_name
    replaces = existing if operation == "Update" else None
    if data_loss is None:
        data_loss = _describe_loss(operation, purpose, fields, state, context)
    return ActionDecided(
        Action(
            action_id=action_id,
            idempotency_key=idempotency_key(
                context.log_id, action_id, context.key_epoch(location.provider_config)
            ),
            operation=operation,
            generation=state.desired.generation,
            provider_config=location.provider_config,
            external_name=name,
            causes=(state.cause,) if state.cause else (),
            fields=fields,
            labels=labels,
            uid=None if operation == "Create" or owned is None else owned.uid,
            version=None if replaces is None else replaces.version,
            purpose=purpose,
            definition=state.desired.resolved_by,
            epoch=context.epoch,
            data_loss=data_loss,
            claims=_find_claims(operation, name, fields, context),
        )
    )


def _find_claims(
    operation: Operation, name: str, fields: Fields, context: Context
) -> tuple[str, ...]:
    if context.kind is None or operation == "Delete":
        return ()
    return tuple(context.kind.find_claims(name, fields))


def _describe_loss(
    operation: Operation, purpose: Purpose, fields: Fields, state: ResourceState, context: Context
) -> str:
    """Describe the data that an action loses, or that of the object which a creation replaces."""
    existing, kind = state.observed.object, context.kind
    if purpose == "Retire":
        existing = None if state.retiring is None else state.retiring.last_observed
    is_plain_creation = operation == "Create" and purpose != "Replace"
    if existing is None or kind is None or is_plain_creation:
        return ""
    return kind.describe_data_loss(fields if operation == "Update" else None, existing)


def idempotency_key(log_id: str, action_id: str, epoch: str = "") -> str:
    """Return the idempotency key of an action, which is stable in replays and unique to the log.

    A restored log assigns the ids of lost events again. `epoch` keeps their keys distinct.
    """
    name = f"{log_id}:{epoch}" if epoch else log_id
    return hashlib.sha256(f"{name}/{action_id}".encode()).hexdigest()[:40]


# --- the action in flight


def advance_action(
    flight: InFlight,
    state: ResourceState,
    context: Context,
    config: ProviderConfigSpec | None = None,
    blocked: Conclusion | None = None,
    forbidden: Conclusion | None = None,
) -> Step:
    """Return the next event for the action in flight, or the conclusion while it waits.

    Every attempt has the same key and parameters. The bus delivers an attempt to another worker if
    the first one stops, so an attempt has no deadline here. `blocked` is the conclusion while no
    call is possible. `forbidden` is the conclusion while only lookups are possible.
    """
    generation, action = state.desired.generation, flight.action
    # First: the decision of an operator ends every wait.
    if flight.abandoned:
        return abandon(flight, OPERATOR_ABANDONED, context)
    if flight.is_held:
        if not state.desired.is_declared and flight.name_owner:
            # Nothing leaks: the other resource reports the object under its name.
            reason = "the resource was withdrawn, and another resource owns the name of the object"
            return abandon(flight, reason, context)
        return on_hold(Hold.UNKNOWN_RESULT, flight.hold_message, action.action_id)
    # Before the rest: the next step depends on the result of the current attempt.
    if flight.failed is None:
        return _report_in_flight(flight, state)
    # An operator who approves a retry expects this action, even after a newer declaration.
    is_wanted = action.generation == generation or flight.failed == CHECKED_NOT_DONE
    # Before everything that needs the API: an outdated action without an effect does not need a
    # call.
    if not is_wanted and not flight.is_in_doubt:
        reason = f"generation {generation} replaces generation {action.generation}"
        return abandon(flight, reason, context)
    # From here on, the next step is a call, or a wait for one.
    if blocked is not None:
        return blocked
    # Before the permission: a paused action is kept, so that it continues after the pause.
    if is_paused(state):
        return PAUSED
    if forbidden is not None and not flight.is_in_doubt:
        return abandon(flight, forbidden.message, context)
    may_repeat = forbidden is None and (is_wanted or action.operation == "Create")
    next_call = choose_next_call(flight, context, may_repeat=may_repeat, is_wanted=is_wanted)
    remaining = _until_visible(flight, state, context) if next_call == "Lookup" else timedelta()
    retry_at = flight.retry_at
    is_due = retry_at is not None and is_over(retry_at, flight.retry_seconds, context.bus_now)
    # An existing wait may be too short for a lookup: it was meant for a call, or an operator ended
    # it.
    is_too_short = retry_at is not None and retry_at < context.bus_now + remaining - _CLOCK_LAG
    if retry_at is None or (remaining and (is_due or is_too_short)):
        retry = Retry() if config is None else config.retry
        at_least = max(flight.failed.retry_after_seconds or 0.0, remaining.total_seconds())
        return _wait(
            retry, state.waits.failures, context, flight.failed.error_class, at_least, flight
        )
    if is_due:
        if next_call == "Repeat":
            return ActionRetried(action, flight.attempt + 1)
        return LookupDecided(action, flight.attempt + 1, _known_uids(action, state, context))
    return _report_in_flight(flight, state)


def _until_visible(flight: InFlight, state: ResourceState, context: Context) -> timedelta:
    """Return the time until a lookup shows the effect of the last attempt.

    It is measured by the bus clock, because another decider, whose clock may be wrong, may have
    recorded the failure.
    """
    grace = min(context.grace_seconds(flight.action.provider_config, state), MAX_SECONDS)
    if flight.failed_at is None:
        return timedelta()
    visible_at, now = flight.failed_at + timedelta(seconds=grace), context.bus_now
    return timedelta() if is_over(visible_at, grace, now) else visible_at - now


def _known_uids(action: Action, state: ResourceState, context: Context) -> tuple[str, ...]:
    """Return the uids of known objects, which cannot be the result of the creation.

    Each may carry our owner label, so a lookup would mistake it for the result.
    """
    if action.operation != "Create" or context.capabilities.deterministic_names:
        return ()
    uids = [each.uid for each in (state.owned, state.retiring) if each is not None]
    return tuple(uid for uid in (*uids, state.observed.released_uid) if uid is not None)


def is_paused(state: ResourceState) -> bool:
    """Return whether the declaration pauses the resource."""
    desired = state.desired
    return desired.is_declared and desired.spec is not None and desired.spec.policy.paused


def is_refused(state: ResourceState) -> bool:
    """Return whether the API refused the last call permanently."""
    failure = state.waits.failure
    return failure is not None and failure.error_class == "Refused"


def rejection(state: ResourceState) -> Conclusion | None:
    """Return the conclusion if the API refused the current generation, or None."""
    if state.desired.refused_generation != state.desired.generation:
        return None
    failure = state.waits.failure
    message = "" if failure is None else failure.message
    return Conclusion("Failed", "Refused", message or "the API rejected this generation")


def name_owner(state: ResourceState) -> str:
    """Return the other resource that owned the name before the last call, or an empty string."""
    failure = state.waits.failure
    return "" if failure is None else failure.belongs_to


def choose_next_call(
    flight: InFlight, context: Context, *, may_repeat: bool = True, is_wanted: bool = True
) -> NextCall:
    """Return whether the next call repeats the action or looks up its object."""
    assert flight.failed is not None
    if not may_repeat or flight.failed.belongs_to:
        return "Lookup"  # a repeated call would be refused, and an earlier one may have an effect
    is_safe = is_safe_to_repeat(flight.action, context.capabilities)
    if flight.failed == NOT_DONE:
        return "Repeat"
    if flight.failed == CHECKED_NOT_DONE:
        # Without unique names, a retry creates a second object. The lookup finds the object that
        # the operator labeled.
        return "Repeat" if is_safe else "Lookup"
    if not is_safe:
        return "Lookup" if flight.unknown_results or not is_wanted else "Repeat"
    if flight.is_lookup:
        return "Repeat"  # the lookup failed, possibly because only reads fail
    error_class = flight.failed.error_class
    # A retry receives the response to the earlier attempt, by its key. A listing may not show its
    # object yet.
    if (
        flight.unknown_results
        and error_class in _NO_RESPONSE
        and is_known_by_key(flight.action, context.capabilities)
    ):
        return "Repeat"
    # A refusal of this attempt ends the action only if no earlier attempt may have taken effect.
    if error_class == "Refused" or (error_class != "Unknown" and not is_wanted):
        return "Lookup"
    return "Lookup" if flight.unknown_results >= MAX_REPEATS else "Repeat"


def is_safe_to_repeat(action: Action, capabilities: Capabilities) -> bool:
    """Return whether a second call is harmless, whatever the effect of the first one."""
    if action.operation != "Create":
        return True  # it writes the same content, to the same uid and version if the API has them
    return capabilities.idempotency_keys or capabilities.deterministic_names


def abandon(flight: InFlight, reason: str, context: Context) -> ActionAbandoned:
    """Return the event that ends the action. It stays in doubt if a call may still arrive."""
    in_doubt = flight.effect.may_arrive or flight.failed is None
    action = flight.action
    return ActionAbandoned(
        action.action_id,
        action.operation,
        reason,
        in_doubt=in_doubt,
        unconfirmed=in_doubt and is_unlisted(action, context.capabilities),
    )


def is_known_by_key(action: Action, capabilities: Capabilities) -> bool:
    """Return whether only the idempotency key shows which object an action created."""
    return action.operation == "Create" and not capabilities.deterministic_names


def is_unlisted(action: Action, capabilities: Capabilities) -> bool:
    """Return whether no listing would find, by name, an object that an action creates late."""
    is_unnamed = is_known_by_key(action, capabilities)
    return is_unnamed or (action.operation == "Create" and not capabilities.listing)


def _report_in_flight(flight: InFlight, state: ResourceState) -> Conclusion | NothingToReport:
    """Return the last failure as the outcome while the action runs or waits."""
    failure = state.waits.failure
    if failure is None or (state.waits.failures == 0 and failure.attempted):
        return NOTHING_TO_REPORT
    action_id = flight.action.action_id
    return Conclusion("Degraded", failure.error_class, failure.message, action_id)


# --- waits


def has_waited(state: ResourceState, context: Context) -> bool:
    """Return whether the current wait is over."""
    waits = state.waits
    return waits.until is not None and is_over(waits.until, waits.seconds, context.bus_now)


def wait_after_conflicts(situation: Situation) -> RetryScheduled | None:
    """Return a wait after too many consecutive conflicts, to avoid a hot loop; None otherwise."""
    state, context = situation.state, situation.context
    conflicts = state.waits.conflicts - MAX_CONFLICTS
    if conflicts <= 0 or has_waited(state, context):
        return None
    return _wait(situation.config.retry, conflicts, context, "Conflict")


def retry_refused_deletion(
    situation: Situation, reason: str, purpose: Purpose = "Converge"
) -> Step:
    """Repeat a deletion that the API refuses permanently, at the maximum delay.

    It accepts the loss of the same data as the refused one, because later data requires a new
    decision.
    """
    state, context = situation.state, situation.context
    if has_waited(state, context):
        refused = next((each.action for each in reversed(state.actions.ended)), None)
        loss = "" if refused is None or refused.operation != "Delete" else refused.data_loss
        return new_action(state, context, "Delete", {}, {}, purpose=purpose, data_loss=loss)
    return wait_max_delay(situation.config.retry, context, reason)


def wait_max_delay(retry: Retry, context: Context, reason: str) -> RetryScheduled:
    """Return a wait of the maximum delay, because only time or an operator can help."""
    return _wait(replace(retry, initial_seconds=retry.max_seconds), 1, context, reason)


def _wait(
    retry: Retry,
    failures: int,
    context: Context,
    reason: str,
    at_least: float | None = None,
    flight: InFlight | None = None,
) -> RetryScheduled:
    """Return a wait with backoff, at least `at_least` seconds long."""
    wait = delay(retry, failures, context.jitter, at_least)
    action_id = None if flight is None else flight.action.action_id
    return RetryScheduled(context.bus_now + wait, round(wait.total_seconds(), 3), reason, action_id)


# --- results


Finding = FoundBy | Literal["NotDone", "Gone", "Another", "Unclear"]
"""Result of a lookup: success and its evidence, `NotDone`, `Gone` (the object does not exist),
`Another` (a different object is in its place) or `Unclear`."""


def judge_lookup(action: Action, existing: ExternalObject | None, context: Context) -> Finding:
    """Return what the current object shows about the result of an action."""
    match action.operation:
        case "Create":
            return _judge_creation(action, existing, context)
        case "Update":
            return _judge_update(action, existing, context)
        case "Delete":
            if existing is None:
                return "Absence"
            is_other = action.uid is not None and existing.uid not in (None, action.uid)
            return "Another" if is_other else "NotDone"


def judge_conflict(
    action: Action, obstacle: ExternalObject | None, context: Context, *, uncertain: bool
) -> Finding:
    """Return whether the object that conflicts with a write is the result of an earlier attempt.

    `uncertain`: an earlier attempt may have taken effect. An API that stores keys would have
    returned its first response. With such an API, only our label identifies a result, and only if a
    creation of ours had an unknown result.
    """
    has_keys = context.capabilities.idempotency_keys
    if obstacle is None or action.operation == "Delete":
        return "Another"
    if action.operation == "Update":
        finding = _judge_update(action, obstacle, context)
        may_be_ours = finding == "Key" or (uncertain and not has_keys)
        return finding if may_be_ours else "Another"
    finding = _judge_creation(action, obstacle, context)
    if finding == "Label" and has_keys and not uncertain:
        return "Another"
    if finding == "Unclear" and (has_keys or not uncertain):
        return "Another"
    return finding


def _judge_creation(action: Action, existing: ExternalObject | None, context: Context) -> Finding:
    """Return whether the object is the result of the creation: by its key or its owner label."""
    capabilities = context.capabilities
    if existing is None:
        is_findable = capabilities.deterministic_names or capabilities.labels
        return "NotDone" if is_findable else "Unclear"
    if existing.written_by == action.idempotency_key:
        return "Key"
    label = label_in(existing.labels)
    if label is not None:
        if label == context.owner:
            return "Label"
        # Without unique names, our object may exist in addition to this one.
        return "Another" if context.capabilities.deterministic_names else "Unclear"
    # No owner label: another client may have removed ours. The content proves nothing, because
    # other clients may have changed it, or may want the same content.
    return "Unclear"


def _judge_update(action: Action, existing: ExternalObject | None, context: Context) -> Finding:
    """Return whether the object has the effect of the update: by its key, content or version."""
    if existing is None:
        return "Gone"
    if action.uid is not None and existing.uid not in (None, action.uid):
        return "Another"
    if existing.written_by == action.idempotency_key:
        return "Key"
    assert context.kind is not None
    if not differences(Wanted(action.fields, action.labels), existing, context.kind):
        return "Content"
    is_unchanged = action.version is None or existing.version == action.version
    return "NotDone" if is_unchanged else "Another"
