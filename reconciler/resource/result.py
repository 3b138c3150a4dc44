"""What a worker's report adds to the history: how an attempt at an action, or a lookup, ended."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import assert_never

from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ActionError, Reported
from events.log import (
    Action,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionSucceeded,
    Effect,
    FoundBy,
    ResourceEvent,
)
from reconciler.resource.approval import approval_command
from reconciler.resource.attempt import judge_conflict, judge_lookup
from reconciler.resource.backoff import MAX_SECONDS
from reconciler.resource.next_step import would_claim
from reconciler.resource.observation import is_unconfirmed
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.state import Ended, InFlight, ResourceState
from reconciler.resource.turn import Command, Context, Facts


def report(said: Reported, command: Command, state: ResourceState, context: Context) -> Facts:
    """Record the result of an attempt.

    A success of any attempt ends the action. A failure counts only for the attempt that runs, so
    an attempt that has failed does not fail again.
    """
    flight = state.actions.in_flight
    if flight is None or flight.action.action_id != said.action_id:
        late = _late_successes(said, command, state, context)
        return Facts((*late, *_doubts(said, _open_to_doubt(state, context))))
    action = flight.action
    early = _error_if_too_early(said, action, command, state, context)
    if early is not None:
        said = replace(said, error=early, absent=False)
    if said.error is None and not said.is_lookup:
        done = _success(said, action, redelivered=_may_be_made_twice(said, action, context))
        shown = None if said.object is None else said.object.uid
        # A write may have met an object that took the place of ours after we had read it.
        met_another = None not in (action.uid, shown) and action.uid != shown
        done = _with_doubt(done, command, state, context)
        return Facts((_dated(done, action, command, state, context),), shows_object=met_another)
    if said.attempt != flight.attempt or flight.failed is not None or flight.is_held:
        return Facts(tuple(_doubts(said, (flight,))))
    if said.error is None:
        ended = _after_lookup(said, flight, state, context)
    else:
        ended = _after_failure(said, said.error, flight, state, context)
    return Facts(
        (_dated(ended, action, command, state, context),), shows_object=_shows_object(ended)
    )


def _error_if_too_early(
    said: Reported, action: Action, command: Command, state: ResourceState, context: Context
) -> ActionError | None:
    """Return the error of a call that met nothing, while the API may not show our last write.

    It would be taken for the proof that the object is gone, and another one be created beside it.
    Lookups wait for the grace before they begin.
    """
    has_met_nothing = said.absent if said.error is None else said.error.error_class == "NotFound"
    written_at, stored_at = state.actions.effect_at, command.stored_at
    if said.is_lookup or not has_met_nothing or written_at is None or stored_at is None:
        return None
    grace = min(context.grace_seconds(action.provider_config, state), MAX_SECONDS)
    took = max(said.finished_at - said.started_at, timedelta())
    left = grace - (stored_at - took - written_at).total_seconds()
    if not grace or left <= 0:
        return None
    why = (
        "the API reported that the object does not exist; it may not show the last write yet "
        f"(consistencyGraceSeconds: {grace:g})"
    )
    return ActionError("NotDone", why, retry_after_seconds=round(left, 3))


def _shows_object(ended: ResourceEvent) -> bool:
    """A conflict is an observation too, if it shows what stands in the way."""
    if not isinstance(ended, ActionFailed):
        return False
    error_class = ended.error.error_class
    return error_class == "NotFound" or (error_class == "Conflict" and ended.object is not None)


def _success(
    said: Reported, action: Action, *, found_by: FoundBy | None = None, redelivered: bool = False
) -> ActionSucceeded:
    if said.absent and found_by is None:
        found_by = "Absence"  # the call itself had no effect: who had is not known
    return ActionSucceeded(
        said.action_id,
        action.operation,
        said.attempt,
        said.object,
        said.replayed,
        found_by=found_by,
        redelivered=redelivered,
        purpose=action.purpose,
        external_name=action.external_name if action.purpose == "Replace" else "",
    )


def _with_doubt(
    event: ResourceEvent, command: Command, state: ResourceState, context: Context
) -> ResourceEvent:
    """Add to a deletion that found nothing whether another object may be the one that we made."""
    if not isinstance(event, ActionSucceeded) or event.purpose == "Retire":
        return event
    has_met_nothing = event.operation == "Delete" and event.found_by == "Absence"
    is_unclear = has_met_nothing and is_unconfirmed(command, state, context)
    return replace(event, unconfirmed=True) if is_unclear else event


def _dated(
    event: ResourceEvent, action: Action, command: Command, state: ResourceState, context: Context
) -> ResourceEvent:
    """Add when the report came, where a grace is counted from then."""
    is_end = isinstance(event, (ActionSucceeded, ActionFailed))
    if not is_end or not context.grace_seconds(action.provider_config, state):
        return event
    return replace(event, reported_at=command.stored_at)


# --- of an action that has ended


def _late_successes(
    said: Reported, command: Command, state: ResourceState, context: Context
) -> Iterable[ResourceEvent]:
    """Record that an action which was taken for failed, or given up, was done all the same.

    Every effect that the API saw is explained, if it changes nothing else any more (invariant 13).
    """
    if said.error is not None or said.is_lookup:
        return
    for ended in state.actions.ended:
        if ended.action.action_id == said.action_id and _is_news(said, ended, command):
            outdated = not _still_counts(said, ended, state)
            done = replace(_success(said, ended.action), late=True, outdated=outdated)
            yield _dated(_with_place(done, ended.action), ended.action, command, state, context)


def _with_place(done: ActionSucceeded, action: Action) -> ActionSucceeded:
    """Add where a creation was made: of a resource that was gone, no event since has said it."""
    if action.operation != "Create":
        return done
    place = (action.provider_config, action.external_name)
    return replace(done, provider_config=place[0], external_name=place[1])


def _is_news(said: Reported, ended: Ended, command: Command) -> bool:
    """Return whether the log does not record this success yet."""
    if ended.action.operation == "Create" and ended.known_by:
        # Another delivery has created a second object: the first was deleted meanwhile.
        uid = None if said.object is None else said.object.uid
        return uid is not None and uid not in ended.made
    return not ended.reported_late and ended.known_by != command.message_id


def _doubts(said: Reported, known: tuple[InFlight | Ended, ...]) -> Iterable[ResourceEvent]:
    """Record that a call which nobody waits for may have been done, unless that is known."""
    if said.error is None or said.error.error_class != "Unknown" or said.is_lookup:
        return
    for each in known:
        is_known = each.effect.may_arrive if isinstance(each, InFlight) else each.in_doubt
        if each.action.action_id == said.action_id and not is_known:
            operation, message = each.action.operation, said.error.message
            yield ActionDoubted(said.action_id, operation, said.attempt, message)


def _open_to_doubt(state: ResourceState, context: Context) -> tuple[Ended, ...]:
    """Return the ended actions of which another call may have an effect of its own."""
    if not context.capabilities.idempotency_keys:
        return state.actions.ended
    # By its key, another call of a creation gets the answer of the first.
    return tuple(
        each
        for each in state.actions.ended
        if each.action.operation != "Create" or not (each.known_by or each.made)
    )


def _still_counts(said: Reported, ended: Ended, state: ResourceState) -> bool:
    """Return whether a success that is reported late says how the object stands now.

    While another action is under way, it may have changed what was made or written. What was
    deleted stays so: a uid is given once.
    """
    action = ended.action
    owned = state.retiring if action.purpose == "Retire" else state.owned
    is_idle = state.actions.in_flight is None
    stands_beside = action.purpose == "Replace" and not ended.known_by
    if ended.known_by and action.operation != "Create":
        return False
    is_its_object = owned is not None and (owned.provider_config, owned.external_name) == (
        action.provider_config,
        action.external_name,
    )
    uid = action.uid if said.object is None else said.object.uid
    same_uid = owned is not None and uid is not None and owned.uid == uid
    match action.operation:
        case "Create" if uid in ended.made:
            return False  # a listing has shown it first, and it may be gone by now
        case "Create" if state.actions.disowned.get(uid or "", 0) > ended.version:
            # It was ours without its report, and is not since. Where an id is made of the name,
            # the call may have come after that: a later listing shows whether the object exists.
            return False
        case "Create":
            return is_idle and (owned is None or (stands_beside and state.retiring is None))
        case "Update":
            return is_idle and is_its_object and same_uid
        case "Delete":
            return is_its_object and same_uid


# --- of the action in flight


def _may_be_made_twice(said: Reported, action: Action, context: Context) -> bool:
    """Return whether another worker's call may still do something; a creation's key forbids it."""
    has_keys = context.capabilities.idempotency_keys
    return said.redelivered and (action.operation != "Create" or not has_keys)


def _after_lookup(
    said: Reported, flight: InFlight, state: ResourceState, context: Context
) -> ResourceEvent:
    """Settle an action by what a lookup found of it."""
    action = flight.action
    failed = ActionFailed(
        said.action_id,
        action.operation,
        said.attempt,
        ActionError("Conflict", "a read after an unknown result found a different object"),
        said.object,
        purpose=action.purpose,
    )
    finding = judge_lookup(action, said.object, context)
    if said.labeled_uids or _is_what_is_replaced(action, said.object, state):
        finding = "Unclear"  # of two of one name it was the old one
    match finding:
        case "NotDone":
            return ActionNotDone(said.action_id, action.operation, said.attempt)
        case "Unclear":
            if not context.capabilities.idempotency_keys:
                if said.labeled_uids:
                    question = _question_of_several(said, context)
                    return ActionHeld(said.action_id, question, said.object)
                held = _held_unless_claimed(failed, flight, state, context)
                if flight.effect is Effect.CHECKED and isinstance(held, ActionHeld):
                    return ActionNotDone(said.action_id, action.operation, said.attempt)
                return held
            error = ActionError(
                "Unknown",
                "a read cannot show whether the call took effect; a retry with the same key can",
            )
            return replace(failed, error=error, object=None)
        case "Gone":
            error = ActionError("NotFound", "a read after an unknown result found no object")
            return replace(failed, error=error, object=None)
        case "Another":
            return failed
        case "Label" | "Key" | "Content" | "Absence":
            return _found(said, action, finding)
        case _:
            assert_never(finding)


def _is_what_is_replaced(
    action: Action, found: ExternalObject | None, state: ResourceState
) -> bool:
    known = {each.uid for each in (state.owned, state.retiring) if each is not None}
    is_beside = action.operation == "Create" and action.purpose == "Replace"
    return is_beside and found is not None and found.uid is not None and found.uid in known


def _after_failure(
    said: Reported, error: ActionError, flight: InFlight, state: ResourceState, context: Context
) -> ResourceEvent:
    """Settle a failed attempt: what stands in the way of a creation may be its own work."""
    action = flight.action
    redelivered = not said.is_lookup and _may_earlier_call_arrive(said, action, context)
    # With keys, what the other worker's call has done would have been the answer to this one.
    may_be_done = redelivered and not context.capabilities.idempotency_keys
    failed = ActionFailed(
        said.action_id,
        action.operation,
        said.attempt,
        error,
        said.object,
        redelivered=redelivered,
        purpose=action.purpose,
    )
    if error.error_class == "Refused" and _is_its_beginning(said.object, action, context):
        return replace(_success(said, action, redelivered=may_be_done), refused=error)
    if error.error_class != "Conflict":
        return failed
    if said.object is None and not said.replayed and (flight.unknown or said.redelivered):
        # It may have been our own object, or our own call may still run: a repeat or lookup tells.
        return replace(failed, error=replace(error, error_class="Unknown"))
    uncertain = flight.effect.may_exist or state.actions.uncertain_create or may_be_done
    finding = judge_conflict(action, said.object, context, uncertain=uncertain)
    if finding == "Unclear":
        return _held_unless_claimed(failed, flight, state, context)
    if finding in ("Label", "Key", "Content"):
        return _found(said, action, finding)
    return failed


def _is_its_beginning(found: ExternalObject | None, action: Action, context: Context) -> bool:
    """Return whether a creation of several calls, one of which was refused, has made this."""
    is_creation = action.operation == "Create" and found is not None
    return is_creation and judge_lookup(action, found, context) in ("Key", "Label")


def _may_earlier_call_arrive(said: Reported, action: Action, context: Context) -> bool:
    """Return whether the call of a worker that had the attempt before may take effect yet.

    Only a refusal that the API has kept under the key of a creation settles that call as well.
    """
    is_kept = said.replayed and context.capabilities.idempotency_keys
    return said.redelivered and not (is_kept and action.operation == "Create")


def _found(said: Reported, action: Action, found_by: FoundBy) -> ActionSucceeded:
    return ActionSucceeded(
        said.action_id,
        action.operation,
        said.attempt,
        said.object,
        found_by=found_by,
        purpose=action.purpose,
        external_name=action.external_name if action.purpose == "Replace" else "",
    )


def _held_unless_claimed(
    failed: ActionFailed, flight: InFlight, state: ResourceState, context: Context
) -> ResourceEvent:
    """Ask a person whose an object is, unless it becomes ours whoever made it."""
    found, place = failed.object, flight.action.provider_config
    if found is not None and would_claim(found, place, state, context):
        return failed
    return ActionHeld(failed.action_id, _question(found, context), found)


def _question_of_several(said: Reported, context: Context) -> str:
    """Describe which objects a creation may have made, where each carries its owner label.

    Each of them claims to be ours. If the wrong one were taken, the other would leak.
    """
    uids = ", ".join(said.labeled_uids)
    label = f"{OWNER_LABEL}={context.owner}"
    return (
        f"several objects have the label {label} (uids {uids}), and at most one of them is the "
        "result of this action: another client has copied the label. Check the objects. Leave the "
        f"label on the one that this action created, and remove the label {OWNER_LABEL} from the "
        f"others. Then repeat the action: {approval_command(context.key)}"
    )


def _question(found: ExternalObject | None, context: Context) -> str:
    """Describe what cannot be told, and what to do about it."""
    approve = approval_command(context.key)
    if found is None:
        return (
            "the result of the call is unknown: the API stores neither idempotency keys nor owner "
            "labels. Check the API. If the call did not take effect, repeat it: "
            f"{approve}. If it did, withdraw the resource, and then end the action without "
            f"another call: {approval_command(context.key, abandon=True)}. If the "
            "resource stays declared, Reconciler creates an object again"
        )
    if not context.capabilities.labels:
        return (
            f"{found.name!r} (uid {found.uid}) may have been created by this action or by "
            "another client: the API stores neither idempotency keys nor owner labels. Check "
            "the object. If it is yours, declare the resource with spec.policy.adoption: Adopt. "
            f"Then repeat the action: {approve}"
        )
    return (
        f"{found.name!r} (uid {found.uid}) may have been created by this action or by another "
        "client: the API stores no idempotency keys, and the object has no owner label. Check "
        f"the object. If it is yours, add the label {OWNER_LABEL}={context.owner}. Then "
        f"repeat the action: {approve}"
    )
