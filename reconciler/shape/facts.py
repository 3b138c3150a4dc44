"""What a command adds to the history, before anything is decided.

A command that says nothing new gives no event: duplicates, stale observations and results of
actions that are already settled end here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from events.external import same_content
from events.intake import Answer, Declared, IntakeData, Observed, Reported, TimerFired, Withdrawn
from events.log import (
    ActionFailed,
    ActionSucceeded,
    DriftDetected,
    ExternalObserved,
    GenerationSuperseded,
    OwnershipReleased,
    ShapeEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import Declaration, InvalidManifestError, take_apart
from events.names import SYSTEM_NAMESPACE, InvalidNameError
from reconciler.shape.desired import is_applied, open_differences
from reconciler.shape.inputs import Command, Context
from reconciler.shape.state import ShapeState, declaration_id

Record = Callable[[ShapeEvent], ShapeState]
"""Records an event in the turn and gives the state after it."""


def record_facts(
    state: ShapeState, command: Command, context: Context, record: Record
) -> Answer | None:
    """Record what a command says; answer it if it is a declaration or a withdrawal."""
    return _HANDLERS[type(command.data)](state, command, context, record)


def _declare(state: ShapeState, command: Command, context: Context, record: Record) -> Answer:
    data: Declared = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = _known_already(state, command)
    if known is not None:
        return known
    refusal = _refusal(state, data.expected_generation, command)
    if refusal is not None:
        return refusal
    if context.kind is None:
        return _refused(
            state, command, "UnknownKind", f"kind {context.key.kind!r} is not registered here"
        )
    try:
        event = _spec_event(data, context, state.generation + 1)
    except (InvalidManifestError, InvalidNameError) as error:
        return _refused(state, command, "Invalid", str(error))
    if _is_unchanged(state, event):
        return Answer(True, "Unchanged", state.generation, command.position)
    immutable = _immutable_problem(state, event)
    if immutable is not None:
        return _refused(state, command, "Immutable", immutable)
    return _next_generation(state, event, command, record)


def _withdraw(state: ShapeState, command: Command, _context: Context, record: Record) -> Answer:
    data: Withdrawn = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = _known_already(state, command)
    if known is not None:
        return known
    refusal = _refusal(state, data.expected_generation, command)
    if refusal is not None:
        return refusal
    if not state.declared:
        return Answer(True, "Unchanged", state.generation, command.position)
    return _next_generation(state, SpecWithdrawn(state.generation + 1), command, record)


def _next_generation(
    state: ShapeState, event: SpecDeclared | SpecWithdrawn, command: Command, record: Record
) -> Answer:
    record(event)
    if 0 < state.generation != state.settled_generation:
        record(GenerationSuperseded(state.generation, by=event.generation))
    return Answer(True, "Accepted", event.generation, command.position)


def _known_already(state: ShapeState, command: Command) -> Answer | None:
    known = declaration_id(command.actor, command.message_id)
    if command.position == state.declared_position or known in state.declaration_ids:
        return Answer(True, "Duplicate", state.generation, command.position)
    if command.position < state.declared_position:
        return _refused(
            state, command, "Superseded", "a newer declaration was accepted before this one came"
        )
    return None


def _refusal(state: ShapeState, expected: int | None, command: Command) -> Answer | None:
    if expected is None or expected == state.generation:
        return None
    return _refused(
        state,
        command,
        "StaleGeneration",
        f"expected generation {expected}, but the shape is at {state.generation}: "
        "read it again and repeat",
    )


def _refused(state: ShapeState, command: Command, reason: str, message: str) -> Answer:
    return Answer(False, reason, state.generation, command.position, message)


def _spec_event(data: Declared, context: Context, generation: int) -> SpecDeclared:
    manifest, kind = data.manifest, context.kind
    assert kind is not None
    if manifest.key != context.key:
        raise InvalidManifestError(
            f"the manifest is of {manifest.key}, but was published for {context.key}"
        )
    if manifest.api_version != kind.api_version:
        raise InvalidManifestError(
            f"apiVersion {manifest.api_version!r} is not known for {kind.name}: "
            f"use {kind.api_version!r}"
        )
    if kind.is_external:
        taken = take_apart(manifest)
        problem = kind.name_problem(taken.external_name)
        if problem is not None:
            raise InvalidManifestError(f"name {taken.external_name!r}: {problem}")
    else:
        if context.key.namespace != SYSTEM_NAMESPACE:
            raise InvalidManifestError(
                f"a {kind.name} lives in namespace {SYSTEM_NAMESPACE!r}, "
                f"not in {context.key.namespace!r}"
            )
        taken = Declaration("", _NO_POLICY, manifest.metadata.name, dict(manifest.spec), {})
    return SpecDeclared(
        generation=generation,
        api_version=manifest.api_version,
        provider_config=taken.provider_config,
        external_name=taken.external_name,
        fields=kind.checked_fields(taken.fields),
        labels=taken.labels,
        annotations=dict(manifest.metadata.annotations),
        policy=taken.policy,
    )


_NO_POLICY = SpecDeclared(0, "", "", "", {}).policy


def _is_unchanged(state: ShapeState, event: SpecDeclared) -> bool:
    spec = state.spec
    return (
        state.declared
        and spec is not None
        and spec.fields == event.fields
        and spec.labels == event.labels
        and spec.policy == event.policy
        and spec.annotations == event.annotations
        and spec.provider_config == event.provider_config
        and spec.external_name == event.external_name
        and spec.api_version == event.api_version
    )


def _immutable_problem(state: ShapeState, event: SpecDeclared) -> str | None:
    spec = state.spec
    if spec is None or (state.owned is None and state.in_flight is None):
        return None
    if (spec.provider_config, spec.external_name) == (event.provider_config, event.external_name):
        return None
    return (
        f"the shape lives as {spec.external_name!r} in {spec.provider_config!r}: "
        "withdraw it there before it moves"
    )


def _observe(state: ShapeState, command: Command, context: Context, record: Record) -> None:
    data: Observed = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    if not _is_about_us(state, data) or _is_stale(state, command.position, data, context):
        return
    if (
        same_content(state.observed, data.object)
        and not _guard_changed(state, data)
        and not _ends_conflict(state, data)
    ):
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
        )
    )
    _record_loss_and_drift(after, context, record)


def _is_about_us(state: ShapeState, data: Observed) -> bool:
    place = (data.provider_config, data.external_name)
    if state.owned is not None:
        return place == (state.owned.provider_config, state.owned.external_name)
    if state.declared and state.spec is not None:
        return place == (state.spec.provider_config, state.spec.external_name)
    return True


def _is_stale(state: ShapeState, position: int, data: Observed, context: Context) -> bool:
    """Tell whether the observation began before something that we know better (invariant 6)."""
    if state.in_flight is not None:
        return True
    if data.object is None and data.evidence == "CompleteListing" and state.listing_disproved:
        return True
    if data.as_of < state.effect_position:
        return True
    if (data.as_of, position) < (state.observed_position, state.observed_message):
        return True
    config = context.configs.get(data.provider_config)
    if config is None:
        return state.effect_at is not None  # how late it shows our effects is not known
    grace = config.consistency_grace_seconds
    if grace and state.effect_at is not None:
        return data.began_at is None or data.began_at < state.effect_at + timedelta(seconds=grace)
    return False


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


def _ends_conflict(state: ShapeState, data: Observed) -> bool:
    """Tell whether our writes conflict, and this is the version that we did not know."""
    return (
        state.conflicts > 0
        and data.object is not None
        and state.observed is not None
        and data.object.version != state.observed.version
    )


def _record_loss_and_drift(state: ShapeState, context: Context, record: Record) -> None:
    """Tell, after a new look at the object, whether it is still ours and as we left it."""
    owned = state.owned
    if owned is None:
        return
    if state.observed is None:
        if state.declared:
            state = record(DriftDetected(state.generation, missing=True))
        record(OwnershipReleased(owned.external_name, owned.uid, "Gone", owned.provider_config))
    elif owned.uid is not None and state.observed.uid not in (None, owned.uid):
        record(OwnershipReleased(owned.external_name, owned.uid, "Replaced", owned.provider_config))
    elif state.declared and is_applied(state, context):
        found = open_differences(state, context)
        if found:
            record(DriftDetected(state.generation, differences=found))


def _report(state: ShapeState, command: Command, context: Context, record: Record) -> None:
    data: Reported = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    flight = state.in_flight
    if flight is None or flight.action.action_id != data.action_id:
        return
    operation = flight.action.operation
    if data.error is None:
        record(ActionSucceeded(data.action_id, operation, data.attempt, data.object, data.replayed))
        return
    if data.attempt != flight.attempt or flight.failed is not None:
        return
    after = record(ActionFailed(data.action_id, operation, data.attempt, data.error, data.object))
    if after.in_flight is None and data.error.error_class != "Permanent":
        _record_loss_and_drift_after_conflict(after, data, context, record)


def _record_loss_and_drift_after_conflict(
    state: ShapeState, data: Reported, context: Context, record: Record
) -> None:
    """A conflict is an observation too, if it shows what stands in the way."""
    assert data.error is not None
    if data.error.error_class == "NotFound" or data.object is not None:
        _record_loss_and_drift(state, context, record)


def _timer(_state: ShapeState, _command: Command, _context: Context, _record: Record) -> None:
    """A timer is a hint: that the shape is looked at is all it does."""


_HANDLERS: dict[type[IntakeData], Callable[[ShapeState, Command, Context, Record], Any]] = {
    Declared: _declare,
    Withdrawn: _withdraw,
    Observed: _observe,
    Reported: _report,
    TimerFired: _timer,
}
