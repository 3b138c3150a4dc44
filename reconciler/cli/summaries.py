"""Events in one line each, as a person would tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never

import msgspec

from events.external import ExternalObject
from events.intake import TargetState
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
    ActionSucceeded,
    ApiThrottled,
    ApprovalAsked,
    ApprovalRefused,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    DeclarationSuperseded,
    DefinitionObserved,
    DriftDetected,
    DueScheduled,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    GenerationSuperseded,
    HoldApproved,
    LookAsked,
    LookupDecided,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ProgressNoted,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    ResourceEvent,
    RetryScheduled,
    SecretObserved,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    TargetObserved,
)
from reconciler.ports import StoredEvent
from reconciler.resource.approval import SHORT_PLAN, described
from reconciler.resource.owner_label import OWNER_LABEL

_NOTHING: Mapping[str, Any] = {}
_MAX_VALUE = 60


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
        version=event.resourceversion,
        time=event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        event=type(event.data).__name__,
        what=summary(event.data, before),
        cause=event.causeid,
        actor=event.actor,
    )


def tell_all(history: Sequence[StoredEvent]) -> list[Line]:
    """Tell a whole history of one resource, oldest first."""
    lines: list[Line] = []
    before: SpecDeclared | None = None
    for stored in history:
        lines.append(tell(stored, before))
        if isinstance(stored.event.data, SpecDeclared):
            before = stored.event.data
        elif isinstance(stored.event.data, SpecWithdrawn):
            before = None
    return lines


def summary(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one exhaustive match
    data: ResourceEvent, before: SpecDeclared | None = None
) -> str:
    """Describe what an event changed; ``before`` as in ``tell``."""
    match data:
        case SpecDeclared():
            return _declared(data, before)
        case SpecWithdrawn(generation, reason):
            return f"generation {generation}{_why(reason)}"
        case GenerationSuperseded(generation, by):
            return f"generation {generation}, by {by}"
        case DeclarationSuperseded(by):
            return f"a declaration came late: generation {by} is newer"
        case ExternalObserved(object=seen):
            proof = "a complete listing" if data.evidence == "CompleteListing" else "a read"
            what = f"{data.external_name} is not there" if seen is None else _object(seen)
            return f"{what} ({proof})"
        case AbsenceDoubted(external_name=name, missing=missing, owned=owned):
            return f"{name} is missing, with {missing} of our {owned} objects: not believed"
        case DriftDetected():
            return _drifted(data)
        case OwnershipClaimed(name, _, reason):
            return f"{name} is ours now: {reason}"
        case OwnershipReleased(name, _, reason):
            return f"{name} is not ours any more: {reason}"
        case FinalizerAdded(finalizer, holder):
            return f"{finalizer}, of {holder}"
        case FinalizerRemoved(finalizer, forced, reason):
            return f"{finalizer}{', by force' if forced else ''}{_why(reason)}"
        case ReleaseForced(reason, orphan, finalizers, references):
            taken = ", ".join((*finalizers, *references)) or "nothing kept it"
            stays = "; its object, if there is one, stays" if orphan else ""
            return f"{taken}{stays}{_why(reason)}"
        case HoldApproved(hold, decision, reason, plan):
            which = f" with plan {plan[:SHORT_PLAN]}" if plan else ""
            return f"{hold}: {decision.lower()}{which}{_why(reason)}"
        case LookAsked(_, reason):
            return f"looked at now{_why(reason)}"
        case ApprovalAsked():
            return described(data)
        case ApprovalRefused(plan, reason):
            return f"plan {plan[:SHORT_PLAN]}{_why(reason)}"
        case ReferenceAdded(by, on_withdrawal):
            return f"{by} refers to it; when it is withdrawn: {on_withdrawal.lower()}"
        case ReferenceRemoved(by):
            return f"{by} does not refer to it any more"
        case TargetObserved(target, known):
            return _target(target, known)
        case SecretObserved(secret, digest):
            return f"{secret}: {f'digest {digest}' if digest else 'it is not there'}"
        case DefinitionObserved(definition):
            return (
                f"its kind is defined otherwise: generation {definition.generation}, which concerns"
                f" {definition.affected} of {definition.total}"
            )
        case SpecResolved(fields=fields):
            return f"wants {{{changes(_NOTHING, fields)}}}"
        case ActionDecided(action):
            return _decided(action, before)
        case ActionRetried(action, attempt):
            return f"{action.operation} {action.external_name}, attempt {attempt}, same key"
        case LookupDecided(action):
            return f"what came of {action.operation} {action.external_name}? A look, no call"
        case ActionHeld(reason=reason):
            return reason
        case ActionNotDone(operation="Create"):  # what it made may have been deleted since
            return "Create: a look shows none: it is called again"
        case ActionNotDone(operation=operation):
            return f"{operation}: a look shows that it was not done"
        case ActionDoubted(_, operation, attempt, message):
            doubt = "another call of it may have been done"
            return f"{operation}, attempt {attempt}: {doubt}: {_one_line(message)}"
        case ActionSucceeded():
            return _succeeded(data)
        case ActionFailed(_, operation, attempt, error):
            status = f" {error.status}" if error.status else ""
            why = f"{error.error_class}{status}: {_one_line(error.message)}"
            return f"{operation}, attempt {attempt}: {why}{_perhaps_twice(data)}"
        case ActionAbandoned(_, operation, reason, in_doubt):
            return f"{operation}: {reason}{'; a call of it may still arrive' if in_doubt else ''}"
        case DueScheduled(due, at):
            return f"due at {_moment(due)}, written again at {_moment(at)}"
        case ProgressNoted(mark, since, at):
            if not mark:
                return "nothing is waited for any more"
            if at is None:
                return f"nothing has moved since {_moment(since)}"
            return f"it has moved, and should again before {_moment(at)}"
        case RetryScheduled(at, seconds, reason):
            return f"in {seconds:.1f} s, at {_moment(at)}: {reason}"
        case ApiThrottled(until, message=message):
            return f"no call before {_moment(until)}: {_one_line(message)}"
        case BreakerOpened(until, _, failures, message):
            row = f"after {failures} failures in a row"
            return f"until {_moment(until)}, {row}: {_one_line(message)}"
        case BreakerProbed(by=by):
            return f"one call by {by}"
        case BreakerClosed():
            return "the API answers again"
        case OutcomeRecorded(outcome, generation, reason, message):
            in_brackets = f" ({reason})" if reason not in ("", outcome) else ""
            return f"{outcome}{in_brackets}, generation {generation}{_why(message)}"
        case _:
            assert_never(data)


def show(value: object) -> str:
    """Write a value as it is read best: bare words, and JSON for what is not one."""
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe what is different: ``color: Red -> Purple, size: 3``."""
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
    old_annotations = _NOTHING if before is None else before.annotations
    parts += _tagged("annotations", old_annotations, data.annotations)
    old_policy = _NOTHING if before is None else _builtins(before.policy)
    parts += _tagged("policy", old_policy, _builtins(data.policy))
    if before is not None and before.provider_config != data.provider_config:
        parts.append(f"providerConfig: {before.provider_config} -> {data.provider_config}")
    text = "; ".join(part for part in parts if part)
    told = f" ({_one_line(data.reason)})" if data.reason else ""
    return f"generation {data.generation}" + (f": {text}" if text else "") + told


def _builtins(struct: object) -> Mapping[str, Any]:
    return msgspec.to_builtins(struct, str_keys=True)


def _tagged(tag: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    text = changes(old, new)
    return [f"{tag} {text}"] if text else []


def _object(thing: ExternalObject) -> str:
    fields = changes(_NOTHING, thing.fields)
    return f"{thing.name} {{{fields}}}" if fields else thing.name


def _drifted(data: DriftDetected) -> str:
    by = data.perhaps_by
    ours = f"; perhaps by our own {by}, which ended in doubt" if by else ""
    if data.missing:
        return f"the object is gone{ours}"
    found = ", ".join(
        f"{each.path}: {_or_missing(each.observed)} (declared {_or_missing(each.desired)})"
        for each in data.differences
    )
    return found + ours


def _target(target: str, known: TargetState) -> str:
    if known.circle:
        return f"{target}: {' → '.join(known.circle)}: they wait for each other"
    if not known.declared:
        return f"{target} is not declared"
    values = changes(_NOTHING, known.values)
    return f"{target} is declared" + (f" {{{values}}}" if values else "")


def _or_missing(value: object) -> str:
    return "not there" if value is None else show(value)


def _decided(action: Action, before: SpecDeclared | None) -> str:
    is_update = action.operation == "Update"
    if is_update and before is None and OWNER_LABEL not in action.labels:
        # The last write of what is let go: of what nobody declares nothing else is ever updated.
        return (
            f"Update {action.external_name}: takes our owner label off and changes nothing else: "
            "the object stays in the API, and is let go"
        )
    fields = changes(_NOTHING, action.fields)
    return f"{action.operation} {action.external_name}" + (f" {{{fields}}}" if fields else "")


def _succeeded(data: ActionSucceeded) -> str:
    known = ", the kept answer to an earlier call" if data.replayed else ""
    if data.found_by is not None:
        known = f", found by its {data.found_by.lower()}"
    if data.refused is not None:
        known += f", of which the rest was refused{_why(data.refused.message)}"
    late = ", told late" if data.late else ""
    late += ", when something newer was known" if data.outdated else ""
    return f"{data.operation}, attempt {data.attempt}{known}{late}{_perhaps_twice(data)}"


def _perhaps_twice(data: ActionSucceeded | ActionFailed) -> str:
    return ", perhaps made before by a worker that is gone" if data.redelivered else ""


def _why(reason: str) -> str:
    return f": {_one_line(reason)}" if reason else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
