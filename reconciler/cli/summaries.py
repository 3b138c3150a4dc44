"""Events in one line each, as a person would tell them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from events.external import ExternalObject
from events.log import (
    AbsenceDoubted,
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSought,
    ActionSucceeded,
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    DeclarationSuperseded,
    DriftDetected,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    GenerationSuperseded,
    HoldApproved,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    RetryScheduled,
    ShapeEvent,
    SpecDeclared,
    SpecWithdrawn,
    TargetObserved,
)
from reconciler.ports import StoredEvent
from reconciler.resource.owner_label import OWNER_LABEL

_NOTHING: Mapping[str, Any] = {}
_LONGEST_VALUE = 60


class Line(msgspec.Struct, frozen=True, rename="camel"):
    """One event of a history, told."""

    position: int
    version: int
    time: str
    event: str
    what: str
    cause: str
    actor: str


def tell(stored: StoredEvent, before: SpecDeclared | None) -> Line:
    """Tell one event; ``before`` is the declaration that held until then."""
    event = stored.event
    return Line(
        position=stored.position,
        version=event.shapeversion,
        time=event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        event=type(event.data).__name__,
        what=summary(event.data, before),
        cause=event.causeid,
        actor=event.actor,
    )


def tell_all(history: list[StoredEvent]) -> list[Line]:
    """Tell a whole history of one shape, oldest first."""
    lines: list[Line] = []
    before: SpecDeclared | None = None
    for stored in history:
        lines.append(tell(stored, before))
        if isinstance(stored.event.data, SpecDeclared):
            before = stored.event.data
        elif isinstance(stored.event.data, SpecWithdrawn):
            before = None
    return lines


def summary(data: ShapeEvent, before: SpecDeclared | None = None) -> str:
    """Say what an event changed; ``before`` as in ``tell``."""
    if isinstance(data, SpecDeclared):
        return _declared(data, before)
    if isinstance(data, ActionDecided) and before is None and _unlabels(data.action):
        return (
            f"Update {data.action.external_name}: takes our owner label off and changes nothing "
            "else: the object stays in the API, and is let go"
        )
    return _TELL[type(data)](data)


def show(value: object) -> str:
    """Write a value as it is read best: bare words, and JSON for what is not one."""
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say what is different: ``color: Red -> Purple, size: 3``."""
    told: list[str] = []
    for name in [*new, *(name for name in old if name not in new)]:
        if name not in old:
            told.append(f"{name}: {show(new[name])}")
        elif name not in new:
            told.append(f"{name}: {show(old[name])} -> not there")
        elif old[name] != new[name]:
            told.append(f"{name}: {show(old[name])} -> {show(new[name])}")
    return ", ".join(told)


def _declared(data: SpecDeclared, before: SpecDeclared | None) -> str:
    old_fields = _NOTHING if before is None else before.fields
    parts = [changes(old_fields, data.fields)]
    parts += _tagged("labels", _NOTHING if before is None else before.labels, data.labels)
    old_policy = _NOTHING if before is None else _builtins(before.policy)
    parts += _tagged("policy", old_policy, _builtins(data.policy))
    if before is not None and before.provider_config != data.provider_config:
        parts.append(f"providerConfig: {before.provider_config} -> {data.provider_config}")
    text = "; ".join(part for part in parts if part)
    return f"generation {data.generation}" + (f": {text}" if text else "")


def _builtins(struct: object) -> Mapping[str, Any]:
    return msgspec.to_builtins(struct, str_keys=True)


def _tagged(tag: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    text = changes(old, new)
    return [f"{tag} {text}"] if text else []


def _withdrawn(data: SpecWithdrawn) -> str:
    return f"generation {data.generation}"


def _declaration_superseded(data: DeclarationSuperseded) -> str:
    return f"a declaration came late: generation {data.by} is newer"


def _superseded(data: GenerationSuperseded) -> str:
    return f"generation {data.generation}, by {data.by}"


def _observed(data: ExternalObserved) -> str:
    proof = "a complete listing" if data.evidence == "CompleteListing" else "a read"
    if data.object is None:
        return f"{data.external_name} is not there ({proof})"
    return f"{_object(data.object)} ({proof})"


def _object(thing: ExternalObject) -> str:
    fields = changes(_NOTHING, thing.fields)
    return f"{thing.name} {{{fields}}}" if fields else thing.name


def _doubted(data: AbsenceDoubted) -> str:
    return (
        f"{data.external_name} is missing, with {data.missing} of our {data.owned} objects: "
        "not believed"
    )


def _drifted(data: DriftDetected) -> str:
    ours = (
        f"; perhaps by our own {data.perhaps_by}, which ended in doubt" if data.perhaps_by else ""
    )
    if data.missing:
        return f"the object is gone{ours}"
    found = ", ".join(
        f"{each.path}: {_or_missing(each.observed)} (declared {_or_missing(each.desired)})"
        for each in data.differences
    )
    return found + ours


def _or_missing(value: object) -> str:
    return "not there" if value is None else show(value)


def _claimed(data: OwnershipClaimed) -> str:
    return f"{data.external_name} is ours now: {data.reason}"


def _released(data: OwnershipReleased) -> str:
    return f"{data.external_name} is not ours any more: {data.reason}"


def _unlabels(action: Action) -> bool:
    """Tell an orphan's last write: of what nobody declares nothing else is ever updated."""
    return action.operation == "Update" and OWNER_LABEL not in action.labels


def _decided(data: ActionDecided) -> str:
    action = data.action
    fields = changes(_NOTHING, action.fields)
    return f"{action.operation} {action.external_name}" + (f" {{{fields}}}" if fields else "")


def _retried(data: ActionRetried) -> str:
    return f"{data.action.operation} {data.action.external_name}, attempt {data.attempt}, same key"


def _sought(data: ActionSought) -> str:
    return f"what came of {data.action.operation} {data.action.external_name}? A look, no call"


def _held(data: ActionHeld) -> str:
    return data.reason


def _not_done(data: ActionNotDone) -> str:
    if data.operation == "Create":  # what it made may have been deleted by others since
        return "Create: a look shows none: it is called again"
    return f"{data.operation}: a look shows that it was not done"


def _action_doubted(data: ActionDoubted) -> str:
    told = " ".join(data.message.split())
    return (
        f"{data.operation}, attempt {data.attempt}: another call of it may have been done: {told}"
    )


def _succeeded(data: ActionSucceeded) -> str:
    known = ", the kept answer to an earlier call" if data.replayed else ""
    if data.found_by is not None:
        known = f", found by its {data.found_by.lower()}"
    late = ", told late" if data.late else ""
    late += ", when something newer was known" if data.outdated else ""
    return f"{data.operation}, attempt {data.attempt}{known}{late}{_perhaps_twice(data)}"


def _perhaps_twice(data: ActionSucceeded | ActionFailed) -> str:
    return ", perhaps made before by a worker that is gone" if data.redelivered else ""


def _finalizer_added(data: FinalizerAdded) -> str:
    return f"{data.finalizer}, of {data.holder}"


def _finalizer_removed(data: FinalizerRemoved) -> str:
    force = ", by force" if data.forced else ""
    return f"{data.finalizer}{force}{_why(data.reason)}"


def _release_forced(data: ReleaseForced) -> str:
    taken = ", ".join((*data.finalizers, *data.references)) or "nothing kept it"
    orphan = "; its object, if there is one, stays" if data.orphan else ""
    return f"{taken}{orphan}{_why(data.reason)}"


def _approved(data: HoldApproved) -> str:
    return f"{data.hold}: {data.decision.lower()}{_why(data.reason)}"


def _why(reason: str) -> str:
    return f": {' '.join(reason.split())}" if reason else ""


def _reference_added(data: ReferenceAdded) -> str:
    return f"{data.by} refers to it; when it is withdrawn: {data.on_withdrawal.lower()}"


def _reference_removed(data: ReferenceRemoved) -> str:
    return f"{data.by} does not refer to it any more"


def _target(data: TargetObserved) -> str:
    return f"{data.target} is {'' if data.declared else 'not '}declared"


def _failed(data: ActionFailed) -> str:
    error = data.error
    status = f" {error.status}" if error.status else ""
    return (
        f"{data.operation}, attempt {data.attempt}: {error.error_class}{status}: "
        f"{' '.join(error.message.split())}{_perhaps_twice(data)}"
    )


def _abandoned(data: ActionAbandoned) -> str:
    doubt = "; a call of it may still arrive" if data.in_doubt else ""
    return f"{data.operation}: {data.reason}{doubt}"


def _scheduled(data: RetryScheduled) -> str:
    return f"in {data.delay_seconds:.1f} s, at {_moment(data.at)}: {data.reason}"


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def _throttled(data: ApiThrottled) -> str:
    return f"no call before {_moment(data.until)}: {' '.join(data.message.split())}"


def _breaker_opened(data: BreakerOpened) -> str:
    why = " ".join(data.message.split())
    return f"until {_moment(data.until)}, after {data.failures} failures in a row: {why}"


def _breaker_probed(data: BreakerProbed) -> str:
    return f"one call by {data.by}"


def _breaker_closed(_data: BreakerClosed) -> str:
    return "the API answers again"


def _outcome(data: OutcomeRecorded) -> str:
    message = f": {' '.join(data.message.split())}" if data.message else ""
    reason = f" ({data.reason})" if data.reason not in ("", data.outcome) else ""
    return f"{data.outcome}{reason}, generation {data.generation}{message}"


_TELL: dict[type[ShapeEvent], Callable[[Any], str]] = {
    SpecWithdrawn: _withdrawn,
    GenerationSuperseded: _superseded,
    DeclarationSuperseded: _declaration_superseded,
    ExternalObserved: _observed,
    AbsenceDoubted: _doubted,
    DriftDetected: _drifted,
    OwnershipClaimed: _claimed,
    OwnershipReleased: _released,
    FinalizerAdded: _finalizer_added,
    FinalizerRemoved: _finalizer_removed,
    ReleaseForced: _release_forced,
    HoldApproved: _approved,
    ReferenceAdded: _reference_added,
    ReferenceRemoved: _reference_removed,
    TargetObserved: _target,
    ActionDecided: _decided,
    ActionRetried: _retried,
    ActionSought: _sought,
    ActionHeld: _held,
    ActionNotDone: _not_done,
    ActionDoubted: _action_doubted,
    ActionSucceeded: _succeeded,
    ActionFailed: _failed,
    ActionAbandoned: _abandoned,
    RetryScheduled: _scheduled,
    ApiThrottled: _throttled,
    BreakerOpened: _breaker_opened,
    BreakerProbed: _breaker_probed,
    BreakerClosed: _breaker_closed,
    OutcomeRecorded: _outcome,
}
