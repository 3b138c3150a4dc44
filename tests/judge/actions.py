"""Rules about actions: their intent, their key, their effects and their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from events.intake import Reported
from events.log import (
    Action,
    ActionDecided,
    ActionHeld,
    ActionRetried,
    DriftDetected,
    LookupDecided,
    Operation,
)
from tests.judge.history import Call, Effect, Recorded
from tests.judge.ledger import Ledger, Resource
from tests.judge.rule import Breach, at_end, on_call, on_effect, on_event

_LATER_CALL = "/"
_UNFINISHED = ("under way", "failed", "not done")

# --- what is decided


@on_event()
def frozen(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An action keeps its key and its parameters, and shares its key with none (invariant 3)."""
    event = recorded.event
    match event.data:
        case ActionDecided(action):
            if action.idempotency_key in ledger.by_key:
                yield event.key, f"{event.id} uses a key again"
            if action.action_id != event.id:
                yield event.key, f"{event.id}: the action is called {action.action_id}"
        case ActionRetried(action) | LookupDecided(action):
            first = ledger.actions.get(action.action_id)
            if first is None or first.action != action:
                yield event.key, f"{event.id} changed the parameters of {action.action_id}"
        case _:
            pass


@on_event()
def one_at_a_time(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A resource has at most one action in flight (invariant 2)."""
    event, flight = recorded.event, resource.in_flight
    if isinstance(event.data, ActionDecided) and flight is not None:
        yield event.key, f"{event.id} was decided while {flight.action.action_id} is in flight"


@on_event("effects")
def blamed(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A deletion of our own is never recorded as a change by another client (invariant 13)."""
    event = recorded.event
    if not isinstance(event.data, DriftDetected) or not event.data.missing:
        return
    uid = None if resource.owned is None else resource.owned.uid
    if uid is None or event.data.perhaps_by:
        return
    for effect in ledger.effects:
        if effect.key is not None and (effect.operation, effect.uid) == ("Delete", uid):
            yield event.key, f"{event.id}: {uid} was deleted under the key {effect.key}"


@on_event("truth")
def held(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A person decides only about a result that nothing else can tell (invariant 13)."""
    event, truth = recorded.event, ledger.history.truth
    if not isinstance(event.data, ActionHeld) or truth is None:
        return
    if ledger.history.promises.idempotency_keys:
        yield event.key, f"{event.id}: held for a person, though its key tells the result"
    elif truth.shows_result(event.key, event.data.object):
        yield event.key, f"{event.id}: held for a person, though {event.data.object} tells it"


# --- what the API receives


@on_call()
def intent_of_call(ledger: Ledger, call: Call) -> Iterator[Breach]:
    """The log has an action, with these parameters, before the API is called (invariants 2, 3)."""
    action = call.action
    decided = ledger.actions.get(action.action_id)
    if decided is None or decided.action != action:
        yield action.external_name, f"{action.operation}: no such intent in the log"
    if ledger.sent.get(action.idempotency_key, action) != action:
        yield action.external_name, f"{action.action_id}: its key came with other parameters before"


@on_effect()
def intent(ledger: Ledger, effect: Effect) -> Iterator[Breach]:
    """An effect has its decision in the log before it, of this object (invariant 2)."""
    what = f"{effect.operation} of {effect.uid}"
    if effect.key is None:
        by_hand = ledger.history.by_hand
        if by_hand is not None and effect.name not in by_hand:
            yield effect.name, f"{what} has no idempotency key"
        return
    decided = ledger.action_of(effect.key)
    if decided is None:
        yield effect.name, f"{what} was not decided before: the log has no key {effect.key}"
        return
    action = decided.action
    is_later_call = _LATER_CALL in effect.key and effect.operation == "Update"
    is_its_call = is_later_call or action.operation == effect.operation
    if not is_its_call or action.external_name != effect.name:
        yield effect.name, f"{what}: {_told(action)} was decided under its key"


@on_effect()
def duplicate_effect(ledger: Ledger, effect: Effect) -> Iterator[Breach]:
    """A key has one effect; the later call of an action comes after its first (invariant 3)."""
    decided = ledger.action_of(effect.key)
    if effect.key is None or decided is None:
        return
    if ledger.history.promises.idempotency_keys and effect.key in decided.effects:
        yield effect.name, f"{decided.action.action_id}: a second effect under {effect.key}"
    if _LATER_CALL in effect.key and decided.action.idempotency_key not in decided.effects:
        yield effect.name, f"{decided.action.action_id}: its later call came before its first"


@at_end("effects", "objects")
def duplicate_object(ledger: Ledger) -> Iterator[Breach]:
    """A resource has one object in the API, even after a replacement (invariants 2, 3).

    An API without unique names and keys cannot be asked for that: there a leak is one that the log
    does not own.
    """
    promises = ledger.history.promises
    if not (promises.idempotency_keys and promises.unique_names):
        return
    owners = Counter(decided.key for _, decided in ledger.live() if decided is not None)
    for key, count in owners.items():
        resource = ledger.resource(key)
        if count > 1 and resource.retiring is None and key not in ledger.history.damaged:
            yield key, f"{count} objects exist for one resource"


# --- how it ends


@at_end("effects")
def unexplained(ledger: Ledger) -> Iterator[Breach]:
    """The log records every effect as done, or its result as unknown (invariant 13).

    The result of an action that has not ended is unknown by that.
    """
    for effect in ledger.effects:
        decided = ledger.action_of(effect.key)
        if decided is None or decided.key in ledger.history.damaged:
            continue
        if decided.has_ended and not decided.may_be_done:
            text = f"{effect.operation} of {effect.uid}: by the log it had no effect"
            yield decided.key, f"{decided.action.action_id}: {text}"


@at_end("messages")
def unrecorded_success(ledger: Ledger) -> Iterator[Breach]:
    """The log records every success that a worker reported (invariants 11, 13)."""
    for message in (ledger.history.messages or {}).values():
        told = message.data
        if not isinstance(told, Reported) or told.error is not None or told.is_lookup:
            continue
        decided = ledger.actions.get(told.action_id)
        if decided is None or decided.has_succeeded or decided.key in ledger.history.damaged:
            continue
        yield decided.key, f"{told.action_id}: it was reported as done, the log does not record it"


@at_end()
def unended(ledger: Ledger) -> Iterator[Breach]:
    """A decided action has an end, or its next attempt is scheduled (invariant 11).

    At a final rest nothing may be scheduled or held any more; a paused resource keeps its action.
    """
    history = ledger.history
    for action_id, decided in ledger.actions.items():
        if decided.has_ended or decided.key in history.damaged:
            continue
        is_waiting = decided.progress not in _UNFINISHED
        if ledger.resource(decided.key).is_paused if history.is_final else is_waiting:
            continue
        yield decided.key, f"action {action_id} is {decided.progress}, and nothing follows"


_NOUNS: Mapping[Operation, str] = {"Create": "creation", "Update": "update", "Delete": "deletion"}


def _told(action: Action) -> str:
    return f"the {_NOUNS[action.operation]} of {action.external_name}"
