"""A change of an immutable field is two recorded actions, and no object leaks: scenario 34."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import Approved
from events.log import ActionDecided, AvailabilityNoted, OwnershipClaimed, OwnershipReleased
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from projections.ownership import OwnershipRow, ownership_of
from projections.status import StatusRow, fold_status
from reconciler.provider import Capabilities
from reconciler.provider.kind import READY, Kind, Readiness, always_ready
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.turn import ApiSilence
from tests.resource.building import (
    BLOCK,
    CONFIG,
    EXCLUSIVE,
    FOO,
    SHARED,
    START,
    Story,
    api_object,
    every,
    names,
    only,
    owned_labels,
    relabel,
    repaint,
)

CIRCLE, SQUARE = {"type": "Circle", "color": "Red"}, {"type": "Square", "color": "Red"}


def _ready(_fields: Fields, observed_object: ExternalObject) -> Readiness:
    return Readiness(False, "Starting") if observed_object.outputs.get("starting") else READY


IN_PLACE = replace(BLOCK, immutable=frozenset({"type"}), ready=_ready)
BESIDE = replace(IN_PLACE, has_second_name=True)
KEYLESS = replace(
    BESIDE,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
)
BY_ID = replace(
    IN_PLACE,
    capabilities=Capabilities(
        idempotency_keys=True, deterministic_names=False, labels=True, conditional_writes=True
    ),
)


@pytest.fixture(params=["in place", "beside", "by id"])
def story(request: pytest.FixtureRequest) -> Story:
    return created_story({"in place": IN_PLACE, "beside": BESIDE, "by id": BY_ID}[request.param])


def created_story(kind: Kind = BESIDE) -> Story:
    story = Story(kind=kind)
    story.declare(SQUARE)
    story.succeed()
    return story


def decided_actions(story: Story) -> list[tuple[str, str]]:
    actions = [each.action for each in every(ActionDecided, [event.data for event in story.log])]
    return [(each.operation, each.purpose) for each in actions]


def succeed_starting(story: Story) -> None:
    observed_object = msgspec.structs.replace(
        story.object_after(story.action), outputs={"starting": True}
    )
    story.report(existing=observed_object)


def rows(story: Story) -> tuple[StatusRow, OwnershipRow]:
    """Return the rows that the read models build from the same events."""
    status = StatusRow(*msgspec.structs.astuple(FOO))
    for position, event in enumerate(story.log, 1):
        fold_status(status, position, event)
    return status, ownership_of(status) or OwnershipRow()


def check_rows(story: Story) -> None:
    state = story.state
    owned, retiring = state.owned, state.retiring
    for row in rows(story):
        assert row.owned == (owned is not None)
        if owned is not None:
            assert (row.external_name, row.uid) == (owned.external_name, owned.uid)
        expected = ("", None) if retiring is None else (retiring.external_name, retiring.uid)
        assert (row.retiring, row.retiring_uid) == expected
    status, released_story = rows(story)[0], state.released
    if released_story is not None:
        assert (status.external_name, status.observed_uid) == (
            released_story.name,
            released_story.uid,
        )


def test_34_a_replacement_is_two_recorded_actions(story: Story):
    original = story.existing
    story.declare(CIRCLE)
    story.succeed()
    check_rows(story)
    story.succeed()
    check_rows(story)
    assert story.outcome == "Converged"
    assert story.existing.fields == CIRCLE
    assert story.existing.uid != original.uid
    assert story.state.retiring is None
    first, second = decided_actions(story)[1:]
    if story.kind is IN_PLACE:
        assert (first, second) == (("Delete", "Replace"), ("Create", "Converge"))
    else:
        assert (first, second) == (("Create", "Replace"), ("Delete", "Retire"))


def test_a_replacement_coexists_with_the_old_object_until_it_is_ready():
    story = created_story()
    original = story.existing
    story.declare(CIRCLE)
    assert story.action.external_name.startswith("Foo-")
    succeed_starting(story)
    assert story.idle
    assert story.state.retiring is not None
    assert (story.outcome, story.state.retiring.uid) == ("Converged", original.uid)
    assert story.wake() == []
    story.observe(msgspec.structs.replace(story.existing, outputs={}), name=story.existing.name)
    assert story.idle, "it has been ready for a moment only"
    story.await_availability()
    assert (story.action.operation, story.action.purpose) == ("Delete", "Retire")
    assert (story.action.external_name, story.action.uid) == ("Foo", original.uid)


@pytest.mark.parametrize("kind", [BESIDE, BY_ID])
def test_a_replacement_that_is_ready_for_moments_does_not_release_the_old_object(kind: Kind):
    """Each of them starts a longer interval, by the bus's clock."""
    story = created_story(kind)
    story.stored_at = story.now
    original = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    name, starting = story.existing.name, story.existing
    up = msgspec.structs.replace(starting, outputs={})
    for _ in range(5):
        story.observe(up, name=name)
        assert story.wake(3) == []
        story.observe(starting, name=name)
        assert story.wake(3600) == []
    story.observe(msgspec.structs.replace(up, outputs={"startedAt": "1"}), name=name)
    story.wake(3)
    story.observe(msgspec.structs.replace(up, outputs={"startedAt": "2"}), name=name)
    story.now += timedelta(days=365)
    assert story.wake() == [], "the local clock does not count"
    assert story.state.retiring is not None
    check_rows(story)
    story.await_availability()
    assert (story.action.purpose, story.action.uid) == ("Retire", original.uid)
    assert story.stored_at - START >= timedelta(seconds=5 * 3603 + 5 * 2**6)


def test_a_replacement_at_a_silent_api_does_not_release_the_old_object():
    """Its readiness is unknown, until a reading after the API has responded (ADR 0080)."""
    story = created_story()
    story.stored_at = story.now
    original = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    up = msgspec.structs.replace(story.existing, outputs={})
    story.observe(up, name=up.name)
    story.silences[CONFIG] = ApiSilence(2, "fell-silent@2", since=story.now)
    [noted] = every(AvailabilityNoted, story.await_availability())
    assert [each and each.api_event for each in noted.parts.values()] == ["fell-silent@2"]
    for _ in range(5):
        assert story.wake(3_600) == [], "an outage adds no more events"
    assert story.state.retiring is not None

    story.silences[CONFIG] = ApiSilence(3, "ended@3", ended_at=story.stored_at)
    assert names(story.wake()) == ["AvailabilityNoted"]
    assert story.idle, "the last observation is from before the outage"
    check_rows(story)
    [noted] = every(AvailabilityNoted, story.await_availability())
    assert [each and each.api_event for each in noted.parts.values()] == ["ended@3"]
    assert (story.action.purpose, story.action.uid) == ("Retire", original.uid)


def test_the_silence_of_another_api_does_not_matter():
    story = created_story()
    story.silences["other"] = ApiSilence(2, "fell-silent@2", since=story.now)
    story.declare(CIRCLE)
    story.succeed()
    assert story.action.purpose == "Retire"


def test_a_kind_without_readiness_replaces_at_once():
    story = created_story(replace(BESIDE, ready=always_ready))
    story.declare(CIRCLE)
    story.report(existing=story.object_after(story.action))
    assert story.action.purpose == "Retire"
    assert every(AvailabilityNoted, [event.data for event in story.log]) == []


def test_a_mutable_field_is_changed_in_place(story: Story):
    story.declare({"type": "Square", "color": "Blue"})
    assert (story.action.operation, story.action.purpose) == ("Update", "Converge")


def test_a_listing_of_the_old_object_proves_nothing_about_the_new_one():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    assert story.observe(old) == []
    assert story.observe(None, name="Foo") == []


def test_the_old_object_is_owned_again_when_the_new_one_is_missing():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    events = story.observe(None, name=story.existing.name)
    assert every(OwnershipReleased, events)
    check_rows(story)
    assert story.state.owned is not None
    assert story.state.owned.uid == old.uid
    assert (story.action.operation, story.action.purpose) == ("Create", "Replace")


def test_a_second_change_deletes_the_obsolete_replacement():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    new_object = story.existing
    story.declare({"type": "Triangle", "color": "Red"})
    assert (story.action.operation, story.action.uid) == ("Delete", new_object.uid)
    story.succeed()
    check_rows(story)
    assert story.state.owned is not None
    assert story.state.owned.uid == old.uid, "a ready object always exists"
    story.succeed()
    story.succeed()
    check_rows(story)
    assert (story.outcome, story.existing.fields["type"]) == ("Converged", "Triangle")
    assert story.state.retiring is None


def test_a_withdrawal_during_a_replacement_deletes_both_objects():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    new_object = story.existing
    story.withdraw()
    removed = [story.action.uid]
    story.succeed()
    check_rows(story)
    removed.append(story.action.uid)
    story.succeed()
    check_rows(story)
    assert removed == [old.uid, new_object.uid]
    assert story.outcome == "Deleted"


def test_a_replacement_that_the_api_refuses_keeps_the_old_object():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    story.fail("Refused", message="no such type")
    check_rows(story)
    assert (story.outcome, story.state.retiring) == ("Failed", None)
    assert story.existing == old


def test_a_deletion_before_a_creation_contains_what_will_be_created():
    story = created_story(IN_PLACE)
    story.declare(CIRCLE)
    deletion = story.action
    assert (deletion.operation, deletion.purpose) == ("Delete", "Replace")
    story.succeed()
    assert (story.action.fields, story.action.labels) == (deletion.fields, deletion.labels)
    assert story.action.fields == CIRCLE


def test_a_replacement_whose_requirements_are_missing_keeps_the_old_object():
    story = created_story(IN_PLACE)
    original = story.existing
    story.declare(CIRCLE)
    story.fail("NotDone", message="image 'circle' does not exist")
    assert (story.outcome, story.existing) == ("Degraded", original)
    story.declare(SQUARE)
    assert (story.outcome, story.idle, story.existing) == ("Converged", True, original)


def test_a_second_name_that_is_in_use_is_replaced_by_another():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    first = story.action.external_name
    story.fail("Conflict", existing=api_object(CIRCLE, name=first))
    check_rows(story)
    assert story.existing == old, "the object in the way is not ours"
    assert story.action.external_name not in ("Foo", first)


def test_an_old_object_that_another_client_removed_needs_no_deletion():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.report(absent=True)
    check_rows(story)
    assert (story.outcome, story.state.retiring) == ("Converged", None)


def test_a_foreign_object_with_the_name_of_the_old_one_is_left_alone():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Conflict", existing=api_object(SQUARE))
    check_rows(story)
    assert (story.outcome, story.state.retiring) == ("Converged", None)
    assert story.existing.fields == CIRCLE


def test_a_replacement_with_a_lost_response_is_created_once():
    story = created_story()
    story.declare(CIRCLE)
    name, key = story.action.external_name, story.action.idempotency_key
    story.fail("Unknown")
    story.wake(600)
    assert (story.action.external_name, story.action.idempotency_key) == (name, key)
    story.succeed()
    assert story.state.retiring is not None


def released_story(kind: Kind = BESIDE) -> Story:
    """Replace an object, and withdraw its resource so that the new object stays."""
    story = created_story(kind)
    story.declare(CIRCLE, policy={"deletion": "Orphan"})
    story.succeed()
    story.succeed()
    story.withdraw()
    story.succeed()
    check_rows(story)
    assert story.outcome == "Released"
    return story


@pytest.mark.parametrize("kind", [BESIDE, BY_ID], ids=["beside", "by id"])
def test_a_released_replacement_conflicts_with_a_new_declaration(kind: Kind):
    story = released_story(kind)
    kept_object = story.existing
    story.declare(CIRCLE)
    check_rows(story)
    assert (story.idle, story.outcome, story.reason) == (True, "Conflict", "AlreadyExists")
    story.observe(None, name="Foo", absent_uid="another")
    assert story.existing == kept_object, "an absence under the declared name proves nothing"
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    check_rows(story)
    assert story.state.owned is not None
    assert (story.state.owned.external_name, story.state.owned.uid) == (
        kept_object.name,
        kept_object.uid,
    )
    assert story.action.operation == "Update", "it gets its label back"
    story.succeed()
    check_rows(story)
    assert story.outcome == "Converged"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_released_replacement_that_is_missing_does_not_cause_a_conflict(is_replaced: bool):
    story = released_story()
    name = story.existing.name
    story.declare(CIRCLE, policy={"adoption": "Adopt", "mode": "ObserveOnly"})
    story.observe(api_object(CIRCLE, name=name) if is_replaced else None, name=name)
    check_rows(story)
    assert story.state.observed.object is None, "another client's object is not adopted"
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    assert (story.action.operation, story.action.external_name) == ("Create", "Foo")
    story.succeed()
    check_rows(story)
    assert story.outcome == "Converged"


def test_a_released_replacement_is_not_looked_up_in_another_api():
    story = released_story()
    story.declare(CIRCLE, config="other")
    assert story.state.released is None
    assert rows(story)[0].external_name == "Foo"


def test_a_replaced_object_that_is_released_with_its_replacement_is_not_unmanaged():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare(CIRCLE, policy={"mode": "ObserveOnly"})
    story.withdraw()
    check_rows(story)
    new = story.existing
    assert rows(story)[0].released == ((old.name, old.uid), (new.name, new.uid))


# --- an earlier creation that takes effect after the replacement


SECOND = api_object(SQUARE, uid="late", labels=owned_labels())


def story_replaced_in_doubt(*, is_starting: bool = False) -> Story:
    """Replace an object whose creation had an unknown result: its first call may still arrive."""
    story = Story(kind=KEYLESS)
    story.declare(SQUARE)
    story.fail("Unknown")
    story.wake(60)
    story.succeed()
    story.declare(CIRCLE)
    if is_starting:
        succeed_starting(story)
    else:
        story.succeed()
        story.succeed()
    check_rows(story)
    assert story.idle
    return story


def test_an_object_that_a_late_call_creates_beside_the_replacement_is_deleted():
    story = story_replaced_in_doubt()
    owned = story.state.owned
    claimed = only(OwnershipClaimed, story.observe(SECOND))
    assert (claimed.uid, claimed.reason, claimed.object) == ("late", "Found", SECOND)
    check_rows(story)
    assert story.state.owned == owned
    assert (story.action.operation, story.action.uid) == ("Delete", "late")
    story.succeed()
    check_rows(story)
    assert (story.state.owned, story.state.retiring) == (owned, None)
    assert story.outcome == "Converged"
    story.withdraw()
    story.succeed()
    assert not every(OwnershipClaimed, story.observe(relabel(SECOND, {}))), "its uid is known"


def test_an_object_that_a_late_call_creates_after_a_refused_redelivery_is_deleted():
    """The API stores keys but not refusals, so the first call could still create the object."""
    story = Story(kind=BESIDE)
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    story.fail("Conflict", existing=api_object(SQUARE, uid="h1"), redelivered=True)
    story.turn(Approved("Adoption"))
    assert story.action.purpose == "Replace"
    story.succeed()
    story.succeed()
    check_rows(story)
    owned = story.state.owned
    assert only(OwnershipClaimed, story.observe(SECOND)).object == SECOND
    assert (story.action.operation, story.action.uid) == ("Delete", "late")
    story.succeed()
    assert (story.state.owned, story.state.retiring) == (owned, None)


def story_with_second_name_in_doubt() -> tuple[Story, ExternalObject]:
    """Replace an object; the creation of the replacement had an unknown result."""
    story = created_story(KEYLESS)
    story.declare(CIRCLE)
    story.fail("Unknown")
    story.wake(60)
    story.succeed()
    late = msgspec.structs.replace(story.existing, uid="late")
    story.succeed()
    assert (story.idle, late.name != "Foo") == (True, True)
    return story, late


@pytest.mark.parametrize("ending", ["withdrawn", "absent"])
def test_an_object_that_a_late_call_creates_under_a_second_name_is_deleted(ending: str):
    story, late = story_with_second_name_in_doubt()
    if ending == "withdrawn":
        story.withdraw()
    else:
        story.declare(CIRCLE, policy={"mode": "Absent"})
    story.succeed()
    check_rows(story)
    claimed = only(OwnershipClaimed, story.observe(late, name=late.name))
    assert (claimed.uid, claimed.reason) == ("late", "Found")
    check_rows(story)
    assert (story.action.operation, story.action.uid) == ("Delete", "late")
    story.succeed()
    assert story.outcome == ("Deleted" if ending == "withdrawn" else "Converged")
    story.declare(SQUARE)
    assert story.action.external_name == rows(story)[0].external_name == "Foo"


def test_a_copied_label_under_another_name_does_not_prove_ownership():
    story, late = story_with_second_name_in_doubt()
    story.declare(CIRCLE, policy={"mode": "Absent"})
    story.succeed()
    assert story.observe(msgspec.structs.replace(late, name="Copy"), name="Copy") == []


def test_a_replacement_that_was_created_with_another_uid_is_not_leaked():
    """The response to the creation had a uid that its object does not have."""
    story = created_story()
    story.declare(CIRCLE)
    succeed_starting(story)
    real = msgspec.structs.replace(story.existing, uid="real")
    story.observe(real, name=real.name)
    assert rows(story)[0].uncertain_names == (real.name,), "a listing reports it to the resource"
    check_rows(story)
    story.succeed()
    story.succeed()
    assert story.idle
    assert only(OwnershipClaimed, story.observe(real, name=real.name)).uid == "real"
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


def test_a_replacement_with_another_uid_that_its_deletion_misses_is_not_leaked():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    real = msgspec.structs.replace(story.existing, uid="real")
    story.succeed()
    story.withdraw()
    story.report(absent=True)
    assert rows(story)[0].uncertain_names == (real.name,), "a listing reports it to the resource"
    assert only(OwnershipClaimed, story.observe(real, name=real.name)).uid == "real"
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


@pytest.mark.parametrize("label", [None, "another.default.Block.Foo"])
def test_an_unlabeled_object_beside_the_replacement_is_foreign(label: str | None):
    labels = {} if label is None else {OWNER_LABEL: label}
    assert story_replaced_in_doubt().observe(relabel(SECOND, labels)) == []


def test_a_late_object_waits_until_the_replaced_object_is_deleted():
    assert story_replaced_in_doubt(is_starting=True).observe(SECOND) == []


def test_a_copied_label_beside_a_certain_replacement_does_not_prove_ownership():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.succeed()
    assert story.observe(SECOND) == []


def test_a_late_object_is_owned_when_the_replacement_is_missing():
    story = story_replaced_in_doubt()
    assert story.state.owned is not None
    name = story.state.owned.external_name
    story.observe(msgspec.structs.replace(story.existing, outputs={"starting": True}), name=name)
    story.observe(SECOND)
    assert story.idle, "nothing is deleted before the replacement is ready"
    story.observe(None, name=name)
    check_rows(story)
    assert story.state.owned is not None
    assert (story.state.owned.uid, story.existing) == ("late", SECOND)


def _data_loss(fields: Fields | None, observed_object: ExternalObject) -> str:
    is_smaller = fields is not None and fields.get("size", {}).get("w", 9) < 9
    return "the data of 3 tables would be lost" if fields is None or is_smaller else ""


PROTECTED = replace(BESIDE, describe_data_loss=_data_loss)


def test_a_replacement_that_would_lose_data_waits_for_approval():
    story = created_story(PROTECTED)
    story.declare(CIRCLE)
    assert (story.outcome, story.reason, story.idle) == ("Held", "DataLoss", True)
    story.turn(Approved("DataLoss"))
    assert (story.action.operation, story.action.purpose) == ("Create", "Replace")


def test_a_write_that_would_lose_data_waits_for_approval():
    story = created_story(PROTECTED)
    story.declare({**SQUARE, "size": {"w": 1}})
    assert (story.outcome, story.reason) == ("Held", "DataLoss")
    story.declare({**SQUARE, "color": "Blue"})
    assert story.action.operation == "Update", "a change without data loss continues"


def test_a_deletion_that_would_lose_data_waits_for_approval():
    story = created_story(PROTECTED)
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "DataLoss")
    story.turn(Approved("DataLoss"))
    assert story.action.operation == "Delete"
    story.succeed()
    assert story.outcome == "Deleted"


def test_an_approval_covers_only_one_action():
    story = created_story(PROTECTED)
    story.declare({**SQUARE, "size": {"w": 1}})
    story.turn(Approved("DataLoss"))
    story.succeed()
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "DataLoss")


FIXED_LABELS = replace(BESIDE, immutable=frozenset({"labels"}))


BY_PREFIX = msgspec.structs.replace(SHARED, ownership="Prefix", owner_prefix="F")


@pytest.mark.parametrize("kind", [IN_PLACE, BESIDE, BY_ID])
@pytest.mark.parametrize("config", [SHARED, EXCLUSIVE, BY_PREFIX])
def test_an_adoption_that_would_replace_another_clients_object_waits_for_approval(
    kind: Kind, config: ProviderConfigSpec
):
    story = Story(kind=kind, configs={CONFIG: config})
    foreign = api_object(SQUARE)
    story.observe(foreign)
    story.declare(CIRCLE, policy={"adoption": "Adopt"} if config is SHARED else {})
    story.observe(foreign)
    assert (story.outcome, story.reason) == ("Held", "Adoption")
    assert 'type: "Square" (declared "Circle")' in story.outcome_message
    assert (story.idle, story.state.owned) == (True, None)
    assert not every(OwnershipClaimed, [event.data for event in story.log])
    story.turn(Approved("Adoption"))
    assert story.state.owned is not None
    assert story.action.purpose == "Replace"


def test_an_adoption_waits_no_longer_once_the_object_or_the_declaration_is_equal():
    for is_redeclared in (True, False):
        story = Story(kind=IN_PLACE)
        story.declare(CIRCLE, policy={"adoption": "Adopt"})
        story.fail("Conflict", existing=api_object(fields=SQUARE))
        assert story.reason == "Adoption"
        if is_redeclared:
            story.declare(SQUARE, policy={"adoption": "Adopt"})
        else:
            story.observe(api_object(fields=CIRCLE, labels={}, version="2"))
        assert story.state.owned is not None
        assert (story.action.operation, story.action.purpose) == ("Update", "Converge")


@pytest.mark.parametrize("mode", ["CreateOnly", "ObserveOnly"])
def test_an_adoption_that_writes_nothing_needs_no_approval(mode: str):
    story = Story(kind=IN_PLACE)
    story.observe(api_object(fields=SQUARE))
    story.declare(CIRCLE, policy={"adoption": "Adopt", "mode": mode})
    assert (story.outcome, story.idle) == ("Drifted", True)


def test_a_missing_owner_label_does_not_replace_an_adopted_object():
    story = Story(kind=FIXED_LABELS)
    story.observe(api_object(SQUARE))
    story.declare(SQUARE, policy={"adoption": "Adopt"})
    assert (story.outcome, story.idle) == ("Converged", True)
    assert OWNER_LABEL not in story.existing.labels


def test_a_declared_label_causes_a_replacement_if_labels_are_immutable():
    story = created_story(FIXED_LABELS)
    story.declare(SQUARE, labels={"team": "x"})
    assert (story.action.operation, story.action.purpose) == ("Create", "Replace")


def test_drift_of_an_immutable_field_causes_a_replacement(story: Story):
    story.observe(repaint(story.existing, type="Circle"))
    assert story.action.purpose == "Replace"
