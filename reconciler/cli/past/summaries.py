"""Describe each event of the log in one sentence, with its actor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, assert_never

import msgspec

from events.excerpt import list_first
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
    ApiFellSilent,
    ApiSilenceEnded,
    ApiThrottled,
    ApprovalRefused,
    ApprovalRequested,
    AvailabilityNoted,
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
    MovedObject,
    MoveEnded,
    MoveExpected,
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
    UndeclaredCounted,
    UsersCounted,
)
from events.secret import SecretRef
from events.subjects import USER_SEPARATOR
from events.wording import plural
from reconciler.cli.output import single_line, time_text
from reconciler.ports import StoredEvent
from reconciler.resource.approval import SHORT_PLAN, describe_plan
from reconciler.resource.owner_label import OWNER_LABEL

_NO_FIELDS: Mapping[str, Any] = {}
_MAX_VALUE_CHARACTERS = 60
_CLI_PREFIX = "cli:"
_PROCESS_PREFIX = "reconciler@"
_VERBS: Mapping[Operation, tuple[str, str, str]] = {
    "Create": ("create", "created", "creation"),
    "Update": ("update", "updated", "update"),
    "Delete": ("delete", "deleted", "deletion"),
}
_RENEWAL = ("renew", "renewed", "renewal")
_CLAIM_REASONS: Mapping[str, str] = {
    "Adopted": "spec.policy.adoption is Adopt",
    "Label": "it has the owner label of this resource",
    "Prefix": "its name has the owner prefix",
    "ExclusiveScope": "it is in an exclusive scope",
    "Returned": "it has the uid of an owned object that an earlier listing did not contain",
    "Found": "it has the owner label of this resource, and a creation had an unknown result",
    "Moved": "its former owner released it to this resource",
}
_POSSIBLE_DUPLICATE = "; its creation may still have created another object"
_EVIDENCE: Mapping[str, str] = {
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


def describe_event(stored: StoredEvent, previous: SpecDeclared | None) -> Line:
    """Describe one event. ``previous``: the declaration in effect before it."""
    event = stored.event
    return Line(
        position=stored.position,
        version=event.resourceversion,
        time=event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        event=type(event.data).__name__,
        what=summarize(event.data, event.actor, previous),
        cause=event.causationid,
        actor=event.actor,
    )


def describe_history(history: Sequence[StoredEvent]) -> list[Line]:
    """Describe the whole history of one resource, oldest first."""
    lines: list[Line] = []
    previous: SpecDeclared | None = None
    for stored in history:
        lines.append(describe_event(stored, previous))
        previous = declaration_after(stored, previous)
    return lines


def last_declaration(history: Iterable[StoredEvent]) -> SpecDeclared | None:
    """Return the declaration in effect after events of a resource, or None."""
    declaration: SpecDeclared | None = None
    for stored in history:
        declaration = declaration_after(stored, declaration)
    return declaration


def declaration_after(stored: StoredEvent, previous: SpecDeclared | None) -> SpecDeclared | None:
    """Return the declaration in effect after an event. ``previous``: the one before it."""
    match stored.event.data:
        case SpecDeclared() as declared:
            return declared
        case SpecWithdrawn():
            return None
        case _:
            return previous


def format_actor(actor: str) -> str:
    """Return a sender's name for a sentence: a user, a service, or Reconciler."""
    user, authenticated, source = actor.partition(USER_SEPARATOR)
    if authenticated:
        return f"{user} ({single_line(source)})"
    if is_process_actor(actor):
        return "Reconciler"
    return single_line(actor.removeprefix(_CLI_PREFIX)) or "An unknown client"


def is_process_actor(actor: str) -> bool:
    """Return whether the sender of a message is a process that runs roles."""
    return actor.startswith(_PROCESS_PREFIX)


def summarize(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one exhaustive match
    data: ResourceEvent, actor: str = "", previous: SpecDeclared | None = None
) -> str:
    """Return a sentence for an event. ``previous``: the declaration in effect before it."""
    who = format_actor(actor)
    match data:
        case SpecDeclared():
            return _describe_declaration(data, who, previous)
        case SpecWithdrawn(generation, reason):
            return (
                f"{who} withdrew the declaration, as generation {generation}{reason_suffix(reason)}"
            )
        case GenerationSuperseded(generation, by):
            return f"Generation {by} superseded generation {generation} before it was settled"
        case DeclarationSuperseded(by):
            text = f"The decider ignored a declaration or withdrawal by {who}"
            return f"{text}, because generation {by} is newer"
        case ExternalObserved():
            return _describe_observation(data)
        case AbsenceDoubted(external_name=name, missing=missing, owned=owned):
            what = f"{missing} of the {owned} owned objects, including {name}, are"
            if missing == 1:
                what = f"The object {name}, one of {owned} owned objects, is"
            return f"{what} missing from the observer's listing, so the decider ignored the absence"
        case DriftDetected():
            return describe_drift(data)
        case OwnershipClaimed(name, moved=MovedObject(former)):
            return f"Reconciler moved {name} from {former} to this resource"
        case OwnershipReleased(name, moved_to=moved_to) if moved_to:
            return f"Reconciler moved {name} to {moved_to}"
        case MoveExpected(moved_to):
            return f"{moved_to} takes over the object once this resource is withdrawn"
        case MoveEnded(resource, reason):
            return f"The move between this resource and {resource} will not happen: {reason}"
        case OwnershipClaimed(name, _, reason, grace_seconds=grace):
            grace_suffix = (
                f"; observations within {grace:g} s of a write no longer count" if grace else ""
            )
            return f"Reconciler took ownership of {name}: {_CLAIM_REASONS[reason]}{grace_suffix}"
        case OwnershipReleased(name, _, reason, unconfirmed=unconfirmed, lost_data=lost_data):
            lost = f"; missing: {lost_data}" if lost_data else ""
            duplicate = _POSSIBLE_DUPLICATE if unconfirmed else ""
            return _describe_release(name, reason) + lost + duplicate
        case FinalizerAdded(finalizer, holder):
            return f"{format_actor(holder)} added the finalizer {finalizer}"
        case FinalizerRemoved(finalizer, forced, reason):
            by_force = " by force" if forced else ""
            return f"{who} removed the finalizer {finalizer}{by_force}{reason_suffix(reason)}"
        case ReleaseForced():
            return _describe_forced_release(data, who)
        case HoldApproved(hold, decision, reason, plan):
            what = f"plan {plan[:SHORT_PLAN]}" if plan else hold
            abandonment = ", and abandoned the action" if decision == "Abandon" else ""
            return f"{who} approved {what}{abandonment}{reason_suffix(reason)}"
        case ReconcileAccepted(_, reason):
            return f"{who} requested a reconciliation{reason_suffix(reason)}"
        case ApprovalRequested():
            return f"The decider requested approval of {describe_plan(data)}"
        case ApprovalRefused(plan, reason):
            return f"{who} rejected plan {plan[:SHORT_PLAN]}{reason_suffix(reason)}"
        case ReferenceAdded(by, on_withdrawal):
            return f"{by} references this resource (onWithdrawal: {on_withdrawal})"
        case ReferenceRemoved(by):
            return f"{by} no longer references this resource"
        case TargetObserved(target, known):
            return _describe_target(target, known)
        case SecretObserved(secret, digest):
            state = f"has digest {digest}" if digest else "does not exist"
            return f"Secret {SecretRef.from_path(secret).label()} {state}"
        case DefinitionObserved(definition):
            return (
                f"The kind's definition changed to generation {definition.generation}, which "
                f"affects {definition.affected} of {definition.total} resources"
            )
        case SpecResolved(generation, fields):
            return (
                f"The decider resolved the spec of generation {generation}{_field_suffix(fields)}"
            )
        case ActionDecided(action):
            return _describe_action(action, previous)
        case ActionRetried(action, attempt):
            text = f"The decider started attempt {attempt} to {_infinitive(action)}"
            return f"{text}, with the same parameters"
        case LookupDecided(action, attempt):
            return (
                f"The decider requested a lookup of {action.external_name} (attempt {attempt}), "
                f"because the result of the {_verb_forms(action)[2]} is unknown"
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
            return _describe_success(data)
        case ActionFailed():
            return _describe_failure(data)
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
                return "The decider stopped waiting for the object to make progress"
            if at is None:
                text = f"The object has made no progress since {time_text(since)}"
                return f"{text}, which is longer than allowed"
            return f"The object made progress, and more is expected by {time_text(at)}"
        case AvailabilityNoted():
            return _describe_availability(data)
        case RetryScheduled(at, seconds, reason, action_id):
            if action_id:
                return f"The decider will retry in {seconds:.1f} s, at {time_text(at)}: {reason}"
            return f"The decider will wait {seconds:.1f} s, until {time_text(at)}: {reason}"
        case ApiThrottled(until, message=message):
            return (
                f"The API does not accept calls before {time_text(until)}{message_suffix(message)}"
            )
        case BreakerOpened(until, _, failures, message):
            after = f"after {plural(failures, 'consecutive failure')}{message_suffix(message)}"
            return f"The circuit breaker blocks calls until {time_text(until)}, {after}"
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
        case UndeclaredCounted(undeclared):
            counts = [
                f"{each.count} of {plural(each.total, f'{kind} object')}"
                for kind, each in sorted(undeclared.items())
            ]
            return f"Listings of the new scope show undeclared objects: {', '.join(counts)}"
        case UsersCounted(0):
            return "No resource uses the withdrawn ProviderConfig"
        case UsersCounted(count, names):
            users = plural(count, "resource uses", "resources use")
            more = f" and {count - len(names)} more" if count > len(names) else ""
            return f"{users} the withdrawn ProviderConfig: {', '.join(names)}{more}"
        case ListingsFailed(kind, failure):
            since = time_text(failure.since)
            return (
                f"No listing of {kind} has completed since {since}{message_suffix(failure.message)}"
            )
        case ListingsResumed(kind, system_id) if system_id:
            return f"Listings of {kind} complete, at the system {system_id}"
        case ListingsResumed(kind):
            return f"Listings of {kind} complete again, or no resource uses the kind"
        case ApiFellSilent(since):
            return f"The API has not responded since {time_text(since)}"
        case ApiSilenceEnded():
            return "The API responds again, or the ProviderConfig was withdrawn"
        case OutcomeRecorded():
            return _describe_outcome(data)
        case _:
            assert_never(data)


def format_short(value: object) -> str:
    """Return a value as short text: strings without quotes, all other values as JSON."""
    is_bare = isinstance(value, str) and value != "" and value.isprintable()
    text = str(value) if is_bare else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def describe_changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Describe each difference: ``color: Red → Purple``, ``size: 3``, ``labels.a: b → removed``."""
    parts: list[str] = []
    for name in [*new, *(name for name in old if name not in new)]:
        path = prefix + name
        if name not in old:
            parts.append(f"{path}: {format_short(new[name])}")
        elif name not in new:
            parts.append(f"{path}: {format_short(old[name])} → removed")
        elif old[name] != new[name]:
            parts.append(f"{path}: {format_short(old[name])} → {format_short(new[name])}")
    return parts


def describe_drift(data: DriftDetected) -> str:
    """Describe a drift, with Reconciler's action that may have caused it."""
    parts = ", ".join(
        f"{each.path} is {_format_value(each.observed)} (declared: {_format_value(each.desired)})"
        for each in data.differences
    )
    if data.renamed_to:
        return (
            f"The object was renamed to {data.renamed_to} outside of Reconciler, and still exists"
        )
    if not data.suspected_action:
        if data.missing:
            return "The object was deleted outside of Reconciler"
        return f"The object was changed outside of Reconciler: {parts}"
    action = f"Reconciler's action {data.suspected_action}, whose result was unknown, may have"
    if data.missing:
        return f"The object is missing; {action} deleted it"
    return f"The object differs: {parts}; {action} written it"


def _describe_declaration(data: SpecDeclared, who: str, previous: SpecDeclared | None) -> str:
    old = data if previous is None else previous
    differences = describe_changes(_NO_FIELDS if previous is None else previous.fields, data.fields)
    for name in ("labels", "annotations", "policy"):
        earlier = _NO_FIELDS if previous is None else _builtins(getattr(previous, name))
        differences += describe_changes(earlier, _builtins(getattr(data, name)), f"{name}.")
    differences += describe_changes(
        {"providerConfig": old.provider_config}, {"providerConfig": data.provider_config}
    )
    text = ", ".join(differences)
    if text:
        text = f" with {text}" if previous is None else f", which changes {text}"
    return f"{who} declared generation {data.generation}{text}{reason_suffix(data.reason)}"


def _builtins(struct: object) -> Mapping[str, Any]:
    return msgspec.to_builtins(struct, str_keys=True)


def _field_suffix(fields: Mapping[str, Any]) -> str:
    text = ", ".join(describe_changes(_NO_FIELDS, fields))
    return f" with {text}" if text else ""


def _describe_observation(data: ExternalObserved) -> str:
    by_listing = data.evidence == "CompleteListing"
    if data.object is None:
        source = "listed the objects of the API" if by_listing else "read the API"
        owner = f" (it belonged to {data.belongs_to})" if data.belongs_to else ""
        found = f"; its uid now belongs to {data.found_as}" if data.found_as else ""
        return f"The observer {source}: {data.external_name} does not exist{owner}{found}"
    owner = f" (it belongs to {data.belongs_to})" if data.belongs_to else ""
    verb = "listed" if by_listing else "read"
    return f"The observer {verb} {data.object.name}{_field_suffix(data.object.fields)}{owner}"


def _describe_release(
    name: str, reason: Literal["Orphaned", "Forgotten", "Gone", "Replaced", "Moved"]
) -> str:
    match reason:
        case "Orphaned":
            return f"Reconciler released {name}: the object stays in the API"
        case "Forgotten":
            return f"Reconciler no longer owns {name}: nothing can read its API anymore"
        case "Gone":
            return f"Reconciler no longer owns {name}: the object no longer exists"
        case "Replaced":
            return f"Reconciler no longer owns {name}: another object has its name"
        case "Moved":
            return f"Reconciler no longer owns {name}: another resource took it over"


def _describe_forced_release(data: ReleaseForced, who: str) -> str:
    removed = ", ".join((*data.finalizers, *data.references))
    what = f"despite {removed}" if removed else "that nothing blocked"
    stays = "; an existing object stays in the API" if data.orphan else ""
    stays += ", which has no ProviderConfig or kind anymore" if data.forgotten else ""
    return f"{who} forced a release {what}{stays}{reason_suffix(data.reason)}"


def _describe_target(target: str, known: TargetState) -> str:
    if known.cycle:
        return f"The reference to {target} is circular: {' → '.join(known.cycle)}"
    if not known.declared:
        return f"The referenced resource {target} is not declared"
    is_unknown = bool(known.api_event)
    unready = ", and its API does not respond" if is_unknown else ", and not ready yet"
    is_new = ", and ready, but may stop being ready" if known.momentary else ""
    ready = is_new if known.ready else unready
    return f"The referenced resource {target} is declared{_field_suffix(known.values)}{ready}"


def _format_value(value: object) -> str:
    return "not set" if value is None else format_short(value)


# --- actions


def _describe_action(action: Action, previous: SpecDeclared | None) -> str:
    is_update = action.operation == "Update"
    if is_update and previous is None and OWNER_LABEL not in action.labels:
        # An undeclared object is updated only once: by the last write before its release.
        return (
            f"Reconciler decided to remove the owner label from {action.external_name} and to "
            "change nothing else: the object stays in the API"
        )
    return f"Reconciler decided to {_infinitive(action)}{_field_suffix(action.fields)}"


def _verb_forms(data: Action | ActionSucceeded | ActionFailed) -> tuple[str, str, str]:
    return _RENEWAL if data.purpose == "Renew" else _VERBS[data.operation]


def _infinitive(action: Action) -> str:
    target = _object_phrase(action.operation, action.purpose, action.external_name)
    return f"{_verb_forms(action)[0]} {target}"


def _object_phrase(operation: Operation, purpose: Purpose, name: str = "") -> str:
    match purpose:
        case "Replace" if operation == "Create":
            return f"the replacement {name}".rstrip()
        case "Replace":
            return f"{name or 'the object'} to replace it"
        case "Retire":
            return f"the replaced object {name}".rstrip()
        case "Converge" | "Renew":
            return name or "the object"


def _describe_availability(data: AvailabilityNoted) -> str:
    """Describe which parts became available or stopped being ready, and when the next one is."""
    parts = {name.rpartition("/")[2]: each for name, each in data.parts.items() if each is not None}
    waiting = [each for each in parts.values() if each.since and not each.available]
    silent = [name for name, each in parts.items() if each in waiting and each.api_event]
    groups = {
        "available": [name for name, each in parts.items() if each.available],
        "readiness unknown, because the API does not respond": silent,
        "ready": [name for name, each in parts.items() if each in waiting and name not in silent],
        "not ready": [name for name, each in parts.items() if each.since is None],
    }
    changes = [f"{list_first(names)}: {group}" for group, names in groups.items() if names]
    text = f"The parts changed ({'; '.join(changes)})" if changes else "The parts are unchanged"
    if data.at is not None:
        text += f", and the next one is available at {time_text(data.at)} if it stays ready"
    if data.withheld_until is not None:
        text += (
            "; the parts that depend on a part that is not ready are withdrawn at "
            f"{time_text(data.withheld_until)} if it stays not ready"
        )
    return text


def _describe_success(data: ActionSucceeded) -> str:
    past_tense = _verb_forms(data)[1]
    target = _object_phrase(data.operation, data.purpose, data.external_name)
    if data.found_by == "Absence":
        text = f"The worker found {target} already deleted"
        text += _POSSIBLE_DUPLICATE if data.unconfirmed else ""
    elif data.found_by is not None:
        evidence = _EVIDENCE[data.found_by]
        text = f"The worker found {target} already {past_tense}, as shown by {evidence}"
    elif data.replayed:
        text = f"An earlier call {past_tense} {target}"
    else:
        text = f"The worker {past_tense} {target}"
    if data.attempt > 1:
        text += f" (attempt {data.attempt})"
    if data.refused is not None:
        text += f", but the API refused the remaining calls: {single_line(data.refused.message)}"
    if data.late:
        text += f"; the result arrived late{' and is outdated' if data.outdated else ''}"
    return text + _duplicate_call_suffix(data)


def _describe_failure(data: ActionFailed) -> str:
    error, target = data.error, _object_phrase(data.operation, data.purpose)
    attempt = f"attempt {data.attempt} to {_verb_forms(data)[0]} {target}"
    why = f"{single_line(error.message)}{_duplicate_call_suffix(data)}"
    if not error.attempted:
        return f"The worker made no call in {attempt}: {why}"
    if error.error_class == "Unknown":
        return f"The result of the worker's {attempt} is unknown: {why}"
    status = f" {error.status}" if error.status else ""
    return f"The worker's {attempt} failed: {error.error_class}{status}: {why}"


def _duplicate_call_suffix(data: ActionSucceeded | ActionFailed) -> str:
    suffix = "; another worker, which stopped responding, may have made the same call"
    return suffix if data.redelivered else ""


def _describe_outcome(data: OutcomeRecorded) -> str:
    generation = f" of generation {data.generation}" if data.generation else ""
    reason = f" ({data.reason})" if data.reason not in ("", data.outcome) else ""
    return f"The outcome{generation} is {data.outcome}{reason}{message_suffix(data.message)}"


def message_suffix(message: str) -> str:
    """Return a colon and the message, or "" without a message."""
    return f": {single_line(message)}" if message else ""


def reason_suffix(reason: str) -> str:
    """Return a user's reason in parentheses, or "" without a reason."""
    return f" (reason: {single_line(reason)})" if reason else ""
