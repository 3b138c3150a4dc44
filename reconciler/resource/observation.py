"""Events that an observation causes: the object's new state, loss of ownership, and drift."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta

from events.external import ExternalObject, same_content
from events.hold import Hold
from events.intake import Observed, Reported
from events.log import (
    AbsenceDoubted,
    Action,
    DriftDetected,
    ExternalObserved,
    FieldDifference,
    Operation,
    OwnershipClaimed,
    OwnershipReleased,
    ResourceEvent,
)
from events.provider_config import DeletionGuard
from reconciler.resource.difference import Comparison
from reconciler.resource.evolve import is_created_by
from reconciler.resource.missing_data import describe_lost_data
from reconciler.resource.owner_label import OWNER_LABEL, resource_of
from reconciler.resource.ownership import is_obstacle
from reconciler.resource.state import Owned, ResourceState
from reconciler.resource.turn import NOTHING_NEW, Command, CommandResult, Context

# maximum lag of a role's clock that is still trusted
_MAX_CLOCK_LAG = timedelta(seconds=60)

MAX_LAG_SECONDS = 60.0
"""Maximum consistency lag of an API, in seconds. A read that misses an object this long after its
last write is wrong, not late. A longer grace would suspend observations after each write."""

FIRST_LISTING_SECONDS = 120.0
"""Minimum time in seconds allowed for a listing to show an object after its creation. Two
listing intervals apply if they are longer."""

AWAITING_READ = "AwaitingRead"
"""Reason for an outcome: the resource waits for a read of an object before it writes to it."""

AWAITING_LISTING = "AwaitingListing"
"""Reason for an outcome: a resource that must not create its object waits for a first listing."""


def observe(
    data: Observed, command: Command, state: ResourceState, context: Context
) -> CommandResult:
    """Record what is new in an observation, unless the log has newer information."""
    if _is_second_object(data, state, context):
        is_stale = _is_stale(data, command, state, context)
        return NOTHING_NEW if is_stale else CommandResult((_claim_second_object(data),))
    if not _concerns_resource(data, command, state, context) or _is_stale(
        data, command, state, context
    ):
        return NOTHING_NEW
    belongs_to = _find_other_owner(data, state, context)
    if belongs_to == state.observed.belongs_to and not _is_new(data, command, state, context):
        return NOTHING_NEW
    doubt = _doubt_absence(data, state, context)
    if doubt is not None:
        known = state.observed.doubted
        is_known = known is not None and are_similar(
            (known.missing, known.owned), (doubt.missing, doubt.owned)
        )
        return NOTHING_NEW if is_known else CommandResult((doubt,))
    unmanaged = data.exclusive
    event = ExternalObserved(
        data.provider_config,
        data.external_name,
        data.object,
        data.evidence,
        min(data.as_of, command.position),  # no read begins after its own message
        None if unmanaged is None else unmanaged.unmanaged,
        None if unmanaged is None else unmanaged.total,
        belongs_to,
        data.known_version,
        data.found_as,
    )
    return CommandResult((event,), shows_object=True)


def _concerns_resource(
    data: Observed, command: Command, state: ResourceState, context: Context
) -> bool:
    """Return whether the observation is of the object that this resource owns or declares."""
    location, spec = (data.provider_config, data.external_name), state.desired.spec
    assigns_ids = not context.capabilities.deterministic_names
    if (
        assigns_ids
        and _is_for_another_id(data, state)
        and not _shows_wrong_uid(data, command, state, context)
    ):
        # The read is for another id. It only matters if it shows the result of our creation.
        return False
    if state.owned is not None:
        return location == (state.owned.provider_config, state.owned.external_name)
    if state.released is not None:
        # A released replacement keeps its second name. Under the declared name it would not be
        # found, and a new declaration would create another object.
        return location == (state.observed.provider_config, state.released.name)
    if state.desired.is_declared and spec is not None:
        is_declared = location == (spec.provider_config, spec.external_name)
        return is_declared or _is_created_late(data, state, context)
    return True


def _shows_wrong_uid(
    data: Observed, command: Command, state: ResourceState, context: Context
) -> bool:
    """Return whether our creation created the object, although its response had a different uid.

    The idempotency key of that creation shows it. A copy of the object has the same key, so this
    applies only until a read confirms the uid of the response. An object with the key of another
    creation exists in addition to the owned one.
    """
    existing, owned = data.object, state.owned
    if existing is None or owned is None or existing.labels.get(OWNER_LABEL) != context.owner:
        return False
    is_marked = any(
        owned.uid in each.created_uids and each.action.idempotency_key == existing.written_by
        for each in state.actions.ended
    )
    return is_marked and is_unconfirmed(command, state, context)


def _is_second_object(data: Observed, state: ResourceState, context: Context) -> bool:
    """Return whether a late or abandoned creation call created a second object."""
    if state.owned is None or state.retiring is not None:
        return False  # it may have the name of the replaced object
    if not context.capabilities.deterministic_names:
        return _is_duplicate_creation(data, state.owned, state, context)
    has_another_name = data.external_name != state.owned.external_name
    return has_another_name and _is_created_late(data, state, context)


def _is_duplicate_creation(
    data: Observed, owned: Owned, state: ResourceState, context: Context
) -> bool:
    """Return whether an object has our label and the key of a creation without a known object.

    If the API assigns the ids, a name proves nothing. An API that stores keys creates one object
    for each key, so a second object with the key is a copy.
    """
    existing = data.object
    if existing is None or existing.labels.get(OWNER_LABEL) != context.owner:
        return False
    is_known = existing.uid in (None, owned.uid, state.observed.released_uid)
    if is_known or data.provider_config != owned.provider_config:
        return False
    has_one_object = context.capabilities.idempotency_keys
    return any(
        is_created_by(each, existing)
        and (existing.uid in each.unowned_uids or not (has_one_object and each.created_uids))
        for each in state.actions.ended
    )


def _is_created_late(data: Observed, state: ResourceState, context: Context) -> bool:
    """Return whether an object may be the result of a late creation call.

    It must have our owner label and the name of a creation, because a label may be a copy
    (invariant 7).
    """
    existing = data.object
    if existing is None or existing.labels.get(OWNER_LABEL) != context.owner:
        return False
    is_known = existing.uid is not None and existing.uid == state.observed.released_uid
    location = ("Create", data.provider_config, data.external_name)
    ended = (each.action for each in state.actions.ended)
    return (
        state.actions.uncertain_create
        and context.capabilities.deterministic_names
        and any(
            (each.operation, each.provider_config, each.external_name) == location for each in ended
        )
        and not (is_known or is_obstacle(existing, state, context))
    )


def _claim_second_object(data: Observed) -> OwnershipClaimed:
    """Return the claim to a second object, which is then deleted like a replaced one."""
    uid = None if data.object is None else data.object.uid
    return OwnershipClaimed(
        data.external_name, uid, "Found", data.provider_config, object=data.object
    )


def _is_for_another_id(data: Observed, state: ResourceState) -> bool:
    """Return whether the observation is of an object other than the owned or known one.

    The observer may have known another object at that time. The absence of that one proves nothing
    about the owned one.
    """
    known = state.owned or state.released
    if known is None and data.object is None:
        known = state.observed.object
    uid = data.absent_uid if data.object is None else data.object.uid
    if known is None and data.object is None and uid is not None:
        return True  # the absence of an earlier object does not prove that another one is absent
    return known is not None and None not in (uid, known.uid) and uid != known.uid


def _is_stale(data: Observed, command: Command, state: ResourceState, context: Context) -> bool:
    """Return whether the log has newer information than the observation (invariant 6)."""
    known, actions, holds = state.observed, state.actions, state.holds
    # The read may have begun before or after the call. The result of the call shows the object.
    if actions.in_flight is not None:
        return True
    # An approved deletion requires a newer read. Observers stop reporting once a read is recorded,
    # so an older read must not be recorded.
    if holds.approved == Hold.DELETION_GUARD and data.as_of < holds.approved_position:
        return True
    if data.object is None and data.evidence == "CompleteListing" and known.is_listing_disproved:
        return True
    if data.as_of < actions.effect_position:
        return True
    if (data.as_of, command.position) < (known.position, known.message):
        return True
    if data.provider_config not in context.configs:
        return actions.effect_position > 0  # the grace of an unknown configuration is unknown
    grace = context.grace_seconds(data.provider_config, state)
    if grace and actions.effect_at is not None:
        began_at = _began_at(data, command)
        return began_at is None or began_at < actions.effect_at + timedelta(seconds=grace)
    return False


def _began_at(data: Observed, command: Command) -> datetime | None:
    """Return when the read began, by the bus's clock, because an observer's clock may be wrong."""
    if command.stored_at is None or data.age_seconds is None:
        return None
    return bus_start_time(command.stored_at, timedelta(seconds=data.age_seconds), data.began_at)


def bus_start_time(stored_at: datetime, age: timedelta, began_at: datetime | None) -> datetime:
    """Return when a call began, by the bus's clock, given its age when its result was sent.

    ``began_at`` comes from the clock of the role that made the call. The role may have been
    suspended after it measured the age, so its clock is used if the difference is a plausible lag.
    """
    measured = stored_at - age
    if began_at is not None and measured - _MAX_CLOCK_LAG <= began_at < measured:
        return began_at
    return measured


def _find_other_owner(data: Observed, state: ResourceState, context: Context) -> str:
    """Return the other resource that the object belongs to, or belonged to when last observed."""
    known = state.observed
    is_gone = data.object is None and not state.desired.is_declared and state.owned is None
    # the other resource may have been withdrawn, and its object deleted
    if is_gone and not data.belongs_to:
        return known.belongs_to or find_labeled_resource(known.object, context)
    return known.belongs_to if data.belongs_to is None else data.belongs_to


def find_owner_namespace(state: ResourceState, context: Context) -> str:
    """Return the other namespace that the object belongs to; empty if none is known."""
    resource = state.observed.belongs_to or find_labeled_resource(state.observed.object, context)
    namespace = resource.partition("/")[0]
    return "" if namespace == context.key.namespace else namespace


def find_labeled_resource(existing: ExternalObject | None, context: Context) -> str:
    """Return the other resource of this log that an owner label names; empty if none."""
    label = "" if existing is None else existing.labels.get(OWNER_LABEL, "")
    return "" if label == context.owner else resource_of(label, context.log_id)


def awaits_first_listing(state: ResourceState, context: Context) -> bool:
    """Return whether no listing has proved yet that the object does not exist (invariant 6).

    This matters only for declarations whose creation would not conflict with the object. One read
    that began after the declaration is recorded. Later ones are recorded only if they differ.
    """
    desired, known = state.desired, state.observed
    if not desired.is_declared or desired.spec is None or state.owned is not None:
        return False
    policy, capabilities = desired.spec.policy, context.capabilities
    is_passive = policy.mode in ("Absent", "ObserveOnly")
    # If the API assigns ids, a creation would not conflict with the object to adopt.
    assigns_ids = capabilities.listing and not capabilities.deterministic_names
    needs_listing = is_passive or (assigns_ids and policy.adoption == "Adopt")
    return needs_listing and known.object is None and known.absent_at < desired.position


def is_new_count(
    guard: DeletionGuard, known: tuple[int | None, int | None], current: tuple[int, int]
) -> bool:
    """Return whether new counts change the guard's decision, or differ by more than a factor of 2.

    A hostile API changes its counts with each listing, and all held resources would record them.
    """
    unmanaged, total = known
    if unmanaged is None or total is None:
        return True
    is_allowed = guard.allows(*current)
    return is_allowed != guard.allows(unmanaged, total) or not are_similar(
        (unmanaged, total), current
    )


def are_similar(known: tuple[int, int], current: tuple[int, int]) -> bool:
    """Return whether no count is more than twice the other one."""
    return all(old <= 2 * new and new <= 2 * old for old, new in zip(known, current, strict=True))


def _is_new(data: Observed, command: Command, state: ResourceState, context: Context) -> bool:
    """Return whether the observation changes something that the state or a guard depends on."""
    known, existing = state.observed, data.object
    if awaits_first_listing(state, context) and data.as_of >= state.desired.position:
        return True
    if not same_content(known.object, existing):
        return True
    if known.read_requested_at is not None and data.as_of >= known.read_requested_at:
        return True
    if existing is None and state.owned is None:
        # Nothing waits for the object, but a listing may show its data under another name.
        is_listed = data.evidence == "CompleteListing"
        return state.lost is not None and is_listed and data.found_as != known.found_as
    if state.outcome is not None and state.outcome.reason == AWAITING_READ:
        return command.position > known.message  # a parked message is delivered again
    if known.doubted is not None and existing is not None:
        return True
    is_held_or_unowned = state.outcome is not None and state.outcome.outcome in ("Held", "Unowned")
    unmanaged = data.exclusive
    # New counts may let a held object pass the guard, or make an unmanaged one subject to deletion.
    config = context.configs.get(data.provider_config)
    if is_held_or_unowned and unmanaged and config is not None:
        counts = (unmanaged.unmanaged, unmanaged.total)
        if is_new_count(config.deletion_guard, (known.unmanaged, known.total), counts):
            return True
    # Our writes conflict, and this read shows the version that we lack.
    if (
        state.waits.conflicts
        and existing
        and known.object
        and existing.version != known.object.version
    ):
        return True
    # A deletion was approved, and this is the first read since the approval.
    holds = state.holds
    return holds.approved == Hold.DELETION_GUARD and data.as_of >= holds.approved_position


def _doubt_absence(data: Observed, state: ResourceState, context: Context) -> AbsenceDoubted | None:
    """Return the event that rejects a listing if it lacks more objects than the guard allows."""
    losses, config = data.losses, context.configs.get(data.provider_config)
    if data.object is not None or state.owned is None or losses is None or config is None:
        return None
    is_approved = state.holds.approved == Hold.LOSS_GUARD
    is_doubted = config.loss_guard.doubts(
        losses.missing, losses.owned, explained=losses.is_explained
    )
    if is_approved or not is_doubted:
        return None
    return AbsenceDoubted(data.provider_config, data.external_name, losses.missing, losses.owned)


def detect_loss_and_drift(
    command: Command,
    state: ResourceState,
    context: Context,
    comparison: Comparison,
    known: ExternalObject | None = None,
) -> tuple[ResourceEvent, ...]:
    """Return the loss of ownership or the drift that the newest state of the object shows.

    ``known``: the object before the command.
    """
    owned, existing, desired = state.owned, state.observed.object, state.desired
    if owned is None:
        return ()
    identity = (owned.external_name, owned.uid)
    if existing is None:
        since_write = _seconds_since_write(command, state)
        # A read shows that the name is free. The result of an action only shows that the uid is
        # absent.
        is_result = isinstance(command.data, Reported)
        is_unclear = is_result and is_unconfirmed(command, state, context)
        if not context.capabilities.listing:
            is_unclear |= state.actions.uncertain_create  # a late call may create it again
        suspect = _find_suspect(state, owned, "Delete", lambda _action: True)
        # The loss by our own deletion was approved before it was decided.
        lost_data = "" if suspect else describe_lost_data(known, state, context)
        release = OwnershipReleased(
            *identity, "Gone", owned.provider_config, since_write, is_unclear, lost_data
        )
        if not desired.is_declared:
            return (release,)
        drift = DriftDetected(
            desired.generation,
            missing=True,
            suspected_action=suspect,
            renamed_to=state.observed.found_as,
        )
        return (drift, release)
    if comparison.is_replaced or _has_lost_its_uid(command, owned, existing):
        is_written = isinstance(command.data, Reported) and command.data.error is None
        is_marked = existing.labels.get(OWNER_LABEL) == context.owner and not is_written
        is_unclear = is_marked and is_unconfirmed(command, state, context)
        config = owned.provider_config
        lost_data = describe_lost_data(known, state, context)
        release = OwnershipReleased(
            *identity, "Replaced", config, unconfirmed=is_unclear, lost_data=lost_data
        )
        return (release,)
    if not desired.is_declared or not comparison.is_applied or not comparison.differences:
        return ()
    differences = _drifted(comparison, owned, context)
    if not differences:
        return ()
    suspect = _find_suspect(state, owned, "Update", _explains(comparison))
    return (DriftDetected(desired.generation, differences=differences, suspected_action=suspect),)


def _drifted(comparison: Comparison, owned: Owned, context: Context) -> tuple[FieldDifference, ...]:
    """Return the differences, without those that a changed input of the object explains."""
    written = None if owned.applied is None else owned.applied.result
    existing, kind = comparison.existing, context.kind
    if written is None or existing is None or kind is None:
        return comparison.differences
    followed = kind.follows_input(existing, written)
    return tuple(each for each in comparison.differences if each.path not in followed)


def _seconds_since_write(command: Command, state: ResourceState) -> float:
    """Return the seconds from our newest write to a read that does not show its object."""
    written_at, shown_at = state.actions.effect_at, _read_time(command)
    if written_at is None or shown_at is None:
        return 0.0
    return max(0.0, round((shown_at - written_at).total_seconds(), 3))


def _read_time(command: Command) -> datetime | None:
    """Return when the read began or the result arrived, by the bus's clock."""
    data = command.data
    return _began_at(data, command) if isinstance(data, Observed) else command.stored_at


def is_unconfirmed(command: Command, state: ResourceState, context: Context) -> bool:
    """Return whether a creation may have created an object other than the one in its response.

    This is possible for a limited time after that response, while no read has shown the owned uid,
    and unless one of our writes may have reached another object. Later, our label on an object
    proves nothing.
    """
    owned, at = state.owned, _read_time(command)
    if owned is None or owned.uid is None or owned.responded_at is None or at is None:
        return False
    writes = (each for each in state.actions.ended if each.action.operation == "Update")
    if any(each.in_doubt or each.reported_late for each in writes):
        return False
    config = context.configs.get(owned.provider_config)
    seconds = FIRST_LISTING_SECONDS if config is None else 2 * config.resync_seconds
    grace = context.grace_seconds(owned.provider_config, state)
    limit = timedelta(seconds=max(seconds, FIRST_LISTING_SECONDS) + grace)
    return abs(at - owned.responded_at) <= limit  # the clocks of a cluster's servers differ


def compute_grace(state: ResourceState, context: Context) -> float:
    """Return the consistency grace in seconds that a reappeared object implies; 0 if unchanged.

    It is twice the time from the write to the read that missed the object, because the lag may have
    been longer.
    """
    lag = state.observed.lost_after_seconds
    known = context.grace_seconds(state.provider_config, state)
    return float(math.ceil(2 * lag)) if known < 2 * lag and lag <= MAX_LAG_SECONDS else 0.0


def _has_lost_its_uid(command: Command, owned: Owned, existing: ExternalObject) -> bool:
    """Return whether a refused write shows that the object no longer has the owned uid.

    Some APIs have no ids, so the uid is in metadata that any client can remove. The object may then
    be a different one. A listing may omit the uid, but a refusal proves that it is missing.
    """
    data = command.data
    error = data.error if isinstance(data, Reported) else None
    is_refused = error is not None and error.error_class == "Conflict"
    return is_refused and owned.uid is not None and existing.uid is None


def _explains(comparison: Comparison) -> Callable[[Action], bool]:
    """Return a predicate for writes that, if they came last, explain one of the differences."""

    def explains(action: Action) -> bool:
        written = ExternalObject(action.external_name, action.fields, labels=action.labels)
        return any(each in comparison.differences for each in comparison.differences_from(written))

    return explains


def _find_suspect(
    state: ResourceState, owned: Owned, operation: Operation, explains: Callable[[Action], bool]
) -> str:
    """Return the id of an action that may have caused the drift; empty if none.

    An action is named only once. The name of the object identifies it, because a write without a
    uid may have reached a newer object.
    """
    location = (operation, owned.provider_config, owned.external_name)
    for ended in reversed(state.actions.ended):
        action = ended.action
        is_suspect = (ended.in_doubt or ended.reported_late) and not ended.suspected
        has_same_location = (
            action.operation,
            action.provider_config,
            action.external_name,
        ) == location
        if is_suspect and has_same_location and explains(action):
            return action.action_id
    return ""
