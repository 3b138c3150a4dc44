"""One sentence for each event of the log, with its actor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, assert_never

import msgspec

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
    ApprovalRefused,
    ApprovalRequested,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    DeclarationSuperseded,
    DefinitionObserved,
    DriftDetected,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    GenerationSuperseded,
    HoldApproved,
    ListingsFailed,
    ListingsResumed,
    LookupDecided,
    Operation,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ProgressNoted,
    Purpose,
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
)
from events.secret import SecretRef
from events.subjects import USER_SIGN
from events.wording import plural
from reconciler.cli.output import single_line, time_text
from reconciler.ports import StoredEvent
from reconciler.resource.approval import SHORT_PLAN, describe_plan
from reconciler.resource.owner_label import OWNER_LABEL

_NOTHING: Mapping[str, Any] = {}
_MAX_VALUE = 60
_COMMAND_LINE = "cli:"
_PROCESS = "reconciler@"
_VERBS: Mapping[Operation, tuple[str, str, str]] = {
    "Create": ("create", "created", "creation"),
    "Update": ("update", "updated", "update"),
    "Delete": ("delete", "deleted", "deletion"),
}
_RENEWAL = ("renew", "renewed", "renewal")
_CLAIMS: Mapping[str, str] = {
    "Adopted": "spec.policy.adoption is Adopt",
    "Label": "it has the owner label of this resource",
    "Prefix": "its name has the owner prefix",
    "ExclusiveScope": "it is in an exclusive scope",
    "Returned": "it has the uid of an owned object that an earlier listing did not contain",
    "Found": "it has the owner label of this resource, and a creation had an unknown result",
}
_UNCONFIRMED = "; its creation may still have created another object"
_MARKS: Mapping[str, str] = {
    "Label": "its owner label",
    "Key": "the key of the action",
    "Content": "its content",
}


class Line(msgspec.Struct, frozen=True, rename="camel"):
    """One event of a history. ``what`` is the sentence that describes it."""

    position: int
    version: int
    time: str
    event: str
    what: str
    cause: str
    actor: str


def tell(stored: StoredEvent, before: SpecDeclared | None) -> Line:
    """Describe one event. ``before`` is the previous declaration."""
    event = stored.event
    return Line(
        position=stored.position,
        version=event.resourceversion,
        time=event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        event=type(event.data).__name__,
        what=summary(event.data, event.actor, before),
        cause=event.causationid,
        actor=event.actor,
    )


def tell_all(history: Sequence[StoredEvent]) -> list[Line]:
    """Describe the whole history of one resource, oldest first."""
    lines: list[Line] = []
    before: SpecDeclared | None = None
    for stored in history:
        lines.append(tell(stored, before))
        before = declared_after(stored, before)
    return lines


def last_declared(history: Iterable[StoredEvent]) -> SpecDeclared | None:
    """Return the declaration after some events of a resource, or None."""
    newest: SpecDeclared | None = None
    for stored in history:
        newest = declared_after(stored, newest)
    return newest


def declared_after(stored: StoredEvent, before: SpecDeclared | None) -> SpecDeclared | None:
    """Return the declaration after an event; ``before`` is the previous one."""
    match stored.event.data:
        case SpecDeclared() as declared:
            return declared
        case SpecWithdrawn():
            return None
        case _:
            return before


def name_of(actor: str) -> str:
    """Return the name of a sender in a sentence: a user, a service, or Reconciler."""
    user, vouched, source = actor.partition(USER_SIGN)
    if vouched:
        return f"{user} ({single_line(source)})"
    if is_process(actor):
        return "Reconciler"
    return single_line(actor.removeprefix(_COMMAND_LINE)) or "An unknown client"


def is_process(actor: str) -> bool:
    """Return whether a process with roles sent a message."""
    return actor.startswith(_PROCESS)


def summary(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one exhaustive match
    data: ResourceEvent, actor: str = "", before: SpecDeclared | None = None
) -> str:
    """Return the sentence that describes an event; ``before`` as in ``tell``."""
    who = name_of(actor)
    match data:
        case SpecDeclared():
            return _declared(data, who, before)
        case SpecWithdrawn(generation, reason):
            return f"{who} withdrew the declaration, as generation {generation}{stating(reason)}"
        case GenerationSuperseded(generation, by):
            return f"Generation {by} superseded generation {generation} before it was settled"
        case DeclarationSuperseded(by):
            late = f"The decider ignored a declaration or withdrawal by {who}"
            return f"{late}, because generation {by} is newer"
        case ExternalObserved():
            return _observed(data)
        case AbsenceDoubted(external_name=name, missing=missing, owned=owned):
            what = f"{missing} of the {owned} owned objects, including {name}, are"
            if missing == 1:
                what = f"The object {name}, one of {owned} owned objects, is"
            return f"{what} missing from the observer's listing, so the decider ignored the absence"
        case DriftDetected():
            return drifted(data)
        case OwnershipClaimed(name, _, reason, grace_seconds=grace):
            late = (
                f"; observations within {grace:g} s after a write no longer count" if grace else ""
            )
            return f"Reconciler took ownership of {name}: {_CLAIMS[reason]}{late}"
        case OwnershipReleased(name, _, reason, unconfirmed=unconfirmed):
            return _released(name, reason) + (_UNCONFIRMED if unconfirmed else "")
        case FinalizerAdded(finalizer, holder):
            return f"{name_of(holder)} added the finalizer {finalizer}"
        case FinalizerRemoved(finalizer, forced, reason):
            by_force = " by force" if forced else ""
            return f"{who} removed the finalizer {finalizer}{by_force}{stating(reason)}"
        case ReleaseForced():
            return _forced(data, who)
        case HoldApproved(hold, decision, reason, plan):
            what = f"plan {plan[:SHORT_PLAN]}" if plan else hold
            gives_up = ", and abandoned the action" if decision == "Abandon" else ""
            return f"{who} approved {what}{gives_up}{stating(reason)}"
        case ReconcileAccepted(_, reason):
            return f"{who} requested a reconciliation{stating(reason)}"
        case ApprovalRequested():
            return f"The decider requests approval of {describe_plan(data)}"
        case ApprovalRefused(plan, reason):
            return f"{who} rejected plan {plan[:SHORT_PLAN]}{stating(reason)}"
        case ReferenceAdded(by, on_withdrawal):
            return f"{by} references this resource (onWithdrawal: {on_withdrawal})"
        case ReferenceRemoved(by):
            return f"{by} no longer references this resource"
        case TargetObserved(target, known):
            return _target(target, known)
        case SecretObserved(secret, digest):
            state = f"has digest {digest}" if digest else "does not exist"
            return f"Secret {SecretRef.at(secret).label()} {state}"
        case DefinitionObserved(definition):
            return (
                f"The definition of the kind changed to generation {definition.generation}, which "
                f"affects {definition.affected} of {definition.total} resources"
            )
        case SpecResolved(generation, fields):
            return f"The decider resolved the spec of generation {generation}{_with(fields)}"
        case ActionDecided(action):
            return _decided(action, before)
        case ActionRetried(action, attempt):
            again = f"The decider started attempt {attempt} to {_infinitive(action)}"
            return f"{again}, with the same parameters"
        case LookupDecided(action, attempt):
            return (
                f"The decider requested a lookup of {action.external_name} (attempt {attempt}), "
                f"because the result of the {_verb(action)[2]} is unknown"
            )
        case ActionHeld(reason=reason):
            return f"The decider holds the action: {reason}"
        case ActionNotDone(operation=operation):
            noun = _VERBS[operation][2]
            text = f"The worker's lookup shows no effect of the {noun}"
            return f"{text}, so the decider repeats the {noun}"
        case ActionDoubted(_, operation, attempt, message):
            call = f"A duplicate call for attempt {attempt} to {_VERBS[operation][0]} the object"
            return f"{call} has an unknown result: {single_line(message)}"
        case ActionSucceeded():
            return _succeeded(data)
        case ActionFailed():
            return _failed(data)
        case ActionAbandoned(_, operation, reason, in_doubt):
            doubt = "; a call may still take effect" if in_doubt else ""
            return f"The decider abandoned the {_VERBS[operation][2]}: {single_line(reason)}{doubt}"
        case RenewalScheduled(due, at):
            return (
                f"The object is due for renewal at {time_text(due)}; the decider scheduled it for "
                f"{time_text(at)}"
            )
        case ProgressNoted(mark, since, at):
            if not mark:
                return "The decider stopped waiting for progress of the object"
            if at is None:
                stopped = f"The object has made no progress since {time_text(since)}"
                return f"{stopped}, which is longer than allowed"
            return f"The object made progress, and more is expected by {time_text(at)}"
        case RetryScheduled(at, seconds, reason, action_id):
            if action_id:
                return f"The decider retries in {seconds:.1f} s, at {time_text(at)}: {reason}"
            return f"The decider waits {seconds:.1f} s, until {time_text(at)}: {reason}"
        case ApiThrottled(until, message=message):
            return f"The API accepts no calls before {time_text(until)}{because(message)}"
        case BreakerOpened(until, _, failures, message):
            opened = f"The circuit breaker blocks calls until {time_text(until)}"
            return f"{opened}, after {plural(failures, 'consecutive failure')}{because(message)}"
        case BreakerProbed(by=""):
            return "The process that probed the API stopped, so another one may probe it"
        case BreakerProbed(by=by):
            return f"{by} probes the API with one call"
        case BreakerClosed():
            return "The API responded again, and the circuit breaker closed"
        case TwinDetected(total=total):
            newer = plural(total, "object that is", "objects that are")
            held = "Reconciler writes nothing to it until an operator approves"
            return f"The API has {newer} newer than this log; {held}"
        case ListingsFailed(kind, failure):
            since = time_text(failure.since)
            return f"No listing of {kind} has completed since {since}{because(failure.message)}"
        case ListingsResumed(kind):
            return f"Listings of {kind} complete again, or no resource uses the kind"
        case OutcomeRecorded():
            return _outcome(data)
        case _:
            assert_never(data)


def show(value: object) -> str:
    """Return a value as text: bare words, and JSON for all other values."""
    is_bare = isinstance(value, str) and value != "" and value.isprintable()
    text = str(value) if is_bare else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Describe each difference: ``color: Red → Purple``, ``size: 3``, ``labels.a: b → removed``."""
    parts: list[str] = []
    for name in [*new, *(name for name in old if name not in new)]:
        path = prefix + name
        if name not in old:
            parts.append(f"{path}: {show(new[name])}")
        elif name not in new:
            parts.append(f"{path}: {show(old[name])} → removed")
        elif old[name] != new[name]:
            parts.append(f"{path}: {show(old[name])} → {show(new[name])}")
    return parts


def drifted(data: DriftDetected) -> str:
    """Describe a drift, with the action of Reconciler that may have caused it."""
    parts = ", ".join(
        f"{each.path} is {_or_unset(each.observed)} (declared: {_or_unset(each.desired)})"
        for each in data.differences
    )
    if not data.suspected_action:
        if data.missing:
            return "The object was deleted outside of Reconciler"
        return f"The object was changed outside of Reconciler: {parts}"
    action = f"action {data.suspected_action} of Reconciler, whose result was unknown, may have"
    if data.missing:
        return f"The object is missing; {action} deleted it"
    return f"The object differs: {parts}; {action} written it"


def _declared(data: SpecDeclared, who: str, before: SpecDeclared | None) -> str:
    old = data if before is None else before
    differences = changes(_NOTHING if before is None else before.fields, data.fields)
    for name in ("labels", "annotations", "policy"):
        earlier = _NOTHING if before is None else _builtins(getattr(before, name))
        differences += changes(earlier, _builtins(getattr(data, name)), f"{name}.")
    differences += changes(
        {"providerConfig": old.provider_config}, {"providerConfig": data.provider_config}
    )
    text = ", ".join(differences)
    if text:
        text = f" with {text}" if before is None else f", which changes {text}"
    return f"{who} declared generation {data.generation}{text}{stating(data.reason)}"


def _builtins(struct: object) -> Mapping[str, Any]:
    return msgspec.to_builtins(struct, str_keys=True)


def _with(fields: Mapping[str, Any]) -> str:
    text = ", ".join(changes(_NOTHING, fields))
    return f" with {text}" if text else ""


def _observed(data: ExternalObserved) -> str:
    by_listing = data.evidence == "CompleteListing"
    if data.object is None:
        source = "listed the objects of the API" if by_listing else "read the API"
        owner = f" (it belonged to {data.belongs_to})" if data.belongs_to else ""
        return f"The observer {source}: {data.external_name} does not exist{owner}"
    owner = f" (it belongs to {data.belongs_to})" if data.belongs_to else ""
    verb = "listed" if by_listing else "read"
    return f"The observer {verb} {data.object.name}{_with(data.object.fields)}{owner}"


def _released(name: str, reason: Literal["Orphaned", "Gone", "Replaced"]) -> str:
    match reason:
        case "Orphaned":
            return f"Reconciler released {name}: the object stays in the API"
        case "Gone":
            return f"Reconciler no longer owns {name}: the object no longer exists"
        case "Replaced":
            return f"Reconciler no longer owns {name}: another object has its name"


def _forced(data: ReleaseForced, who: str) -> str:
    removed = ", ".join((*data.finalizers, *data.references))
    what = f"despite {removed}" if removed else "that nothing blocked"
    stays = "; an existing object stays in the API" if data.orphan else ""
    return f"{who} forced a release {what}{stays}{stating(data.reason)}"


def _target(target: str, known: TargetState) -> str:
    if known.cycle:
        return f"The reference to {target} is circular: {' → '.join(known.cycle)}"
    if not known.declared:
        return f"The referenced resource {target} is not declared"
    ready = "" if known.ready else ", and not ready yet"
    return f"The referenced resource {target} is declared{_with(known.values)}{ready}"


def _or_unset(value: object) -> str:
    return "not set" if value is None else show(value)


# --- actions


def _decided(action: Action, before: SpecDeclared | None) -> str:
    is_update = action.operation == "Update"
    if is_update and before is None and OWNER_LABEL not in action.labels:
        # The last write before a release. An undeclared object gets no other update.
        return (
            f"Reconciler decided to remove the owner label from {action.external_name} and to "
            "change nothing else: the object stays in the API"
        )
    return f"Reconciler decided to {_infinitive(action)}{_with(action.fields)}"


def _verb(done: Action | ActionSucceeded | ActionFailed) -> tuple[str, str, str]:
    return _RENEWAL if done.purpose == "Renew" else _VERBS[done.operation]


def _infinitive(action: Action) -> str:
    return f"{_verb(action)[0]} {_object(action.operation, action.purpose, action.external_name)}"


def _object(operation: Operation, purpose: Purpose, name: str = "") -> str:
    match purpose:
        case "Replace" if operation == "Create":
            return f"the replacement {name}".rstrip()
        case "Replace":
            return f"{name or 'the object'} to replace it"
        case "Retire":
            return f"the replaced object {name}".rstrip()
        case "Converge" | "Renew":
            return name or "the object"


def _succeeded(data: ActionSucceeded) -> str:
    done = _verb(data)[1]
    thing = _object(data.operation, data.purpose, data.external_name)
    if data.found_by == "Absence":
        text = f"The worker found {thing} already deleted"
        text += _UNCONFIRMED if data.unconfirmed else ""
    elif data.found_by is not None:
        text = f"The worker found {thing} already {done}, as shown by {_MARKS[data.found_by]}"
    elif data.replayed:
        text = f"An earlier call {done} {thing}: the API returned its stored response"
    else:
        text = f"The worker {done} {thing}"
    if data.attempt > 1:
        text += f" (attempt {data.attempt})"
    if data.refused is not None:
        text += f", but the API refused the remaining calls: {single_line(data.refused.message)}"
    if data.late:
        text += f"; the result arrived late{' and is outdated' if data.outdated else ''}"
    return text + _possibly_twice(data)


def _failed(data: ActionFailed) -> str:
    error, thing = data.error, _object(data.operation, data.purpose)
    attempt = f"attempt {data.attempt} to {_verb(data)[0]} {thing}"
    why = f"{single_line(error.message)}{_possibly_twice(data)}"
    if not error.attempted:
        return f"The worker made no call in {attempt}: {why}"
    if error.error_class == "Unknown":
        return f"The result of the worker's {attempt} is unknown: {why}"
    status = f" {error.status}" if error.status else ""
    return f"The worker's {attempt} failed: {error.error_class}{status}: {why}"


def _possibly_twice(data: ActionSucceeded | ActionFailed) -> str:
    lost = "; another worker, which stopped responding, may have made the same call"
    return lost if data.redelivered else ""


def _outcome(data: OutcomeRecorded) -> str:
    of = f" of generation {data.generation}" if data.generation else ""
    reason = f" ({data.reason})" if data.reason not in ("", data.outcome) else ""
    return f"The outcome{of} is {data.outcome}{reason}{because(data.message)}"


def because(message: str) -> str:
    """Return a message after a colon, or ""."""
    return f": {single_line(message)}" if message else ""


def stating(reason: str) -> str:
    """Return a user's reason in parentheses, or ""."""
    return f" (reason: {single_line(reason)})" if reason else ""
