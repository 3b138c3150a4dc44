"""Reports to resources about their references, repeated whenever the resources lack them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from events.intake import (
    OnWithdrawal,
    Referenced,
    SecretReported,
    TargetReported,
    TargetState,
    Unreferenced,
)
from events.integrity import LogDamage
from events.log import Condition
from events.names import ResourceKey
from events.reference import REFERENCE_KIND, Reference
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut
from reconciler.roles.sweeper.reference_index import NamedSecret, ReferenceIndex
from reconciler.roles.sweeper.references import (
    MAX_REFERRERS,
    MAX_VALUE_BYTES,
    reference_messages,
    secret_messages,
)

TARGET = ResourceKey("default", "Shape", "foo")
REFERENCE = ResourceKey("default", REFERENCE_KIND, "shop-needs-foo")


def _messages_at(
    version: int, known: dict[str, OnWithdrawal], damaged: Collection[str] = ()
) -> list[IntakeMessageOut]:
    """Look once, when the target is at a version and knows of references."""
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
    return _looked_at(every_row, damaged)


def _looked_at(
    every_row: dict[str, StatusRow], damaged: Collection[str] = (), position: int = 0
) -> list[IntakeMessageOut]:
    """Look at all rows for the first time."""
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
    [again] = _messages_at(10, {str(REFERENCE): "Ignore"})
    assert again.data == first.data
    assert again.message_id != first.message_id, "the bus would drop it as a duplicate"


def test_so_is_what_was_undone_for_a_target_without_a_row() -> None:
    """Where a reference is all that there is of a target, its row goes with that."""
    rows = {"default/Shape/a": _waiting("a", "b")}
    previous_message, again, by_another = (
        _looked_at(rows, position=each)[-1] for each in (4, 6, 6)
    )
    assert previous_message.data == again.data == Referenced("default/Shape/a", "Keep")
    assert previous_message.message_id != again.message_id, "the bus would drop it as a duplicate"
    assert again.message_id == by_another.message_id


def test_several_observers_that_see_the_same_tell_it_once() -> None:
    [one], [other_message] = _messages_at(8, {}), _messages_at(8, {})
    assert one.message_id == other_message.message_id


def test_a_reference_that_cannot_be_read_is_not_taken_for_withdrawn() -> None:
    assert not _messages_at(8, {str(REFERENCE): "Keep"}, damaged=[str(REFERENCE)])
    assert _messages_at(8, {str(REFERENCE): "Keep", "default/ShapeRef/gone": "Keep"})


def test_nothing_is_reported_of_a_target_that_cannot_be_read() -> None:
    assert not _messages_at(8, {}, damaged=[str(TARGET)])


def _waiting(name: str, needs: str) -> StatusRow:
    return StatusRow(
        "default",
        "Shape",
        name,
        version=3,
        declared=True,
        outcome="Waiting",
        refers=(Reference(f"default/Shape/{needs}", ("outputs.port",)),),
    )


def _states(rows: list[StatusRow]) -> dict[str, TargetState]:
    """What each is told of the one that it refers to."""
    messages = _looked_at({str(row.key): row for row in rows})
    return {
        each.key.name: each.data.state for each in messages if isinstance(each.data, TargetReported)
    }


def test_each_member_of_a_circle_receives_the_whole_circle() -> None:
    states = _states([_waiting("a", "b"), _waiting("b", "c"), _waiting("c", "a")])
    names = [each.rpartition("/")[2] for each in states["a"].cycle]
    assert names == ["a", "b", "c", "a"]
    assert all(len(each.cycle) == 4 for each in states.values())


def test_who_leads_to_a_circle_is_not_in_it() -> None:
    states = _states([_waiting("x", "a"), _waiting("a", "b"), _waiting("b", "a")])
    assert states["x"].cycle == ()
    assert len(states["a"].cycle) == 3


def test_a_circle_ends_when_one_of_it_is_withdrawn() -> None:
    rows = [_waiting("a", "b"), _waiting("b", "a")]
    rows[1].declared = False
    assert _states(rows)["a"] == TargetState(False)


def _let_go(rows: list[StatusRow], damaged: Collection[str] = ()) -> set[str]:
    """The resources that are no longer kept, in a chain in which each keeps the next one."""
    for previous_row, row in zip([rows[-1], *rows], rows, strict=False):
        row.owned, row.references = True, {str(previous_row.key): "Keep"}
    messages = _looked_at({str(row.key): row for row in rows}, damaged)
    return {each.key.name for each in messages if isinstance(each.data, Unreferenced)}


def test_of_a_circle_that_is_withdrawn_nobody_is_kept_for_the_next() -> None:
    rows = [_waiting("a", "b"), _waiting("b", "c"), _waiting("c", "a")]
    rows[0].declared = rows[2].declared = False
    assert not _let_go(rows), "b is declared: c is kept for it, and a for c"
    rows[1].declared = False
    assert _let_go(rows) == {"a", "b", "c"}
    assert not _let_go(rows, damaged=[str(rows[1].key)]), "who knows whether it is declared"


def test_reported_values_are_those_of_the_target() -> None:
    target = StatusRow("default", "Shape", "b", declared=True, owned=True, outcome="Converged")
    target.outputs = {"port": 1}
    rows = [_waiting("a", "b"), target]
    assert _states(rows)["a"] == TargetState(True, True, {"outputs.port": 1})
    target.owned = False
    assert _states(rows)["a"].values == {}, "what is not ours is no promise"


def test_what_has_no_object_is_not_ready_and_its_next_one_is_waited_for() -> None:
    target = StatusRow("default", "Shape", "b", declared=True, outcome="Converged")  # as Absent
    rows = [_waiting("a", "b"), target]
    assert _states(rows)["a"] == TargetState(True, False)
    rows[0].targets = {"default/Shape/b": TargetState(True, False)}
    target.owned, target.outputs = True, {"port": 1}
    target.conditions = (Condition("Ready", "False", "Starting"),)
    assert _states(rows)["a"] == TargetState(True, False, {"outputs.port": 1})


def test_a_withdrawn_resource_keeps_its_targets_until_its_object_is_gone() -> None:
    row = _waiting("a", "b")
    row.declared, row.owned = False, True
    target = StatusRow("default", "Shape", "b", references={"default/Shape/a": "Keep"})
    rows = {str(each.key): each for each in (row, target)}
    assert _looked_at(rows) == []
    row.owned, row.refers = False, ()  # the fold ends them together
    [message] = _looked_at(rows)
    assert message.data == Unreferenced("default/Shape/a")


def test_a_changed_digest_of_a_secret_is_reported_to_its_referrers() -> None:
    row = StatusRow("default", "Shape", "a", declared=True, secrets={"files/db": "d1"})
    secret, foreign = NamedSecret("default", "files/db"), NamedSecret("other", "files/db")
    assert secret_messages(row, {secret: "d1", foreign: "d2"}) == []
    [message] = secret_messages(row, {secret: "d2", foreign: "d1"})
    assert message.data == SecretReported("files/db", "d2")
    assert secret_messages(row, {}) == [], "what cannot be read is not gone"


def test_two_secrets_of_one_value_are_two_messages() -> None:
    secrets = {"files/one": "", "files/two": ""}
    row = StatusRow("default", "Shape", "a", declared=True, secrets=secrets)
    digests = {NamedSecret("default", each): "d1" for each in secrets}
    messages = secret_messages(row, digests)
    assert len({each.message_id for each in messages}) == 2, "the bus would drop one as a duplicate"


def _of(*rows: StatusRow) -> tuple[ReferenceIndex, dict[str, StatusRow]]:
    every_row = {str(row.key): row for row in rows}
    index = ReferenceIndex()
    for name, row in every_row.items():
        index.add(name, row)
    index.take_changed()
    return index, every_row


def test_an_event_concerns_those_that_refer_to_it_and_no_others() -> None:
    rows = [_waiting("a", "b"), _waiting("c", "d"), StatusRow("default", "Shape", "b")]
    index, every_row = _of(*rows)
    assert index.update("default/Shape/b", every_row["default/Shape/b"])
    assert index.take_changed().referrers == {"default/Shape/a"}
    assert not index.update("default/Shape/z", StatusRow("default", "Shape", "z"))
    assert index.take_changed() == (frozenset(), frozenset())


def test_the_former_target_forgets_a_changed_reference() -> None:
    index, every_row = _of(_waiting("a", "b"))
    every_row["default/Shape/a"].refers = (Reference("default/Shape/c"),)
    assert index.update("default/Shape/a", every_row["default/Shape/a"])
    assert index.take_changed().targets >= {"default/Shape/b", "default/Shape/c"}
    assert (list(index.referrers("default/Shape/b")), list(index.referrers("default/Shape/c"))) == (
        [],
        ["default/Shape/a"],
    )


def test_all_that_lead_to_a_changed_reference_are_looked_at_for_a_circle() -> None:
    index, every_row = _of(_waiting("a", "b"), _waiting("b", "c"), _waiting("c", "d"))
    every_row["default/Shape/c"].refers = (Reference("default/Shape/a"),)
    index.update("default/Shape/c", every_row["default/Shape/c"])
    assert index.take_changed().referrers == {f"default/Shape/{each}" for each in "abc"}


OTHERS = ResourceKey("shop", "ShapeRef", "needs-foo")


def _from_another_namespace(
    *, permits: tuple[str, ...], known: dict[str, OnWithdrawal], says: TargetState | None
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
        OTHERS.namespace,
        OTHERS.kind,
        OTHERS.name,
        version=1,
        declared=True,
        refers=(Reference(str(TARGET)),),
        targets={} if says is None else {str(TARGET): says},
    )
    return _looked_at({str(row.key): row for row in (target, reference)})


@pytest.mark.parametrize("permits", [("shop",), ("*",), ("billing", "shop")])
def test_a_reference_from_a_permitted_namespace_counts(permits: tuple[str, ...]) -> None:
    messages = _from_another_namespace(permits=permits, known={}, says=None)
    assert [(each.key, each.data) for each in messages] == [
        (OTHERS, TargetReported(str(TARGET), TargetState(declared=True), 1)),
        (TARGET, Referenced(str(OTHERS), "Keep")),
    ]


@pytest.mark.parametrize("permits", [(), ("billing",)])
def test_a_reference_from_another_namespace_neither_counts_nor_shows_anything(
    permits: tuple[str, ...],
) -> None:
    messages = _from_another_namespace(permits=permits, known={}, says=None)
    assert [(each.key, each.data) for each in messages] == [
        (OTHERS, TargetReported(str(TARGET), TargetState(declared=False), 1))
    ]


def test_a_permission_that_is_withdrawn_ends_the_reference() -> None:
    messages = _from_another_namespace(
        permits=(), known={str(OTHERS): "Keep"}, says=TargetState(declared=True)
    )
    assert [(each.key, each.data) for each in messages] == [
        (OTHERS, TargetReported(str(TARGET), TargetState(declared=False), 1)),
        (TARGET, Unreferenced(str(OTHERS))),
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
    """Its row would grow with each of them, until no message could contain it."""
    rows = _references_to_target(3 * MAX_REFERRERS)
    target = StatusRow(TARGET.namespace, TARGET.kind, TARGET.name, version=1, declared=True)
    every_row = {str(row.key): row for row in (target, *rows)}
    reports = [each.data for each in _looked_at(every_row)]
    added = [each for each in reports if isinstance(each, Referenced)]
    assert len(reports) == len(added) == MAX_REFERRERS
    assert {each.on_withdrawal for each in added} == {"Keep"}, "those that hold it come first"

    target.references = {each.by: each.on_withdrawal for each in added}
    ended = every_row.pop(added[0].by)
    reports = [each.data for each in _looked_at(every_row)]
    assert [type(each) for each in reports] == [Referenced, Unreferenced], "it is never without one"
    assert reports[1] == Unreferenced(str(ended.key))


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
    messages = _looked_at({str(row.key): row for row in (*targets, reader)})
    states = [each.data.state for each in messages if isinstance(each.data, TargetReported)]
    assert [len(each.values) for each in states] == [1, 0, 0]
    assert sum(len(str(each.values)) for each in states) < MAX_VALUE_BYTES
