"""What resources are told of who refers to them: again whenever they do not know it any more."""

from __future__ import annotations

from collections.abc import Collection

from events.intake import OnWithdrawal, Referenced
from events.names import ResourceKey
from events.reference import REFERENCE_KIND
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut
from reconciler.roles.references import reference_messages

TARGET = ResourceKey("default", "Shape", "foo")
REFERENCE = ResourceKey("default", REFERENCE_KIND, "shop-needs-foo")


def _told(
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
        target=str(TARGET),
        on_withdrawal="Keep",
        target_declared=str(TARGET) not in damaged,
    )
    every_row = {str(row.key): row for row in (target, reference)}
    concerned = [row for row in every_row.values() if row.is_swept]
    return reference_messages(concerned, every_row, damaged)


def test_what_a_late_message_undid_is_told_again_as_something_new() -> None:
    [first] = _told(8, {})
    assert first.key == TARGET
    assert first.data == Referenced(str(REFERENCE), "Keep")
    assert not _told(9, {str(REFERENCE): "Keep"})
    [again] = _told(10, {str(REFERENCE): "Ignore"})
    assert again.data == first.data
    assert again.message_id != first.message_id, "the bus would drop it as a duplicate"


def test_several_observers_that_see_the_same_tell_it_once() -> None:
    [one], [other] = _told(8, {}), _told(8, {})
    assert one.message_id == other.message_id


def test_a_reference_that_cannot_be_read_is_not_taken_for_withdrawn() -> None:
    assert not _told(8, {str(REFERENCE): "Keep"}, damaged=[str(REFERENCE)])
    assert _told(8, {str(REFERENCE): "Keep", "default/ShapeRef/gone": "Keep"})


def test_nothing_is_told_of_a_target_that_cannot_be_read() -> None:
    assert not _told(8, {}, damaged=[str(TARGET)])
