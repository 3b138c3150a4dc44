"""What an observation adds to the history: what is seen, what was lost, what has drifted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from events.external import ExternalObject, same_content
from events.intake import Observed
from events.log import (
    AbsenceDoubted,
    Action,
    DriftDetected,
    ExternalObserved,
    FieldDifference,
    Operation,
    OwnershipReleased,
)
from reconciler.shape.desired import (
    differences_of,
    grace_seconds,
    is_applied,
    open_differences,
)
from reconciler.shape.inputs import Command, Context, Record
from reconciler.shape.owner_label import OWNER_LABEL, shape_of
from reconciler.shape.state import Owned, ShapeState

_RIGHT_CLOCK = timedelta(seconds=60)
"""What an observer's clock may lag behind the bus's, and is still believed."""

DELETION_GUARD = "DeletionGuard"
"""Reason of the outcome of what the guard holds, and what an approval names."""

LOSS_GUARD = "LossGuard"
"""Reason of the outcome of a shape whose loss is not believed, and what an approval names."""


def observe(state: ShapeState, command: Command, context: Context, record: Record) -> None:
    """Record what is new in an observation, unless something is known better."""
    data: Observed = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    if not _is_about_us(state, data) or _is_stale(state, command, data, context):
        return
    taken_by = _taken_by(state, data, context)
    if (
        same_content(state.observed, data.object)
        and not _guard_changed(state, data)
        and not _ends_conflict(state, data)
        and not (state.doubted is not None and data.object is not None)
        and taken_by == state.taken_by
        and not _decides_approval(state, data)
    ):
        return
    if _is_doubtful(state, data, context):
        if data.losses != state.doubted:
            assert data.losses is not None
            missing, owned = data.losses.missing, data.losses.owned
            record(AbsenceDoubted(data.provider_config, data.external_name, missing, owned))
        return
    strays = data.exclusive
    after = record(
        ExternalObserved(
            data.provider_config,
            data.external_name,
            data.object,
            data.evidence,
            min(data.as_of, command.position),  # no read began after its own message
            None if strays is None else strays.strays,
            None if strays is None else strays.total,
            taken_by,
        )
    )
    record_loss_and_drift(after, context, record)


def _taken_by(state: ShapeState, data: Observed, context: Context) -> str:
    """Name the other shape that has the object, or had it when it was last seen."""
    is_gone = data.object is None and not state.declared and state.owned is None
    if is_gone and not data.taken_by:  # that one may have been withdrawn meanwhile, and be gone
        return state.taken_by or _labelled(state.observed, context)
    return state.taken_by if data.taken_by is None else data.taken_by


def _labelled(seen: ExternalObject | None, context: Context) -> str:
    """Name the other shape of this log whose owner label an object carries."""
    label = "" if seen is None else seen.labels.get(OWNER_LABEL, "")
    return "" if label == context.owner else shape_of(label, context.log_id)


def _is_about_us(state: ShapeState, data: Observed) -> bool:
    place = (data.provider_config, data.external_name)
    if state.owned is not None:
        return place == (state.owned.provider_config, state.owned.external_name)
    if state.declared and state.spec is not None:
        return place == (state.spec.provider_config, state.spec.external_name)
    return True


def _is_stale(state: ShapeState, command: Command, data: Observed, context: Context) -> bool:
    """Tell whether the observation began before something that we know better (invariant 6)."""
    if state.in_flight is not None:
        return True
    if data.object is None and data.evidence == "CompleteListing" and state.listing_disproved:
        return True
    if data.as_of < state.effect_position:
        return True
    if (data.as_of, command.position) < (state.observed_position, state.observed_message):
        return True
    if data.provider_config not in context.configs:
        return state.effect_at is not None  # how late it shows our effects is not known
    grace = grace_seconds(context, data.provider_config)
    if grace and state.effect_at is not None:
        began_at = _began_at(command, data)
        return began_at is None or began_at < state.effect_at + timedelta(seconds=grace)
    return False


def _began_at(command: Command, data: Observed) -> datetime | None:
    """Give when the read began, by the bus's clock: that of an observer may be wrong.

    From its beginning to the message there may have been more than the observer counted: it may
    have stood still before it sent it. So its clock counts, where that is likely to be right.
    """
    if command.stored_at is None or data.age_seconds is None:
        return data.began_at
    began_at = command.stored_at - timedelta(seconds=data.age_seconds)
    said = data.began_at
    if said is not None and began_at - _RIGHT_CLOCK <= said < began_at:
        return said
    return began_at


def _is_doubtful(state: ShapeState, data: Observed, context: Context) -> bool:
    """Tell whether the absence is one of so many that people have to be asked."""
    losses, config = data.losses, context.configs.get(data.provider_config)
    if data.object is not None or state.owned is None or losses is None or config is None:
        return False
    guard = config.loss_guard
    too_many = losses.missing >= guard.min_count
    too_much = losses.missing * 100 > losses.owned * guard.max_percent
    return too_many and too_much and state.approved != LOSS_GUARD


def _guard_changed(state: ShapeState, data: Observed) -> bool:
    """Tell whether a held stray is seen with other numbers, which may let it through the guard."""
    held = state.outcome is not None and state.outcome.outcome == "Held"
    strays = data.exclusive
    return (
        held
        and strays is not None
        and (strays.strays, strays.total)
        != (
            state.strays,
            state.total,
        )
    )


def _decides_approval(state: ShapeState, data: Observed) -> bool:
    """Tell whether a person has approved a deletion, and this is the first look since."""
    return state.approved == DELETION_GUARD and data.as_of >= state.approved_position


def _ends_conflict(state: ShapeState, data: Observed) -> bool:
    """Tell whether our writes conflict, and this is the version that we did not know."""
    return (
        state.conflicts > 0
        and data.object is not None
        and state.observed is not None
        and data.object.version != state.observed.version
    )


def record_loss_and_drift(state: ShapeState, context: Context, record: Record) -> None:
    """Tell, after a new look at the object, whether it is still ours and as we left it."""
    owned = state.owned
    if owned is None:
        return
    if state.observed is None:
        if state.declared:
            deleted = _in_doubt(state, owned, "Delete", lambda _action: True)
            state = record(DriftDetected(state.generation, missing=True, perhaps_by=deleted))
        record(OwnershipReleased(owned.external_name, owned.uid, "Gone", owned.provider_config))
    elif owned.uid is not None and state.observed.uid not in (None, owned.uid):
        record(OwnershipReleased(owned.external_name, owned.uid, "Replaced", owned.provider_config))
    elif state.declared and is_applied(state, context):
        found = open_differences(state, context)
        if found:
            written = _in_doubt(state, owned, "Update", _explains(state, found, context))
            record(DriftDetected(state.generation, differences=found, perhaps_by=written))


def _explains(
    state: ShapeState, found: Sequence[FieldDifference], context: Context
) -> Callable[[Action], bool]:
    """Give the test whether a write would leave something of what is found, had it come last."""

    def explains(action: Action) -> bool:
        left = ExternalObject(action.external_name, action.fields, labels=action.labels)
        return any(each in found for each in differences_of(state, left, context))

    return explains


def _in_doubt(
    state: ShapeState, owned: Owned, operation: Operation, explains: Callable[[Action], bool]
) -> str:
    """Name an action of ours that may have done what is seen now; each is suspected once.

    By its name: where a write is not bound to an object, it may have met the next one.
    """
    place = (operation, owned.provider_config, owned.external_name)
    for ended in reversed(state.ended):
        action = ended.action
        may_be_it = (ended.in_doubt or ended.told_late) and not ended.suspected
        is_there = (action.operation, action.provider_config, action.external_name) == place
        if may_be_it and is_there and explains(action):
            return action.action_id
    return ""
