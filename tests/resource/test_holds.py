"""Holds of a resource and their release: finalizers, references, guards, force."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from events.intake import (
    Approved,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    LossCount,
    Observed,
    OnWithdrawal,
    Referenced,
    TargetReported,
    TargetState,
    Unreferenced,
)
from events.log import (
    AbsenceDoubted,
    ActionAbandoned,
    ActionDecided,
    DriftDetected,
    FinalizerRemoved,
    HoldApproved,
    OwnershipClaimed,
    OwnershipReleased,
    ReleaseForced,
    ResourceEvent,
)
from events.manifest import EXTERNAL_NAME_ANNOTATION
from events.names import ResourceKey
from events.provider_config import LossGuard
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.provider.kind import REFERENCE
from reconciler.resource.owner_label import OWNER_LABEL
from tests.resource.building import (
    BLOCK,
    CONFIG,
    EXCLUSIVE,
    FOO_OWNER,
    SHARED,
    Story,
    api_object,
    converged_story,
    error,
    every,
    only,
    owned_labels,
    repaint,
)
from tests.resource.test_replacement import CIRCLE, IN_PLACE, SQUARE
from tests.resource.test_wrong_uids import BY_ID

INVOICE = FinalizerRequested("billing/invoice")


def row_of(story: Story) -> StatusRow | None:
    """Return the row of a story's resource; None if only its history is left."""
    models = ReadModels()
    for position, event in enumerate(story.log, start=1):
        models.apply(position, event)
    return models.status.get(str(story.key))


def story_with_finalizer() -> Story:
    story = converged_story()
    story.process([story.command(INVOICE, actor="billing")])
    assert story.reply.accepted
    return story


def release(story: Story, *, actor: str, force: bool = False) -> list[ResourceEvent]:
    return story.process(
        [story.command(FinalizerReleased("billing/invoice", force, "done"), actor=actor)]
    )


# --- finalizers


def test_nothing_is_deleted_until_the_finalizer_is_removed():
    story = story_with_finalizer()
    story.withdraw()
    assert story.idle
    assert (story.outcome, story.reason) == ("Held", "Finalizers")
    assert story.state.outcome is not None
    assert "billing/invoice (set by billing)" in story.state.outcome.message
    assert story.wake(36_000) == []
    release(story, actor="billing")
    assert story.action.operation == "Delete"


def test_a_finalizer_is_removed_by_its_holder_or_by_force():
    story = story_with_finalizer()
    story.withdraw()
    assert release(story, actor="shop") == []
    assert story.reply.reason == "HeldByAnother"
    removed = only(FinalizerRemoved, release(story, actor="ann", force=True))
    assert removed == FinalizerRemoved("billing/invoice", True, "done")
    assert story.log[-2].actor == "ann"
    assert story.action.operation == "Delete"


def test_an_approval_covers_only_the_declaration_that_the_operator_saw():
    story = Story(kind=IN_PLACE)
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    story.fail("Conflict", existing=api_object(SQUARE, uid="theirs"))
    assert (story.outcome, story.reason) == ("Held", "Adoption")
    seen = story.state.desired.generation
    story.declare({**CIRCLE, "color": "Blue"}, policy={"adoption": "Adopt"})
    assert (story.outcome, story.reason) == ("Held", "Adoption")
    assert story.turn(Approved("Adoption", generation=seen)) == []
    assert story.reply.reason == "Outdated"
    assert "declared again" in story.reply.message
    events = story.turn(Approved("Adoption", generation=seen + 1))
    assert only(OwnershipClaimed, events).uid == "theirs"


def test_a_finalizer_also_blocks_a_release():
    story = converged_story(policy={"deletion": "Orphan"})
    story.process([story.command(INVOICE, actor="billing")])
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "Finalizers")
    release(story, actor="billing")
    assert every(OwnershipReleased, story.succeed())  # its label was removed


def test_a_finalizer_blocks_the_deletion_of_an_object_declared_absent():
    story = story_with_finalizer()
    story.declare(policy={"mode": "Absent"})
    assert (story.outcome, story.reason) == ("Held", "Finalizers")


def test_a_declared_object_with_a_finalizer_is_corrected():
    story = story_with_finalizer()
    story.observe(repaint(story.existing, color="Green"))
    assert story.action.operation == "Update"


def test_a_finalizer_is_added_once_by_one_client_to_a_declared_resource():
    story = Story()
    story.process([story.command(INVOICE, actor="billing")])
    assert story.reply.reason == "NotDeclared"
    story = story_with_finalizer()
    story.process([story.command(INVOICE, actor="billing")])
    assert story.reply.reason == "Unchanged"
    story.process([story.command(INVOICE, actor="shop")])
    assert story.reply.reason == "HeldByAnother"
    story.withdraw()
    story.process([story.command(FinalizerRequested("late/one"), actor="late")])
    assert story.reply.reason == "NotDeclared"


@pytest.mark.parametrize("name", ["", "a b", "/", "x" * 129, "ä", "a\n"])
def test_a_finalizers_name_is_checked(name: str):
    story = converged_story()
    story.process([story.command(FinalizerRequested(name), actor="billing")])
    assert story.reply.reason == "Invalid"


def test_a_late_redelivery_of_a_request_does_not_add_the_finalizer_again():
    story = converged_story()
    request = story.command(INVOICE, actor="billing")
    story.process([request])
    release(story, actor="billing")
    assert story.process([request]) == []
    assert story.reply.reason == "Duplicate"


def test_a_forced_release_is_an_event_with_its_actor():
    story = story_with_finalizer()
    story.withdraw()
    events = story.process([story.command(ForcedRelease("billing is shut down"), actor="ann")])
    forced = only(ReleaseForced, events)
    assert forced.finalizers == ("billing/invoice",)
    assert [each.actor for each in story.log if each.data == forced] == ["ann"]
    assert story.action.operation == "Delete"


def test_a_forced_release_as_an_orphan_abandons_a_deletion():
    story = converged_story()
    story.withdraw()
    story.fail("Unknown")
    story.turn(ForcedRelease("the API is gone", orphan=True))
    assert story.idle
    assert story.outcome == "Released"
    assert story.state.owned is None


def test_an_owned_object_is_forgotten_with_its_api_if_a_forced_release_orphans_it():
    story = converged_story()
    uid = story.existing.uid
    story.withdraw()
    story.configs.clear()
    story.fail("NotDone")
    story.turn(ForcedRelease("the API is gone", orphan=True))
    story.turn(ForcedRelease("the API is gone", orphan=True))
    assert story.idle
    assert (story.outcome, story.reason) == ("Released", "Orphaned")
    assert (story.state.owned, story.state.observed.object) == (None, None)
    assert story.turn(ForcedRelease("again", orphan=True)) == []

    story.configs[CONFIG] = SHARED
    story.observe(api_object(uid=uid, labels=owned_labels()))
    assert (story.outcome, story.reason) == ("Released", "Orphaned"), "it stays released"


@pytest.mark.parametrize("missing", ["the ProviderConfig", "the kind"])
def test_an_undeclared_object_is_forgotten_with_its_api_by_a_forced_release(missing: str):
    story = Story()
    story.observe(api_object())
    assert story.outcome == "Unowned"
    assert story.turn(ForcedRelease("nobody uses it", orphan=True)) == []
    assert story.reply.reason == "Unchanged", "its API can still be listed"
    if missing == "the kind":
        story.kind = None
    else:
        story.configs.clear()
    forced = only(ReleaseForced, story.turn(ForcedRelease("the API is gone", orphan=True)))
    assert forced.forgotten
    assert (story.outcome, story.state.observed.object) == ("Released", None)
    story.kind, story.configs[CONFIG] = BLOCK, SHARED
    story.observe(api_object())
    assert story.outcome == "Unowned"
    story.observe(None)
    assert (story.outcome, story.reason) == ("Deleted", "GoneByOthers")


def story_with_unlisted_creation() -> Story:
    """A creation whose object no listing can show, because the API assigns the ids."""
    story = Story(kind=BY_ID)
    story.declare()
    story.fail("Unknown")
    story.withdraw()
    story.turn(ForcedRelease("the API hangs", orphan=True))
    return story


def story_with_uncertain_name() -> Story:
    story = Story()
    story.declare(annotations={EXTERNAL_NAME_ANNOTATION: "other"})
    story.fail("Unknown")
    story.declare(annotations={EXTERNAL_NAME_ANNOTATION: "other"}, policy={"mode": "ObserveOnly"})
    story.withdraw()
    story.turn(ForcedRelease("the API hangs", orphan=True))
    return story


def story_with_released_object() -> Story:
    """A released object that a listing omitted, so that only a read could prove its absence."""
    story = converged_story(policy={"deletion": "Orphan"})
    story.withdraw()
    story.succeed()
    story.observe(None)
    return story


def story_with_late_creation() -> Story:
    """A call that was reported after the release of its resource."""
    story = Story(kind=BY_ID)
    story.declare()
    creation = story.action
    story.fail("NotDone")
    story.withdraw()
    story.report(error("Unknown"), action_id=creation.action_id, redelivered=True)
    return story


@pytest.mark.parametrize("missing", ["the ProviderConfig", "the kind"])
@pytest.mark.parametrize(
    "ghost",
    [
        story_with_unlisted_creation,
        story_with_uncertain_name,
        story_with_released_object,
        story_with_late_creation,
    ],
)
def test_a_row_without_an_object_is_removed_with_its_api_by_a_forced_release(
    ghost: Callable[[], Story], missing: str
):
    story = ghost()
    assert row_of(story) is not None, "an object may still appear"
    if missing == "the kind":
        story.kind = None
    else:
        story.configs.clear()
    forced = only(ReleaseForced, story.turn(ForcedRelease("the API is gone", orphan=True)))
    assert (forced.forgotten, forced.reason) == (True, "the API is gone")
    assert (story.outcome, story.reason) == ("Released", "Orphaned")
    assert "no longer tracks the resource" in story.outcome_message
    assert row_of(story) is None
    assert story.turn(ForcedRelease("again", orphan=True)) == []
    assert story.reply.reason == "Unchanged"


def test_a_creation_in_flight_is_forgotten_with_its_api_in_one_step():
    story = Story(kind=BY_ID)
    story.declare()
    creation = story.action
    story.fail("Unknown")
    story.withdraw()
    story.configs.clear()
    events = story.turn(ForcedRelease("the API is gone", orphan=True))
    assert only(ActionAbandoned, events).in_doubt, "the log explains what the API may receive"
    assert only(ReleaseForced, events).forgotten
    assert row_of(story) is None

    story.report(existing=story.object_after(creation), action_id=creation.action_id)
    assert row_of(story) is not None, "the call succeeded after all"
    story.turn(ForcedRelease("the API is gone", orphan=True))
    assert row_of(story) is None


def test_a_forced_release_needs_a_reason_and_a_withdrawal():
    story = story_with_finalizer()
    story.turn(ForcedRelease("why not"))
    assert story.reply.reason == "StillDeclared"
    story.withdraw()
    story.turn(ForcedRelease("  "))
    assert story.reply.reason == "Invalid"


# --- references


def story_with_reference(policy: OnWithdrawal) -> Story:
    story = converged_story()
    story.turn(Referenced("shop/ShapeRef/needs-foo", policy))
    return story


def test_a_keep_reference_holds_the_object_until_it_is_removed():
    story = story_with_reference("Keep")
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "Referenced")
    assert story.idle
    story.turn(Unreferenced("shop/ShapeRef/needs-foo"))
    assert story.action.operation == "Delete"


def test_a_release_reference_keeps_the_object_in_the_api():
    story = story_with_reference("Release")
    story.withdraw()
    assert story.action.operation == "Update"
    story.succeed()
    assert story.outcome == "Released"
    assert story.state.owned is None


def test_an_ignore_reference_does_not_block_the_deletion():
    story = story_with_reference("Ignore")
    story.withdraw()
    assert story.action.operation == "Delete"


def test_a_forced_release_covers_references_that_are_reported_again():
    story = story_with_reference("Keep")
    story.withdraw()
    story.turn(ForcedRelease("shop is gone"))
    story.fail("Conflict", existing=story.existing)
    story.turn(Referenced("shop/ShapeRef/needs-foo", "Keep"))
    assert story.outcome != "Held"
    assert story.action.operation == "Delete"


def test_a_referenced_unmanaged_object_is_disputed_and_not_deleted():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.turn(Referenced("shop/ShapeRef/needs-foo", "Keep"))
    story.observe(api_object(), unmanaged=(1, 5))
    assert story.idle
    assert (story.outcome, story.reason) == ("Disputed", "Referenced")


@pytest.mark.parametrize(
    ("namespace", "target"), [("default", "default"), ("system", "default"), ("system", "system")]
)
def test_the_message_omits_a_permission_that_is_not_needed(namespace: str, target: str):
    story = Story(kind=REFERENCE, configs={}, key=ResourceKey(namespace, "ShapeRef", "needs-foo"))
    fields = {"target": {"kind": "Shape", "name": "foo", "namespace": target}}
    story.declare(fields, api_version="reconciler/v1")
    story.turn(TargetReported(f"{target}/Shape/foo", TargetState(declared=False)))
    assert story.outcome_message == f"{target}/Shape/foo is not declared"


def test_a_reference_reports_whether_its_target_is_declared():
    key = ResourceKey("shop", "ShapeRef", "needs-foo")
    story = Story(kind=REFERENCE, configs={}, key=key)
    story.declare({"target": {"kind": "Shape", "name": "foo"}}, api_version="reconciler/v1")
    assert story.outcome == ""
    story.turn(TargetReported("default/Shape/foo", TargetState(declared=False)))
    assert (story.outcome, story.reason) == ("Held", "Dangling")
    assert "policy.referencedFrom does not name namespace 'shop'" in story.outcome_message
    assert story.turn(TargetReported("default/Shape/foo", TargetState(declared=False))) == []
    story.turn(TargetReported("default/Shape/foo", TargetState(declared=True)))
    assert (story.outcome, story.reason) == ("Converged", "Resolved")
    story.withdraw()
    assert story.outcome == "Deleted"


# --- guards


def observe_missing(story: Story, missing: int, owned: int) -> list[ResourceEvent]:
    return story.turn(
        Observed(
            CONFIG,
            story.key.name,
            None,
            "CompleteListing",
            story.position,
            losses=LossCount(missing, owned),
        )
    )


def test_a_sudden_loss_of_most_objects_is_doubted():
    story = converged_story()
    assert only(AbsenceDoubted, observe_missing(story, 12, 14)).missing == 12
    assert story.idle
    assert (story.outcome, story.reason) == ("Held", "LossGuard")
    for counts in ((12, 14), (13, 15), (24, 28)):
        assert observe_missing(story, *counts) == [], "similar counts are not recorded again"
    assert only(AbsenceDoubted, observe_missing(story, 25, 28)).missing == 25
    story.observe(story.existing)
    assert story.outcome == "Converged"


def test_the_message_of_a_doubted_loss_names_what_an_approval_does():
    story = converged_story()
    observe_missing(story, 12, 14)
    assert story.outcome_message.endswith("or approve the loss to recreate this one")
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "LossGuard")
    assert story.outcome_message.endswith("or approve the loss to record this one as deleted")
    story.turn(Approved("LossGuard", reason="region lost"))
    observe_missing(story, 12, 14)
    assert story.outcome == "Deleted"
    assert story.idle


@pytest.mark.parametrize("mode", ["Absent", "CreateOnly", "ObserveOnly"])
def test_the_message_promises_no_new_object_in_modes_that_create_none(mode: str):
    story = converged_story()
    observe_missing(story, 12, 14)
    story.declare(policy={"mode": mode})
    assert (story.outcome, story.reason) == ("Held", "LossGuard")
    assert story.outcome_message.endswith("or approve the loss to record this one as deleted")
    story.turn(Approved("LossGuard", reason="region lost"))
    observe_missing(story, 12, 14)
    assert story.idle


@pytest.mark.parametrize("counts", [(10, 10), (10, 19)])
def test_a_loss_at_the_limits_of_the_guard_is_doubted(counts: tuple[int, int]):
    assert (SHARED.loss_guard.min_count, SHARED.loss_guard.max_percent) == (10, 50)
    story = converged_story()
    assert every(AbsenceDoubted, observe_missing(story, *counts))
    assert story.reason == "LossGuard"


@pytest.mark.parametrize("counts", [(9, 9), (12, 40), (1, 1), (10, 20)])
def test_a_loss_of_few_objects_is_accepted(counts: tuple[int, int]):
    story = converged_story()
    assert every(DriftDetected, observe_missing(story, *counts))
    assert story.action.operation == "Create"


@pytest.mark.parametrize("max_percent", [50, 0])
@pytest.mark.parametrize(
    "losses", [LossCount(12, 12, restarted=True), LossCount(12, 12, same_system=True)]
)
def test_an_explained_loss_is_accepted_unless_an_operator_decides_about_each(
    max_percent: int, losses: LossCount
):
    config = replace(SHARED, loss_guard=LossGuard(max_percent=max_percent))
    story = converged_story(configs={CONFIG: config})
    story.turn(
        Observed(CONFIG, story.key.name, None, "CompleteListing", story.position, losses=losses)
    )
    if max_percent:
        assert story.action.operation == "Create"
    else:
        assert (story.outcome, story.reason) == ("Held", "LossGuard")


def test_an_approved_loss_is_accepted_at_the_next_listing():
    story = converged_story()
    observe_missing(story, 12, 14)
    assert only(HoldApproved, story.turn(Approved("LossGuard", reason="region lost")))
    assert story.idle
    observe_missing(story, 12, 14)
    assert story.action.operation == "Create"


def test_an_unmanaged_object_that_the_guard_holds_is_deleted_after_an_approval():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(50, 60))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")
    assert not every(OwnershipClaimed, story.turn(Approved("DeletionGuard")))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")
    approved_at = story.position
    assert story.observe(api_object(uid="h1"), unmanaged=(50, 60), as_of=approved_at - 1) == []
    events = story.observe_twice(api_object(uid="h1"), unmanaged=(50, 60))
    assert every(OwnershipClaimed, events), "a listing that began later shows that it is unmanaged"
    assert only(ActionDecided, events).action.uid == "h1"


def test_an_approved_deletion_waits_for_a_listing_that_began_after_the_approval():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(50, 60))
    before_approval = story.position
    story.turn(Approved("DeletionGuard"))
    # If recorded, it would be treated as the awaited listing, and no other would follow.
    assert story.observe(api_object(uid="h1"), unmanaged=(51, 60), as_of=before_approval) == []
    assert every(OwnershipClaimed, story.observe_twice(api_object(uid="h1"), unmanaged=(51, 60)))


def test_an_object_that_another_resource_declares_before_the_approval_is_kept():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(50, 60))
    story.turn(Approved("DeletionGuard"))
    events = story.observe(api_object(uid="h1"), unmanaged=(50, 60), belongs_to="team/Shape/foo")
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


def test_an_approval_must_name_the_current_hold():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(50, 60))
    story.turn(Approved("LossGuard"))
    assert story.reply.reason == "NotHeld"
    story.turn(Approved("DeletionGuard", "Abandon"))
    assert story.reply.reason == "Invalid"
    assert story.idle


def test_an_approval_does_not_cover_the_next_object():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(50, 60))
    story.turn(Approved("DeletionGuard"))
    story.observe_twice(api_object(uid="h1"), unmanaged=(50, 60))
    story.succeed()
    story.observe(api_object(uid="h2"), unmanaged=(50, 60))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")


def test_a_resource_that_is_not_held_cannot_be_approved():
    story = converged_story()
    story.turn(Approved("DeletionGuard"))
    assert story.reply.reason == "NotHeld"


def test_a_hold_that_a_restoration_may_explain_names_it_and_the_remedies():
    restored = "the log was restored from a backup made at 2026-11-25T03:00:00Z"
    story = converged_story()
    story.restored_as_of = "2026-11-25T03:00:00Z"
    observe_missing(story, 12, 14)
    assert f"; {restored}: repeat the withdrawals made after it; check" in story.outcome_message
    unmanaged = Story(configs={CONFIG: EXCLUSIVE})
    unmanaged.restored_as_of = "2026-11-25T03:00:00Z"
    unmanaged.observe(api_object(uid="h1"), unmanaged=(50, 60))
    assert (
        f"; {restored}: repeat the declarations made after it; approve" in unmanaged.outcome_message
    )
    ghost = Story()
    ghost.restored_as_of = "2026-11-25T03:00:00Z"
    ghost.observe(api_object(uid="h1", labels={OWNER_LABEL: FOO_OWNER}))
    assert (ghost.outcome, ghost.reason) == ("Disputed", "LabelNotInLog")
    assert (
        f"; {restored}, and the object may have been created after it. To" in ghost.outcome_message
    )
    assert "declare it with spec.policy.adoption: Adopt" in ghost.outcome_message
    ghost.declare()
    assert (ghost.outcome, ghost.reason) == ("Conflict", "AlreadyExists")
    assert f"but the log never recorded ownership; {restored}" in ghost.outcome_message
    assert "set spec.policy.adoption: Adopt" in ghost.outcome_message


def test_an_object_with_an_id_unknown_to_a_restored_log_can_be_adopted():
    restored = "the log was restored from a backup made at 2026-11-25T03:00:00Z"
    existing = api_object(uid="u9", labels={OWNER_LABEL: FOO_OWNER})
    story = Story(kind=BY_ID, key=ResourceKey("default", "Block", "foo-u9"))
    story.restored_as_of = "2026-11-25T03:00:00Z"
    story.observe(existing)
    assert (story.outcome, story.reason) == ("Disputed", "OwnedByAnother")
    assert (
        f"; {restored}, and the object may have been created after it. To manage it, declare that "
        "resource with spec.policy.adoption: Adopt; to release it, remove its label "
        f"{OWNER_LABEL}; or delete it in the API" in story.outcome_message
    )
    named = Story(kind=BY_ID)
    named.restored_as_of = "2026-11-25T03:00:00Z"
    named.declare(policy={"adoption": "Adopt"})
    assert (named.outcome, named.idle) == ("Waiting", True), "no second object"
    named.observe(existing)
    assert named.state.owned is not None
    assert named.state.owned.uid == "u9"
    absent = Story(kind=BY_ID)
    absent.declare(policy={"adoption": "Adopt"})
    absent.observe(None)
    assert absent.action.operation == "Create"


def test_the_message_about_many_references_and_finalizers_is_short():
    story = converged_story()
    for number in range(50):
        story.turn(Referenced(f"default/ShapeRef/ref-{number:02}", "Keep"))
    story.withdraw()
    assert story.outcome_message == (
        "kept because it is referenced by default/ShapeRef/ref-00, default/ShapeRef/ref-01, "
        "default/ShapeRef/ref-02 and 47 more"
    )
    story = converged_story()
    for number in range(20):
        story.process([story.command(FinalizerRequested(f"billing/f-{number}"), actor="billing")])
    story.withdraw()
    assert story.outcome_message.endswith(" and 17 more")
