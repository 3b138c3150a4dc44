"""Rules about objects: their ownership, permitted writes, and their absence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from events.external import ExternalObject
from events.log import (
    ActionDecided,
    ActionRetried,
    ActionSucceeded,
    DriftDetected,
    ExternalObserved,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ResourceEvent,
    TwinDetected,
)
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, config_key
from tests.judge.history import Effect
from tests.judge.ledger import OWNER_LABEL, Ledger, Resource
from tests.judge.rule import Breach, JudgedEvent, on, rule

_HOLD_DELAY_SECONDS = 15.0

# --- ownership


@rule("effect", "effects")
def foreign_effect(ledger: Ledger, effect: Effect) -> Iterator[str]:
    """Only an object that is ours is updated or deleted (invariant 7).

    Exceptions: an API without conditional writes, where the object may have been replaced; a call
    in flight when a person gave up its object, or when the object was released while the log
    recorded the call as possibly in flight.
    """
    decided = ledger.action_of(effect.key)
    if effect.operation == "Create" or decided is None or effect.uid in ledger.ours:
        return
    may_arrive = effect.uid in ledger.released and decided.has_ended and decided.in_doubt
    if may_arrive or decided.action.action_id in ledger.given_up:
        return
    if ledger.history.promises.conditional_writes:
        yield f"{decided.action.action_id}: {effect.operation} of {effect.uid}, which is not ours"


@on(OwnershipClaimed)
def unfounded_claim(context: JudgedEvent[OwnershipClaimed]) -> Iterator[str]:
    """An object becomes ours only as the policy or the configuration allows (invariant 7).

    A found object is one that we created, or has our label, which another client may have copied.
    """
    uid, ledger, settings = (
        context.data.uid,
        context.ledger,
        context.settings(context.data.provider_config),
    )
    match context.data.reason:
        case "Adopted":
            is_allowed = context.resource.policy.adoption == "Adopt"
        case "ExclusiveScope":
            is_allowed = any(each.scope.mode == "Exclusive" for each in settings)
        case "Label" | "Prefix" as reason:
            is_allowed = any(each.ownership in (reason, "Strict") for each in settings)
        case "Returned":
            is_allowed = uid in ledger.ours
        case "Moved":
            moved = context.data.moved
            former = (
                None if moved is None else ledger.resources[ResourceKey.parse(moved.moved_from)]
            )
            is_allowed = former is not None and former.owned is None and not former.is_declared
            is_allowed = is_allowed and uid in (None, *ledger.ours)
        case "Found":
            is_known = ledger.history.objects is not None and ledger.history.log_id is not None
            second = context.data.object
            is_marked = is_labeled(ledger, context.resource, second or context.resource.observed)
            if second is not None:  # a label alone may be a copy, on any object
                is_marked = is_marked and _has_created(ledger, context.resource, second.name)
            is_allowed = uid in ledger.creation_keys or is_marked or not is_known
    if uid is not None and not is_allowed:
        yield f"{uid} was claimed as {context.data.reason}"


@on()
def no_owner(context: JudgedEvent[ResourceEvent]) -> Iterator[str]:
    """A moved object always has an owner: its claim follows in the same batch (invariant 7)."""
    for former, new in context.ledger.moving.items():
        if str(context.event.key) not in (str(former), new):
            yield f"{former} released its object, and {new} has not claimed it"


@rule("end")
def no_last_owner(ledger: Ledger) -> Iterator[Breach]:
    """No moved object is left without an owner (invariant 7)."""
    for former, new in ledger.moving.items():
        yield former, f"it released its object, and {new} has not claimed it"


@on(OwnershipClaimed)
def second_owner(context: JudgedEvent[OwnershipClaimed]) -> Iterator[str]:
    """No object has two owners (invariant 7).

    If two resources adopt it at the same time, the first label decides: the other one is disputed.
    """
    uid, key, ledger = context.data.uid, context.event.key, context.ledger
    others = [
        each
        for each in ledger.resources.values()
        if uid is not None and each.owned is not None and each.owned.uid == uid
        if each.key != key and each.key.kind == key.kind
    ]
    is_adopted = context.data.reason in ("Adopted", "ExclusiveScope", "Label", "Prefix")
    if others and uid is not None and is_adopted and ledger.history.promises.labels:
        creation = ledger.action_of(ledger.creation_keys.get(uid))
        others = [each for each in others if creation is not None and creation.key == each.key]
        ledger.adopted_twice |= set() if others else {uid}
    for each in others:
        yield f"{each.key} also owns {uid}"


def _has_created(ledger: Ledger, resource: Resource, name: str) -> bool:
    """Return whether the resource ever decided to create an object with a name."""
    return any(
        (each.key, each.action.operation, each.action.external_name)
        == (resource.key, "Create", name)
        for each in ledger.actions.values()
    )


@on(ActionSucceeded, needs=("effects", "objects"))
def foreign_success(context: JudgedEvent[ActionSucceeded]) -> Iterator[str]:
    """An object that an action is recorded to have created was created by us (invariants 7, 13).

    An object that a lookup found may have a copy of our label.
    """
    uid = None if context.data.object is None else context.data.object.uid
    is_creation = (
        context.data.operation == "Create" and context.data.found_by is None and uid is not None
    )
    is_creation = is_creation and uid not in context.ledger.history.misnamed
    if is_creation and uid not in context.ledger.ours and uid not in context.ledger.creation_keys:
        yield f"{uid} was not created by us"


@on(ActionDecided)
def second_object(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """No object is created while one that its resource released exists (invariants 2, 17)."""
    released, observed_object = context.resource.released, context.resource.observed
    is_there = (
        released is not None and observed_object is not None and observed_object.uid == released.uid
    )
    if context.data.action.operation == "Create" and is_there:
        yield f"created, although {observed_object} was released and still exists"


@on(ActionDecided)
def deletion_of_anothers_object(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """No resource decides to delete an object that another one owns and keeps (invariant 7).

    Not judged: an object that two resources adopted at the same time, before one labels it.
    """
    action = context.data.action
    if action.operation != "Delete" or action.uid in (None, *context.ledger.adopted_twice):
        return
    for other_resource in context.ledger.resources.values():
        is_owner = other_resource.owned is not None and other_resource.owned.uid == action.uid
        flight = other_resource.in_flight
        if other_resource.key == context.resource.key or not is_owner:
            continue
        if flight is None or flight.action.operation != "Delete":
            yield f"{action.uid}, which {other_resource.key} owns"


@on(OwnershipReleased)
def leftover_label(context: JudgedEvent[OwnershipReleased]) -> Iterator[str]:
    """A released object keeps our label only if nothing may be written to it (invariant 7)."""
    resource, policy = context.resource, context.resource.policy
    if context.data.reason != "Orphaned" or context.data.uid is None:
        return
    may_write = not (resource.is_orphaned or policy.paused or policy.mode == "ObserveOnly")
    has_label = is_labeled(context.ledger, resource, resource.observed)
    if may_write and not resource.is_troubled and has_label:
        yield f"{context.data.uid} is released with our label"


def is_labeled(ledger: Ledger, resource: Resource, existing: ExternalObject | None) -> bool:
    """Return whether an object carries the owner label of a resource."""
    label = owner_labels(ledger, resource).items()
    return bool(label) and existing is not None and label <= existing.labels.items()


def owner_labels(ledger: Ledger, resource: Resource) -> dict[str, str]:
    """Return the owner label of a resource (docs/ownership.md); none if the log has no name."""
    log_id = ledger.history.log_id
    return {} if log_id is None else {OWNER_LABEL: f"{log_id}.{resource.key.tokens}"}


@on(DriftDetected, needs=("effects",))
def misattributed_deletion(context: JudgedEvent[DriftDetected]) -> Iterator[str]:
    """A deletion of our own is never recorded as a change by another client (invariant 13)."""
    uid = None if context.resource.owned is None else context.resource.owned.uid
    if uid is None or not context.data.missing or context.data.suspected_action:
        return
    if uid in context.ledger.adopted_twice:
        return
    for effect in context.ledger.effects:
        if effect.key is not None and (effect.operation, effect.uid) == ("Delete", uid):
            yield f"{uid} was deleted under the key {effect.key}"


@rule("effect", "effects", "truth")
def newer_object_overwritten(ledger: Ledger, effect: Effect) -> Iterator[str]:
    """An object that another copy of the log wrote is not overwritten unnoticed (invariant 7).

    An API without conditional writes cannot refuse an update that is based on an older read.
    """
    is_bound = effect.operation == "Update" and ledger.history.promises.conditional_writes
    is_noticed = any(each.has_been_held for each in ledger.resources.values())
    if effect.key is None or not is_bound or is_noticed:
        return
    of_object = (each for each in reversed(ledger.effects) if each.uid == effect.uid)
    previous_effect = next(of_object, None)
    if (
        previous_effect is None
        or previous_effect.after is None
        or not previous_effect.after.labels.get(OWNER_LABEL)
    ):
        return  # the key alone is no evidence: another client has removed the label (ADR 0065)
    written_by = previous_effect.after.written_by
    if previous_effect.key is None and written_by not in (None, *ledger.by_key):
        yield f"{effect.uid} was updated, though {written_by} is not an action of this log"


# --- observations


@on(TwinDetected, needs=("truth",))
def invented_twin(context: JudgedEvent[TwinDetected]) -> Iterator[str]:
    """No object is considered newer than the log if no copy of the log writes (invariant 13)."""
    if not context.truth.has_copies:
        yield f"{context.data.objects[0].action} is reported as missing in the log"


@on(ActionDecided, ActionRetried)
def write_to_a_held_api(context: JudgedEvent[ActionDecided | ActionRetried]) -> Iterator[str]:
    """Nothing is written to an API while it has objects that are newer than the log (invariant 7).

    A decider may have read the log shortly before. Its clock may be wrong, so the time of the
    message that it processed counts.
    """
    config = context.ledger.resources.get(config_key(context.data.action.provider_config))
    if config is None or config.held_by is None:
        return
    held = context.ledger.history.message(config.held_by.causationposition)
    cause = context.ledger.history.message(context.event.causationposition)
    if held is None or cause is None:
        is_late = context.event.time > config.held_by.time + timedelta(seconds=_HOLD_DELAY_SECONDS)
    else:
        is_late = cause.stored_at > held.stored_at + _HOLD_DELAY_SECONDS
    if is_late:
        yield f"{context.data.action.action_id} was started while its API is held"


@on(ExternalObserved)
def late_observation(context: JudgedEvent[ExternalObserved]) -> Iterator[str]:
    """An observation is accepted only if it began after our last effect (invariant 6)."""
    if context.resource.in_flight is not None:
        yield "an observation was accepted while an action is in flight"
    if context.data.as_of < context.resource.effect_position:
        yield f"as of {context.data.as_of}, before the effect at {context.resource.effect_position}"


@on(ExternalObserved, needs=("messages",))
def observation_within_grace(context: JudgedEvent[ExternalObserved]) -> Iterator[str]:
    """An observation is accepted only after the grace period of a lagging API (invariant 6)."""
    observed, effect_at = context.ledger.observation(context.event), context.resource.effect_at
    seconds = _grace_of(context.settings(context.data.provider_config))
    if observed is None or observed.began_at is None or effect_at is None or not seconds:
        return
    waited = (observed.began_at - effect_at).total_seconds()
    shown_by = context.ledger.history.message(context.event.causationposition)
    effect_by = context.ledger.history.message(context.resource.effect_position)
    if observed.age_seconds is not None and shown_by is not None and effect_by is not None:
        # In bus time, because the reader's clock may be wrong.
        waited = shown_by.stored_at - observed.age_seconds - effect_by.stored_at
    if waited < seconds:
        yield f"accepted {waited:.2f} s after our effect, grace period {seconds} s"


@on(ExternalObserved, needs=("messages", "truth"))
def false_absence(context: JudgedEvent[ExternalObserved]) -> Iterator[str]:
    """An object that is recorded as missing was missing at some point (invariant 6).

    A listing that omitted it is not the product's fault. An object that another resource is
    deleting, or owns where names are not unique, is not the object of a resource that has none.
    """
    name, owned = context.data.external_name, context.resource.owned or context.resource.observed
    began = context.ledger.history.message(context.data.as_of)
    cause = context.ledger.history.message(context.event.causationposition)
    since = 0.0 if began is None else began.stored_at
    if (
        context.data.object is not None
        or cause is None
        or context.truth.was_hidden_since(name, since)
    ):
        return
    if owned is None and context.data.evidence == "CompleteListing" and _is_of_another(context):
        return
    begin = since - _grace_of(context.settings(context.data.provider_config))
    uid = None if owned is None else owned.uid
    if not context.truth.was_absent_within(name, uid, begin, cause.stored_at):
        yield f"{name} was recorded as missing, but existed the whole time"


def _is_of_another(context: JudgedEvent[ExternalObserved]) -> bool:
    """Return whether the object with the observed name is that of another resource only."""
    location = (context.data.provider_config, context.data.external_name)
    kind = context.event.key.kind
    for each in context.ledger.resources.values():
        if each.key == context.resource.key or each.owned is None:
            continue
        config = "" if each.spec is None else each.spec.provider_config
        is_namesake = (config, each.owned.name) == location and each.key.kind == kind
        if is_namesake and not context.ledger.history.promises.unique_names:
            return True
        if each.in_flight is None or each.is_declared:
            continue
        action = each.in_flight.action
        is_there = (action.provider_config, action.external_name) == location
        if is_there and action.operation == "Delete" and action.uid in (None, each.owned.uid):
            return True
    return False


@on(OutcomeRecorded)
def assumed_absence(context: JudgedEvent[OutcomeRecorded]) -> Iterator[str]:
    """An outcome reports an object as missing only if it was proved since the declaration.

    This includes resources that do not create an object (invariant 6).
    """
    resource, outcome = context.resource, context.data
    reports_absence = outcome.reason == resource.policy.mode and outcome.reason in (
        "Absent",
        "ObserveOnly",
    )
    if not resource.is_declared or not reports_absence or resource.observed is not None:
        return
    if resource.absent_at < resource.position:
        yield f"{outcome.outcome}, {outcome.reason}: no read since the declaration proves it"


def _grace_of(settings: list[ProviderConfigSpec]) -> float:
    return min((each.consistency_grace_seconds for each in settings), default=0.0)


@on(ExternalObserved, needs=("messages",))
def implausible_loss(context: JudgedEvent[ExternalObserved]) -> Iterator[str]:
    """A listing that lacks many of our objects is accepted only once approved (invariant 17)."""
    observed, settings = (
        context.ledger.observation(context.event),
        context.settings(context.data.provider_config),
    )
    losses = None if observed is None or context.data.object is not None else observed.losses
    if losses is None or context.resource.owned is None or "LossGuard" in context.resource.approved:
        return
    is_implausible = all(
        losses.missing >= each.loss_guard.min_count
        and losses.missing * 100 > losses.owned * each.loss_guard.max_percent
        for each in settings
    )
    if settings and is_implausible:
        yield f"it was accepted that {losses.missing} of {losses.owned} are missing"


@on(ActionDecided, needs=("truth",))
def early_renewal(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """An object is renewed when it expires, and not before (invariant 8)."""
    if context.data.action.purpose != "Renew" or context.resource.observed is None:
        return
    seconds_left = context.truth.seconds_to_expiry(context.resource.observed)
    if seconds_left is not None and seconds_left > 0.0:
        yield f"renewed {seconds_left:.2f} s before it expires"


@on(ActionDecided, needs=("truth",))
def early_retirement(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """A replaced object is deleted only when the new one is ready (invariant 16)."""
    uid = None if context.resource.owned is None else context.resource.owned.uid
    is_replaced = context.data.action.purpose == "Retire" and context.resource.is_declared
    if is_replaced and context.truth.is_starting(uid):
        yield f"deleted before {uid} is ready"
