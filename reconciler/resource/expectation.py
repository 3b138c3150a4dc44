"""Expected results of actions, from which `decide` computes a plan (ADR 0038).

The module is pure. It builds the report of a worker whose calls all succeed. A value that only the
API can assign, such as an id or an address, is `UNKNOWN`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, cast

import msgspec

from events.composition import CHILDREN, Child, as_part, manifests_of
from events.external import ExternalObject
from events.intake import Reported
from events.log import (
    Action,
    AvailabilityNoted,
    LogEvent,
    OutcomeRecorded,
    ProgressNoted,
    RenewalScheduled,
    ResourceEvent,
    RetryScheduled,
    SpecDeclared,
)
from events.manifest import Fields, InvalidManifestError, Manifest
from events.names import ResourceKey
from reconciler.provider.kind import READY, Kind, Readiness, always_ready
from reconciler.resource.state import ResourceState

UNKNOWN: Final = "(known after apply)"
"""Placeholder for a value that does not exist yet."""

_WORKER: Final = "planner"
_STAND_INS: Final[tuple[Any, ...]] = (UNKNOWN, 1, "1", 1.5, True, "2000-01-01T00:00:00Z", [], {})
"""Values to validate in place of an unknown one. The kind's schema accepts at least one of them."""

_encoder = msgspec.json.Encoder(order="deterministic")


def turn_digest(events: Iterable[LogEvent]) -> str:
    """Return the digest of the events of a turn, without waits, times of readiness and reasons.

    Waits and times depend on the time of the decision.
    """
    recorded = [
        _without_times(each.data) for each in events if not isinstance(each.data, _TIME_DEPENDENT)
    ]
    return hashlib.blake2b(_encoder.encode(recorded), digest_size=16).hexdigest()


def _without_times(data: ResourceEvent) -> ResourceEvent:
    if isinstance(data, SpecDeclared):
        return msgspec.structs.replace(data, reason="")
    if isinstance(data, OutcomeRecorded):
        return msgspec.structs.replace(data, availability=None)
    return data


_TIME_DEPENDENT = (RetryScheduled, RenewalScheduled, ProgressNoted, AvailabilityNoted)


def expected_report(
    action: Action, attempt: int, state: ResourceState, outputs: Sequence[str], now: datetime
) -> Reported:
    """Return the report of an action that succeeds.

    ``outputs``: paths of the outputs of a new object that other resources reference.
    """
    return Reported(
        action_id=action.action_id,
        attempt=attempt,
        started_at=now,
        finished_at=now,
        worker=_WORKER,
        object=_expected_object(action, state, outputs),
    )


# --- composed objects


class PartChange(msgspec.Struct, frozen=True):
    """The change of one part by an action.

    ``wanted`` is its new manifest, None for a withdrawal. ``before`` is the current one, if known.
    """

    key: ResourceKey
    step: Literal["Declare", "Change", "Withdraw"]
    wanted: Manifest | None = None
    before: Manifest | None = None


def part_changes(
    parent: ResourceKey, action: Action, existing: ExternalObject | None
) -> list[PartChange]:
    """Return the parts that an action declares, changes and withdraws."""
    current: Fields = {} if existing is None else existing.fields.get(CHILDREN, {})
    # for stored content, the children are only in the outputs
    if existing is not None and action.operation == "Delete":
        current = {**existing.outputs.get(CHILDREN, {}), **current}
    before = (
        {} if existing is None else {str(each.key): each for each in manifests_of(existing.fields)}
    )
    fields: Fields = {} if action.operation == "Delete" else action.fields
    digests: Fields = fields.get(CHILDREN, {})
    changes = [
        PartChange(
            each.key,
            "Change" if str(each.key) in current else "Declare",
            as_part(each, str(parent)),
            before.get(str(each.key)),
        )
        for each in manifests_of(fields)
        if current.get(str(each.key)) != digests[str(each.key)]
    ]
    changes += [
        PartChange(ResourceKey.parse(name), "Withdraw", before=before.get(name))
        for name in current
        if name not in digests
    ]
    return changes


def has_next_step(kind: Kind, parent: ResourceKey, spec: Fields, action: Action) -> bool:
    """Return whether a composed object needs another step after all of its parts are ready.

    In a rolling update, each step depends on the result of the previous one.
    """
    if kind.composition is None or CHILDREN not in action.fields:
        return False
    ready = msgspec.to_builtins(Child("Converged", ready=True, available=True))
    outputs = {CHILDREN: dict.fromkeys(action.fields[CHILDREN], ready)}
    done = ExternalObject(action.external_name, action.fields, outputs=outputs)
    try:
        return kind.composition.compose(parent, spec, done) != action.fields
    except InvalidManifestError:
        return False  # its own decision reports the error


def _expected_object(
    action: Action, state: ResourceState, outputs: Sequence[str]
) -> ExternalObject | None:
    if action.operation == "Delete":
        return None
    before = state.observed.object if action.operation == "Update" else None
    return ExternalObject(
        name=action.external_name,
        fields=action.fields,
        uid=UNKNOWN if before is None else before.uid,
        version=UNKNOWN,
        labels=action.labels,
        written_by=action.idempotency_key,
        # An update is expected to keep the outputs, such as addresses.
        outputs=_unknown_outputs(outputs) if before is None else before.outputs,
    )


def _unknown_outputs(paths: Sequence[str]) -> Fields:
    outputs: Fields = {}
    for path in paths:
        fields = outputs
        *parents, last = path.removeprefix("outputs.").split(".")
        for name in parents:
            fields = cast("Fields", fields.setdefault(name, {}))
        fields[last] = UNKNOWN
    return outputs


def with_unknown_values(kind: Kind) -> Kind:
    """Return a kind that accepts unknown values, and expects new objects to become ready."""

    def ready(fields: Fields, existing: ExternalObject) -> Readiness:
        return READY if existing.version == UNKNOWN else kind.ready(fields, existing)

    known_renewal_time = kind.renewal_time

    def renewal_time(fields: Fields, existing: ExternalObject) -> datetime | None:
        if known_renewal_time is None or existing.version == UNKNOWN:
            return None
        return known_renewal_time(fields, existing)

    attributes: dict[str, Any] = {
        each.name: getattr(kind, each.name) for each in dataclasses.fields(kind)
    }
    if kind.ready is not always_ready:
        attributes["ready"] = ready
    if known_renewal_time is not None:
        attributes["renewal_time"] = renewal_time
    return _with_stand_ins(type(kind))(**attributes)


@cache
def _with_stand_ins(kind_type: type[Kind]) -> type[Kind]:
    """Return a subclass of a `Kind` type that accepts unknown values."""

    class PlanningKind(kind_type):
        def may_lose_readiness(self, existing: ExternalObject) -> bool:
            """Return whether the object may be ready for a moment only; a new one stays ready."""
            return existing.version != UNKNOWN and super().may_lose_readiness(existing)

        def check_fields(self, fields: Fields) -> Fields:
            """Return validated fields. An unknown value is valid if any stand-in is."""
            refusal: InvalidManifestError | None = None
            for stand_in in (*_STAND_INS, *_enum_values(msgspec.json.schema(self.schema))):
                try:
                    checked = super().check_fields(_replace_unknown(fields, stand_in))
                except InvalidManifestError as error:
                    refusal = refusal or error
                    if not _has_unknown(fields):
                        break
                    continue
                if stand_in is UNKNOWN or not _has_unknown(fields):
                    return checked
                return _restore_unknown(checked, fields)
            assert refusal is not None
            raise refusal

    return PlanningKind


def _enum_values(schema: Any) -> Iterator[Any]:
    """Return every enumerated value of a schema."""
    if isinstance(schema, dict):
        fields = cast("Fields", schema)
        yield from fields.get("enum", ())
        for each in fields.values():
            yield from _enum_values(each)
    elif isinstance(schema, list):
        for each in cast("list[Any]", schema):
            yield from _enum_values(each)


def _replace_unknown(value: Any, stand_in: Any) -> Any:
    return _map_values(value, lambda each: stand_in if each == UNKNOWN else each)


def _map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: _map_values(each, change) for name, each in cast("Fields", value).items()}
    if isinstance(value, list):
        return [_map_values(each, change) for each in cast("list[Any]", value)]
    return change(value)


def _has_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_unknown, cast("Fields", value).values()))
    if isinstance(value, list):
        return any(map(_has_unknown, cast("list[Any]", value)))
    return value == UNKNOWN


def _restore_unknown(checked: Any, original: Any) -> Any:
    """Restore the placeholders after the kind has validated their stand-ins."""
    if original == UNKNOWN:
        return UNKNOWN
    if isinstance(checked, dict) and isinstance(original, dict):
        fields, original_fields = cast("Fields", checked), cast("Fields", original)
        return {
            name: _restore_unknown(each, original_fields.get(name)) for name, each in fields.items()
        }
    if isinstance(checked, list) and isinstance(original, list):
        pairs = zip(cast("list[Any]", checked), cast("list[Any]", original), strict=False)
        return [_restore_unknown(each, original_item) for each, original_item in pairs]
    return cast("Any", checked)
