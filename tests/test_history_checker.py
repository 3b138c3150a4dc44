"""The checker finds every breach: a history without fault, and one for each rule that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace as changed

from events.dead_letter import DeadLetterRecord
from events.intake import ActionError, Declared, Reported, Withdrawn
from events.log import (
    Action,
    ActionDecided,
    ActionFailed,
    ActionRetried,
    ActionSucceeded,
    ExternalObserved,
    LogEvent,
    Operation,
    OutcomeRecorded,
    OwnershipReleased,
    ResourceEvent,
    RetryScheduled,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    event_id,
    event_type,
)
from events.manifest import Manifest, Metadata, Policy
from events.names import ResourceKey
from infra.example_api.shapes import Shape
from tests.faulty_api.journal import JournalEntry
from tests.history_checker import Acknowledged, History, Recorded, Told, findings

FOO = ResourceKey("default", "Shape", "foo")
GONE = ResourceKey("default", "Shape", "gone")
RED = {"type": "Square", "color": "Red"}
TRANSIENT = ActionError("Unknown", "no answer")


def action(key: ResourceKey, version: int, operation: Operation) -> Action:
    name = key.name
    return Action(
        event_id(key, version), f"key-{name}-{version}", operation, 1, "default", name, ()
    )


class Story:
    """A history being written; the clock ticks once for each thing that happens."""

    def __init__(self) -> None:
        self.log: list[Recorded] = []
        self.journal: list[JournalEntry] = []
        self.intake: list[Told] = []
        self.clock = 0

    def told(self, key: ResourceKey, data: Any) -> int:
        position = len(self.intake) + 1
        self.intake.append(Told(position, key, f"m{position}", "team-a", data))
        return position

    def recorded(self, key: ResourceKey, data: ResourceEvent, cause: int) -> None:
        version = 1 + sum(each.event.key == key for each in self.log)
        event = LogEvent(
            id=event_id(key, version),
            source="reconciler",
            type=event_type(data),
            subject=str(key),
            time=datetime.now(UTC),
            resourceversion=version,
            data=data,
            causeid=f"m{cause}",
            causeposition=cause,
        )
        self.clock += 1
        self.log.append(Recorded(len(self.log) + 1, self.clock, event))

    def happened(self, method: str, name: str, key: str | None, uid: str = "") -> None:
        self.clock += 1
        stamp = datetime.fromtimestamp(self.clock, UTC).isoformat()
        number = len(self.journal) + 1
        self.journal.append(JournalEntry(number, stamp, method, name, uid or f"uid-{name}", key))


def declared(key: ResourceKey) -> Declared:
    return Declared(Manifest("shapes/v1", key.kind, Metadata(key.name, key.namespace), RED))


def made(story: Story, key: ResourceKey) -> None:
    cause = story.told(key, declared(key))
    create = action(key, 2, "Create")
    story.recorded(key, SpecDeclared(1, "shapes/v1", "default", key.name, RED), cause)
    story.recorded(key, ActionDecided(create), cause)
    story.happened("POST", key.name, create.idempotency_key)
    when = datetime.now(UTC)
    result = story.told(key, Reported(create.action_id, 1, when, when, "worker"))
    story.recorded(key, ActionSucceeded(create.action_id, "Create", 1), result)
    story.recorded(key, OutcomeRecorded("Converged", 1, "AsDeclared"), result)


def sound() -> History:
    """Foo is there as declared; Gone was made, withdrawn and deleted at the second attempt."""
    story = Story()
    made(story, FOO)
    made(story, GONE)
    cause = story.told(GONE, Withdrawn())
    delete = action(GONE, 6, "Delete")
    story.recorded(GONE, SpecWithdrawn(2), cause)
    story.recorded(GONE, ActionDecided(delete), cause)
    story.happened("DELETE", "gone", delete.idempotency_key)
    story.recorded(GONE, ActionFailed(delete.action_id, "Delete", 1, TRANSIENT), cause + 1)
    when = datetime.now(UTC)
    story.recorded(GONE, RetryScheduled(when, 1, "Unknown", delete.action_id), cause + 1)
    story.recorded(GONE, ActionRetried(delete, 2), cause + 2)
    story.recorded(GONE, ActionSucceeded(delete.action_id, "Delete", 2, None, True), cause + 3)
    story.recorded(GONE, OutcomeRecorded("Deleted", 2, "Withdrawn"), cause + 3)
    return History(
        log=story.log,
        intake=story.intake,
        rejections=[],
        dead_letters=[],
        journal=story.journal,
        listing=[Shape("foo", "Square", "Red", {}, "uid-foo", 1, "")],
    )


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert findings(sound(), acknowledged=[Acknowledged(FOO, "m1")]) == []


def without_event(history: History, position: int) -> History:
    return replace(history, log=[each for each in history.log if each.position != position])


def with_data(history: History, position: int, data: ResourceEvent) -> History:
    log = [
        each._replace(event=changed(each.event, data=data)) if each.position == position else each
        for each in history.log
    ]
    return replace(history, log=log)


def with_told(history: History, told: Told) -> History:
    return replace(history, intake=[*history.intake, told])


def with_effect(history: History, **what: Any) -> History:
    last = history.journal[-1]
    effect = changed(last, sequence=last.sequence + 1, **what)
    return replace(history, journal=[*history.journal, effect])


def more(history: History, key: ResourceKey, data: ResourceEvent, cause: int = 99) -> History:
    story = Story()
    story.log = list(history.log)
    story.clock = 100
    story.recorded(key, data, cause)
    return replace(history, log=story.log)


BAR = ResourceKey("default", "Shape", "bar")
BREACHES: dict[str, tuple[str, Callable[[History], History]]] = {
    "a declaration that led to nothing": (
        "undecided",
        lambda history: with_told(history, Told(50, BAR, "m50", "team-a", declared(BAR))),
    ),
    "a withdrawal that led to nothing": (
        "undecided",
        lambda history: with_told(history, Told(50, FOO, "m50", "team-a", Withdrawn())),
    ),
    "a message that cannot be read and is no dead letter": (
        "undecided",
        lambda history: with_told(history, Told(50, None, "m50", "", None)),
    ),
    "a hole in a resource's versions": ("versions", lambda history: without_event(history, 7)),
    "two events of one version": (
        "versions",
        lambda history: replace(history, log=[*history.log, history.log[0]]),
    ),
    "events of one resource out of order": (
        "versions",
        lambda history: replace(history, log=[*history.log[:8], *reversed(history.log[8:])]),
    ),
    "an effect that nobody decided": (
        "intent",
        lambda history: with_effect(history, method="PUT", name="foo", idempotency_key="other"),
    ),
    "an effect without a key": (
        "intent",
        lambda history: with_effect(history, method="PUT", name="foo", idempotency_key=None),
    ),
    "an effect of another operation than was decided": (
        "intent",
        lambda history: replace(
            history, journal=[changed(history.journal[0], method="PUT"), *history.journal[1:]]
        ),
    ),
    "an effect on another object than was decided": (
        "intent",
        lambda history: replace(
            history, journal=[changed(history.journal[0], name="bar"), *history.journal[1:]]
        ),
    ),
    "an effect before its decision": (
        "intent",
        lambda history: replace(
            history, log=[each._replace(stored_at=each.stored_at + 90) for each in history.log]
        ),
    ),
    "an attempt with other parameters": (
        "frozen",
        lambda history: more(
            history, GONE, ActionRetried(changed(action(GONE, 6, "Delete"), uid="another"), 3)
        ),
    ),
    "a key that is used for two actions": (
        "frozen",
        lambda history: more(
            history, GONE, ActionDecided(changed(action(GONE, 6, "Delete"), action_id="other"))
        ),
    ),
    "two effects under one key": (
        "duplicate",
        with_effect,
    ),
    "two objects of one resource": (
        "duplicate",
        lambda history: replace(
            with_effect(
                more(history, FOO, ActionDecided(action(FOO, 5, "Create"))),
                method="POST",
                name="foo",
                uid="twin",
                idempotency_key="key-foo-5",
            ),
            listing=[*history.listing, Shape("foo", "Square", "Red", {}, "twin", 1, "")],
        ),
    ),
    "an action without an end": (
        "unended",
        lambda history: more(history, FOO, ActionDecided(action(FOO, 5, "Update"))),
    ),
    "an attempt whose failure leads to nothing": (
        "unended",
        lambda history: more(
            more(history, FOO, ActionDecided(action(FOO, 5, "Update"))),
            FOO,
            ActionFailed(event_id(FOO, 5), "Update", 1, TRANSIENT),
        ),
    ),
    "a deletion of what was never ours": (
        "stranger",
        lambda history: replace(
            history, journal=[*history.journal[:2], changed(history.journal[2], uid="stranger")]
        ),
    ),
    "an observation from before our last effect": (
        "late",
        lambda history: more(
            history, GONE, ExternalObserved("default", "gone", None, "CompleteListing", 1)
        ),
    ),
    "a declared resource that is not there": (
        "loss",
        lambda history: replace(history, listing=[]),
    ),
    "a declared resource that is otherwise": (
        "loss",
        lambda history: replace(
            history, listing=[Shape("foo", "Square", "Green", {}, "uid-foo", 1, "")]
        ),
    ),
    "a withdrawn resource that is still there": (
        "leak",
        lambda history: replace(
            history,
            listing=[*history.listing, Shape("gone", "Square", "Red", {}, "uid-gone", 1, "")],
        ),
    ),
    "a resource that is declared absent and is there": (
        "leak",
        lambda history: with_data(
            history,
            1,
            SpecDeclared(1, "shapes/v1", "default", "foo", RED, policy=Policy(mode="Absent")),
        ),
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_each_breach_is_found(breach: str) -> None:
    rule, break_it = BREACHES[breach]
    found = findings(break_it(sound()))
    assert rule in {each.rule for each in found}, [str(each) for each in found]


def test_an_acknowledged_declaration_that_is_nowhere_is_found() -> None:
    (lost,) = findings(sound(), acknowledged=[Acknowledged(BAR, "m77")])
    assert str(lost) == "undecided: default/Shape/bar: 'm77' was acknowledged and is nowhere"


def test_a_dead_letter_and_a_rejection_are_decisions() -> None:
    history = with_told(sound(), Told(50, None, "m50", "", None))
    history = with_told(history, Told(51, BAR, "m51", "team-a", declared(BAR)))
    letter = DeadLetterRecord("intake", "", "", 50, "m50", datetime.now(UTC), 0, "", "text", False)
    rejected = changed(
        history.log[-1].event,
        id="default/Shape/bar#rejected-51",
        subject=str(BAR),
        data=OutcomeRecorded("Rejected", 0, "Invalid"),
        causeposition=51,
    )
    history = replace(history, dead_letters=[letter], rejections=[rejected])
    assert findings(history) == []


def test_a_repeated_declaration_needs_no_event() -> None:
    assert findings(with_told(sound(), Told(50, FOO, "m50", "team-a", declared(FOO)))) == []


def test_what_people_do_by_hand_needs_no_key() -> None:
    history = with_effect(sound(), method="PUT", name="foo", idempotency_key=None)
    assert findings(history, by_hand=["foo"]) == []


def test_what_was_let_go_in_the_log_is_no_leak() -> None:
    history = sound()
    there = Shape("gone", "Square", "Red", {}, "uid-gone", 1, "")
    history = replace(
        more(history, GONE, OwnershipReleased("gone", "uid-gone", "Orphaned"), 99),
        listing=[*history.listing, there],
    )
    assert findings(history) == []


def test_what_is_kept_for_a_reason_that_is_told_is_no_leak() -> None:
    history = sound()
    there = Shape("gone", "Square", "Red", {}, "uid-gone", 1, "")
    held = more(history, GONE, OutcomeRecorded("Held", 2, "ProviderConfigMissing"), 99)
    assert findings(replace(held, listing=[*held.listing, there])) == []


def test_an_action_that_waits_for_its_next_attempt_has_a_schedule() -> None:
    history = more(sound(), FOO, ActionDecided(action(FOO, 5, "Update")))
    history = more(history, FOO, ActionFailed(event_id(FOO, 5), "Update", 1, TRANSIENT))
    scheduled = RetryScheduled(datetime.now(UTC), 1, "Unknown", event_id(FOO, 5))
    assert findings(more(history, FOO, scheduled)) == []


def replaced() -> History:
    """Foo was replaced by what stands under a second name, made by two calls; it is Blue now."""
    story = Story()
    made(story, FOO)
    blue = {"type": "Square", "color": {"$ref": "Shape/bar", "field": "outputs.color"}}
    cause = story.told(FOO, declared(FOO))
    create = changed(action(FOO, 7, "Create"), external_name="foo-2", purpose="Replace")
    delete = changed(action(FOO, 9, "Delete"), purpose="Retire")
    story.recorded(FOO, SpecDeclared(2, "shapes/v1", "default", "foo", blue), cause)
    story.recorded(FOO, SpecResolved(2, {**blue, "color": "Blue"}), cause)
    story.recorded(FOO, ActionDecided(create), cause)
    story.happened("POST", "foo-2", create.idempotency_key)
    story.happened("PUT", "foo-2", f"{create.idempotency_key}/2")
    story.recorded(FOO, ActionSucceeded(create.action_id, "Create", 1, purpose="Replace"), cause)
    story.recorded(FOO, ActionDecided(delete), cause)
    story.happened("DELETE", "foo", delete.idempotency_key)
    story.recorded(FOO, ActionSucceeded(delete.action_id, "Delete", 1, purpose="Retire"), cause)
    return History(
        log=story.log,
        intake=story.intake,
        rejections=[],
        dead_letters=[],
        journal=story.journal,
        listing=[Shape("foo-2", "Square", "Blue", {}, "uid-foo-2", 1, "")],
    )


def test_a_replacement_a_reference_and_a_second_call_are_as_they_should_be() -> None:
    assert findings(replaced()) == []


def test_of_what_was_replaced_nothing_is_left() -> None:
    history = replaced()
    old = Shape("foo", "Square", "Red", {}, "uid-foo", 1, "")
    found = findings(replace(history, listing=[*history.listing, old]))
    assert "duplicate" in {each.rule for each in found}


def test_what_a_second_call_left_out_is_a_loss() -> None:
    history = replaced()
    white = [changed(each, color="White") for each in history.listing]
    assert [each.rule for each in findings(replace(history, listing=white))] == ["loss"]


def test_a_second_call_belongs_to_the_object_of_its_action() -> None:
    history = replaced()
    other = [
        changed(each, name="foo") if each.idempotency_key == "key-foo-7/2" else each
        for each in history.journal
    ]
    assert "intent" in {each.rule for each in findings(replace(history, journal=other))}
