"""Reports to resources about their references, repeated whenever the resources lack them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from events.external import ExternalObject
from events.intake import (
    OnWithdrawal,
    Referenced,
    SecretReported,
    TargetReported,
    TargetState,
    Unreferenced,
)
from events.integrity import LogDamage
from events.log import Condition, PartAvailability
from events.manifest import Fields
from events.names import ResourceKey
from events.provider_config import config_key
from events.reference import REFERENCE_KIND, Reference
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut
from reconciler.provider.kind import READY, KindRegistry, Readiness
from reconciler.roles.sweeper.reference_index import NamedSecret, ReferenceIndex
from reconciler.roles.sweeper.references import (
    MAX_REFERRERS,
    MAX_VALUE_BYTES,
    reference_messages,
    referrer_messages,
    secret_messages,
)
from shapes_api.kinds.shapes import SHAPE

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TARGET = ResourceKey("default", "Shape", "foo")
REFERENCE = ResourceKey("default", REFERENCE_KIND, "shop-needs-foo")


def _messages_at(
    version: int, known: dict[str, OnWithdrawal], damaged: Collection[str] = ()
) -> list[IntakeMessageOut]:
    """Return the messages for a target at this version with these known references."""
    target = StatusRow(
        TARGET.namespace, TARGET.kind, TARGET.name, version=version, declared=True, references=known
    )
    reference = StatusRow(
        REFERENCE.namespace,
        REFERENCE.kind,
        REFERENCE.name,
        version=7,
        declared=True,
        refers=(Reference(str(TARGET)),),
        targets={str(TARGET): TargetState(declared=str(TARGET) not in damaged)},
    )
    every_row = {str(row.key): row for row in (target, reference)}
    return _messages_for_rows(every_row, damaged)


def _messages_for_rows(
    every_row: dict[str, StatusRow], damaged: Collection[str] = (), position: int = 0
) -> list[IntakeMessageOut]:
    """Return the messages of the first pass over all rows."""
    models, index = ReadModels(), ReferenceIndex()
    models.position, models.status = position, every_row
    models.damage = {name: LogDamage("Changed", 0, 0, "", "", name) for name in damaged}
    for name, row in every_row.items():
        index.add(name, None if name in damaged else row)
    return reference_messages(index.take_changed(), index, models)


def test_a_state_reverted_by_a_late_message_is_reported_again_as_new() -> None:
    [first] = _messages_at(8, {})
    assert first.key == TARGET
    assert first.data == Referenced(str(REFERENCE), "Keep")
    assert not _messages_at(9, {str(REFERENCE): "Keep"})
    [second] = _messages_at(10, {str(REFERENCE): "Ignore"})
    assert second.data == first.data
    assert second.message_id != first.message_id, (
        "the bus would drop an equal message as a duplicate"
    )


def test_a_reference_lost_with_its_targets_row_is_reported_again_as_new() -> None:
    """The row of a target that has nothing but a reference is deleted with the reference."""
    rows = {"default/Shape/a": _waiting_row("a", "b")}
    previous_message, second_message, other_observers_message = (
        _messages_for_rows(rows, position=position)[-1] for position in (4, 6, 6)
    )
    assert previous_message.data == second_message.data == Referenced("default/Shape/a", "Keep")
    assert previous_message.message_id != second_message.message_id, (
        "the bus would drop an equal message as a duplicate"
    )
    assert second_message.message_id == other_observers_message.message_id


def test_equal_reports_from_several_observers_are_one_message() -> None:
    [first_message], [other_message] = _messages_at(8, {}), _messages_at(8, {})
    assert first_message.message_id == other_message.message_id


def test_an_unreadable_reference_does_not_count_as_withdrawn() -> None:
    assert not _messages_at(8, {str(REFERENCE): "Keep"}, damaged=[str(REFERENCE)])
    assert _messages_at(8, {str(REFERENCE): "Keep", "default/ShapeRef/gone": "Keep"})


def test_nothing_is_reported_about_an_unreadable_target() -> None:
    assert not _messages_at(8, {}, damaged=[str(TARGET)])


def _waiting_row(name: str, needs: str) -> StatusRow:
    return StatusRow(
        "default",
        "Shape",
        name,
        version=3,
        declared=True,
        outcome="Waiting",
        refers=(Reference(f"default/Shape/{needs}", ("outputs.port",)),),
    )


def _reported_states(rows: list[StatusRow]) -> dict[str, TargetState]:
    """Return the target state that each row receives."""
    messages = _messages_for_rows({str(row.key): row for row in rows})
    return {
        each.key.name: each.data.state for each in messages if isinstance(each.data, TargetReported)
    }


def test_each_member_of_a_cycle_receives_the_whole_cycle() -> None:
    states = _reported_states(
        [_waiting_row("a", "b"), _waiting_row("b", "c"), _waiting_row("c", "a")]
    )
    names = [each.rpartition("/")[2] for each in states["a"].cycle]
    assert names == ["a", "b", "c", "a"]
    assert all(len(each.cycle) == 4 for each in states.values())


def test_a_resource_that_references_a_cycle_is_not_in_it() -> None:
    states = _reported_states(
        [_waiting_row("x", "a"), _waiting_row("a", "b"), _waiting_row("b", "a")]
    )
    assert states["x"].cycle == ()
    assert len(states["a"].cycle) == 3


def test_a_cycle_ends_when_a_member_is_withdrawn() -> None:
    rows = [_waiting_row("a", "b"), _waiting_row("b", "a")]
    rows[1].declared = False
    assert _reported_states(rows)["a"] == TargetState(False)


def _unreferenced(rows: list[StatusRow], damaged: Collection[str] = ()) -> set[str]:
    """Return the unreferenced resources in a ring where each row keeps the next one."""
    for previous_row, row in zip([rows[-1], *rows], rows, strict=False):
        row.owned, row.references = True, {str(previous_row.key): "Keep"}
    messages = _messages_for_rows({str(row.key): row for row in rows}, damaged)
    return {each.key.name for each in messages if isinstance(each.data, Unreferenced)}


def test_no_member_of_a_withdrawn_cycle_is_kept_for_the_next() -> None:
    rows = [_waiting_row("a", "b"), _waiting_row("b", "c"), _waiting_row("c", "a")]
    rows[0].declared = rows[2].declared = False
    assert not _unreferenced(rows), "b is declared, so c is kept for b, and a for c"
    rows[1].declared = False
    assert _unreferenced(rows) == {"a", "b", "c"}
    assert not _unreferenced(rows, damaged=[str(rows[1].key)]), (
        "b is unreadable, so it may be declared"
    )


def test_reported_values_are_the_outputs_of_the_target() -> None:
    target = StatusRow("default", "Shape", "b", declared=True, owned=True, outcome="Converged")
    target.outputs = {"port": 1}
    rows = [_waiting_row("a", "b"), target]
    assert _reported_states(rows)["a"] == TargetState(True, True, {"outputs.port": 1})
    target.owned = False
    assert _reported_states(rows)["a"].values == {}, (
        "outputs of an object that is not ours are not reported"
    )


def test_a_target_without_an_object_is_not_ready() -> None:
    target = StatusRow("default", "Shape", "b", declared=True, outcome="Converged")  # like Absent
    rows = [_waiting_row("a", "b"), target]
    assert _reported_states(rows)["a"] == TargetState(True, False)
    rows[0].targets = {"default/Shape/b": TargetState(True, False)}
    target.owned, target.outputs = True, {"port": 1}
    target.conditions = (Condition("Ready", "False", "Starting"),)
    assert _reported_states(rows)["a"] == TargetState(True, False, {"outputs.port": 1})


@pytest.mark.parametrize(
    ("changes", "is_new", "serves"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"action_id": "a1"}, False, False),
        ({"owned": False}, False, False),
        ({"references": {"default/Shape/a": "Delete"}}, False, False),
        ({"references": {"default/Shape/other": "Keep"}}, False, False),
    ],
)
def test_a_withdrawn_target_serves_the_resources_for_which_it_is_kept(
    changes: dict[str, Any], is_new: bool, serves: bool
) -> None:
    target = StatusRow("default", "Shape", "b", owned=True, outputs={"port": 1})
    target.references = {"default/Shape/a": "Keep"}
    for name, value in changes.items():
        setattr(target, name, value)
    user = _waiting_row("a", "b")
    user.outcome = "Converged"
    user.targets = {} if is_new else {"default/Shape/b": TargetState(True, True)}
    kept = TargetState(True, True, {"outputs.port": 1})
    assert _reported_states([user, target])["a"] == (kept if serves else TargetState(False))


def test_a_reference_without_an_object_shows_that_its_target_is_leaving() -> None:
    target = StatusRow(
        "default", "Shape", "b", owned=True, references={"default/ShapeRef/a": "Keep"}
    )
    user = _waiting_row("a", "b")
    user.kind, user.outcome = REFERENCE_KIND, "Converged"
    user.targets = {"default/Shape/b": TargetState(True, True)}
    assert _reported_states([user, target])["a"] == TargetState(False)


def test_a_withdrawn_resource_keeps_its_targets_until_its_object_is_deleted() -> None:
    row = _waiting_row("a", "b")
    row.declared, row.owned = False, True
    target = StatusRow("default", "Shape", "b", references={"default/Shape/a": "Keep"})
    rows = {str(each.key): each for each in (row, target)}
    assert _messages_for_rows(rows) == []
    row.owned, row.refers = False, ()  # applying the event clears both
    [message] = _messages_for_rows(rows)
    assert message.data == Unreferenced("default/Shape/a")


def test_a_changed_digest_of_a_secret_is_reported_to_its_referrers() -> None:
    row = StatusRow("default", "Shape", "a", declared=True, secrets={"files/db": "d1"})
    secret, foreign_row = NamedSecret("default", "files/db"), NamedSecret("other", "files/db")
    assert secret_messages(row, {secret: "d1", foreign_row: "d2"}) == []
    [message] = secret_messages(row, {secret: "d2", foreign_row: "d1"})
    assert message.data == SecretReported("files/db", "d2")
    assert secret_messages(row, {}) == [], "an unreadable secret does not count as deleted"


def test_two_secrets_with_the_same_value_are_two_messages() -> None:
    secrets = {"files/one": "", "files/two": ""}
    row = StatusRow("default", "Shape", "a", declared=True, secrets=secrets)
    digests = {NamedSecret("default", each): "d1" for each in secrets}
    messages = secret_messages(row, digests)
    assert len({each.message_id for each in messages}) == 2, (
        "the bus would drop one of two equal messages"
    )


def _index_of(*rows: StatusRow) -> tuple[ReferenceIndex, dict[str, StatusRow]]:
    every_row = {str(row.key): row for row in rows}
    index = ReferenceIndex()
    for name, row in every_row.items():
        index.add(name, row)
    index.take_changed()
    return index, every_row


def test_an_event_affects_only_resources_that_reference_its_resource() -> None:
    rows = [_waiting_row("a", "b"), _waiting_row("c", "d"), StatusRow("default", "Shape", "b")]
    index, every_row = _index_of(*rows)
    assert index.update("default/Shape/b", every_row["default/Shape/b"])
    assert index.take_changed().referrers == {"default/Shape/a"}
    assert not index.update("default/Shape/z", StatusRow("default", "Shape", "z"))
    assert index.take_changed() == (frozenset(), frozenset())


def test_a_changed_reference_is_removed_from_its_previous_target() -> None:
    index, every_row = _index_of(_waiting_row("a", "b"))
    every_row["default/Shape/a"].refers = (Reference("default/Shape/c"),)
    assert index.update("default/Shape/a", every_row["default/Shape/a"])
    assert index.take_changed().targets >= {"default/Shape/b", "default/Shape/c"}
    assert (list(index.referrers("default/Shape/b")), list(index.referrers("default/Shape/c"))) == (
        [],
        ["default/Shape/a"],
    )


def test_all_resources_that_lead_to_a_changed_reference_are_checked_for_a_cycle() -> None:
    index, every_row = _index_of(
        _waiting_row("a", "b"), _waiting_row("b", "c"), _waiting_row("c", "d")
    )
    every_row["default/Shape/c"].refers = (Reference("default/Shape/a"),)
    index.update("default/Shape/c", every_row["default/Shape/c"])
    assert index.take_changed().referrers == {f"default/Shape/{each}" for each in "abc"}


FOREIGN_REFERENCE = ResourceKey("shop", "ShapeRef", "needs-foo")


def _from_another_namespace(
    *, permits: tuple[str, ...], known: dict[str, OnWithdrawal], known_state: TargetState | None
) -> list[IntakeMessageOut]:
    target = StatusRow(
        TARGET.namespace,
        TARGET.kind,
        TARGET.name,
        version=1,
        declared=True,
        references=known,
        referenced_from=permits,
    )
    reference = StatusRow(
        FOREIGN_REFERENCE.namespace,
        FOREIGN_REFERENCE.kind,
        FOREIGN_REFERENCE.name,
        version=1,
        declared=True,
        refers=(Reference(str(TARGET)),),
        targets={} if known_state is None else {str(TARGET): known_state},
    )
    return _messages_for_rows({str(row.key): row for row in (target, reference)})


@pytest.mark.parametrize("permits", [("shop",), ("*",), ("billing", "shop")])
def test_a_reference_from_a_permitted_namespace_counts(permits: tuple[str, ...]) -> None:
    messages = _from_another_namespace(permits=permits, known={}, known_state=None)
    assert [(each.key, each.data) for each in messages] == [
        (FOREIGN_REFERENCE, TargetReported(str(TARGET), TargetState(declared=True), 1)),
        (TARGET, Referenced(str(FOREIGN_REFERENCE), "Keep")),
    ]


@pytest.mark.parametrize("permits", [(), ("billing",)])
def test_a_reference_from_another_namespace_neither_counts_nor_shows_anything(
    permits: tuple[str, ...],
) -> None:
    messages = _from_another_namespace(permits=permits, known={}, known_state=None)
    assert [(each.key, each.data) for each in messages] == [
        (FOREIGN_REFERENCE, TargetReported(str(TARGET), TargetState(declared=False), 1))
    ]


def test_a_withdrawn_permission_ends_the_reference() -> None:
    messages = _from_another_namespace(
        permits=(), known={str(FOREIGN_REFERENCE): "Keep"}, known_state=TargetState(declared=True)
    )
    assert [(each.key, each.data) for each in messages] == [
        (FOREIGN_REFERENCE, TargetReported(str(TARGET), TargetState(declared=False), 1)),
        (TARGET, Unreferenced(str(FOREIGN_REFERENCE))),
    ]


def _references_to_target(count: int) -> list[StatusRow]:
    return [
        StatusRow(
            "default",
            REFERENCE_KIND,
            f"by-{number:04d}",
            version=7,
            declared=True,
            refers=(Reference(str(TARGET), (), "Ignore" if number % 2 else "Keep"),),
            targets={str(TARGET): TargetState(True)},
        )
        for number in range(count)
    ]


def test_a_target_receives_a_limited_number_of_references_and_another_when_one_ends():
    """The target's row grows with each reference, until it would exceed the message size."""
    rows = _references_to_target(3 * MAX_REFERRERS)
    target = StatusRow(TARGET.namespace, TARGET.kind, TARGET.name, version=1, declared=True)
    every_row = {str(row.key): row for row in (target, *rows)}
    reports = [each.data for each in _messages_for_rows(every_row)]
    added_keys = [each for each in reports if isinstance(each, Referenced)]
    assert len(reports) == len(added_keys) == MAX_REFERRERS
    assert {each.on_withdrawal for each in added_keys} == {"Keep"}, (
        "references that keep the target come first"
    )

    target.references = {each.by: each.on_withdrawal for each in added_keys}
    ended_keys = every_row.pop(added_keys[0].by)
    reports = [each.data for each in _messages_for_rows(every_row)]
    assert [type(each) for each in reports] == [Referenced, Unreferenced], (
        "the target always has a reference"
    )
    assert reports[1] == Unreferenced(str(ended_keys.key))


def test_a_resource_receives_values_of_a_limited_size():
    sizes = (40_000, 40_000, 1_000)
    targets = [
        StatusRow(
            "default",
            "Shape",
            f"t{number}",
            declared=True,
            owned=True,
            outcome="Converged",
            outputs={"text": "x" * size},
        )
        for number, size in enumerate(sizes)
    ]
    refers = tuple(Reference(str(each.key), ("outputs.text",)) for each in targets)
    reader = StatusRow("default", "Shape", "reader", version=1, declared=True, refers=refers)
    messages = _messages_for_rows({str(row.key): row for row in (*targets, reader)})
    states = [each.data.state for each in messages if isinstance(each.data, TargetReported)]
    assert [len(each.values) for each in states] == [1, 0, 0]
    assert sum(len(str(each.values)) for each in states) < MAX_VALUE_BYTES


def _row(key: ResourceKey, **more: Any) -> StatusRow:
    return StatusRow(key.namespace, key.kind, key.name, declared=True, **more)


@pytest.mark.parametrize("is_part_silent", [False, True])
def test_a_target_whose_api_is_silent_is_not_ready_and_the_report_names_the_event(
    *, is_part_silent: bool
) -> None:
    """The readiness of a composed target depends on the APIs of its parts."""
    part = ResourceKey("default", "Shape", "part")
    target = _row(
        TARGET,
        owned=True,
        outcome="Converged",
        provider_config="parts" if is_part_silent else "billing",
        outputs={"children": {str(part): {}}},
        conditions=(Condition("Ready", "True", "Ready"),),
    )
    part_row = _row(part, provider_config="billing" if is_part_silent else "")
    config = _row(config_key("billing"), silent_since=NOON, silence_event="silent@2")
    referrer = _waiting_row("a", TARGET.name)
    rows = {str(row.key): row for row in (target, part_row, config, referrer)}

    def report() -> TargetState:
        [state] = [
            each.data.state
            for each in _messages_for_rows(rows)
            if isinstance(each.data, TargetReported)
        ]
        referrer.targets = {str(TARGET): state}
        return state

    assert report() == TargetState(True, ready=False, api_event="silent@2")
    assert not [each for each in _messages_for_rows(rows) if isinstance(each.data, TargetReported)]
    config.silent_since, config.silence_event = None, "ended@3"
    assert report() == TargetState(True, ready=True, api_event="" if is_part_silent else "ended@3")
    config.silent_since, config.silence_event = NOON, "silent@4"
    assert not [each for each in _messages_for_rows(rows) if isinstance(each.data, TargetReported)]


def _report(referrer: StatusRow, target: StatusRow, kinds: KindRegistry) -> TargetState:
    models = ReadModels()
    models.status = {str(row.key): row for row in (referrer, target)}
    messages = referrer_messages(str(referrer.key), models, kinds)
    for each in messages:
        assert isinstance(each.data, TargetReported)
        referrer.targets = {each.data.target: each.data.state}
    return next(iter(referrer.targets.values()))


def _judge(_fields: Fields, _observed: ExternalObject) -> Readiness:
    return READY


FLAPPING = KindRegistry([replace(SHAPE, ready=_judge)])


def _flapping_target() -> StatusRow:
    target = StatusRow("default", "Shape", "b", declared=True, owned=True, outcome="Converged")
    target.outputs, target.availability = {"port": 1}, PartAvailability(since=NOON)
    return target


def test_a_target_that_may_flap_is_ready_for_others_once_it_is_available() -> None:
    referrer, target = _waiting_row("a", "b"), _flapping_target()
    values = {"outputs.port": 1}
    assert _report(referrer, target, FLAPPING) == TargetState(True, False, values, momentary=True)
    target.conditions = (Condition("Ready", "False", "Restarting"),)
    assert _report(referrer, target, FLAPPING) == TargetState(True, False, values)
    target.conditions, target.availability = (), PartAvailability(since=NOON, available=True)
    ready = TargetState(True, True, values)
    assert _report(referrer, target, FLAPPING) == ready
    target.conditions, target.availability = (Condition("Ready", "False", "Restarting"),), None
    assert _report(referrer, target, FLAPPING) == ready, "flaps are no longer reported"


def test_a_kind_that_is_always_ready_is_not_momentary() -> None:
    referrer = _waiting_row("a", "b")
    target = StatusRow("default", "Shape", "b", declared=True, owned=True, outcome="Converged")
    target.outputs = {"port": 1}
    state = _report(referrer, target, KindRegistry([SHAPE]))
    assert state == TargetState(True, True, {"outputs.port": 1})


@pytest.mark.parametrize(
    ("outcome", "paused"), [("Paused", True), ("Waiting", True), ("Converged", False)]
)
def test_flaps_are_not_reported_to_a_referrer_that_does_not_wait(
    outcome: str, paused: bool
) -> None:
    referrer = _waiting_row("a", "b")
    referrer.outcome, referrer.paused = outcome, paused
    target = _flapping_target()
    not_ready = TargetState(True, ready=False, values={"outputs.port": 1})
    assert _report(referrer, target, FLAPPING) == not_ready
    target.conditions = (Condition("Ready", "False", "Restarting"),)
    assert _report(referrer, target, FLAPPING) == not_ready
    target.conditions = ()
    assert _report(referrer, target, FLAPPING) == not_ready
    referrer.outcome, referrer.paused = "Waiting", False
    assert _report(referrer, target, FLAPPING).momentary
