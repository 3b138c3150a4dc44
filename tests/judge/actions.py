"""Rules about actions: their intent, key, effects and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from events.intake import Reported
from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionHeld,
    ActionRetried,
    LookupDecided,
)
from reconciler.resource.attempt import OPERATOR_ABANDONED
from tests.judge.history import Call, Effect
from tests.judge.ledger import DecidedAction, Ledger, has_rival
from tests.judge.rule import Breach, JudgedEvent, on, rule

_CALL_SEPARATOR = "/"
_UNFINISHED_PROGRESS = ("under way", "failed", "not done")

# --- decisions


@on(ActionDecided, ActionRetried, LookupDecided)
def changed_action(
    context: JudgedEvent[ActionDecided | ActionRetried | LookupDecided],
) -> Iterator[str]:
    """An action keeps its key and parameters, and shares its key with no other (invariant 3)."""
    action = context.data.action
    first = context.ledger.actions.get(action.action_id)
    if not isinstance(context.data, ActionDecided):
        if first is None or first.action != action:
            yield f"the parameters of {action.action_id} changed"
        return
    if action.idempotency_key in context.ledger.by_key:
        yield f"the key {action.idempotency_key} is reused"
    if action.action_id != context.event.id:
        yield f"the action's id is {action.action_id}"


@on(ActionDecided)
def parallel_action(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """A resource has at most one action in flight (invariant 2)."""
    if context.resource.in_flight is not None:
        yield f"decided while {context.resource.in_flight.action.action_id} is in flight"


@on(ActionHeld, needs=("truth",))
def needless_hold(context: JudgedEvent[ActionHeld]) -> Iterator[str]:
    """A person is asked only about a result that cannot be determined otherwise (invariant 13).

    A creation is not repeated with the name of another resource, so its key shows nothing.
    """
    if has_rival(context.ledger, context.resource, only_now=False):
        return
    if context.ledger.history.promises.idempotency_keys:
        yield "held for a person, though its key determines the result"
    elif context.truth.shows_result(context.event.key, context.data.object):
        yield f"held for a person, though {context.data.object} shows the result"


@on(ActionRetried)
def outdated_call(context: JudgedEvent[ActionRetried]) -> Iterator[str]:
    """A refused call is not repeated after a newer declaration (invariant 4)."""
    decided = context.ledger.actions.get(context.data.action.action_id)
    if decided is None or decided.is_open or decided.is_checked:
        return
    if decided.action.generation != context.resource.generation:
        yield f"{decided.action.action_id} is repeated for generation {decided.action.generation}"


@on(ActionAbandoned)
def abandoned_in_doubt(context: JudgedEvent[ActionAbandoned]) -> Iterator[str]:
    """Before a lookup, only a person ends an action that may be done (invariants 2, 13).

    A forced release records its end first. A lookup that finds the object of another resource under
    the name ends the action of a withdrawn one.
    """
    decided = context.ledger.actions.get(context.data.action_id)
    if context.data.reason == OPERATOR_ABANDONED or (decided and decided.found_other_owner):
        return
    if decided is not None and decided.is_open and not decided.is_given_up:
        yield f"{context.data.action_id} may have been done, and no lookup was made"


# --- calls and effects


@rule("call")
def call_without_intent(ledger: Ledger, call: Call) -> Iterator[str]:
    """The log has an action, with these parameters, before the API is called (invariants 2, 3)."""
    decided = ledger.actions.get(call.action.action_id)
    if decided is None or decided.action != call.action:
        yield f"{call.action.operation}: no such intent in the log"
    if ledger.sent.get(call.action.idempotency_key, call.action) != call.action:
        yield "its key was previously used with different parameters"


@rule("effect", "effects")
def effect_without_intent(ledger: Ledger, effect: Effect) -> Iterator[str]:
    """The log has the decision for an effect on this object before the effect (invariant 2)."""
    what, decided = f"{effect.operation} of {effect.uid}", ledger.action_of(effect.key)
    if effect.key is None:
        by_hand = ledger.history.by_hand
        if by_hand is not None and effect.name not in by_hand:
            yield f"{what} has no idempotency key"
    elif decided is None:
        yield f"{what} was not decided: the log does not contain key {effect.key}"
    else:
        action, is_later_call = decided.action, _CALL_SEPARATOR in effect.key
        operation = "Update" if is_later_call else action.operation
        if (effect.operation, effect.name) != (operation, action.external_name):
            yield f"{what}: {action.operation} of {action.external_name} was decided"


@rule("effect", "effects")
def duplicate_effect(ledger: Ledger, effect: Effect) -> Iterator[str]:
    """A key has one effect, and an action's later call comes after its first (invariant 3)."""
    decided = ledger.action_of(effect.key)
    if effect.key is None or decided is None:
        return
    if ledger.history.promises.idempotency_keys and effect.key in decided.effects:
        yield f"{decided.action.action_id}: a second effect under {effect.key}"
    if _CALL_SEPARATOR in effect.key and decided.action.idempotency_key not in decided.effects:
        yield f"{decided.action.action_id}: its later call came before its first"


@rule("end", "effects", "objects")
def duplicate_object(ledger: Ledger) -> Iterator[Breach]:
    """A resource has one object in the API, even after a replacement (invariants 2, 3).

    An object that the log has deliberately released belongs to no resource. During a
    replacement, the new object exists alongside the old one; `unfinished_action` judges its end.

    An API without unique names and keys cannot guarantee this; there, an object that the log does
    not own is a leak.
    """
    promises = ledger.history.promises
    if not (promises.idempotency_keys and promises.unique_names):
        return
    owners = Counter(
        decided.key
        for existing, decided in ledger.live()
        if decided is not None
        and existing.uid in ledger.ours
        and not _is_replacing(ledger, decided)
    )
    for key, count in owners.items():
        resource = ledger.resource(key)
        if count > 1 and resource.retiring is None and key not in ledger.history.damaged:
            yield key, f"{count} objects exist for one resource"


def _is_replacing(ledger: Ledger, decided: DecidedAction) -> bool:
    is_in_flight = decided is ledger.resource(decided.key).in_flight
    return is_in_flight and decided.action.purpose == "Replace"


# --- ends


@rule("end", "effects")
def unexplained_effect(ledger: Ledger) -> Iterator[Breach]:
    """The log records every effect as done, or its result as unknown (invariant 13).

    The result of an unfinished action is unknown.
    """
    for effect in ledger.effects:
        decided = ledger.action_of(effect.key)
        if decided is None or decided.key in ledger.history.damaged:
            continue
        if decided.has_ended and not decided.may_be_done:
            text = f"{effect.operation} of {effect.uid}: according to the log it had no effect"
            yield decided.key, f"{decided.action.action_id}: {text}"


@rule("end", "messages")
def unrecorded_success(ledger: Ledger) -> Iterator[Breach]:
    """The log records every success and object that a worker reported (invariants 11, 13)."""
    for message in (ledger.history.messages or {}).values():
        report = message.data
        if not isinstance(report, Reported) or report.error is not None or report.is_lookup:
            continue
        decided = ledger.actions.get(report.action_id)
        if decided is None or decided.key in ledger.history.damaged:
            continue
        if report.absent:
            continue  # it found nothing, which the aggregate ignores within the grace period
        uid = None if report.object is None else report.object.uid
        if not decided.has_succeeded:
            text = "it was reported as done, but the log does not record it"
            yield decided.key, f"{report.action_id}: {text}"
        elif decided.action.operation == "Create" and uid not in {None, *decided.created}:
            text = f"it was reported to have created {uid}, but the log does not record it"
            yield decided.key, f"{report.action_id}: {text}"


@rule("end")
def unfinished_action(ledger: Ledger) -> Iterator[Breach]:
    """A decided action has an end, or its next attempt is scheduled (invariant 11).

    In a final history, nothing may be scheduled or held. A paused resource keeps its action: an
    attempt with an unknown result is neither repeated nor looked up before the pause ends.
    """
    history = ledger.history
    for action_id, decided in ledger.actions.items():
        if decided.has_ended or decided.key in history.damaged:
            continue
        if decided.action.external_name in {key.name for key in history.damaged}:
            continue  # a damaged resource keeps its name until its history is repaired
        is_waiting = decided.progress not in _UNFINISHED_PROGRESS
        is_paused = ledger.resource(decided.key).is_paused
        if is_paused and (history.is_final or decided.progress == "failed"):
            continue
        if is_waiting and not history.is_final:
            continue
        yield decided.key, f"action {action_id} is {decided.progress}, and no event follows"
