"""Folds one event of the log into the state of its resource: pure and total."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never, cast

from msgspec.structs import replace

from events.endings import endings_of
from events.external import ExternalObject
from events.hold import Hold
from events.intake import ActionError, LossCount
from events.log import (
    REPEATED_DRIFT,
    AbsenceDoubted,
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    ApiFellSilent,
    ApiSilenceEnded,
    ApiThrottled,
    ApprovalRefused,
    ApprovalRequested,
    AvailabilityNoted,
    Base,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    DeclarationSuperseded,
    DefinitionObserved,
    DriftDetected,
    Effect,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    GenerationSuperseded,
    HoldApproved,
    ListingsFailed,
    ListingsResumed,
    LogEvent,
    LookupDecided,
    MovedObject,
    MoveEnded,
    MoveExpected,
    OutcomeName,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ProgressNoted,
    ReconcileAccepted,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    RenewalScheduled,
    ResourceEvent,
    RetryScheduled,
    SecretObserved,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    TargetObserved,
    TwinDetected,
    UndeclaredCounted,
    UsersCounted,
)
from events.manifest import Fields
from events.provider_config import is_config
from reconciler.resource.effect import effect_after
from reconciler.resource.owner_label import OWNER_LABEL, label_in
from reconciler.resource.state import (
    NEW,
    Actions,
    ApiHealth,
    Applied,
    ApprovalState,
    Availability,
    Desired,
    Ended,
    Finalizer,
    Holds,
    InFlight,
    KnownProgress,
    LostData,
    Observation,
    Owned,
    Renewal,
    ResourceState,
    Silence,
    Spec,
    Twin,
    Users,
    Waits,
    declaration_id,
)

MAX_DECLARATIONS = 64  # ids and contents to remember, to recognize late duplicates
MAX_ENDED_ACTIONS = 16  # ended actions to remember: their calls may still arrive or be reported
MAX_DISOWNED = 16  # uids to remember, because one of those actions may have created the object

COMPLETED: frozenset[OutcomeName] = frozenset(
    {"Converged", "Failed", "Conflict", "Deleted", "Released", "Drifted", "Paused"}
)
"""Outcomes that complete a generation. The next generation does not supersede it."""

LABEL_KEPT = ActionError("Refused", "the API accepted the write but kept the label")
# Cached states contain the next two, so changing their text requires a new `STATE_SCHEMA`.
NOT_DONE = ActionError("NotDone", "a read shows that the call had no effect; the worker repeats it")
CHECKED_NOT_DONE = ActionError(
    "NotDone", "an operator approved the repetition of the call; the worker repeats it"
)

_NO_WAITS = Waits()


class HistoryGapError(ValueError):
    """The events of a resource have a gap, a duplicate, or the wrong order."""


def evolve(state: ResourceState, event: LogEvent) -> ResourceState:
    """Return the state after one event.

    Raises `HistoryGapError` if the event is not the next one, because a fold over a gap would hide
    the damage.
    """
    if event.resourceversion != state.version + 1:
        raise HistoryGapError(
            f"{event.subject}: event {event.resourceversion} follows event {state.version}"
        )
    version = event.resourceversion
    folded = _fold_data(_apply_endings(state, event.data), event)
    if folded.owned is not state.owned or folded.retiring is not state.retiring:
        folded = _with_disowned(state, folded, version)
    return replace(folded, version=version)


def _apply_endings(state: ResourceState, data: ResourceEvent) -> ResourceState:
    """Apply the endings that both folds of the log share (ADR 0066).

    Events that end an action make further changes in their own case.
    """
    endings, plan = endings_of(data), state.holds.approval
    if endings.wait and state.waits.until is not None:
        state = replace(state, waits=replace(state.waits, until=None, is_contention=False))
    if endings.deadlines and (state.renewal is not None or state.progress is not None):
        state = replace(state, renewal=None, progress=None)
    if endings.deadlines and state.availability.next_at is not None:
        availability = replace(state.availability, at=None, withheld_until=None)
        state = replace(state, availability=availability)
    if endings.approval:
        state = replace(state, holds=_without_approval(state.holds))
    if endings.plan and plan is not None:
        # An approval stays valid until its action ends, and for the creation that completes a
        # replacement. A plan without approval is outdated once another action is in flight.
        is_kept = (
            plan.decision == "Proceed"
            and state.actions.in_flight is not None
            and isinstance(data, OutcomeRecorded | ActionSucceeded)
        )
        return state if is_kept else _with_approval(state, None)
    return state


def fold(events: Iterable[LogEvent], state: ResourceState = NEW) -> ResourceState:
    """Return the state after a whole history. Raises `HistoryGapError`."""
    for event in events:
        state = evolve(state, event)
    return state


def _fold_data(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one exhaustive match
    state: ResourceState, event: LogEvent
) -> ResourceState:
    """Return the state after the event, without the endings that both folds share."""
    match event.data:
        # --- most frequent: first, because each pattern before them costs time
        case OutcomeRecorded() as data:
            if data.confirms_write:
                state = _without_doubt(state)
            desired = state.desired
            if data.outcome in COMPLETED and desired.completed_generation != data.generation:
                desired = replace(desired, completed_generation=data.generation)
            version = event.resourceversion
            return replace(
                state,
                desired=desired,
                outcome=data,
                outcome_version=version,
                own_availability=data.availability,
            )
        case ActionDecided(action, base):
            flight = InFlight(action, base=_build_base(action, base, state.desired))
            if action.purpose == "Renew" and state.renewal is not None:
                state = replace(state, renewal=replace(state.renewal, is_written=True))
            if (action.operation, action.purpose) == ("Delete", "Replace"):
                state = _with_approved_content(state)
            return replace(
                state,
                actions=replace(state.actions, in_flight=flight),
                outcome=None if _changes_outcome(state, action) else state.outcome,
            )
        case ActionSucceeded() as data:
            return _fold_success(state, data, event)
        case SpecDeclared() as data:
            return _fold_declaration(state, data, event)

        # --- declarations
        case SpecWithdrawn() as data:
            desired = replace(
                state.desired,
                generation=data.generation,
                is_declared=False,
                position=event.causationposition,
                declaration_ids=_with_id(state, event),
            )
            holds = replace(state.holds, users=Users()) if data.until_unused else state.holds
            return replace(
                state,
                desired=desired,
                predecessor=None,
                waits=_NO_WAITS,
                lost=None,
                holds=holds,
                cause=event.id,
            )
        case GenerationSuperseded():
            return state
        case DeclarationSuperseded():
            return _remember_message(state, event)

        # --- observations and ownership
        case ExternalObserved() as data:
            if data.object is None and state.moved_objects and not data.belongs_to:
                state = replace(state, moved_objects={})  # a later object may have the same uid
            return _fold_observation(state, data, event)
        case AbsenceDoubted() as data:
            doubted = LossCount(data.missing, data.owned)
            return replace(state, observed=replace(state.observed, doubted=doubted))
        case DriftDetected() as data:
            ended = tuple(
                replace(each, suspected=True)
                if each.action.action_id == data.suspected_action
                else each
                for each in state.actions.ended
            )
            actions = replace(state.actions, ended=ended)
            return replace(
                state, actions=actions, recent_drifts=data.recent, outcome=None, cause=event.id
            )
        case OwnershipClaimed(moved=MovedObject() as moved) as data:
            return _fold_moved_object(state, data, moved, event)
        case OwnershipClaimed() as data:
            ended = tuple(_with_claim(each, data, state) for each in state.actions.ended)
            actions = replace(state.actions, ended=ended)
            owned = Owned(data.provider_config, data.external_name, data.uid)
            if data.object is not None:
                retiring = replace(owned, last_observed=data.object)
                return replace(state, retiring=retiring, actions=actions, cause=event.id)
            observed = replace(
                state.observed,
                is_released=False,
                released_uid=None,
                lost_uid=None,
                # A listing that showed the object under another name was correct.
                is_listing_disproved=data.reason == "Returned" and not state.observed.found_as,
                grace_seconds=data.grace_seconds or state.observed.grace_seconds,
                found_as="",
                seen_at=event.time,
            )
            return replace(
                state,
                owned=owned,
                observed=observed,
                predecessor=None,
                lost=None,
                actions=actions,
                cause=event.id,
            )
        case OwnershipReleased() as data:
            if _is_retiring(state, data):
                return replace(state, retiring=None)
            if data.reason == "Moved":
                return _release_moved_object(state, data, event)
            on_purpose = data.reason in ("Orphaned", "Forgotten")
            lost_uid = None if on_purpose else data.uid
            observed = replace(
                state.observed,
                is_released=data.reason == "Orphaned",
                lost_uid=lost_uid,
                lost_after_seconds=data.seconds_since_write,
                is_listing_disproved=False,
            )
            if on_purpose:
                observed = replace(observed, released_uid=data.uid)
            is_uncertain = state.actions.uncertain_create or data.unconfirmed
            state = replace(
                state,
                owned=None,
                observed=observed,
                actions=replace(state.actions, uncertain_create=is_uncertain),
                renewal=None,
                progress=None,
                availability=Availability(),
                cause=event.id,
            )
            if data.lost_data:
                lost = LostData(
                    data.lost_data,
                    data.provider_config,
                    data.external_name,
                    data.uid,
                    event.time,
                    observed.seen_at,
                )
                state = replace(state, lost=lost)
            return state if on_purpose else _restore_replaced(state)

        case MoveExpected(moved_to):
            return replace(state, holds=replace(state.holds, moving_to=moved_to))
        case MoveEnded(resource):
            state, desired = replace(state, last_move=resource), state.desired
            if desired.moving_from == resource:
                return replace(state, desired=replace(desired, moving_from=""))
            if resource in desired.abandoned_moves:
                rest = tuple(each for each in desired.abandoned_moves if each != resource)
                return replace(state, desired=replace(desired, abandoned_moves=rest))
            return replace(state, holds=replace(state.holds, moving_to=""))

        # --- actions
        case ActionRetried(action, attempt):
            return _start_attempt(state, action, attempt, is_lookup=False)
        case LookupDecided(action, attempt):
            return _start_attempt(state, action, attempt, is_lookup=True)
        case ActionHeld() as data:
            return _update_in_flight(
                state, hold_message=data.reason, name_owner=data.name_owner, effect=Effect.HELD
            )
        case ActionNotDone():
            return _schedule_retry(_clear_partial_effect(state), event, NOT_DONE)
        case ActionDoubted() as data:
            return _fold_doubt(state, data)
        case ActionFailed() as data:
            return _fold_failure(state, data, event)
        case ActionAbandoned() as data:
            return _fold_abandonment(state, data)
        case RetryScheduled() as data:
            if data.action_id is not None and state.actions.in_flight is not None:
                return _update_in_flight(state, retry_at=data.at, retry_seconds=data.delay_seconds)
            waits = replace(
                state.waits,
                until=data.at,
                seconds=data.delay_seconds,
                is_contention=data.reason == REPEATED_DRIFT,
            )
            return replace(state, waits=waits)
        case RenewalScheduled() as data:
            return replace(state, renewal=Renewal(data.renewal_time, data.at))
        case ProgressNoted(mark, since, at):
            return replace(state, progress=KnownProgress(mark, since, at) if mark else None)
        case AvailabilityNoted() as data:
            merged = {**state.availability.parts, **data.parts}
            known = {name: each for name, each in merged.items() if each is not None}
            noted = Availability(known, data.at, data.withheld_until)
            return replace(state, availability=noted)

        # --- finalizers, references, approvals and inputs
        case FinalizerAdded() as data:
            kept = (*state.holds.finalizers, Finalizer(data.finalizer, data.holder))
            state = replace(state, holds=replace(state.holds, finalizers=kept))
            return _remember_message(state, event)
        case FinalizerRemoved() as data:
            kept = tuple(each for each in state.holds.finalizers if each.name != data.finalizer)
            state = replace(state, holds=replace(state.holds, finalizers=kept), cause=event.id)
            return _remember_message(state, event)
        case ReleaseForced() as data:
            holds = replace(
                state.holds,
                finalizers=(),
                users=None,
                release_forced=True,
                orphan_forced=data.orphan,
                forgotten=data.forgotten,
            )
            state = replace(state, holds=holds, cause=event.id)
            if data.forgotten:
                forgotten = replace(
                    state.observed, object=None, absent_at=0, is_released=False, belongs_to=""
                )
                actions = replace(state.actions, uncertain_create=False)
                state = replace(state, observed=forgotten, actions=actions)
            return _remember_message(
                _update_in_flight(state, abandoned=True) if data.orphan else state, event
            )
        case HoldApproved() as data:
            return _fold_approval(state, data, event)
        case ReconcileAccepted() as data:
            return _remember_message(_end_waits(state, data, event), event)
        case ApprovalRequested() as data:
            return _with_approval(state, ApprovalState(data.plan))
        case ApprovalRefused() as data:
            rejected = ApprovalState(data.plan, "Reject", event.actor, data.reason)
            return _remember_message(_with_approval(state, rejected), event)
        case ReferenceAdded() as data:
            references = {**state.holds.references, data.by: data.on_withdrawal}
            return replace(state, holds=replace(state.holds, references=references))
        case ReferenceRemoved() as data:
            references = {
                by: policy for by, policy in state.holds.references.items() if by != data.by
            }
            holds = replace(state.holds, references=references)
            return replace(state, holds=holds, cause=event.id)
        case TargetObserved() as data:
            targets = {**state.desired.targets, data.target: data.state}
            desired = replace(_record_source_version(state, data.target, event), targets=targets)
            return replace(state, desired=desired, cause=event.id)
        case SecretObserved() as data:
            secrets = {**state.desired.secrets, data.secret: data.digest}
            desired = replace(_record_source_version(state, data.secret, event), secrets=secrets)
            return replace(state, desired=desired, cause=event.id)
        case SpecResolved() as data:
            desired = replace(
                state.desired,
                resolved=data.fields,
                resolved_by=data.definition,
                refused_generation=0,
            )
            state = replace(state, desired=desired, waits=_NO_WAITS)
            return _clear_definition_change(state) if data.is_applied else state
        case DefinitionObserved(definition):
            desired = replace(state.desired, definition=definition)
            return replace(state, desired=desired, cause=event.id)

        # --- health of a ProviderConfig's API
        case ApiThrottled() as data:
            api = replace(
                state.api, throttled_until=data.until, throttled_seconds=data.delay_seconds
            )
            return replace(state, api=api)
        case BreakerOpened() as data:
            api = ApiHealth(
                version=event.resourceversion,
                throttled_until=state.api.throttled_until,
                throttled_seconds=state.api.throttled_seconds,
                open_until=data.until,
                open_seconds=data.delay_seconds,
                openings=state.api.openings + 1,
                failures=data.failures,
                message=data.message,
                twin=state.api.twin,
                failed_listings=state.api.failed_listings,
                systems=state.api.systems,
                silence=state.api.silence,
                undeclared=state.api.undeclared,
            )
            return replace(state, api=api)
        case BreakerProbed() as data:
            api = replace(
                state.api,
                version=event.resourceversion,
                probe_until=data.until,
                probe_seconds=data.delay_seconds,
                probe_by=data.by,
            )
            return replace(state, api=api)
        case BreakerClosed():
            api = ApiHealth(
                event.resourceversion,
                throttled_until=state.api.throttled_until,
                throttled_seconds=state.api.throttled_seconds,
                twin=state.api.twin,
                failed_listings=state.api.failed_listings,
                systems=state.api.systems,
                silence=state.api.silence,
                undeclared=state.api.undeclared,
            )
            return replace(state, api=api)
        case TwinDetected(objects, total):
            twin = Twin(event.resourceversion, objects, total)
            return replace(state, api=replace(state.api, twin=twin))
        case ListingsFailed(kind, failure):
            failed = {**state.api.failed_listings, kind: failure}
            return replace(state, api=replace(state.api, failed_listings=failed))
        case ListingsResumed(kind, system_id):
            failed, systems = {**state.api.failed_listings}, {**state.api.systems}
            failed.pop(kind, None)
            if system_id:
                systems[kind] = system_id
            return replace(state, api=replace(state.api, failed_listings=failed, systems=systems))
        case UndeclaredCounted(undeclared):
            return replace(state, api=replace(state.api, undeclared=undeclared))
        case UsersCounted(count, names):
            users = Users(count, names) if count else None
            return replace(state, holds=replace(state.holds, users=users))
        case ApiFellSilent(since, outages):
            silence = Silence(event.resourceversion, since, outages)
            return replace(state, api=replace(state.api, silence=silence))
        case ApiSilenceEnded():
            outages = state.api.silence.outages
            silence = Silence(event.resourceversion, None, outages, event.time)
            return replace(state, api=replace(state.api, silence=silence))
        case _:
            assert_never(event.data)


# --- declarations


def spec_of(data: SpecDeclared) -> Spec:
    """Return the spec that an event declares."""
    return Spec(
        data.api_version,
        data.provider_config,
        data.external_name,
        data.fields,
        data.labels,
        data.annotations,
        data.policy,
        data.references,
        data.secrets,
    )


def _fold_declaration(state: ResourceState, data: SpecDeclared, event: LogEvent) -> ResourceState:
    """Start a generation, and reset the waits, inputs and approvals."""
    spec, desired, actions, holds = spec_of(data), state.desired, state.actions, state.holds
    owns_nothing = state.owned is None and actions.in_flight is None
    moving_from = data.moved_from if owns_nothing else ""
    abandoned = (*desired.abandoned_moves, desired.moving_from)
    digest = spec.digest
    older = [each for each in desired.contents if each != digest]
    # A declaration after a withdrawal starts over, because the row may since have been deleted.
    is_new = not desired.is_declared
    if is_new and actions.has_created:
        actions = replace(actions, has_created=False)
    if holds.release_forced or holds.users is not None:
        holds = replace(
            holds, users=None, release_forced=False, orphan_forced=False, forgotten=False
        )
    return replace(
        state,
        desired=replace(
            desired,
            generation=data.generation,
            is_declared=True,
            spec=spec,
            position=event.causationposition,
            declaration_ids=_with_id(state, event),
            contents=(*older, digest)[-MAX_DECLARATIONS:],
            targets={}
            if is_new
            else {
                each.target: desired.targets[each.target]
                for each in data.references
                if each.target in desired.targets
            },
            secrets={}
            if is_new
            else {name: desired.secrets[name] for name in data.secrets if name in desired.secrets},
            resolved=None,
            definition=data.definition,
            moving_from=moving_from,
            abandoned_moves=tuple(each for each in abandoned if each not in ("", moving_from)),
        ),
        moved_to="",
        # A new resource has no observation to clear.
        observed=_observation_for(data, state) if state.version else state.observed,
        actions=actions,
        lost=None if spec.policy.mode == "Absent" else state.lost,
        waits=_NO_WAITS,
        holds=holds,
        recent_drifts=(),
        cause=event.id,
        # The endpoint may have changed, so its health is unknown. A detected copy and a silence
        # stay recorded: the readiness of the objects is unknown until the API responds.
        api=ApiHealth(
            event.resourceversion if state.api.version else 0,
            twin=state.api.twin,
            silence=replace(state.api.silence, version=event.resourceversion)
            if is_config(event.key)
            else state.api.silence,
            undeclared=data.undeclared,
        ),
    )


def _observation_for(data: SpecDeclared, state: ResourceState) -> Observation:
    """Return the part of the last observation that applies to a new declaration."""
    observed, earlier_spec = state.observed, state.desired.spec
    location = (data.provider_config, data.external_name)
    is_moved = (
        earlier_spec is None
        or (earlier_spec.provider_config, earlier_spec.external_name) != location
    )
    if state.owned is not None or (state.released is not None and not is_moved):
        pass  # a replacement may have a different name
    elif observed.object is None or (observed.provider_config, observed.object.name) != location:
        # The known object has a different location, so none of its state applies.
        is_same_name = state.desired.is_declared and not is_moved
        belongs_to = observed.belongs_to if is_same_name else ""
        observed = replace(observed, object=None, belongs_to=belongs_to)
        if is_moved:
            observed = replace(observed, released_uid=None, is_released=False)
    if is_moved:
        # The grace and the proof of absence belong to the previous API.
        observed = replace(observed, grace_seconds=0.0, absent_at=0)
    if earlier_spec is not None and earlier_spec.provider_config != data.provider_config:
        # Two APIs may assign the same uid, so it identifies no object of the other one.
        observed = replace(observed, lost_uid=None)
    return observed


def _with_id(state: ResourceState, event: LogEvent) -> tuple[str, ...]:
    newest = declaration_id(event.actor, event.causationid)
    return (*state.desired.declaration_ids, newest)[-MAX_DECLARATIONS:]


def _remember_message(state: ResourceState, event: LogEvent) -> ResourceState:
    """Remember the id of the message that caused an event, to recognize its redelivery."""
    return replace(state, desired=replace(state.desired, declaration_ids=_with_id(state, event)))


# --- observations


def _fold_observation(
    state: ResourceState, data: ExternalObserved, event: LogEvent
) -> ResourceState:
    """Replace the last observation, and keep what only later reads can disprove."""
    known, existing, spec = state.observed, data.object, state.desired.spec
    is_same = known.object is not None and existing is not None and known.object.uid == existing.uid
    if state.released is not None and not is_same and spec is not None:
        # The released object may have a second name. Another object with that name is unrelated.
        existing = existing if data.external_name == spec.external_name else None
    # A listing may omit the released object, and a later one may contain it again (invariant 6).
    is_released = (
        existing is not None and existing.uid is not None and existing.uid == known.released_uid
    )
    is_proven_gone = existing is None and data.evidence == "Read"
    requested_at = known.read_requested_at
    is_requested = requested_at is not None and data.as_of >= requested_at
    observed = Observation(
        object=existing,
        provider_config=data.provider_config,
        position=data.as_of,
        message=event.causationposition,
        absent_at=data.as_of if existing is None else 0,
        unmanaged=data.unmanaged,
        total=data.total,
        belongs_to=data.belongs_to,
        known_version=data.known_version,
        is_released=(known.is_released and is_same) or is_released,
        released_uid=None if is_proven_gone else known.released_uid,
        lost_uid=known.lost_uid,
        lost_after_seconds=known.lost_after_seconds,
        grace_seconds=known.grace_seconds,
        is_listing_disproved=known.is_listing_disproved,
        confirmed_at=known.read_requested_time if is_requested else known.confirmed_at,
        seen_at=event.time if _shows_owned(existing, state) else known.seen_at,
        found_as=known.found_as if existing is not None else data.found_as,
    )
    owned = state.owned
    if owned is not None and existing is not None and owned.uid == existing.uid:
        owned = replace(owned, responded_at=None)
    holds = state.holds if is_same else _without_approval(state.holds)
    waits = replace(state.waits, conflicts=0)
    if not is_same:
        state = _with_predecessor(state)
    return replace(state, owned=owned, observed=observed, waits=waits, holds=holds)


def _shows_owned(existing: ExternalObject | None, state: ResourceState) -> bool:
    """Return whether an observation shows the owned object."""
    owned = state.owned
    if existing is None or owned is None:
        return False
    return owned.uid is None or existing.uid in (None, owned.uid)


def _with_predecessor(state: ResourceState) -> ResourceState:
    """Keep the owned object before its loss is recorded, because its successor may need it."""
    lost = state.observed.object
    if state.owned is None or lost is None or lost.uid != state.owned.uid:
        return state
    return replace(state, predecessor=lost) if state.desired.is_declared else state


def _fold_moved_object(
    state: ResourceState, data: OwnershipClaimed, moved: MovedObject, event: LogEvent
) -> ResourceState:
    """Own an object as its former owner did. Reads that began before the move do not count."""
    applied = None
    if moved.is_applied:
        applied = Applied(moved.fields, moved.labels, moved.result, moved.in_doubt)
    observed = Observation(
        object=moved.object,
        provider_config=data.provider_config,
        position=event.causationposition,
        grace_seconds=data.grace_seconds,
        seen_at=event.time,
    )
    actions = replace(
        state.actions, effect_position=event.causationposition, effect_at=moved.written_at
    )
    others = {uid: each for uid, each in state.moved_objects.items() if uid != data.uid}
    return replace(
        state,
        moved_objects=others,
        last_move=moved.moved_from,
        desired=replace(state.desired, moving_from=""),
        owned=Owned(
            data.provider_config,
            data.external_name,
            data.uid,
            applied,
            former_label=moved.owner_label,
        ),
        observed=observed,
        predecessor=None,
        lost=None,
        actions=actions,
        cause=event.id,
    )


def _release_moved_object(
    state: ResourceState, data: OwnershipReleased, event: LogEvent
) -> ResourceState:
    """Own nothing: the object's later results belong to the resource that took it over."""
    moved = state.moved_objects | ({data.uid: data.moved_to} if data.uid else {})
    return replace(
        state,
        owned=None,
        observed=Observation(
            provider_config=data.provider_config,
            position=event.causationposition,
            is_released=True,
            released_uid=data.uid,
        ),
        renewal=None,
        progress=None,
        availability=Availability(),
        holds=replace(state.holds, moving_to=""),
        moved_to=data.moved_to,
        moved_objects=dict([*moved.items()][-MAX_DISOWNED:]),
        last_move=data.moved_to,
        cause=event.id,
    )


def _restore_replaced(state: ResourceState) -> ResourceState:
    """Own the replaced object again if its replacement disappears before it is deleted."""
    replaced = state.retiring
    if replaced is None:
        return state
    observed = replace(
        state.observed, object=replaced.last_observed, provider_config=replaced.provider_config
    )
    return replace(
        state,
        owned=replace(replaced, last_observed=None, data_loss=""),
        retiring=None,
        observed=observed,
    )


def _with_disowned(before: ResourceState, after: ResourceState, version: int) -> ResourceState:
    """Remember the uid of an object that is no longer owned, for any reason."""
    for previous in (before.owned, before.retiring):
        if previous is None or previous.uid is None or _owns(after, previous.uid):
            continue
        older = {uid: at for uid, at in after.actions.disowned.items() if uid != previous.uid}
        newest = [*older.items(), (previous.uid, version)][-MAX_DISOWNED:]
        after = replace(after, actions=replace(after.actions, disowned=dict(newest)))
    return after


def _owns(state: ResourceState, uid: str) -> bool:
    """Return whether the resource owns the object with this uid, or still has to delete it."""
    owned, retiring = state.owned, state.retiring
    is_owned = owned is not None and owned.uid == uid
    return is_owned or (retiring is not None and retiring.uid == uid)


def _is_retiring(state: ResourceState, data: OwnershipReleased) -> bool:
    """Return whether a release concerns the replaced object and not the current one."""
    retiring, owned = state.retiring, state.owned
    identity = (data.external_name, data.uid)
    if retiring is None or (owned is not None and identity == (owned.external_name, owned.uid)):
        return False
    return identity == (retiring.external_name, retiring.uid)


def is_created_by(ended: Ended, existing: ExternalObject) -> bool:
    """Return whether a creation produced an object whose ownership has not been recorded yet."""
    if ended.action.operation != "Create":
        return False
    is_known = ended.reported_by or existing.uid in ended.created_uids
    is_marked = not is_known and existing.written_by == ended.action.idempotency_key
    return is_marked or existing.uid in ended.unowned_uids


def _with_claim(ended: Ended, data: OwnershipClaimed, state: ResourceState) -> Ended:
    """Mark a newly owned object, so that it is not claimed again after a release.

    The report of the creation may still arrive, and is then recorded.
    """
    existing = data.object or state.observed.object
    location = (data.provider_config, data.external_name)
    if existing is None or data.uid is None or existing.uid != data.uid:
        return ended
    has_same_location = (ended.action.provider_config, ended.action.external_name) == location
    keys = {each.action.idempotency_key for each in state.actions.ended}
    has_other_key = existing.written_by in keys - {ended.action.idempotency_key}
    is_second_object = (
        data.object is not None and ended.action.operation == "Create" and has_same_location
    )
    is_second_object = is_second_object and not has_other_key
    if not (is_second_object or is_created_by(ended, existing)):
        return ended
    unowned_uids = tuple(uid for uid in ended.unowned_uids if uid != data.uid)
    created_uids = (
        ended.created_uids if data.uid in ended.created_uids else (*ended.created_uids, data.uid)
    )
    return replace(ended, created_uids=created_uids, unowned_uids=unowned_uids)


# --- actions


def _update_in_flight(state: ResourceState, **changes: object) -> ResourceState:
    """Change the action in flight, if there is one."""
    flight = state.actions.in_flight
    if flight is None:
        return state
    return replace(state, actions=replace(state.actions, in_flight=replace(flight, **changes)))


def _changes_outcome(state: ResourceState, action: Action) -> bool:
    """Return whether the action makes the last outcome outdated, even if the next one equals it."""
    last = state.outcome
    return last is None or last.outcome in COMPLETED or action.operation == "Delete"


def _build_base(action: Action, base: Base | None, desired: Desired) -> Applied | None:
    """Return the base of the next three-way comparison, if the action succeeds."""
    if action.operation == "Delete":
        return None
    if base is None:
        return Applied(action.fields, action.labels)
    fields = desired.fields if base.fields is None else base.fields
    return Applied(fields, action.labels if base.labels is None else base.labels)


def _start_attempt(
    state: ResourceState, action: Action, attempt: int, *, is_lookup: bool
) -> ResourceState:
    """Start the next attempt, or a lookup, of the action in flight."""
    flight = replace(
        state.actions.in_flight or InFlight(action),
        attempt=attempt,
        failed=None,
        retry_at=None,
        is_lookup=is_lookup,
    )
    return replace(state, actions=replace(state.actions, in_flight=flight))


def _schedule_retry(
    state: ResourceState, event: LogEvent, failed: ActionError, **changes: object
) -> ResourceState:
    """Return the state in which the action is repeated immediately, because it had no effect."""
    return _update_in_flight(
        state,
        failed=failed,
        retry_at=event.time,
        retry_seconds=0.0,
        unknown_results=0,
        may_be_partial=False,
        is_lookup=False,
        **changes,
    )


def _clear_partial_effect(state: ResourceState) -> ResourceState:
    """Return the state after a lookup that found no effect of a throttled attempt."""
    flight = state.actions.in_flight
    is_partial = flight is not None and flight.effect is Effect.PARTIAL
    return _update_in_flight(state, effect=Effect.REFUSED) if is_partial else state


def _with_approved_content(state: ResourceState) -> ResourceState:
    """Record the content that an approved replacement may create: references may change it."""
    approval = state.holds.approval
    if approval is None or approval.decision != "Proceed":
        return state
    return _with_approval(state, replace(approval, content=state.desired.digest))


def _without_approval(holds: Holds) -> Holds:
    if not (holds.approved or holds.approved_loss):
        return holds
    return replace(holds, approved="", approved_loss="")


def _with_approval(state: ResourceState, approval: ApprovalState | None) -> ResourceState:
    return replace(state, holds=replace(state.holds, approval=approval))


def _end_waits(state: ResourceState, data: ReconcileAccepted, event: LogEvent) -> ResourceState:
    """End all waits, and record the next read even if it shows nothing new."""
    read_requested_at = event.causationposition if data.reads else None
    waits, flight = state.waits, state.actions.in_flight
    if waits.until is not None:
        waits = replace(waits, until=event.time, seconds=0.0)
    observed = replace(
        state.observed,
        read_requested_at=read_requested_at,
        read_requested_time=data.requested_at if data.reads else None,
    )
    state = replace(state, waits=waits, observed=observed, cause=event.id)
    if flight is None or flight.retry_at is None:
        return state
    return _update_in_flight(state, retry_at=event.time, retry_seconds=0.0)


def _fold_approval(state: ResourceState, data: HoldApproved, event: LogEvent) -> ResourceState:
    """Record the approval of a plan, of an unknown result, or of another hold."""
    if data.hold == Hold.APPROVAL:
        approved = ApprovalState(data.plan, "Proceed", event.actor, data.reason)
        return _remember_message(replace(_with_approval(state, approved), cause=event.id), event)
    flight = state.actions.in_flight
    if flight is None and data.hold == Hold.UNKNOWN_RESULT:
        # The operator checked the object. The resource claims the result of a creation in doubt
        # only if the operator added the owner label to it.
        ended = tuple(
            replace(each, in_doubt=False) if each.action.operation == "Create" else each
            for each in state.actions.ended
        )
        actions = replace(state.actions, ended=ended)
        return _remember_message(replace(state, actions=actions, cause=event.id), event)
    if flight is not None and flight.is_held:
        # The operator found no effect: an object that exists now belongs to another client.
        is_checked = data.decision == "Proceed"
        state = _schedule_retry(
            state,
            event,
            CHECKED_NOT_DONE if is_checked else NOT_DONE,
            failed_at=data.approved_at,
            hold_message="",
            abandoned=data.decision == "Abandon",
            effect=Effect.CHECKED if is_checked else Effect.UNKNOWN,
        )
        is_uncertain = state.actions.uncertain_create and not is_checked
        state = replace(state, actions=replace(state.actions, uncertain_create=is_uncertain))
    if data.hold == Hold.TWIN:
        state = replace(state, api=replace(state.api, twin=Twin(event.resourceversion)))
    if data.hold == Hold.EXCLUSIVE_SCOPE:
        state = replace(state, api=replace(state.api, undeclared=None))
    if data.hold == Hold.DATA_MISSING:
        state = replace(state, lost=None)
    if data.hold == Hold.DATA_LOSS:
        message = "" if state.outcome is None else state.outcome.message
        holds = replace(state.holds, approved_loss=message)
        return _remember_message(replace(state, holds=holds, cause=event.id), event)
    holds = replace(state.holds, approved=data.hold, approved_position=event.causationposition)
    return _remember_message(replace(state, holds=holds, cause=event.id), event)


def _fold_doubt(state: ResourceState, data: ActionDoubted) -> ResourceState:
    """Record an unknown result of a call, for the action in flight or an ended one."""
    flight = state.actions.in_flight
    if flight is not None and flight.action.action_id == data.action_id:
        effect = effect_after(flight.effect, Effect.UNKNOWN)
        return _update_in_flight(state, unknown_results=flight.unknown_results + 1, effect=effect)
    ended = tuple(
        replace(each, in_doubt=True) if each.action.action_id == data.action_id else each
        for each in state.actions.ended
    )
    is_uncertain = state.actions.uncertain_create or data.operation == "Create"
    return replace(
        state, actions=replace(state.actions, ended=ended, uncertain_create=is_uncertain)
    )


def _fold_success(state: ResourceState, data: ActionSucceeded, event: LogEvent) -> ResourceState:
    """End the action in flight with a success."""
    if state.holds.approval is not None:
        state = _with_approval(state, _remaining_approval(state.holds.approval, data))
    if data.late:
        return _fold_late_success(state, data, event)
    flight = state.actions.in_flight
    ended = state.actions.ended
    in_doubt = data.redelivered or (flight is not None and flight.effect.may_arrive)
    if flight is not None and (data.operation == "Create" or in_doubt):
        # A suspended worker may still make its call. It may then change another object or, if the
        # API does not store keys, create a second one.
        ended = _append_ended(state, flight, in_doubt=in_doubt, reported_by=event.causationid)
        if data.operation == "Create":
            ended = (*ended[:-1], _record_creation(ended[-1], data))
    observed = state.observed
    if observed.lost_uid is not None:
        observed = replace(observed, lost_uid=None)
    # Without keys, a call with an unknown result may still be in progress.
    may_exist_twice = data.redelivered or (flight is not None and flight.effect.may_exist)
    uncertain = may_exist_twice and data.operation == "Create"
    actions = replace(
        _with_effect(state.actions, data, event),
        in_flight=None,
        ended=ended,
        uncertain_create=state.actions.uncertain_create or uncertain,
    )
    state = replace(state, actions=actions, waits=_NO_WAITS, observed=observed)
    state = _with_result(state, flight, data, event)
    return state if data.refused is None else _fold_partial_success(state, flight, data.refused)


def _remaining_approval(approval: ApprovalState, data: ActionSucceeded) -> ApprovalState | None:
    """Return the approval that remains. It covers one action, or both actions of a replacement."""
    is_replacement_deletion = (data.operation, data.purpose, data.late) == (
        "Delete",
        "Replace",
        False,
    )
    if approval.decision != "Proceed" or not is_replacement_deletion:
        return None
    return replace(approval, is_replacing=True)


def _fold_partial_success(
    state: ResourceState, flight: InFlight | None, refused: ActionError
) -> ResourceState:
    """Record that the API created the object but refused the remaining calls.

    The resource owns the object, and waits for a new generation.
    """
    generation, created = state.desired.generation, state.observed.object
    if created is not None:
        state = _with_applied(state, Applied(created.fields, created.labels))
    if flight is None or flight.action.generation != generation:
        return state
    return replace(
        state,
        desired=replace(state.desired, refused_generation=generation),
        waits=replace(state.waits, failure=refused, failures=1),
    )


def _fold_late_success(
    state: ResourceState, data: ActionSucceeded, event: LogEvent
) -> ResourceState:
    """Record the late success of an action that had already ended.

    Another action may be in flight.
    """
    actions = _with_effect(state.actions, data, event)
    ended = next((each for each in actions.ended if each.action.action_id == data.action_id), None)
    actions = replace(
        actions,
        ended=tuple(
            _record_late_success(each, data, state, event) if each is ended else each
            for each in actions.ended
        ),
        uncertain_create=actions.uncertain_create or data.operation == "Create",
    )
    applied = _possibly_applied(state.owned, ended)
    state = replace(state, actions=actions)
    if data.outdated:
        return _with_applied(state, applied)
    if actions.in_flight is None:
        state = replace(state, waits=_NO_WAITS)
    state = replace(_with_result(state, ended, data, event), cause=event.id)
    # A late update may have overwritten a newer one, so the base contains the content of both.
    return _with_applied(state, applied) if data.operation == "Update" else state


def _record_creation(ended: Ended, data: ActionSucceeded) -> Ended:
    """Remember the object of a creation. Its content is part of the observation."""
    uid = None if data.object is None else data.object.uid
    action = replace(ended.action, fields={}, labels={})
    return replace(ended, action=action, base=None, created_uids=() if uid is None else (uid,))


def _record_late_success(
    ended: Ended, data: ActionSucceeded, state: ResourceState, event: LogEvent
) -> Ended:
    """Remember a late success, and the object that a creation created."""
    ended = replace(ended, reported_late=True)
    if data.operation != "Create":
        return ended
    uid = None if data.object is None else data.object.uid
    ended = replace(ended, reported_by=ended.reported_by or event.causationid)
    if uid is None or uid in ended.created_uids:
        return ended
    is_owned = not data.outdated or (state.owned is not None and state.owned.uid == uid)
    is_released = state.released is not None and state.released.uid == uid
    unowned_uids = ended.unowned_uids if is_owned or is_released else (*ended.unowned_uids, uid)
    return replace(ended, created_uids=(*ended.created_uids, uid), unowned_uids=unowned_uids)


def _with_effect(
    actions: Actions, data: ActionSucceeded | ActionFailed, event: LogEvent
) -> Actions:
    """Record the newest effect. Observations that began before it are stale."""
    if event.causationposition < actions.effect_position:
        return actions  # superseded by a newer result
    return replace(
        actions,
        effect_position=event.causationposition,
        effect_at=data.reported_at,
    )


def _with_result(
    state: ResourceState, ended: InFlight | Ended | None, data: ActionSucceeded, event: LogEvent
) -> ResourceState:
    """Record the result of a successful action."""
    if data.operation == "Delete" and data.purpose == "Retire":
        return replace(state, retiring=None)
    known = state.desired.definition
    uses_current_definition = (
        ended is not None and known is not None and ended.action.definition == known.digest
    )
    if (
        data.operation != "Delete" and uses_current_definition
    ):  # an earlier action used the earlier definition
        state = _clear_definition_change(state)
    if data.operation == "Delete":
        is_uncertain = state.actions.uncertain_create or data.unconfirmed
        state = replace(
            _with_predecessor(state) if data.purpose == "Replace" else state,
            owned=None,
            renewal=None,
            progress=None,
            availability=Availability(),
            observed=replace(
                state.observed,
                object=None,
                absent_at=event.causationposition,
                is_listing_disproved=False,
            ),
            actions=replace(state.actions, has_created=False, uncertain_create=is_uncertain),
        )
        return _restore_replaced(state)
    if ended is None:
        return state
    action = ended.action
    # Without an object in the response, assume that the API wrote the content of the request.
    existing = data.object or ExternalObject(
        action.external_name, action.fields, action.uid, None, action.labels
    )
    uid = existing.uid
    if action.operation == "Update" and state.owned is not None and state.owned.uid is not None:
        uid = state.owned.uid  # the write may have reached another object, which is not owned
    base = ended.base or Applied(action.fields, action.labels)
    # A label may be on an object from an earlier creation, with different content. A key may be on
    # the result of the first of several calls. A repeated response may be older than another
    # client's change. None of these confirms the whole content.
    is_complete = data.found_by not in ("Label", "Key") and not data.replayed
    applied = replace(base, result=existing if is_complete else None)
    disproved = state.observed.is_listing_disproved and data.operation != "Create"
    keeps_label = label_in(existing.labels) is not None and OWNER_LABEL not in action.labels
    if data.operation == "Update" and not state.desired.is_declared and keeps_label:
        state = replace(state, waits=replace(state.waits, failure=LABEL_KEPT))
    is_replaced = data.operation == "Create" and data.purpose == "Replace"
    is_creation_response = data.operation == "Create" and data.found_by is None
    responded_at = state.actions.effect_at if is_creation_response else None
    availability = state.own_availability
    if availability is not None:  # what was read before the write no longer applies
        run = "" if data.operation == "Create" else availability.run
        availability = replace(availability, run=run, since=None, available=False)
    return replace(
        state,
        own_availability=availability,
        owned=Owned(action.provider_config, action.external_name, uid, applied, responded_at),
        predecessor=None,
        retiring=replace(
            state.owned, last_observed=state.observed.object, data_loss=action.data_loss
        )
        if is_replaced and state.owned is not None
        else state.retiring,
        observed=replace(
            state.observed,
            object=existing,
            provider_config=action.provider_config,
            is_released=False,
            is_listing_disproved=disproved,
            found_as="",
            seen_at=event.time,
        ),
        lost=None,
        actions=replace(state.actions, has_created=True),
    )


def _record_source_version(state: ResourceState, name: str, event: LogEvent) -> Desired:
    """Remember the version that recorded the state of a target or secret."""
    recorded_by = {**state.desired.recorded_by, name: event.resourceversion}
    return replace(state.desired, recorded_by=recorded_by)


def _clear_definition_change(state: ResourceState) -> ResourceState:
    """Clear the changed definition, because the object now conforms to it."""
    known = state.desired.definition
    if known is None or not known.affected:
        return state
    known = replace(known, affected=0, total=0)
    return replace(state, desired=replace(state.desired, definition=known))


def _possibly_applied(owned: Owned | None, ended: InFlight | Ended | None) -> Applied | None:
    """Return the base, extended with the content that an action may have written."""
    base = None if ended is None else ended.base
    applied = None if owned is None else owned.applied
    if owned is None or base is None:
        return applied
    if applied is None:
        return replace(base, in_doubt=True)
    fields = _union(base.fields, applied.fields)
    labels = {**base.labels, **applied.labels}
    if (fields, labels) == (applied.fields, applied.labels):
        return applied
    return Applied(fields, labels, in_doubt=True)  # the recorded result belongs to an earlier write


def _union(first: Fields, second: Fields) -> Fields:
    """Return the union of two mappings at every depth. The second one takes precedence."""
    result = {**first, **second}
    for name in first.keys() & second.keys():
        old, new = first[name], second[name]
        if _is_nested(old) and _is_nested(new):
            result[name] = _union(cast("Fields", old), cast("Fields", new))
    return result


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) and "$secret" not in value  # a secret counts as one value


def _without_doubt(state: ResourceState) -> ResourceState:
    """Mark the last write as certain, because the object has its content."""
    applied = None if state.owned is None else state.owned.applied
    return state if applied is None else _with_applied(state, replace(applied, in_doubt=False))


def _with_applied(state: ResourceState, applied: Applied | None) -> ResourceState:
    if state.owned is None:
        return state
    return replace(state, owned=replace(state.owned, applied=applied))


def _fold_failure(state: ResourceState, data: ActionFailed, event: LogEvent) -> ResourceState:
    """Record a failed attempt. Its recorded consequence determines whether the action ends."""
    waits, flight = replace(state.waits, failure=data.error), state.actions.in_flight
    if flight is not None:
        flight = _with_failure(flight, data)
    if data.consequence == "Retry":
        return replace(
            state,
            actions=replace(state.actions, in_flight=flight),
            waits=replace(waits, failures=waits.failures + data.error.attempted),
            cause=event.id,
        )
    state = replace(_end_failed_action(state, flight, data, event), cause=event.id)
    match data.consequence:
        case "Refused":
            desired = replace(state.desired, refused_generation=state.desired.generation)
            waits = replace(waits, failures=waits.failures + 1)
            return replace(state, desired=desired, waits=waits)
        case "Failed":
            return replace(state, waits=replace(waits, failures=waits.failures + 1))
        case "Outdated":
            return replace(state, waits=replace(waits, failure=None))
        case "Conflict" | "Observed" | "Retired":
            renewal = None if data.purpose == "Renew" else state.renewal
            state = replace(
                state, renewal=renewal, waits=replace(waits, conflicts=waits.conflicts + 1)
            )
        case _:
            assert_never(data.consequence)
    if data.consequence == "Retired":
        return replace(state, retiring=None)
    if data.error.belongs_to and state.owned is None:
        observed = replace(state.observed, belongs_to=data.error.belongs_to)
        state = replace(state, observed=observed)
    if data.consequence == "Conflict":
        return state
    if data.purpose == "Retire":
        assert state.retiring is not None
        return replace(state, retiring=replace(state.retiring, last_observed=data.object))
    if data.object is None:
        state = _with_predecessor(state)
    location = state.observed.provider_config if flight is None else flight.action.provider_config
    observed = replace(state.observed, object=data.object, provider_config=location)
    return replace(state, observed=observed)


def _end_failed_action(
    state: ResourceState, flight: InFlight | None, data: ActionFailed, event: LogEvent
) -> ResourceState:
    """End the action in flight, and keep what it may have written or created."""
    may_arrive = flight is not None and flight.effect.may_arrive
    ended = _with_obstacle(_append_ended(state, flight, in_doubt=may_arrive), data)
    actions = replace(_with_effect(state.actions, data, event), in_flight=None, ended=ended)
    if flight is None:
        return replace(state, actions=actions)
    if data.operation == "Create":
        is_uncertain = actions.uncertain_create or flight.effect.may_exist
        actions = replace(actions, uncertain_create=is_uncertain)
    state = replace(state, actions=actions)
    if flight.effect.is_nothing:
        return state
    return _with_applied(state, _possibly_applied(state.owned, flight))


def _with_obstacle(ended: tuple[Ended, ...], data: ActionFailed) -> tuple[Ended, ...]:
    """Remember the object that already had the name that a creation requested."""
    is_conflict = data.operation == "Create" and data.consequence in ("Conflict", "Observed")
    if not is_conflict or data.object is None or not ended:
        return ended
    return (*ended[:-1], replace(ended[-1], obstacle=data.object.uid))


def _with_failure(flight: InFlight, data: ActionFailed) -> InFlight:
    """Return the action after a failed attempt."""
    was_unclear = flight.is_lookup and data.error.error_class == "Unknown"
    is_certain = data.effect in (Effect.NOT_SENT, Effect.REFUSED)
    is_partial = data.effect is Effect.PARTIAL and flight.action.operation == "Create"
    return replace(
        flight,
        failed=data.error,
        failed_at=data.reported_at,
        retry_at=None,
        unknown_results=flight.unknown_results + (data.effect is Effect.UNKNOWN),
        may_be_partial=flight.may_be_partial or is_partial,
        effect=effect_after(flight.effect, data.effect),
        is_unclear=was_unclear or (flight.is_unclear and is_certain),
    )


def _fold_abandonment(state: ResourceState, data: ActionAbandoned) -> ResourceState:
    """End the action in flight without a known effect."""
    flight = state.actions.in_flight
    if flight is not None and flight.action.purpose == "Renew":
        state = replace(state, renewal=None)
    actions = replace(
        state.actions,
        in_flight=None,
        ended=_append_ended(state, flight, in_doubt=data.in_doubt),
        uncertain_create=state.actions.uncertain_create
        or (data.operation == "Create" and (flight is None or not flight.had_no_effect)),
    )
    waits = replace(state.waits, failures=0, failure=None)
    applied = _possibly_applied(state.owned, flight)
    return _with_applied(replace(state, actions=actions, waits=waits), applied)


def _append_ended(
    state: ResourceState, flight: InFlight | None, *, in_doubt: bool, reported_by: str = ""
) -> tuple[Ended, ...]:
    """Return the remembered ended actions, including the one in flight."""
    if flight is None:
        return state.actions.ended
    ended = Ended(flight.action, flight.base, in_doubt, state.version + 1, reported_by)
    return (*state.actions.ended, ended)[-MAX_ENDED_ACTIONS:]
