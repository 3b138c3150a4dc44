"""Actions wait until an operator approves their exact plan: scenario 28."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from events.intake import Approved
from events.log import (
    ActionDecided,
    ApprovalRefused,
    ApprovalRequested,
    HoldApproved,
    ResourceEvent,
)
from events.manifest import ApprovalLevel
from events.provider_config import Scope
from projections.read_models import rebuild
from projections.status import StatusRow, fold_status
from reconciler.provider.kind import KindRegistry
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.sweeper.sweeper import is_configuration_ready
from tests.projections.logs import interleave
from tests.resource.building import (
    BLOCK,
    CONFIG,
    EXCLUSIVE,
    FOO,
    SHARED,
    Story,
    api_object,
    every,
    only,
)
from tests.resource.test_references import SERVER, declared_server, ready_target, report_target

RED, BLUE = {"type": "Square", "color": "Red"}, {"type": "Square", "color": "Blue"}
CIRCLE = {"type": "Circle", "color": "Red"}


def story_with_approval(approve: ApprovalLevel, **kind: object) -> Story:
    config = changed(SHARED, approve=approve)
    return Story(kind=replace(BLOCK, **kind), configs={CONFIG: config})


def converged_story(approve: ApprovalLevel, **kind: object) -> Story:
    story = story_with_approval("Never", **kind)
    story.declare(RED)
    story.succeed()
    story.configs = {CONFIG: changed(SHARED, approve=approve)}
    return story


def last_request(story: Story) -> ApprovalRequested:
    *_, last = every(ApprovalRequested, [event.data for event in story.log])
    return last


def approve(story: Story, plan: str | None = None) -> list[ResourceEvent]:
    return list(
        story.turn(Approved("Approval", plan=last_request(story).plan if plan is None else plan))
    )


def reject(story: Story, reason: str = "") -> list[ResourceEvent]:
    return list(story.turn(Approved("Approval", "Reject", reason, last_request(story).plan)))


def operations(story: Story) -> list[tuple[str, str]]:
    decided = every(ActionDecided, [event.data for event in story.log])
    return [(each.action.operation, each.action.purpose) for each in decided]


def test_28_a_change_waits_until_it_is_approved():
    story = converged_story("Always")
    count_before = len(operations(story))
    story.declare(BLUE)
    assert story.idle
    assert (story.outcome, story.reason) == ("Held", "Approval")
    (difference,) = last_request(story).changes
    assert (difference.path, difference.observed, difference.desired) == ("color", "Red", "Blue")
    assert 'color: "Red" → "Blue"' in story.state.outcome.message  # pyright: ignore[reportOptionalMemberAccess]
    assert story.wake() == [], "an approval is requested once"
    events = approve(story)
    assert only(HoldApproved, events).plan == last_request(story).plan
    assert only(ActionDecided, events).action.fields["color"] == "Blue"
    assert len(operations(story)) == count_before + 1
    story.succeed()
    assert story.outcome == "Converged"


def test_a_creation_and_a_deletion_wait_for_approval():
    story = story_with_approval("Always")
    story.declare(RED)
    assert (last_request(story).operation, story.reason) == ("Create", "Approval")
    approve(story)
    story.succeed()
    story.withdraw()
    assert (last_request(story).operation, story.reason) == ("Delete", "Approval")
    approve(story)
    story.succeed()
    assert story.outcome == "Deleted"


def test_the_row_of_a_forgotten_resource_shows_the_level_of_its_declaration():
    """Otherwise, the sweeper would keep waking the resource, as if a configuration had changed."""
    config = changed(EXCLUSIVE, approve="Never")
    story = Story(configs={CONFIG: config})
    story.declare(RED, policy={"mode": "Absent", "approve": "Deletions"})
    story.withdraw()
    assert not rebuild(interleave(story)).status
    story.observe_twice(api_object(uid="h1"), unmanaged=(1, 60))
    assert (last_request(story).operation, story.reason) == ("Delete", "Approval")
    [row] = rebuild(interleave(story)).status.values()
    assert (row.approve, row.pending_level) == ("Deletions", "Deletions")
    kinds, configurations = KindRegistry([BLOCK]), Configurations()
    configurations.by_name[CONFIG] = config
    assert not is_configuration_ready(row, configurations, kinds)


def test_only_deletions_wait_for_approval_where_the_configuration_requires_it():
    story = story_with_approval("Deletions")
    story.declare(RED)
    story.succeed()
    story.declare(BLUE)
    story.succeed()
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "Approval")


@pytest.mark.parametrize(
    ("config", "policy", "waits"),
    [("Never", "Always", True), ("Always", "Never", True), ("Never", "Deletions", False)],
)
def test_a_policy_can_only_require_more_approvals(
    config: ApprovalLevel, policy: ApprovalLevel, waits: bool
):
    story = story_with_approval(config)
    story.declare(RED, policy={"approve": policy})
    assert (story.reason == "Approval") == waits


def test_a_change_of_the_plan_voids_an_approval():
    story = converged_story("Always")
    story.declare(BLUE)
    first = last_request(story).plan
    story.declare({"type": "Square", "color": "Green"})
    approve(story, first)
    assert (story.reply.reason, story.idle) == ("PlanOutdated", True)
    second = last_request(story).plan
    story.observe(changed(story.existing, fields={"type": "Square", "color": "Black"}, version="9"))
    assert last_request(story).plan not in (first, second), "another client has changed the object"
    approve(story, second)
    assert (story.reply.reason, story.idle) == ("PlanOutdated", True)
    approve(story)
    assert story.action.fields["color"] == "Green"


def test_an_unchanged_observation_does_not_void_an_approval():
    story = converged_story("Always")
    story.declare(BLUE)
    assert not every(ApprovalRequested, story.observe(changed(story.existing, version="another")))


def test_an_approval_names_its_plan():
    story = converged_story("Always")
    story.declare(BLUE)
    approve(story, "")
    assert not story.reply.accepted
    assert "the decision names none" in story.reply.message
    story.turn(Approved("Approval", "Abandon", plan=last_request(story).plan))
    assert story.reply.reason == "Invalid"
    assert story.idle


def test_an_approval_is_valid_only_once():
    story = converged_story("Always")
    story.declare(BLUE)
    approve(story)
    story.succeed()
    story.observe(changed(story.existing, fields=RED, version="by hand"))
    assert (story.outcome, story.reason) == ("Held", "Approval"), "the drift needs another approval"
    assert story.idle


def test_an_approved_action_continues_after_a_conflict_without_changes():
    story = converged_story("Always")
    story.declare(BLUE)
    approve(story)
    story.fail("Conflict", existing=changed(story.existing, version="moved"))
    assert (story.action.operation, len(every(ApprovalRequested, _data(story)))) == ("Update", 1)
    story.fail(
        "Conflict", existing=changed(story.existing, fields={"type": "Square", "color": "Black"})
    )
    assert (story.idle, story.reason) == (True, "Approval")


def _data(story: Story) -> list[ResourceEvent]:
    return [event.data for event in story.log]


def test_a_rejected_plan_is_held_and_can_still_be_approved():
    story = converged_story("Always")
    story.declare(BLUE)
    events = reject(story, "not on a Friday")
    assert only(ApprovalRefused, events).reason == "not on a Friday"
    assert (story.outcome, story.reason) == ("Held", "NotApproved")
    assert "by tests: not on a Friday" in story.state.outcome.message  # pyright: ignore[reportOptionalMemberAccess]
    assert (story.wake(), reject(story)) == ([], [])
    approve(story)
    assert story.action.fields["color"] == "Blue"


def test_a_new_declaration_after_a_rejection_needs_another_approval():
    story = converged_story("Always")
    story.declare(BLUE)
    reject(story)
    story.declare({"type": "Square", "color": "Green"})
    assert (story.outcome, story.reason) == ("Held", "Approval")
    story.declare(RED)
    assert story.outcome == "Converged", "no approval is needed"
    approve(story)
    assert story.reply.reason == "NotHeld"


@pytest.mark.parametrize("level", ["Always", "Deletions"])
@pytest.mark.parametrize("has_second_name", [True, False])
def test_a_replacement_is_approved_as_a_whole(level: ApprovalLevel, has_second_name: bool):
    story = converged_story(level, immutable=frozenset({"type"}), has_second_name=has_second_name)
    story.declare(CIRCLE)
    assert (story.idle, last_request(story).purpose) == (True, "Replace")
    approve(story)
    story.succeed()
    assert not story.idle, "the other half does not need a second approval"
    story.succeed()
    assert story.outcome == "Converged"
    story.observe(changed(story.existing, fields=BLUE, version="by hand"))
    assert story.idle


@pytest.mark.parametrize("new_host", ["db-2", "db-3"])
def test_an_approved_deletion_does_not_permit_other_content(new_host: str):
    """The owner of a referenced value could replace an object by content without approval."""
    story = declared_server()
    story.kind = replace(SERVER, immutable=frozenset({"type"}))
    report_target(story, **ready_target())
    story.succeed()
    story.configs = {CONFIG: changed(SHARED, approve="Always")}
    report_target(story, **ready_target("db-2"))
    approve(story)
    assert story.action.operation == "Delete"
    report_target(story, **ready_target(new_host))
    story.succeed()
    if new_host == "db-3":
        assert (story.idle, story.outcome, story.reason) == (True, "Held", "Approval")
        approve(story)
    assert story.action.fields == {"type": new_host}


def test_an_unapproved_plan_ends_when_another_action_is_in_flight():
    story = converged_story("Deletions", immutable=frozenset({"type"}))
    story.declare({"type": "Circle"})
    assert last_request(story).purpose == "Replace"
    story.observe(None)
    assert story.action.operation == "Create", "the object is missing, so nothing is replaced"
    story.fail("NotDone")
    assert story.outcome == "Degraded"
    assert story.state.holds.approval is None


def test_an_undeclared_object_in_an_exclusive_scope_waits_for_approval():
    config = changed(EXCLUSIVE, scope=Scope(mode="Exclusive"), approve="Deletions")
    story = Story(configs={CONFIG: config})
    story.observe_twice(api_object(uid="h1"), unmanaged=(1, 60))
    assert (story.idle, story.reason, last_request(story).operation) == (True, "Approval", "Delete")
    approve(story)
    assert story.action.uid == "h1"


def test_an_action_that_no_longer_needs_approval_is_executed():
    story = converged_story("Always")
    story.declare(BLUE)
    story.configs = {CONFIG: SHARED}
    story.wake()
    assert story.action.fields["color"] == "Blue"


def test_the_row_shows_the_pending_plan_until_it_is_approved():
    story = converged_story("Always")
    story.declare(BLUE)
    row = StatusRow(FOO.namespace, FOO.kind, FOO.name)
    position = 0
    for position, event in enumerate(story.log, 1):
        fold_status(row, position, event)
    assert (row.pending_plan, row.pending_level) == (last_request(story).plan, "Always")
    length_before = len(story.log)
    approve(story)
    for later, event in enumerate(story.log[length_before:], position + 1):
        fold_status(row, later, event)
    assert (row.pending_plan, row.pending_level) == ("", "Never")


def test_the_row_does_not_show_a_plan_during_another_hold():
    story = converged_story("Always")
    story.declare(BLUE)
    story.configs = {}
    story.wake()
    assert (story.outcome, story.reason) == ("Held", "ProviderConfigMissing")
    row = StatusRow(FOO.namespace, FOO.kind, FOO.name)
    for position, event in enumerate(story.log, 1):
        fold_status(row, position, event)
    assert (row.reason, row.pending_plan, row.pending_level) == (
        "ProviderConfigMissing",
        "",
        "Never",
    )
