"""The level-triggered part: the next step, from the folded state alone.

``next_step`` never asks which message woke the shape (invariant 4). It gives one step;
``take_turn`` folds that step and asks again until there is none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from msgspec.structs import replace

from events.external import ExternalObject
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionRetried,
    FieldDifference,
    Operation,
    OutcomeName,
    OwnershipClaimed,
    OwnershipReleased,
    RetryScheduled,
    ShapeEvent,
    event_id,
)
from events.manifest import DeletionGuard, Fields, Policy, ProviderConfigSpec, Retry
from reconciler.shape.backoff import delay
from reconciler.shape.desired import (
    api_keeps_its_own,
    config_name,
    config_of,
    labels_of,
    open_differences,
    wanted,
)
from reconciler.shape.differences import merged
from reconciler.shape.inputs import Context
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.state import InFlight, ShapeState

CONFLICTS_BEFORE_WAITING = 3
"""So many conflicts in a row are answered at once; then each waits like a failure."""

_GUARD_PERCENT_FROM = 10


@dataclass(frozen=True, slots=True)
class Standing:
    """There is no next step: this is how the shape stands."""

    outcome: OutcomeName
    reason: str
    message: str = ""
    action_id: str | None = None


NOTHING_TO_SAY = Standing("Deleted", "")
"""How a shape stands of which nobody wants to hear: it was never there."""

_PAUSED = Standing("Paused", "PausedByPolicy", "the declaration says so; nothing is done")

Step = ShapeEvent | Standing


def next_step(state: ShapeState, context: Context) -> Step:
    """Give the next event to record, or how the shape stands if there is nothing to do now."""
    if context.kind is not None and not context.kind.is_external:
        return _internal(state)
    config = config_of(state, context)
    if state.in_flight is not None:
        return _pursue(state, state.in_flight, context, config)
    if state.spec is None and state.observed is None and state.owned is None:
        return NOTHING_TO_SAY if state.outcome is None else Standing("Deleted", "GoneByOthers")
    if context.kind is None:
        return Standing("Held", "UnknownKind", f"kind {context.key.kind!r} is not registered here")
    if config is None:
        return _no_config(state)
    if _is_paused(state):
        return _PAUSED
    if state.hold_until is not None and state.hold_until > context.now:
        return _waiting(state)
    if state.declared and state.spec is not None:
        if state.spec.policy.mode == "Absent":
            return _keep_away(state, context, config)
        return _keep_present(state, context, config)
    return _let_go(state, context, config)


def _internal(state: ShapeState) -> Step:
    """Shapes that live in the log alone, such as a ProviderConfig, are what they are declared."""
    if state.declared:
        return Standing("Converged", "Declared")
    return Standing("Deleted", "Withdrawn") if state.generation else NOTHING_TO_SAY


def _no_config(state: ShapeState) -> Standing:
    return Standing(
        "Held",
        "ProviderConfigMissing",
        f"ProviderConfig {config_name(state)!r} is not declared: declare it",
    )


def _is_paused(state: ShapeState) -> bool:
    return state.declared and state.spec is not None and state.spec.policy.paused


def _pursue(
    state: ShapeState, flight: InFlight, context: Context, config: ProviderConfigSpec | None
) -> Step:
    """Bring the action in flight to its end: the same key and parameters until it is known."""
    if flight.failed is None:
        return _degraded_while_trying(state, flight)
    if _is_outdated(state, flight):
        return ActionAbandoned(
            flight.action.action_id,
            flight.action.operation,
            f"generation {state.generation} replaces generation {flight.action.generation}",
        )
    if _is_paused(state):
        return _PAUSED
    if flight.retry_at is None:
        retry = Retry() if config is None else config.retry
        wait = delay(retry, state.failures, context.jitter, flight.failed.retry_after_seconds)
        return RetryScheduled(
            context.now + wait,
            round(wait.total_seconds(), 3),
            flight.failed.error_class,
            flight.action.action_id,
        )
    if flight.retry_at <= context.now:
        return ActionRetried(flight.action, flight.attempt + 1)
    return _degraded_while_trying(state, flight)


def _is_outdated(state: ShapeState, flight: InFlight) -> bool:
    """Tell whether the action has most likely done nothing, and something newer is wanted.

    It may have been done all the same, if a worker died after the call and the redelivered attempt
    was refused. For an update or a deletion the next look tells; a creation would leak, so it is
    pursued to its end.
    """
    assert flight.failed is not None
    nothing_done = flight.failed.error_class in ("Transient", "Throttled") and flight.attempt == 1
    return (
        nothing_done
        and flight.action.operation != "Create"
        and flight.action.generation != state.generation
    )


def _degraded_while_trying(state: ShapeState, flight: InFlight) -> Standing:
    """While an action is under way, only trouble is worth telling."""
    if state.failure is None or state.failures == 0:
        return Standing("Converged", "")  # not said: see outcomes.is_worth_recording
    return Standing(
        "Degraded", state.failure.error_class, state.failure.message, flight.action.action_id
    )


def _waiting(state: ShapeState) -> Standing:
    message = "" if state.failure is None else state.failure.message
    reason = "Waiting" if state.failure is None else state.failure.error_class
    return Standing("Degraded", reason, message)


# --- declared, and it shall exist


def _keep_present(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    assert state.spec is not None
    policy = state.spec.policy
    if state.observed is None:
        return _make(state, context, config, policy)
    found = open_differences(state, context)
    if state.owned is None and policy.mode != "ObserveOnly":
        return _take_over(state, state.observed, context, config)
    if not found:
        return Standing("Converged", "AsDeclared")
    if policy.mode != "Present":
        return Standing("Drifted", policy.mode, "would change " + _described(found))
    if state.failed_generation == state.generation:
        return _failed(state)
    if api_keeps_its_own(state, context):
        return Standing(
            "Degraded", "NotAccepted", "the API took the write, but keeps " + _described(found)
        )
    return _after_conflicts(state, context, config) or _update(state, state.observed, context)


def _make(state: ShapeState, context: Context, config: ProviderConfigSpec, policy: Policy) -> Step:
    if policy.mode == "ObserveOnly":
        return Standing("Drifted", "ObserveOnly", "it does not exist; would create it")
    if policy.mode == "CreateOnly" and state.created_before:
        return Standing("Drifted", "CreateOnly", "it is gone; would create it again")
    if state.failed_generation == state.generation:
        return _failed(state)
    assert state.spec is not None
    return _after_conflicts(state, context, config) or _action(
        state, context, "Create", state.spec.fields, labels_of(state, context)
    )


def _take_over(
    state: ShapeState, found: ExternalObject, context: Context, config: ProviderConfigSpec
) -> Step:
    """An object of that name is there, and the log does not say that it is ours."""
    assert state.spec is not None
    policy = state.spec.policy
    if config.ownership == "Label" and found.labels.get(OWNER_LABEL) == context.owner:
        return OwnershipClaimed(found.name, found.uid, "Label", state.observed_in)
    if policy.adoption == "Adopt" and _has_no_other_owner(found, context):
        return OwnershipClaimed(found.name, found.uid, "Adopted", state.observed_in)
    if policy.adoption == "Adopt":
        return Standing(
            "Conflict", "OwnedByAnother", f"its owner label is {found.labels[OWNER_LABEL]!r}"
        )
    return Standing(
        "Conflict",
        "AlreadyExists",
        f"{found.name!r} exists and is not ours: declare it with policy.adoption Adopt, "
        "or under another name",
    )


def _has_no_other_owner(found: ExternalObject, context: Context) -> bool:
    return found.labels.get(OWNER_LABEL, context.owner) == context.owner


def _update(state: ShapeState, found: ExternalObject, context: Context) -> Step:
    assert context.kind is not None
    fields, labels = merged(wanted(state, context), found, context.kind.normalize)
    return _action(state, context, "Update", fields, labels, found)


# --- withdrawn, or it shall not exist


def _let_go(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    """Nobody declares it (any more)."""
    if state.owned is None:
        return _not_ours(state, context, config)
    policy = Policy() if state.spec is None else state.spec.policy
    stays = policy.deletion == "Orphan" or policy.mode == "ObserveOnly"
    if stays and state.generation:
        owned = state.owned
        return OwnershipReleased(owned.external_name, owned.uid, "Orphaned", owned.provider_config)
    return _remove(state, context, config)


def _not_ours(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    found = state.observed
    if found is None:
        return Standing("Deleted", "Gone")
    if state.orphaned:
        return Standing("Released", "Orphaned", "the object stays in the API, and is not ours")
    label = found.labels.get(OWNER_LABEL)
    if label == context.owner:
        if config.ownership == "Label":
            return OwnershipClaimed(found.name, found.uid, "Label", state.observed_in)
        return Standing(
            "Disputed", "LabelSaysOurs", "its label says that it is ours, the log never"
        )
    if label is not None and config.scope.mode == "Exclusive":
        return _owned_by_another(label)
    if config.scope.mode == "Exclusive":
        return _stray(state, found, config.deletion_guard)
    told_so = state.outcome is not None and state.outcome.reason == "NotOurs"
    if state.generation and (state.settled_generation != state.generation or told_so):
        return Standing("Deleted", "NotOurs", "an object of that name is not ours: left alone")
    return Standing("Unowned", "NotDeclared", "nobody declared it here: left alone")


def _owned_by_another(label: str) -> Standing:
    return Standing(
        "Disputed", "OwnedByAnother", f"its owner label is {label!r}: it is never deleted"
    )


def _stray(state: ShapeState, found: ExternalObject, guard: DeletionGuard) -> Step:
    strays, total = state.strays or 0, state.total or 0
    too_many = strays > guard.max_count
    too_much = total >= _GUARD_PERCENT_FROM and strays * 100 > total * guard.max_percent
    if strays == 0 or too_many or too_much:
        return Standing(
            "Held",
            "DeletionGuard",
            f"{strays} of {total} objects of the exclusive scope are undeclared; the guard lets "
            f"{guard.max_count} or {guard.max_percent} % go at a time",
        )
    return OwnershipClaimed(found.name, found.uid, "ExclusiveScope", state.observed_in)


def _keep_away(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    assert state.spec is not None
    if state.observed is None and state.owned is None:
        return Standing("Converged", "Absent")
    if state.owned is None and state.observed is not None:
        return _take_over(state, state.observed, context, config)
    return _remove(state, context, config)


def _remove(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    if state.observed is not None and not _has_no_other_owner(state.observed, context):
        return _owned_by_another(state.observed.labels[OWNER_LABEL])
    if state.failure is not None and state.failure.error_class == "Permanent":
        return _hold(state, context, config.retry, state.failure.message)
    return _after_conflicts(state, context, config) or _action(
        state, context, "Delete", {}, {}, state.observed
    )


# --- what all have in common


def _failed(state: ShapeState) -> Standing:
    message = "" if state.failure is None else state.failure.message
    return Standing("Failed", "Permanent", message or "the API refused this generation")


def _after_conflicts(
    state: ShapeState, context: Context, config: ProviderConfigSpec
) -> RetryScheduled | None:
    """Let a shape wait whose knowledge is out of date again and again: no hot loop."""
    if state.conflicts <= CONFLICTS_BEFORE_WAITING:
        return None
    if state.hold_until is not None and state.hold_until <= context.now:
        return None  # it has waited
    wait = delay(config.retry, state.conflicts - CONFLICTS_BEFORE_WAITING, context.jitter)
    return RetryScheduled(context.now + wait, round(wait.total_seconds(), 3), "Conflict")


def _hold(state: ShapeState, context: Context, retry: Retry, reason: str) -> Step:
    """A deletion that the API refuses for good is tried again at the longest interval."""
    if state.hold_until is not None and state.hold_until <= context.now:
        return _action(state, context, "Delete", {}, {}, state.observed)
    wait = delay(replace(retry, initial_seconds=retry.max_seconds), 1, context.jitter)
    return RetryScheduled(context.now + wait, round(wait.total_seconds(), 3), reason)


def _action(
    state: ShapeState,
    context: Context,
    operation: Operation,
    fields: Fields,
    labels: dict[str, str],
    found: ExternalObject | None = None,
) -> ActionDecided:
    action_id = event_id(context.key, state.version + 1)
    owned = state.owned
    if owned is not None:
        place = (owned.provider_config, owned.external_name)
    else:
        assert state.spec is not None
        place = (state.spec.provider_config, state.spec.external_name)
    uid = None if operation == "Create" or owned is None else owned.uid
    return ActionDecided(
        Action(
            action_id=action_id,
            idempotency_key=idempotency_key(context.log_id, action_id),
            operation=operation,
            generation=state.generation,
            provider_config=place[0],
            external_name=place[1],
            because=(state.because,) if state.because else (),
            fields=fields,
            labels=labels,
            uid=uid,
            version=None if found is None or operation != "Update" else found.version,
        )
    )


def idempotency_key(log_id: str, action_id: str) -> str:
    """Derive an action's key: the same in every replay, another in every other log."""
    return hashlib.sha256(f"{log_id}/{action_id}".encode()).hexdigest()[:40]


def _described(found: tuple[FieldDifference, ...]) -> str:
    return ", ".join(
        f"{each.path}: {each.observed!r} (declared {each.desired!r})" for each in found
    )
