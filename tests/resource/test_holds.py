"""What holds a resource, and who lets it go: finalizers, references, guards, force."""

from __future__ import annotations

import pytest

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
    ActionDecided,
    DriftDetected,
    FinalizerRemoved,
    HoldApproved,
    OwnershipClaimed,
    OwnershipReleased,
    ReleaseForced,
    ResourceEvent,
)
from events.names import ResourceKey
from reconciler.provider.kind import REFERENCE
from reconciler.resource.owner_label import OWNER_LABEL
from tests.resource.building import (
    CONFIG,
    EXCLUSIVE,
    FOO_OWNER,
    SHARED,
    Story,
    converged,
    every,
    only,
    repainted,
    thing,
)
from tests.resource.test_wrong_uids import BY_ID

INVOICE = FinalizerRequested("billing/invoice")


def finalized() -> Story:
    story = converged()
    story.give([story.command(INVOICE, actor="billing")])
    assert story.answer.accepted
    return story


def release(story: Story, *, actor: str, force: bool = False) -> list[ResourceEvent]:
    return story.give(
        [story.command(FinalizerReleased("billing/invoice", force, "done"), actor=actor)]
    )


# --- finalizers


def test_nothing_is_deleted_until_the_finalizer_is_taken_off():
    story = finalized()
    story.withdraw()
    assert story.idle
    assert (story.outcome, story.reason) == ("Held", "Finalizers")
    assert story.state.outcome is not None
    assert "billing/invoice (set by billing)" in story.state.outcome.message
    assert story.wake(36_000) == []
    release(story, actor="billing")
    assert story.action.operation == "Delete"


def test_a_finalizer_is_taken_off_by_its_holder_or_by_force():
    story = finalized()
    story.withdraw()
    assert release(story, actor="shop") == []
    assert story.answer.reason == "HeldByAnother"
    removed = only(FinalizerRemoved, release(story, actor="ann", force=True))
    assert removed == FinalizerRemoved("billing/invoice", True, "done")
    assert story.log[-2].actor == "ann"
    assert story.action.operation == "Delete"


def test_a_finalizer_holds_a_release_too():
    story = converged(policy={"deletion": "Orphan"})
    story.give([story.command(INVOICE, actor="billing")])
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "Finalizers")
    release(story, actor="billing")
    assert every(OwnershipReleased, story.succeed())  # its label is off


def test_a_finalizer_holds_what_is_to_be_kept_away():
    story = finalized()
    story.declare(policy={"mode": "Absent"})
    assert (story.outcome, story.reason) == ("Held", "Finalizers")


def test_what_is_declared_is_corrected_though_it_has_a_finalizer():
    story = finalized()
    story.see(repainted(story.existing, color="Green"))
    assert story.action.operation == "Update"


def test_finalizers_are_put_on_declared_resources_only_once_and_by_one():
    story = Story()
    story.give([story.command(INVOICE, actor="billing")])
    assert story.answer.reason == "NotDeclared"
    story = finalized()
    story.give([story.command(INVOICE, actor="billing")])
    assert story.answer.reason == "Unchanged"
    story.give([story.command(INVOICE, actor="shop")])
    assert story.answer.reason == "HeldByAnother"
    story.withdraw()
    story.give([story.command(FinalizerRequested("late/one"), actor="late")])
    assert story.answer.reason == "NotDeclared"


@pytest.mark.parametrize("name", ["", "a b", "/", "x" * 129, "ä", "a\n"])
def test_a_finalizers_name_is_checked(name: str):
    story = converged()
    story.give([story.command(FinalizerRequested(name), actor="billing")])
    assert story.answer.reason == "Invalid"


def test_a_request_that_is_delivered_again_late_does_not_hold_again():
    story = converged()
    request = story.command(INVOICE, actor="billing")
    story.give([request])
    release(story, actor="billing")
    assert story.give([request]) == []
    assert story.answer.reason == "Duplicate"


def test_a_forced_release_is_an_event_with_its_actor():
    story = finalized()
    story.withdraw()
    events = story.give([story.command(ForcedRelease("billing is shut down"), actor="ann")])
    forced = only(ReleaseForced, events)
    assert forced.finalizers == ("billing/invoice",)
    assert [each.actor for each in story.log if each.data == forced] == ["ann"]
    assert story.action.operation == "Delete"


def test_a_forced_release_as_an_orphan_gives_up_a_deletion_that_the_api_refuses():
    story = converged()
    story.withdraw()
    story.fail("Unknown")
    story.turn(ForcedRelease("the API is gone", orphan=True))
    assert story.idle
    assert story.outcome == "Released"
    assert story.state.owned is None


def test_a_forced_release_needs_a_reason_and_a_withdrawal():
    story = finalized()
    story.turn(ForcedRelease("why not"))
    assert story.answer.reason == "StillDeclared"
    story.withdraw()
    story.turn(ForcedRelease("  "))
    assert story.answer.reason == "Invalid"


# --- references


def referenced(policy: OnWithdrawal) -> Story:
    story = converged()
    story.turn(Referenced("shop/ShapeRef/needs-foo", policy))
    return story


def test_a_reference_that_keeps_holds_the_object_until_it_goes():
    story = referenced("Keep")
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "Referenced")
    assert story.idle
    story.turn(Unreferenced("shop/ShapeRef/needs-foo"))
    assert story.action.operation == "Delete"


def test_a_reference_that_releases_lets_the_object_stay():
    story = referenced("Release")
    story.withdraw()
    assert story.action.operation == "Update"
    story.succeed()
    assert story.outcome == "Released"
    assert story.state.owned is None


def test_a_reference_that_ignores_does_not_hold():
    story = referenced("Ignore")
    story.withdraw()
    assert story.action.operation == "Delete"


def test_a_forced_release_counts_against_references_that_are_reported_again():
    story = referenced("Keep")
    story.withdraw()
    story.turn(ForcedRelease("shop is gone"))
    story.fail("Conflict", shown=story.existing)
    story.turn(Referenced("shop/ShapeRef/needs-foo", "Keep"))
    assert story.outcome != "Held"
    assert story.action.operation == "Delete"


def test_an_unmanaged_object_that_somebody_refers_to_is_disputed_and_not_removed():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.turn(Referenced("shop/ShapeRef/needs-foo", "Keep"))
    story.see(thing(), unmanaged=(1, 5))
    assert story.idle
    assert (story.outcome, story.reason) == ("Disputed", "Referenced")


@pytest.mark.parametrize(
    ("namespace", "target"), [("default", "default"), ("system", "default"), ("system", "system")]
)
def test_a_permission_is_not_asked_for_where_none_is_needed(namespace: str, target: str):
    story = Story(kind=REFERENCE, configs={}, key=ResourceKey(namespace, "ShapeRef", "needs-foo"))
    fields = {"target": {"kind": "Shape", "name": "foo", "namespace": target}}
    story.declare(fields, api_version="reconciler/v1")
    story.turn(TargetReported(f"{target}/Shape/foo", TargetState(declared=False)))
    assert story.outcome_message == f"{target}/Shape/foo is not declared"


def test_a_reference_says_whether_its_target_is_declared():
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


def missing(story: Story, missing: int, owned: int) -> list[ResourceEvent]:
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


def test_a_loss_of_nearly_everything_at_once_is_not_believed():
    story = converged()
    assert only(AbsenceDoubted, missing(story, 12, 14)).missing == 12
    assert story.idle
    assert (story.outcome, story.reason) == ("Held", "LossGuard")
    assert missing(story, 12, 14) == [], "the same again is no event"
    story.see(story.existing)
    assert story.outcome == "Converged"


@pytest.mark.parametrize("counts", [(10, 10), (10, 19)])
def test_a_loss_of_as_many_as_the_guard_names_is_not_believed(counts: tuple[int, int]):
    assert (SHARED.loss_guard.min_count, SHARED.loss_guard.max_percent) == (10, 50)
    story = converged()
    assert every(AbsenceDoubted, missing(story, *counts))
    assert story.reason == "LossGuard"


@pytest.mark.parametrize("counts", [(9, 9), (12, 40), (1, 1), (10, 20)])
def test_a_loss_of_few_is_believed(counts: tuple[int, int]):
    story = converged()
    assert every(DriftDetected, missing(story, *counts))
    assert story.action.operation == "Create"


def test_an_approved_loss_is_believed_at_the_next_listing():
    story = converged()
    missing(story, 12, 14)
    assert only(HoldApproved, story.turn(Approved("LossGuard", reason="region lost")))
    assert story.idle
    missing(story, 12, 14)
    assert story.action.operation == "Create"


def test_an_unmanaged_object_that_the_guard_holds_goes_when_a_person_approves():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(50, 60))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")
    assert not every(OwnershipClaimed, story.turn(Approved("DeletionGuard")))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")
    began_before = story.position
    assert story.see(thing(uid="h1"), unmanaged=(50, 60), as_of=began_before - 1) == []
    events = story.see_twice(thing(uid="h1"), unmanaged=(50, 60))
    assert every(OwnershipClaimed, events), "a listing that began since shows that it is a stray"
    assert only(ActionDecided, events).action.uid == "h1"


def test_an_approved_deletion_waits_for_a_listing_that_began_since():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(50, 60))
    began_before = story.position
    story.turn(Approved("DeletionGuard"))
    # Recorded, it would count as the listing that the approval waits for: no other would follow.
    assert story.see(thing(uid="h1"), unmanaged=(51, 60), as_of=began_before) == []
    assert every(OwnershipClaimed, story.see_twice(thing(uid="h1"), unmanaged=(51, 60)))


def test_what_was_declared_elsewhere_before_the_approval_stays():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(50, 60))
    story.turn(Approved("DeletionGuard"))
    events = story.see(thing(uid="h1"), unmanaged=(50, 60), belongs_to="team/Shape/foo")
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


def test_an_approval_holds_for_the_object_that_was_held():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(50, 60))
    story.turn(Approved("LossGuard"))
    assert story.answer.reason == "NotHeld"
    story.turn(Approved("DeletionGuard", "Abandon"))
    assert story.answer.reason == "Invalid"
    assert story.idle


def test_an_approval_does_not_count_for_the_next_object():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(50, 60))
    story.turn(Approved("DeletionGuard"))
    story.see_twice(thing(uid="h1"), unmanaged=(50, 60))
    story.succeed()
    story.see(thing(uid="h2"), unmanaged=(50, 60))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")


def test_nothing_is_approved_that_is_not_held():
    story = converged()
    story.turn(Approved("DeletionGuard"))
    assert story.answer.reason == "NotHeld"


def test_what_a_restoration_may_explain_names_it_and_the_ways_out():
    restored = "the log was restored from a backup made at 2026-11-25T03:00:00Z"
    story = converged()
    story.restored_as_of = "2026-11-25T03:00:00Z"
    missing(story, 12, 14)
    assert f"; {restored}: repeat the withdrawals made after it; check" in story.outcome_message
    unmanaged = Story(configs={CONFIG: EXCLUSIVE})
    unmanaged.restored_as_of = "2026-11-25T03:00:00Z"
    unmanaged.see(thing(uid="h1"), unmanaged=(50, 60))
    assert (
        f"; {restored}: repeat the declarations made after it; approve" in unmanaged.outcome_message
    )
    ghost = Story()
    ghost.restored_as_of = "2026-11-25T03:00:00Z"
    ghost.see(thing(uid="h1", labels={OWNER_LABEL: FOO_OWNER}))
    assert (ghost.outcome, ghost.reason) == ("Disputed", "LabelNotInLog")
    assert (
        f"; {restored}, and the object may have been created after it. To" in ghost.outcome_message
    )
    assert "declare it with spec.policy.adoption: Adopt" in ghost.outcome_message
    ghost.declare()
    assert (ghost.outcome, ghost.reason) == ("Conflict", "AlreadyExists")
    assert f"but the log never recorded ownership; {restored}" in ghost.outcome_message
    assert "set spec.policy.adoption: Adopt" in ghost.outcome_message


def test_an_object_with_an_id_that_the_log_lacks_names_the_restoration_and_can_be_adopted():
    restored = "the log was restored from a backup made at 2026-11-25T03:00:00Z"
    existing = thing(uid="u9", labels={OWNER_LABEL: FOO_OWNER})
    story = Story(kind=BY_ID, key=ResourceKey("default", "Block", "foo-u9"))
    story.restored_as_of = "2026-11-25T03:00:00Z"
    story.see(existing)
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
    named.see(existing)
    assert named.state.owned is not None
    assert named.state.owned.uid == "u9"
    absent = Story(kind=BY_ID)
    absent.declare(policy={"adoption": "Adopt"})
    absent.see(None)
    assert absent.action.operation == "Create"


def test_many_references_and_finalizers_make_a_short_message():
    story = converged()
    for number in range(50):
        story.turn(Referenced(f"default/ShapeRef/ref-{number:02}", "Keep"))
    story.withdraw()
    assert story.outcome_message == (
        "kept because it is referenced by default/ShapeRef/ref-00, default/ShapeRef/ref-01, "
        "default/ShapeRef/ref-02 and 47 more"
    )
    story = converged()
    for number in range(20):
        story.give([story.command(FinalizerRequested(f"billing/f-{number}"), actor="billing")])
    story.withdraw()
    assert story.outcome_message.endswith(" and 17 more")
