"""Compares the row of a resource with its state: both folds of a log must agree (ADR 0066)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from events.external import ExternalObject, digest, identity
from events.hold import Hold
from events.log import Condition, LogEvent
from projections.status import StatusRow, fold_status
from reconciler.resource.state import ResourceState

LOG_ONLY_FIELDS: Final = frozenset(
    {
        # The key, and metadata of the newest events.
        *("namespace", "kind", "name", "position", "since", "changed_at", "observed_at"),
        # Names, times and numbers that the aggregate does not need.
        *("owned_by", "owned_since", "owned_reason", "drifts", "released", "uncertain_names"),
        *("reserves_name", "claims", "pending_claims"),
        "is_unconfirmed",
        *("unmet_since", "pending_level", "silence_event"),
        # The state has them only while an outcome or a wait is current.
        *("retry_seconds", "throttled_seconds"),
        # The row drops them with its object, and they are reported only once.
        *("refers", "referenced_from"),
    }
)
"""Fields of the row that do not follow from the state."""


def expected_fields_of(state: ResourceState) -> Mapping[str, object]:
    """Return the fields of the row that follow from the state."""
    desired, observed, spec = state.desired, state.observed, state.desired.spec
    owned, retiring, flight = state.owned, state.retiring, state.actions.in_flight
    observed_object, due, approval = observed.object, state.renewal, state.holds.approval
    action = None if flight is None else flight.action
    fields: dict[str, object] = {
        "version": state.version,
        "generation": desired.generation,
        "declared": desired.is_declared,
        "paused": desired.is_declared and spec is not None and spec.policy.paused,
        "labels": {} if spec is None else spec.labels,
        "approve": "Never" if spec is None else spec.policy.approve,
        "definition": 0 if desired.definition is None else desired.definition.generation,
        "targets": desired.targets,
        "secrets": dict.fromkeys(() if spec is None else spec.secrets, "") | desired.secrets,
        "provider_config": state.provider_config,
        **_names_of(state),
        "owned": owned is not None,
        "uid": None if owned is None else owned.uid,
        "belongs_to": observed.belongs_to,
        "observed_digest": _digest(observed_object),
        "outputs": {} if observed_object is None else observed_object.outputs,
        "listing_disproved": observed.is_listing_disproved,
        "grace_seconds": observed.grace_seconds,
        "lost": None if state.lost is None else (state.lost.provider_config, state.lost.uid),
        "found_as": observed.found_as,
        "unmanaged": observed.unmanaged,
        "total": observed.total,
        "retiring": "" if retiring is None else retiring.external_name,
        "retiring_uid": None if retiring is None else retiring.uid,
        "retiring_digest": _digest(None if retiring is None else retiring.last_observed),
        "retiring_outputs": None
        if retiring is None or retiring.last_observed is None
        else retiring.last_observed.outputs,
        "action_id": "" if action is None else action.action_id,
        "operation": "" if action is None else action.operation,
        "attempt": 0 if flight is None else flight.attempt,
        "pending_name": action.external_name if action and action.operation == "Create" else "",
        "renewal_at": None if due is None or due.is_written else due.at,
        "progress_at": None if state.progress is None else state.progress.at,
        "available_at": state.availability.next_at,
        "pending_plan": approval.plan if approval and approval.decision != "Proceed" else "",
        "finalizers": {each.name: each.holder for each in state.holds.finalizers},
        "references": state.holds.references,
        "until_unused": state.holds.users is not None,
        "throttled_until": state.api.throttled_until,
        "breaker_until": state.api.open_until,
        "failed_listings": state.api.failed_listings or None,
        "systems": state.api.systems or None,
        "silent_since": state.api.silence.since,
        "silence_version": state.api.silence.version,
    }
    return {**fields, **_outcome_of(state)}


def _names_of(state: ResourceState) -> Mapping[str, object]:
    """Return the names of the object; none for an object known only from listings."""
    spec, owned, released = state.desired.spec, state.owned, state.released
    if owned is not None:
        name = owned.external_name
    elif released is not None:
        name = released.name
    elif spec is not None and state.desired.is_declared:
        name = spec.external_name
    else:
        return {}
    names: dict[str, object] = {"external_name": name}
    if spec is not None and state.desired.is_declared:
        config = spec.provider_config
        names["declared_name"] = spec.external_name if spec.external_name != name else ""
        names["declared_config"] = config if config != state.provider_config else ""
    return names


def _outcome_of(state: ResourceState) -> Mapping[str, object]:
    """Return the fields of the newest outcome; none after a newer change."""
    last = state.outcome
    if last is None:
        return {}
    return {
        "outcome": last.outcome,
        "observed_generation": last.generation,
        "reason": last.reason,
        "message": last.message,
        "availability": last.availability,
    }


def _without_readiness(conditions: Sequence[Condition]) -> list[Condition]:
    """Omit the condition that a creation resets in the row before the next outcome."""
    return [each for each in conditions if each.type != "Ready"]


class Agreement:
    """Folds the history of one resource into a row, to compare it with the folded state."""

    def __init__(self, subject: str) -> None:
        namespace, kind, name = subject.split("/")
        self.row = StatusRow(namespace, kind, name)

    def disagreements(self, event: LogEvent, after: ResourceState) -> Iterator[str]:
        """Fold one more event; yield the fields that differ from the state after it."""
        fold_status(self.row, self.row.position + 1, event)
        return self.differences(event, after)

    def differences(self, event: LogEvent, after: ResourceState) -> Iterator[str]:
        """Yield the fields of the row that differ from the state after the newest event."""
        row = self.row
        wrong = {
            name: (getattr(row, name), expected)
            for name, expected in expected_fields_of(after).items()
            if getattr(row, name) != expected
        }
        wrong |= _optional_differences(row, event, after)
        if after.outcome is not None:
            both = _without_readiness(row.conditions), _without_readiness(after.outcome.conditions)
            wrong |= {"conditions": both} if both[0] != both[1] else {}
        for name, (actual, expected) in wrong.items():
            yield (
                f"{event.id} {type(event.data).__name__}: the row has {name} {actual!r}, "
                f"and the state {expected!r}"
            )


def _optional_differences(
    row: StatusRow, event: LogEvent, state: ResourceState
) -> dict[str, tuple[object, object]]:
    """Compare the fields that the row may omit."""
    flight, observed_object = state.actions.in_flight, state.observed.object
    is_approved = state.holds.approved in (Hold.DELETION_GUARD, Hold.LOSS_GUARD)
    is_doubted = state.observed.doubted is not None or state.observed.read_requested_at is not None
    expected: dict[str, object] = {
        "doubted": is_doubted or is_approved,
        "observed_uid": None
        if observed_object is None or state.owned is not None
        else observed_object.uid,
        "foreign_identity": None if observed_object is None else identity(observed_object),
    }
    if flight is not None and flight.action.operation != "Delete":
        action = flight.action
        wanted = (action.external_name, action.fields, action.uid, None, action.labels)
        expected["pending_digest"] = digest(ExternalObject(*wanted))
    wrong = {
        name: (getattr(row, name), value)
        for name, value in expected.items()
        if getattr(row, name) and getattr(row, name) != value
    }
    # A wait that has ended is omitted: its follow-up is decided in the same turn.
    until = (None if flight is None else flight.retry_at) or state.waits.until
    is_over = row.retry_at is None and until is not None and until <= event.time
    if row.retry_at != until and not is_over:
        wrong["retry_at"] = (row.retry_at, until)
    return wrong


def _digest(observed_object: ExternalObject | None) -> str:
    return "" if observed_object is None else digest(observed_object)


def unclassified_fields() -> set[str]:
    """Return the fields of the row that are neither compared nor listed as exceptions."""
    compared = {"outcome", "observed_generation", "reason", "message", "conditions", "availability"}
    compared |= {"external_name", "declared_name", "declared_config"}
    compared |= {"doubted", "observed_uid", "foreign_identity", "pending_digest", "retry_at"}
    compared |= expected_fields_of(ResourceState()).keys()
    return {each.name for each in msgspec.structs.fields(StatusRow)} - compared - LOG_ONLY_FIELDS
