"""An action from its decision to its end: key, retries, lookups, waits, and giving up.

A call whose answer never came may have been done or not. The ladder of unknown results (ADR 0012)
repeats it with the same key, where the API makes that safe; else, or after some repeats, it looks
up what is there, past the API's grace; and where nothing can tell, a person is asked.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Literal

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
from reconciler.resource.owner_label import OWNER_LABEL
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

MAX_CONFLICTS = 3  # in a row that are answered at once; then each waits like a failure
MAX_REPEATS = 3  # in a row whose result stays unknown, before a lookup is worth more than another

_ROUNDING = timedelta(milliseconds=1)  # of a wait that was reckoned in seconds

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
) -> ActionDecided:
    """Decide an operation on the resource's object, with its key and its frozen parameters.

    `purpose` Retire is about the object that was replaced. `external_name`: of what is created.
    """
    action_id = event_id(context.key, state.version + 1)
    owned = state.retiring if purpose == "Retire" else state.owned
    spec, existing = state.desired.spec, state.observed.object
    location = owned or spec
    assert location is not None
    replaces = existing if operation == "Update" else None
    return ActionDecided(
        Action(
            action_id=action_id,
            idempotency_key=idempotency_key(
                context.log_id, action_id, context.key_epoch(location.provider_config)
            ),
            operation=operation,
            generation=state.desired.generation,
            provider_config=location.provider_config,
            external_name=external_name or location.external_name,
            causes=(state.cause,) if state.cause else (),
            fields=fields,
            labels=labels,
            uid=None if operation == "Create" or owned is None else owned.uid,
            version=None if replaces is None else replaces.version,
            purpose=purpose,
            definition=state.desired.resolved_by,
        )
    )


def idempotency_key(log_id: str, action_id: str, epoch: str = "") -> str:
    """Derive an action's key: the same in every replay, another in every other log.

    A log that was restored uses the ids of what it has lost again: `epoch` keeps the keys apart.
    """
    name = f"{log_id}:{epoch}" if epoch else log_id
    return hashlib.sha256(f"{name}/{action_id}".encode()).hexdigest()[:40]


# --- the action in flight


def pursue(
    flight: InFlight,
    state: ResourceState,
    context: Context,
    config: ProviderConfigSpec | None,
    blocked: Conclusion | None = None,
    forbidden: Conclusion | None = None,
) -> Step:
    """Return the next event for the action in flight, or why it waits.

    Every attempt has the same key and parameters. The bus delivers an attempt to another worker if
    the first one stops, so an attempt has no deadline here. `blocked` is how the resource stands
    while nothing can be called for it; `forbidden` while it may be looked up but not repeated.
    """
    generation, action = state.desired.generation, flight.action
    # First: an operator's decision ends every wait.
    if flight.abandoned:
        return _abandon(flight, "an operator abandoned the action")
    if flight.is_held:
        return on_hold(Hold.UNKNOWN_RESULT, flight.hold_message, action.action_id)
    # Before the rest: until the attempt ends, nothing is known that could follow.
    if flight.failed is None:
        return _report_in_flight(flight, state)
    # An operator who approves another call wants that one, whatever has been declared since.
    is_wanted = action.generation == generation or flight.failed == CHECKED_NOT_DONE
    # Before the API is asked for: what is not wanted and had no effect needs no call.
    if not is_wanted and not flight.is_in_doubt:
        newer = f"generation {generation} replaces generation {action.generation}"
        return _abandon(flight, newer)
    # From here on, a call follows, or the end of the wait for one.
    if blocked is not None:
        return blocked
    # Before the permission: a paused action is kept, so that it continues when the pause ends.
    if is_paused(state):
        return PAUSED
    if forbidden is not None and not flight.is_in_doubt:
        return _abandon(flight, forbidden.message)
    may_repeat = forbidden is None and (is_wanted or action.operation == "Create")
    next_call = choose_next_call(flight, context, may_repeat=may_repeat, is_wanted=is_wanted)
    not_before = _visible_at(flight, state, context) if next_call == "Lookup" else context.now
    # A wait for a call, or one that an operator ended, may be too short for a lookup.
    retry_at = flight.retry_at
    if retry_at is None or (context.now < not_before and retry_at < not_before - _ROUNDING):
        retry = Retry() if config is None else config.retry
        left = (not_before - context.now).total_seconds()
        at_least = max(flight.failed.retry_after_seconds or 0.0, left)
        return _wait(
            retry, state.waits.failures, context, flight.failed.error_class, at_least, flight
        )
    if is_over(retry_at, flight.retry_seconds, context.now):
        if next_call == "Repeat":
            return ActionRetried(action, flight.attempt + 1)
        return LookupDecided(action, flight.attempt + 1, _known_uids(action, state, context))
    return _report_in_flight(flight, state)


def _visible_at(flight: InFlight, state: ResourceState, context: Context) -> datetime:
    """Return when a lookup sees what the last attempt did, or now if that time has come."""
    assert flight.failed_at is not None
    grace = min(context.grace_seconds(flight.action.provider_config, state), MAX_SECONDS)
    visible_at = flight.failed_at + timedelta(seconds=grace)
    return context.now if is_over(visible_at, grace, context.now) else visible_at


def _known_uids(action: Action, state: ResourceState, context: Context) -> tuple[str, ...]:
    """Return the uids of objects of the name of a creation that it cannot have created.

    Each may still carry our owner label, so a lookup would take it for the result.
    """
    if action.operation != "Create" or context.capabilities.deterministic_names:
        return ()
    uids = [each.uid for each in (state.owned, state.retiring) if each is not None]
    return tuple(uid for uid in (*uids, state.observed.released_uid) if uid is not None)


def is_paused(state: ResourceState) -> bool:
    """Return whether the declaration asks for no action."""
    desired = state.desired
    return desired.is_declared and desired.spec is not None and desired.spec.policy.paused


def is_refused(state: ResourceState) -> bool:
    """Return whether the last failure was for good."""
    failure = state.waits.failure
    return failure is not None and failure.error_class == "Refused"


def rejection(state: ResourceState) -> Conclusion | None:
    """Return how a resource stands whose newest generation the API has rejected."""
    if state.desired.refused_generation != state.desired.generation:
        return None
    failure = state.waits.failure
    message = "" if failure is None else failure.message
    return Conclusion("Failed", "Refused", message or "the API rejected this generation")


def choose_next_call(
    flight: InFlight, context: Context, *, may_repeat: bool = True, is_wanted: bool = True
) -> NextCall:
    """Choose between calling again and looking, after an attempt that did not succeed."""
    assert flight.failed is not None
    if not may_repeat:
        return "Lookup"
    is_safe = is_safe_to_repeat(flight.action, context.capabilities)
    if flight.failed == NOT_DONE:
        return "Repeat"
    if flight.failed == CHECKED_NOT_DONE:
        # Where names are not unique, a second call makes a second object: what an operator has
        # labeled is looked up first.
        return "Repeat" if is_safe else "Lookup"
    if not is_safe:
        return "Lookup" if flight.unknown_results or not is_wanted else "Repeat"
    if flight.is_lookup:
        return "Repeat"  # the lookup failed: perhaps only reads do
    error_class = flight.failed.error_class
    # A refusal of this attempt ends the action as soon as nothing is known of the earlier ones.
    if error_class == "Refused" or (error_class != "Unknown" and not is_wanted):
        return "Lookup"
    return "Lookup" if flight.unknown_results >= MAX_REPEATS else "Repeat"


def is_safe_to_repeat(action: Action, capabilities: Capabilities) -> bool:
    """Return whether a second call does no harm, whatever the first one did."""
    if action.operation != "Create":
        return True  # it writes the same content, to the same uid and version where there are any
    return capabilities.idempotency_keys or capabilities.deterministic_names


def _abandon(flight: InFlight, reason: str) -> ActionAbandoned:
    in_doubt = flight.effect.may_arrive or flight.failed is None
    action = flight.action
    return ActionAbandoned(action.action_id, action.operation, reason, in_doubt=in_doubt)


def _report_in_flight(flight: InFlight, state: ResourceState) -> Conclusion | NothingToReport:
    """Return the last failure as an outcome while the action runs or waits; none without one."""
    failure = state.waits.failure
    if failure is None or (state.waits.failures == 0 and failure.attempted):
        return NOTHING_TO_REPORT
    action_id = flight.action.action_id
    return Conclusion("Degraded", failure.error_class, failure.message, action_id)


# --- waits


def has_waited(state: ResourceState, context: Context) -> bool:
    """Return whether the resource has waited as long as it should."""
    waits = state.waits
    return waits.until is not None and is_over(waits.until, waits.seconds, context.now)


def wait_after_conflicts(situation: Situation) -> RetryScheduled | None:
    """Let a resource wait whose knowledge is out of date again and again: no hot loop."""
    state, context = situation.state, situation.context
    conflicts = state.waits.conflicts - MAX_CONFLICTS
    if conflicts <= 0 or has_waited(state, context):
        return None
    return _wait(situation.config.retry, conflicts, context, "Conflict")


def retry_refused_deletion(
    situation: Situation, reason: str, purpose: Purpose = "Converge"
) -> Step:
    """A deletion that the API refuses for good is tried again at the longest interval."""
    state, context = situation.state, situation.context
    if has_waited(state, context):
        return new_action(state, context, "Delete", {}, {}, purpose=purpose)
    return wait_longest(situation.config.retry, context, reason)


def wait_longest(retry: Retry, context: Context, reason: str) -> RetryScheduled:
    """Let a resource wait for the longest interval: only time or a person can mend it."""
    return _wait(replace(retry, initial_seconds=retry.max_seconds), 1, context, reason)


def _wait(
    retry: Retry,
    failures: int,
    context: Context,
    reason: str,
    at_least: float | None = None,
    flight: InFlight | None = None,
) -> RetryScheduled:
    wait = delay(retry, failures, context.jitter, at_least)
    action_id = None if flight is None else flight.action.action_id
    return RetryScheduled(context.now + wait, round(wait.total_seconds(), 3), reason, action_id)


# --- what came of it


Finding = FoundBy | Literal["NotDone", "Gone", "Another", "Unclear"]
"""What a lookup says of an action: done (and how that is known), not done, gone, in the way of
another object, or nothing that can be told."""


def judge_lookup(action: Action, existing: ExternalObject | None, context: Context) -> Finding:
    """Return what came of an action from what is there now."""
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
    """Return whether what stands in the way of a write is what its own earlier attempt did.

    `uncertain`: there may have been one. An API that keeps keys would have given the first answer
    again: there an object counts only by our label, and only if some creation of ours ended in the
    unknown.
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
    capabilities = context.capabilities
    if existing is None:
        is_findable = capabilities.deterministic_names or capabilities.labels
        return "NotDone" if is_findable else "Unclear"
    if existing.written_by == action.idempotency_key:
        return "Key"
    label = existing.labels.get(OWNER_LABEL)
    if label is not None:
        if label == context.owner:
            return "Label"
        # Where two may have one name, ours may stand beside it.
        return "Another" if context.capabilities.deterministic_names else "Unclear"
    # Nobody claims it: somebody may have taken our label off. Its content tells nothing, since
    # anybody may have changed it since, and a stranger can want the same.
    return "Unclear"


def _judge_update(action: Action, existing: ExternalObject | None, context: Context) -> Finding:
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
