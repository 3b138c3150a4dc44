"""Judges a history by what was published and by what the API saw, and by nothing of the product's.

``History`` is a record of the streams LOG_1, INTAKE, REJECTIONS and DEADLETTERS, and of the API's
own journal and listing (``tests.history_reading`` reads one). ``findings`` gives every breach of
what must hold, each a line for people; an empty list is the verdict that nothing leaked, nothing
was doubled and nothing was lost. The idea is that of Jepsen's checkers: run anything, kill
anything, record everything, and judge the record afterwards.

No read model, cache or state of the product is used: only the published structs are decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import msgspec

from events.dead_letter import DeadLetterRecord
from events.intake import Declared, IntakeData, Withdrawn
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    ExternalObserved,
    LogEvent,
    LookupDecided,
    Operation,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ResourceEvent,
    RetryScheduled,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
)
from events.manifest import Fields, InvalidManifestError, take_apart
from events.names import ResourceKey
from infra.example_api.shapes import Shape
from tests.explanations import explained
from tests.faulty_api.journal import JournalEntry

Rule = Literal[
    "undecided",  # an acknowledged declaration was neither decided nor dead-lettered
    "versions",  # a resource's events have a hole, or two have one version
    "intent",  # an effect without a decision before it in the log, or of another operation
    "frozen",  # attempts of one action differ, or two actions share a key
    "duplicate",  # one key had several effects, or one resource has several objects
    "unexplained",  # an effect of an action that had none, by the log
    "unended",  # a decided action has no end, and no attempt of it is scheduled
    "stranger",  # an effect on an object that was never ours
    "late",  # an observation from before our last effect was believed
    "loss",  # what is declared does not exist as declared
    "leak",  # something of ours is left that nobody declares
]


class Finding(NamedTuple):
    """One breach: which rule, of what, and what was found."""

    rule: Rule
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.text}"


class Recorded(NamedTuple):
    """An event of the log, its position, and when the server stored it, in seconds since 1970."""

    position: int
    stored_at: float
    event: LogEvent


class Told(NamedTuple):
    """A message of the intake; ``data`` is None where it cannot be read."""

    position: int
    key: ResourceKey | None
    message_id: str
    source: str
    data: IntakeData | None


class Acknowledged(NamedTuple):
    """A declaration or withdrawal of which the bus said that it is stored."""

    key: ResourceKey
    message_id: str


@dataclass(frozen=True)
class History:
    """What was published, and what the API saw; each in its own order."""

    log: Sequence[Recorded]
    intake: Sequence[Told]
    rejections: Sequence[LogEvent]
    dead_letters: Sequence[DeadLetterRecord]
    journal: Sequence[JournalEntry]
    listing: Sequence[Shape]
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def by_resource(self) -> Mapping[ResourceKey, Sequence[Recorded]]:
        """The log of each resource, in the log's order."""
        shapes: dict[ResourceKey, list[Recorded]] = {}
        for each in self.log:
            shapes.setdefault(each.event.key, []).append(each)
        return shapes

    @cached_property
    def decided(self) -> Mapping[str, Recorded]:
        """The first decision of each idempotency key."""
        found: dict[str, Recorded] = {}
        for each in self.log:
            if isinstance(each.event.data, ActionDecided):
                found.setdefault(each.event.data.action.idempotency_key, each)
        return found

    def decision_of(self, key: str | None) -> Recorded | None:
        """Return the decision of an effect: the keys of its later calls begin with the action's."""
        return self.decided.get((key or "").partition("/")[0])

    @cached_property
    def resolved(self) -> Mapping[ResourceKey, Fields]:
        """The newest fields of resources that refer to others."""
        return {
            key: each.event.data.fields
            for key, events in self.by_resource.items()
            for each in events
            if isinstance(each.event.data, SpecResolved)
        }


def findings(
    history: History,
    *,
    acknowledged: Iterable[Acknowledged] = (),
    by_hand: Collection[str] = (),
) -> list[Finding]:
    """Give every breach in a history that has come to rest.

    ``acknowledged``: declarations that must not be lost, besides those that the intake still has.
    ``by_hand``: names of objects that people changed in the API directly: effects without a key are
    allowed on these.
    """
    found = [
        *_undecided(history, acknowledged),
        *_versions(history),
        *_intents(history, by_hand),
        *_frozen_actions(history),
        *_doubled_effects(history),
        *_unexplained(history),
        *_unended(history),
        *_strangers(history),
        *_late_observations(history),
        *_losses(history),
        *_leaks(history),
    ]
    return list(dict.fromkeys(found))


# --- what was acknowledged is decided


def _undecided(history: History, acknowledged: Iterable[Acknowledged]) -> Iterator[Finding]:
    buried = {letter.position for letter in history.dead_letters}
    refused = {each.causeposition for each in history.rejections}
    causes = {(each.event.key, each.event.causeid) for each in history.log}
    stored = {(each.key, each.message_id) for each in history.intake}
    first: dict[tuple[ResourceKey | None, str], int] = {}
    for told in history.intake:
        came = first.setdefault((told.key, told.message_id), told.position)
        if told.position in buried or told.position in refused:
            continue
        if told.key is None or told.data is None:
            yield Finding(
                "undecided", f"intake {told.position}", "unreadable, and not a dead letter"
            )
        elif isinstance(told.data, (Declared, Withdrawn)):
            same = (told.key, told.message_id) in causes
            if not same and not _says_nothing_new(history, told.key, told.data, came):
                yield Finding(
                    "undecided",
                    str(told.key),
                    f"{type(told.data).__name__} {told.message_id!r} at {told.position} "
                    "led to no event, no rejection and no dead letter",
                )
    for one in acknowledged:
        if one not in stored and (one.key, one.message_id) not in causes:
            yield Finding(
                "undecided", str(one.key), f"{one.message_id!r} was acknowledged and is nowhere"
            )


def _says_nothing_new(
    history: History, key: ResourceKey, data: Declared | Withdrawn, position: int
) -> bool:
    """Tell whether the resource was declared like that already: such a message leads to no event.

    ``position`` is where it came first: sent again later it says nothing new either.
    """
    before: ResourceEvent | None = None
    for each in history.by_resource.get(key, ()):
        event = each.event
        if (
            isinstance(event.data, (SpecDeclared, SpecWithdrawn))
            and event.causeposition <= position
        ):
            before = event.data
    if isinstance(data, Withdrawn):
        return not isinstance(before, SpecDeclared)
    if not isinstance(before, SpecDeclared):
        return False
    try:
        wanted = take_apart(data.manifest)
    except InvalidManifestError:
        return False
    return (before.policy, before.labels) == (wanted.policy, wanted.labels) and all(
        before.fields.get(name) == value for name, value in wanted.fields.items()
    )


# --- the log itself


def _versions(history: History) -> Iterator[Finding]:
    for key, events in history.by_resource.items():
        versions = [each.event.resourceversion for each in events]
        if versions == list(range(1, len(versions) + 1)):
            continue
        twice = [version for version, count in Counter(versions).items() if count > 1]
        if twice:
            yield Finding("versions", str(key), f"several events of version {twice}")
        missing = sorted(set(range(1, max(versions) + 1)) - set(versions))
        if missing:
            yield Finding("versions", str(key), f"no event of version {missing}")
        if not twice and not missing:
            yield Finding("versions", str(key), f"out of order: {versions}")


def _intents(history: History, by_hand: Collection[str]) -> Iterator[Finding]:
    for effect in history.journal:
        what = f"{effect.method} of {effect.name} (effect {effect.sequence})"
        if effect.idempotency_key is None:
            if effect.name not in by_hand:
                yield Finding("intent", effect.name, f"{what} has no idempotency key")
            continue
        decision = history.decision_of(effect.idempotency_key)
        if decision is None:
            yield Finding("intent", effect.name, f"{what} was never decided: the log has no key")
            continue
        action = _action(decision.event)
        assert action is not None
        is_later_call = "/" in effect.idempotency_key and effect.method == "PUT"
        is_its_call = is_later_call or _METHODS[action.operation] == effect.method
        if not is_its_call or action.external_name != effect.name:
            yield Finding(
                "intent",
                effect.name,
                f"{what}: {action.operation} of {action.external_name} was decided under its key",
            )
        if decision.stored_at > _moment(effect):
            yield Finding(
                "intent", effect.name, f"{what} happened before its decision was in the log"
            )


def _frozen_actions(history: History) -> Iterator[Finding]:
    decided: dict[str, Action] = {}
    for each in history.log:
        action = _action(each.event)
        if action is None:
            continue
        first = decided.setdefault(action.idempotency_key, action)
        if isinstance(each.event.data, ActionDecided) and first is not action:
            yield Finding("frozen", each.event.subject, f"{each.event.id} reuses a key")
        elif first != action:
            yield Finding("frozen", each.event.subject, f"{each.event.id} changed its parameters")


def _doubled_effects(history: History) -> Iterator[Finding]:
    keys = Counter(each.idempotency_key for each in history.journal if each.idempotency_key)
    names = {each.idempotency_key: each.name for each in history.journal}
    for key, count in keys.items():
        if count > 1:
            yield Finding("duplicate", names[key], f"{count} effects under the key {key}")
    owners: Counter[str] = Counter()
    for live in _made_by_us(history):
        decision = history.decided.get(live.key)
        if decision is not None:
            owners[decision.event.subject] += 1
    for shape, count in owners.items():
        if count > 1:
            yield Finding("duplicate", shape, f"{count} objects exist for one resource")


def _unexplained(history: History) -> Iterator[Finding]:
    """The log has every effect as done, or says that it is not known (invariant 13)."""
    known = explained(each.event for each in history.log)
    for effect in history.journal:
        decision = history.decision_of(effect.idempotency_key)
        action = None if decision is None else _action(decision.event)
        if action is not None and action.action_id not in known:
            what = f"{effect.method} of {effect.name} (effect {effect.sequence})"
            yield Finding(
                "unexplained", effect.name, f"{what}: by the log {action.action_id} had none"
            )


_FINAL = ("Conflict", "NotFound", "Permanent")


def _unended(history: History) -> Iterator[Finding]:
    """Every action has an end, or its next attempt is scheduled."""
    open_actions: dict[str, tuple[str, str]] = {}
    for each in history.log:
        action_id, state = _progress(each.event.data)
        if action_id is None:
            continue
        if state == "ended":
            open_actions.pop(action_id, None)
        elif state in _STEPS or action_id in open_actions:
            open_actions[action_id] = (each.event.subject, state)
    for action_id, (subject, state) in open_actions.items():
        if state in _STEPS:
            yield Finding("unended", subject, f"action {action_id} is {state}, and nothing follows")


_STEPS = ("under way", "failed", "not done")
"""States of an action after which something must follow; a held one waits for a person."""


def _progress(data: ResourceEvent) -> tuple[str | None, str]:
    match data:
        case ActionDecided(action=action) | ActionRetried(action=action):
            return action.action_id, "under way"
        case LookupDecided(action=action):
            return action.action_id, "under way"
        case ActionNotDone(action_id=action_id):
            return action_id, "not done"
        case ActionHeld(action_id=action_id):
            return action_id, "held"
        case ActionSucceeded(action_id=action_id) | ActionAbandoned(action_id=action_id):
            return action_id, "ended"
        case ActionFailed(action_id=action_id, error=error):
            return action_id, "ended" if error.error_class in _FINAL else "failed"
        case RetryScheduled(action_id=action_id):
            return action_id, "scheduled"
        case _:
            return None, ""


# --- what may be touched, and believed


def _strangers(history: History) -> Iterator[Finding]:
    """Whatever is changed or deleted under a key was made or claimed by us."""
    claimed = {
        each.event.data.uid
        for each in history.log
        if isinstance(each.event.data, OwnershipClaimed) and each.event.data.uid is not None
    }
    ours: set[str] = set()
    for effect in history.journal:
        if effect.idempotency_key is None:
            continue
        if effect.method == "POST":
            ours.add(effect.uid)
        elif effect.uid not in ours | claimed:
            yield Finding(
                "stranger",
                effect.name,
                f"{effect.method} (effect {effect.sequence}) of {effect.uid}, which was never ours",
            )


def _late_observations(history: History) -> Iterator[Finding]:
    """What was seen before our own last effect must not change what we know."""
    for key, events in history.by_resource.items():
        effect = 0
        for each in events:
            data = each.event.data
            if isinstance(data, ActionSucceeded):
                effect = max(effect, each.event.causeposition)  # a late report may be older
            elif isinstance(data, ExternalObserved) and data.as_of < effect:
                yield Finding(
                    "late",
                    str(key),
                    f"{each.event.id} was seen as of {data.as_of}, before the effect at {effect}",
                )


# --- the API against the log


_EXCUSED = ("Failed", "Conflict", "Disputed", "Held", "Paused")
_KEPT_FOR_A_REASON = ("Disputed", "Held", "Paused")


def _losses(history: History) -> Iterator[Finding]:
    """What is declared exists, as it is declared."""
    listed = {each.name: each for each in history.listing}
    by_uid = {each.uid: each for each in history.listing}
    made = {
        decision.event.key: by_uid[live.uid]
        for live in _made_by_us(history)
        if (decision := history.decision_of(live.key)) is not None
    }
    for key, spec in _declared(history):
        mode = spec.policy.mode
        if mode not in ("Present", "Absent"):
            continue
        if _last_outcome(history, key) in _EXCUSED:
            continue
        found = made.get(key) or listed.get(spec.external_name)  # a replacement has another name
        if mode == "Absent":
            if found is not None:
                yield Finding("leak", str(key), f"{spec.external_name} is declared absent")
        elif found is None:
            yield Finding("loss", str(key), f"{spec.external_name} is declared and not there")
        else:
            fields = history.resolved.get(key, spec.fields)
            wanted = {name: _opened(each, history.secrets) for name, each in fields.items()}
            yield from _differences(key, spec, wanted, found)


def _opened(value: Any, secrets: Mapping[str, str]) -> Any:
    """Give what a secret is today in the place of its name."""
    if not isinstance(value, dict) or "$secret" not in value:
        return cast("Any", value)
    return secrets.get(cast("Fields", value)["$secret"])


def _differences(
    key: ResourceKey, spec: SpecDeclared, fields: Fields, found: Shape
) -> Iterator[Finding]:
    shown = msgspec.to_builtins(found)
    ignored = spec.policy.ignore_fields
    for name, wanted in fields.items():
        if name not in ignored and shown.get(name) != wanted:
            yield Finding("loss", str(key), f"{name} is {shown.get(name)!r}, not {wanted!r}")
    for name, wanted in spec.labels.items():
        if f"labels.{name}" not in ignored and found.labels.get(name) != wanted:
            yield Finding("loss", str(key), f"label {name} is {found.labels.get(name)!r}")


def _leaks(history: History) -> Iterator[Finding]:
    """What we made and nobody declares any more is gone.

    Unless it was let go in the log, or the resource's outcome says what keeps it there.
    """
    let_go = {
        each.event.data.uid
        for each in history.log
        if isinstance(each.event.data, OwnershipReleased) and each.event.data.reason == "Orphaned"
    }
    declared = dict(_declared(history))
    wanted = {spec.external_name for spec in declared.values()}
    for live in _made_by_us(history):
        if live.name in wanted or live.uid in let_go:
            continue
        decision = history.decided.get(live.key)
        action = None if decision is None else _action(decision.event)
        if decision and action and action.purpose == "Replace" and decision.event.key in declared:
            continue  # that there is no other one is of the rule "duplicate"
        told = None if decision is None else _last_outcome(history, decision.event.key)
        if told not in _KEPT_FOR_A_REASON:
            yield Finding("leak", live.name, f"{live.uid} is ours, and nobody declares it")


class _Live(NamedTuple):
    name: str
    uid: str
    key: str


def _made_by_us(history: History) -> Iterator[_Live]:
    """The objects that exist and were made under a key, by the API's own records."""
    made = {
        each.uid: each.idempotency_key
        for each in history.journal
        if each.method == "POST" and each.idempotency_key is not None
    }
    for shape in history.listing:
        key = made.get(shape.uid)
        if key is not None:
            yield _Live(shape.name, shape.uid, key)


def _declared(history: History) -> Iterator[tuple[ResourceKey, SpecDeclared]]:
    """Every resource of an API that is declared now; configurations live in the log alone."""
    for key, events in history.by_resource.items():
        specs = [
            each.event.data
            for each in events
            if isinstance(each.event.data, (SpecDeclared, SpecWithdrawn))
        ]
        if specs and isinstance(specs[-1], SpecDeclared) and specs[-1].provider_config:
            yield key, specs[-1]


def _last_outcome(history: History, key: ResourceKey) -> str:
    told = [
        each.event.data.outcome
        for each in history.by_resource[key]
        if isinstance(each.event.data, OutcomeRecorded)
    ]
    return told[-1] if told else ""


# --- reading single records

_METHODS: Mapping[Operation, str] = {"Create": "POST", "Update": "PUT", "Delete": "DELETE"}


def _action(event: LogEvent) -> Action | None:
    data = event.data
    return data.action if isinstance(data, (ActionDecided, ActionRetried, LookupDecided)) else None


def _moment(effect: JournalEntry) -> float:
    return datetime.fromisoformat(effect.time).timestamp()
