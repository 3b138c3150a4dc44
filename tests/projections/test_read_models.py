"""Read models have the same bytes if built event by event, from stored rows, or in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.external import digest
from events.intake import FinalizerReleased, FinalizerRequested, ForcedRelease
from events.integrity import LogDamage
from events.log import Condition, LogEvent, OutcomeRecorded
from events.manifest import EXTERNAL_NAME_ANNOTATION
from projections.ownership import ownership_of
from projections.read_models import (
    CHECKPOINT,
    FLEET,
    SCHEMA,
    Checkpoint,
    FleetCount,
    OutdatedRowsError,
    ReadModels,
    decode_checkpoint,
    decode_fleet,
    decode_status,
    encode_checkpoint,
    rebuild,
    restore,
    status_name,
)
from projections.status import StatusRow, fold_status
from reconciler.provider.kind import Kind
from reconciler.resource.contention import CONTENTION_DRIFTS
from tests.projections.logs import histories, interleave, log_of, quick
from tests.resource.building import (
    BLOCK,
    CONFIG,
    SHARED,
    START,
    Story,
    api_object,
    converged_story,
    error,
    repaint,
)
from tests.resource.test_observations import story_with_return_after
from tests.resource.test_wrong_uids import (
    BY_ID,
    story_with_superseded_creation,
    story_with_wrong_uid_by_id,
)


def store_changes(rows: dict[str, bytes], models: ReadModels) -> None:
    """Write the changes, as a projector does."""
    changes = models.take_changes()
    if changes is None:
        return
    for name, payload in changes.rows.items():
        if payload is None:
            rows.pop(name, None)
        else:
            rows[name] = payload
    rows[CHECKPOINT] = encode_checkpoint(changes.checkpoint)


def changed_rows(models: ReadModels) -> Mapping[str, bytes | None]:
    changes = models.take_changes()
    assert changes is not None
    return changes.rows


def to_sweep(models: ReadModels) -> set[str]:
    return {name for name, row in models.status.items() if row.is_swept}


@quick
@given(histories, st.integers(0, 99), st.integers(1, 7))
def test_rows_written_step_by_step_equal_rebuilt_rows(
    story_seeds: list[int], seed: int, every: int
):
    log = log_of(story_seeds, seed)
    live, stored = ReadModels(), dict[str, bytes]()
    for number, (position, event) in enumerate(log):
        live.apply(position, event)
        assert live.swept.keys() == to_sweep(live)
        if number % every == 0:
            store_changes(stored, live)
            assert stored == dict(rebuild(log[: number + 1]).rows())
    store_changes(stored, live)

    if log:
        assert stored == dict(rebuild(log).rows()) == dict(live.rows())
        assert restore(stored).swept.keys() == live.swept.keys()
    assert live.take_changes() is None


def test_a_completely_deleted_resource_has_no_row():
    story = converged_story()
    models = ReadModels()
    for position, event in interleave(story):
        models.apply(position, event)
    assert status_name(story.key) in changed_rows(models)

    count_before = len(story.log)
    story.withdraw()
    story.succeed()
    for number, event in enumerate(story.log[count_before:]):
        models.apply(100 + number, event)

    changes = changed_rows(models)
    assert changes[status_name(story.key)] is None
    assert [name for name, _ in models.rows()] == [FLEET, CHECKPOINT]


def test_a_finalizer_that_outlives_its_object_is_shown():
    story = converged_story()
    story.turn(FinalizerRequested("billing"))
    story.withdraw()
    story.observe(None)
    assert list(rebuild(interleave(story)).status[str(story.key)].finalizers) == ["billing"]
    story.turn(FinalizerReleased("billing"))
    assert not rebuild(interleave(story)).status


def row_of(story: Story) -> StatusRow:
    return rebuild(interleave(story)).status[str(story.key)]


def test_a_row_shows_how_long_a_resource_has_not_been_as_declared():
    story = converged_story()
    assert (row_of(story).unmet_since, row_of(story).waiting_since) == (None, None)
    story.declare({"type": "Square", "color": "Green"})
    story.fail("NotDone", message="refused 1")
    began = story.now
    story.wake(600)
    story.fail("NotDone", message="refused 2")
    assert row_of(story).message == "refused 2"
    assert row_of(story).unmet_since == dict.fromkeys(("Converged", "Ready", "Degraded"), began)
    story.wake(600)
    story.fail("Throttled")
    assert row_of(story).waiting_since == story.now, "another reason starts another wait"
    story.wake(3600)
    story.succeed()
    assert row_of(story).unmet_since is None


def test_a_wait_for_another_resource_starts_when_that_resource_is_named():
    story = Story()
    at = START

    def waits_for(name: str, seconds: float) -> datetime | None:
        nonlocal at
        at += timedelta(seconds=seconds)
        conditions = (Condition("Converged", "False", "NotReady", f"waiting for {name}"),)
        outcome = OutcomeRecorded("Waiting", 1, "NotReady", f"waiting for {name}", conditions)
        event = LogEvent(f"e{at}", "r", "t", str(story.key), at, row.version + 1, outcome)
        fold_status(row, 1, event)
        return row.waiting_since

    row = StatusRow(story.key.namespace, story.key.kind, story.key.name)
    first = waits_for("one", 1)
    assert first == at
    assert waits_for("one", 60) == first
    assert waits_for("two", 60) == at


def test_rows_show_the_status_of_a_resource():
    story = converged_story({"type": "Square", "color": "Purple"})
    story.observe(repaint(story.existing, color="Green"))
    rows = dict(rebuild(interleave(story)).rows())

    status = decode_status(rows[status_name(story.key)])
    assert (status.declared, status.owned, status.drifts) == (True, True, 1)
    assert (status.operation, status.attempt, status.action_id) == (
        "Update",
        1,
        story.action.action_id,
    )
    ownership = ownership_of(status)
    assert ownership is not None
    assert (ownership.owned, ownership.uid, ownership.reason) == (True, status.uid, "Created")
    fleet = decode_fleet(rows[FLEET])
    assert (fleet.owned, fleet.in_flight) == (1, 1)
    assert fleet.counts == (FleetCount("default", "Block", "Converged", 1),)


def test_an_action_that_waits_for_its_next_attempt_still_waits_after_a_new_declaration():
    story = Story()
    story.declare({"color": "Red"})
    story.fail("Unknown")
    waits_until = story.flight.retry_at
    story.declare({"color": "Blue"})
    status = decode_status(dict(rebuild(interleave(story)).rows())[status_name(story.key)])
    assert status.retry_at == waits_until is not None


def test_a_recreated_object_is_not_ready_because_its_predecessor_was():
    story = converged_story()
    story.observe(None)
    story.report(existing=api_object(uid="u2"))
    length_before = len(story.log) - 1  # without the outcome that follows
    previous_row = rebuild(interleave(story)[:length_before]).status[str(story.key)]
    assert previous_row.outcome == "Converged"
    assert previous_row.not_ready == Condition("Ready", "Unknown", "Created", "", 1)


def test_a_row_shows_the_grace_that_a_reappeared_object_has_extended():
    story = story_with_return_after(5)
    status = decode_status(dict(rebuild(interleave(story)).rows())[status_name(story.key)])
    assert status.grace_seconds == story.state.observed.grace_seconds == 10


def test_a_wait_for_a_deletion_ends_when_another_client_deletes_the_object():
    story = converged_story()
    story.withdraw()
    story.fail("Refused")
    assert to_sweep(rebuild(interleave(story))) == {str(story.key)}
    story.observe(None)
    assert (story.outcome, story.state.waits.until) == ("Deleted", None)
    assert not rebuild(interleave(story)).status, "it would be woken forever"


def test_a_wait_for_a_repair_ends_when_another_client_repairs_the_object():
    story = converged_story()
    original = story.existing
    for _ in range(CONTENTION_DRIFTS):
        story.observe(repaint(story.existing, color="Blue"))
        if not story.idle:
            story.succeed()
    assert to_sweep(rebuild(interleave(story))) == {str(story.key)}
    story.observe(repaint(original))
    assert story.outcome == "Converged"
    assert not to_sweep(rebuild(interleave(story)))


def test_a_row_shows_whether_a_resource_is_paused():
    story = converged_story()
    story.declare({"color": "Red"}, policy={"paused": True})
    assert decode_status(dict(rebuild(interleave(story)).rows())[status_name(story.key)]).paused
    story.withdraw()
    assert not decode_status(dict(rebuild(interleave(story)).rows())[status_name(story.key)]).paused


def test_an_object_possibly_created_before_a_crash_is_in_the_ownership_row():
    story = Story()
    story.declare()
    [row] = rebuild(interleave(story)).ownership.values()
    assert (row.owned, row.pending_create) == (False, story.action.action_id)

    story.fail("Conflict", existing=api_object())
    assert not rebuild(interleave(story)).ownership


def story_with_abandoned_creation(*, moved_to: tuple[str, str] | None = None) -> Story:
    """Return a resource withdrawn after an abandoned creation, possibly declared elsewhere."""
    story = Story(configs={CONFIG: SHARED, "other": SHARED})
    story.declare()
    creation = story.action
    story.withdraw()
    story.turn(ForcedRelease("the API is unavailable", orphan=True))
    assert story.idle
    if moved_to is not None:
        config, name = moved_to
        story.declare(
            config=config,
            annotations={EXTERNAL_NAME_ANNOTATION: name},
            policy={"mode": "ObserveOnly"},
        )
    story.report(existing=story.object_after(creation), action_id=creation.action_id)
    return story


def test_the_row_of_a_withdrawn_resource_names_its_late_object():
    """Otherwise the object would be unmanaged, and deleted in an exclusive scope."""
    story = story_with_abandoned_creation()
    assert story.outcome == "Released"
    row = row_of(story)
    assert (row.provider_config, row.external_name, row.declared_name) == (CONFIG, "Foo", "")
    assert row.observed_uid == story.existing.uid


def test_a_row_names_the_configuration_and_name_of_a_late_object():
    story = story_with_abandoned_creation(moved_to=("other", "Bar"))
    assert story.state.owned is not None
    row = row_of(story)
    assert (row.provider_config, row.external_name) == (CONFIG, "Foo")
    assert row.declared_name == "Bar"

    story.observe(None)
    story.declare(config="other", annotations={EXTERNAL_NAME_ANNOTATION: "Bar"})
    story.succeed()
    row = row_of(story)
    assert (row.provider_config, row.external_name, row.declared_name) == ("other", "Bar", "")


def test_the_row_of_a_released_object_stays_until_a_read_shows_that_it_is_missing():
    """A listing may omit the object, and the next one would show it as unmanaged."""
    story = converged_story(policy={"deletion": "Orphan"})
    story.withdraw()
    story.succeed()
    kept_object = story.existing
    story.observe(None)
    assert row_of(story).released == ((kept_object.name, kept_object.uid),)
    story.observe(kept_object)
    story.observe(None, evidence="Read")
    assert str(story.key) not in rebuild(interleave(story)).status


def test_a_listing_counts_again_once_the_object_that_it_omitted_is_released():
    story = converged_story(policy={"deletion": "Orphan"})
    kept_object = story.existing
    story.observe(None)
    story.fail("Conflict", existing=kept_object)
    assert row_of(story).listing_disproved
    story.withdraw()
    story.succeed()
    assert row_of(story).released
    assert not row_of(story).listing_disproved


def test_a_released_object_that_is_adopted_is_no_longer_released():
    story = converged_story(policy={"deletion": "Orphan"})
    story.withdraw()
    story.succeed()
    story.declare(policy={"adoption": "Adopt"})
    assert (row_of(story).owned, row_of(story).released) == (True, ())


def test_a_released_object_is_removed_from_the_row_once_it_is_replaced():
    story = converged_story(policy={"deletion": "Orphan"})
    story.withdraw()
    story.succeed()
    story.observe(api_object(uid="h9"))
    assert row_of(story).released == ()


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_row_names_the_object_that_a_creation_with_an_unknown_result_may_create(is_settled: bool):
    story = Story()
    story.declare()
    assert row_of(story).uncertain_names == ()
    if is_settled:
        story.succeed()
    else:
        story.fail("Unknown")
        story.wake(60)
        story.succeed()
    assert row_of(story).uncertain_names == (() if is_settled else ("Foo",))


def test_a_row_names_the_object_that_an_abandoned_creation_may_create():
    assert row_of(story_with_abandoned_creation()).uncertain_names == ("Foo",)


@pytest.mark.parametrize(("external_name", "is_kept"), [("Foo", False), ("other", True)])
def test_a_row_is_kept_if_a_late_object_would_be_attributed_to_another_resource(
    external_name: str, is_kept: bool
):
    """Without the row, a listing names the resource of an object after the object's name."""
    story = Story()
    story.declare(annotations={EXTERNAL_NAME_ANNOTATION: external_name})
    story.fail("Unknown")
    story.wake(60)
    story.succeed()
    story.withdraw()
    story.succeed()
    assert story.outcome == "Deleted"
    assert (str(story.key) in rebuild(interleave(story)).status) == is_kept


@pytest.mark.parametrize("kind", [BLOCK, BY_ID], ids=["by name", "by id"])
@pytest.mark.parametrize("is_late", [False, True], ids=["abandoned", "doubted"])
def test_a_row_is_kept_if_only_a_key_identifies_the_created_object(kind: Kind, is_late: bool):
    story = Story(kind=kind)
    story.declare()
    creation = story.action
    if is_late:
        story.fail("NotDone")
        story.withdraw()
        story.report(error("Unknown"), action_id=creation.action_id, redelivered=True)
    else:
        for _ in range(3):
            story.fail("Unknown")
            story.wake(3600)
        story.withdraw()
        story.report_lookup(None)
    assert story.outcome == "Deleted"
    assert (str(story.key) in rebuild(interleave(story)).status) == (kind is BY_ID)


def test_a_row_is_kept_until_the_object_of_an_abandoned_creation_is_deleted():
    story, created_object = story_with_superseded_creation()
    story.withdraw()
    story.succeed()
    assert story.outcome == "Deleted"
    assert str(story.key) in rebuild(interleave(story)).status
    story.observe(created_object)
    assert (story.action.operation, story.action.uid) == ("Delete", "late")
    story.succeed()
    assert str(story.key) not in rebuild(interleave(story)).status


def test_a_row_is_kept_while_its_creation_may_have_an_object_with_another_uid():
    """If the API generates ids, a listing identifies such an object's creator by its row."""
    story, created_object = story_with_wrong_uid_by_id()
    story.withdraw()
    story.report(absent=True)
    assert story.outcome == "Deleted"
    assert str(story.key) in rebuild(interleave(story)).status
    story.observe(created_object)
    assert (story.action.operation, story.action.uid) == ("Delete", "real")
    story.succeed()
    assert str(story.key) not in rebuild(interleave(story)).status


def test_without_events_there_is_nothing_to_write():
    assert ReadModels().take_changes() is None


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {CHECKPOINT: b'{"position":3,"schema":0}'},
        {CHECKPOINT: b"not JSON"},
        {CHECKPOINT: b'{"position":3,"schema":1}', "status.a.b.c": b"{}"},
        {CHECKPOINT: encode_checkpoint(Checkpoint(SCHEMA, position=3)), "status.a.b.c": b"{}"},
        {CHECKPOINT: encode_checkpoint(Checkpoint(SCHEMA, position=3, is_whole=False))},
        {CHECKPOINT: encode_checkpoint(Checkpoint(SCHEMA, position=3))},
    ],
)
def test_unusable_rows_are_reported(broken: dict[str, bytes]):
    with pytest.raises(OutdatedRowsError):
        restore(broken)


def test_rows_are_incomplete_if_any_of_them_is_lost():
    stored = dict(rebuild(interleave(converged_story())).rows())
    assert len(stored) > 2
    for count in range(len(stored)):
        for names in itertools.combinations(stored, count):
            with pytest.raises(OutdatedRowsError):
                restore({name: stored[name] for name in names})
    assert restore(stored).position


@quick
@given(histories, st.integers(0, 99), st.data())
def test_rows_are_outdated_if_any_of_them_is_older(
    story_seeds: list[int], seed: int, data: st.DataObject
):
    log = log_of(story_seeds, seed)
    stored = dict(rebuild(log).rows())
    earlier = dict(rebuild(log[: data.draw(st.integers(0, len(log)), "earlier")]).rows())
    names = stored.keys() | earlier.keys()
    changed = sorted(name for name in names if stored.get(name) != earlier.get(name))
    older = data.draw(st.sets(st.sampled_from(changed)), "older") if changed else set[str]()
    if older and older != set(changed):
        mixed = {name: (earlier if name in older else stored).get(name) for name in names}
        with pytest.raises(OutdatedRowsError):
            restore({name: row for name, row in mixed.items() if row is not None})


def test_rows_from_an_earlier_checkpoint_differ_in_number_or_version():
    story = converged_story()
    stored = dict(rebuild(interleave(story)).rows())
    earlier = dict(rebuild(interleave(story)[:-1]).rows())
    row = status_name(story.key)
    for names in ([row], [FLEET], [CHECKPOINT], [row, FLEET], [row, CHECKPOINT]):
        with pytest.raises(OutdatedRowsError):
            restore({**stored, **{name: earlier[name] for name in names}})


def test_changes_that_only_mark_damage_store_complete_rows():
    models = ReadModels()
    models.fold_damage(LogDamage("Unreadable", 1, 0, "an event", "none"))
    changes = models.take_changes()
    assert changes is not None
    rows = {name: row for name, row in changes.rows.items() if row is not None}
    assert restore({**rows, CHECKPOINT: encode_checkpoint(changes.checkpoint)}).damage


def test_restored_rows_continue_from_their_checkpoint():
    story = converged_story()
    stored = dict(rebuild(interleave(story)).rows())
    restored = restore(stored)
    assert restored.position == decode_checkpoint(stored[CHECKPOINT]).position
    assert dict(restored.rows()) == stored


def test_a_row_has_the_requested_object_if_the_api_returns_none_after_a_write() -> None:
    """Otherwise its loss would never be reported: an observer reports only known objects."""
    story = Story()
    story.declare()
    story.report(existing=None)
    [row] = rebuild(interleave(story)).status.values()
    assert story.state.observed.object is not None
    assert row.observed_digest == digest(story.state.observed.object)
