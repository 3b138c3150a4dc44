"""The damage that a chain of versions and digests detects and reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from events.envelope import encode_log
from events.integrity import LogChains, LogDamage, Problem, RecordedEvent, next_digest
from events.log import LogEvent, log_suffix
from events.names import ResourceKey
from events.subjects import log
from tests.bus.histories import events

FOO = ResourceKey("default", "Shape", "foo")
BAR = ResourceKey("default", "Shape", "bar")


def build_records(history: Sequence[LogEvent]) -> list[RecordedEvent]:
    """Return a history as stored in the log, from position 1."""
    records: list[RecordedEvent] = []
    digest = ""
    for position, event in enumerate(history, 1):
        payload = encode_log(event)
        digest = next_digest(digest, payload)
        subject = log(event.key, log_suffix(event.data))
        records.append(RecordedEvent(position, subject, payload, digest))
    return records


@dataclass
class PassResult:
    """The result of one pass over a log: sound events and damage."""

    sound: list[str] = field(default_factory=list[str])
    damage: list[LogDamage] = field(default_factory=list[LogDamage])


def run_pass(
    stored: Sequence[RecordedEvent], *, after: int = 0, max_resources: int | None = None
) -> PassResult:
    result = PassResult()
    chains = LogChains(result.damage.append, after=after, max_resources=max_resources)
    for record in stored:
        event = chains.verify_next(record)
        if event is not None:
            result.sound.append(event.id)
    return result


def move_to(stored: RecordedEvent, position: int) -> RecordedEvent:
    return replace(stored, position=position)


def renumber(stored: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    return [move_to(record, position) for position, record in enumerate(stored, 1)]


def test_a_sound_history_has_no_damage() -> None:
    records = run_pass(build_records(events(FOO, 1, 5)))
    assert records.damage == []
    assert len(records.sound) == 5


def _change_payload(stored: list[RecordedEvent]) -> list[RecordedEvent]:
    payload = stored[2].payload.replace(b"AsDeclared", b"AsDecIared")
    return [*stored[:2], replace(stored[2], payload=payload), *stored[3:]]


def _use_newer_type(stored: list[RecordedEvent]) -> list[RecordedEvent]:
    content = json.loads(stored[2].payload)
    content["type"] = "reconciler.resource.ShapeTeleported"
    content["data"]["event"] = "ShapeTeleported"
    newer = replace(stored[2], payload=json.dumps(content).encode())
    return [*stored[:2], newer, *stored[3:]]


def _insert_foreign(stored: list[RecordedEvent]) -> list[RecordedEvent]:
    foreign_record = replace(
        build_records(events(BAR, 1, 1))[0], subject=stored[2].subject, position=3
    )
    return [*stored[:2], foreign_record, *stored[3:]]


def _move_to_another_class(stored: list[RecordedEvent]) -> list[RecordedEvent]:
    other_record = replace(stored[2], subject=log(FOO, "action"))
    return [*stored[:2], other_record, *stored[3:]]


DamageInjector = Callable[[list[RecordedEvent]], list[RecordedEvent]]
CASES: list[tuple[Problem, DamageInjector, str]] = [
    ("Missing", lambda s: renumber([*s[:2], *s[3:]]), "expected event 3, found event 4"),
    ("Repeated", lambda s: renumber([*s[:2], s[1], *s[2:]]), "expected event 3, found event 2"),
    ("OutOfOrder", lambda s: renumber([*s[:2], s[0], *s[2:]]), "expected event 3, found event 1"),
    ("Changed", _change_payload, "expected event 3 with digest"),
    (
        "Unreadable",
        lambda s: [*s[:2], replace(s[2], payload=b"?"), *s[3:]],
        "not a valid log event",
    ),
    ("Unreadable", _use_newer_type, "ShapeTeleported"),
    ("Misplaced", _insert_foreign, "found event 1 of default/Shape/bar"),
    (
        "Misplaced",
        _move_to_another_class,
        "found event 3 (outcome.Converged) on",
    ),
    ("Undigested", lambda s: [*s[:2], replace(s[2], digest=""), *s[3:]], "found event 3 without"),
]


@pytest.mark.parametrize(("problem", "inject_damage", "message"), CASES)
def test_damage_is_reported_once_with_its_position_and_later_events_are_ignored(
    problem: Problem, inject_damage: DamageInjector, message: str
) -> None:
    records = run_pass(inject_damage(build_records(events(FOO, 1, 6))))
    (damage,) = records.damage
    assert (damage.problem, damage.resource) == (problem, "default/Shape/foo")
    assert (damage.version, damage.position) == (3, 3)
    assert message in str(damage)
    assert records.sound == ["default/Shape/foo@1", "default/Shape/foo@2"]


def test_events_in_the_wrong_order_are_detected() -> None:
    stored = build_records(events(FOO, 1, 5))
    swapped = renumber([*stored[:2], stored[3], stored[2], *stored[4:]])
    assert run_pass(swapped).damage[0].problem == "Missing"
    assert len(run_pass(swapped).sound) == 2


def test_one_resource_is_damaged_and_the_others_are_not() -> None:
    foo, bar = build_records(events(FOO, 1, 4)), build_records(events(BAR, 1, 4))
    mixed = [record for pair in zip(foo, bar, strict=True) for record in pair]
    del mixed[2]
    result = run_pass(renumber(mixed))
    assert [each.resource for each in result.damage] == ["default/Shape/foo"]
    assert [each for each in result.sound if "bar" in each] == [f"{BAR}@{n}" for n in range(1, 5)]


def test_a_position_without_an_event_is_missing_even_if_its_resource_is_unknown() -> None:
    stored = build_records(events(FOO, 1, 5))
    result = run_pass([*stored[:2], move_to(stored[2], 7)])
    assert [(each.problem, each.resource) for each in result.damage] == [("Missing", "")]
    assert "events at positions 3 to 6" in str(result.damage[0])
    damage: list[LogDamage] = []
    chains = LogChains(damage.append)
    for record in stored[:3]:
        chains.verify_next(record)
    chains.end(3)
    assert damage == []
    chains.end(5)
    assert "events at positions 4 to 5, found no event" in str(damage[0])


def test_an_event_without_a_resource_is_reported() -> None:
    result = run_pass([RecordedEvent(1, "log.some.thing", b"hello", "")])
    assert [(each.problem, each.resource) for each in result.damage] == [("Misplaced", "")]


def test_a_pass_that_begins_in_the_middle_accepts_the_first_event() -> None:
    stored = build_records(events(FOO, 1, 6))
    assert run_pass(stored[3:], after=3).damage == []
    assert run_pass([stored[3], move_to(stored[5], 5)], after=3).damage[0].problem == "Missing"


def test_a_bounded_pass_checks_the_resources_with_the_newest_events() -> None:
    foo = build_records(events(FOO, 1, 4))
    others = [
        build_records(events(ResourceKey("default", "Shape", f"s{n}"), 1, 1))[0] for n in range(4)
    ]
    skipped = [*foo[:2], foo[3]]
    soon = renumber([*skipped[:2], *others[:2], skipped[2]])
    late = renumber([*skipped[:2], *others, skipped[2]])
    assert [each.problem for each in run_pass(soon, max_resources=2).damage] == ["Missing"]
    assert run_pass(late, max_resources=2).damage == [], (
        "its history is forgotten, so the event is accepted"
    )
    assert [each.problem for each in run_pass(late).damage] == ["Missing"]
    assert len(run_pass(late, max_resources=2).sound) == len(late)


def test_another_resources_event_is_misplaced_even_if_version_and_digest_match() -> None:
    first, second = events(FOO, 1, 2)
    stored = build_records([first, second])
    payload = encode_log(replace(second, subject=str(BAR)))
    digest = next_digest(stored[0].digest, payload)
    result = run_pass([stored[0], replace(stored[1], payload=payload, digest=digest)])
    assert [each.problem for each in result.damage] == ["Misplaced"]
