"""Deletions of undeclared objects in a new scope wait for one approval of the ProviderConfig."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ApiReported, Approved, UndeclaredObjects, Withdrawn
from events.log import (
    ActionDecided,
    HoldApproved,
    OutcomeRecorded,
    OwnershipClaimed,
    UndeclaredCounted,
)
from events.provider_config import ProviderConfigSpec
from reconciler.resource.new_scope import MAX_NAMES
from tests.resource.building import (
    CONFIG,
    EXCLUSIVE,
    SHARED,
    Story,
    api_object,
    every,
    only,
    owned_labels,
)
from tests.resource.test_api_health import config_story, declare, report_failing, report_responding

TESTS = {"provider": "tests", "endpoint": "http://localhost"}
SCOPE = {**TESTS, "scope": {"mode": "Exclusive"}}
PREFIX = {**TESTS, "ownership": "Prefix", "ownerPrefix": "our-"}
BY_PREFIX = replace(SHARED, ownership="Prefix", owner_prefix="F")


def scope_story(fields: dict[str, Any] = SCOPE) -> Story:
    story = config_story()
    declare(story, fields)
    return story


def count(
    story: Story, undeclared: int, *, kind: str = "Block", generation: int | None = None
) -> list[Any]:
    names = tuple(f"n{number}" for number in range(min(undeclared, MAX_NAMES + 1)))
    as_of = story.state.desired.generation if generation is None else generation
    objects = UndeclaredObjects(undeclared, undeclared + 2, names)
    return story.turn(
        ApiReported("UndeclaredCounted", "o1", story.now, as_of, kind=kind, undeclared=objects)
    )


def approve(story: Story) -> list[Any]:
    return story.turn(Approved("ExclusiveScope", reason="they are leftovers"))


# --- the ProviderConfig


@pytest.mark.parametrize("fields", [SCOPE, PREFIX])
def test_a_new_scope_with_undeclared_objects_is_held_and_lists_them(fields: dict[str, Any]):
    story = scope_story(fields)
    assert story.outcome == "Converged", "no listing has completed yet"
    outcome = only(OutcomeRecorded, count(story, 5))
    assert (outcome.outcome, outcome.reason) == ("Held", "ExclusiveScope")
    assert "5 of 7 Block objects ('n0', 'n1', 'n2' and 2 more)" in outcome.message


def test_an_empty_scope_needs_no_approval():
    story = scope_story()
    assert every(UndeclaredCounted, count(story, 0))
    assert story.outcome == "Converged"
    assert count(story, 5) == [], "the kind is settled"


def test_declaring_all_objects_ends_the_hold():
    story = scope_story()
    count(story, 5)
    count(story, 0)
    assert story.outcome == "Converged"


def test_a_count_is_recorded_once_and_again_if_it_differs_much():
    story = scope_story()
    count(story, 5)
    assert count(story, 6) == []
    assert "12 of 14" in only(OutcomeRecorded, count(story, 12)).message
    names = only(UndeclaredCounted, count(story, 100)).undeclared["Block"].names
    assert len(names) == MAX_NAMES


def test_one_approval_settles_all_kinds():
    story = scope_story()
    count(story, 5)
    assert only(HoldApproved, approve(story)).hold == "ExclusiveScope"
    assert story.outcome == "Converged"
    assert count(story, 3, kind="Ball") == []


def test_a_report_of_an_earlier_scope_does_not_count():
    story = scope_story()
    declare(story, {**TESTS, "scope": {"mode": "Exclusive", "prefix": "a-"}})
    assert count(story, 0, generation=1) == []
    assert story.state.api.undeclared == {}


@pytest.mark.parametrize(
    "changed",
    [
        {**SCOPE, "endpoint": "http://elsewhere"},
        {**SCOPE, "scope": {"mode": "Exclusive", "prefix": "a-"}},
        {**SCOPE, "scope": {"mode": "Exclusive", "labels": {"team": "a"}}},
        {**PREFIX, "ownerPrefix": "o"},
        PREFIX,
    ],
)
def test_a_changed_scope_needs_its_own_approval(changed: dict[str, Any]):
    story = scope_story(PREFIX if "ownerPrefix" in changed and changed != PREFIX else SCOPE)
    count(story, 5)
    approve(story)
    declare(story, changed)
    count(story, 5)
    assert (story.outcome, story.reason) == ("Held", "ExclusiveScope")


def test_other_changes_keep_the_hold_and_the_approval():
    story = scope_story()
    count(story, 5)
    declare(story, {**SCOPE, "resyncSeconds": 60.0})
    assert (story.outcome, story.reason) == ("Held", "ExclusiveScope")
    report_failing(story)
    report_responding(story)
    assert (story.outcome, story.reason) == ("Held", "ExclusiveScope")
    approve(story)
    declare(story, {**SCOPE, "resyncSeconds": 90.0})
    assert story.outcome == "Converged"
    assert count(story, 5) == []


def test_a_shared_scope_is_not_held_and_an_exclusive_one_is_new_after_it():
    story = scope_story()
    count(story, 5)
    declare(story, TESTS)
    assert story.outcome == "Converged"
    assert count(story, 5) == []
    declare(story, SCOPE)
    assert every(UndeclaredCounted, count(story, 5))


def test_a_scope_is_new_after_a_withdrawal():
    story = scope_story()
    count(story, 5)
    approve(story)
    story.turn(Withdrawn())
    declare(story, SCOPE)
    assert every(UndeclaredCounted, count(story, 5))


def test_a_scope_that_an_earlier_release_declared_needs_no_approval():
    """Its declaration in the log has no undeclared objects."""
    story = scope_story()
    story.log[0] = replace(story.log[0], data=replace(story.log[0].data, undeclared=None))
    story.state = replace(story.state, api=replace(story.state.api, undeclared=None))
    declare(story, {**SCOPE, "resyncSeconds": 60.0})
    assert story.state.api.undeclared is None
    assert count(story, 5) == []


# --- its resources


def undeclared_story(config: ProviderConfigSpec = EXCLUSIVE, **counts: int) -> Story:
    story = Story(configs={CONFIG: config})
    story.new_scopes[CONFIG] = counts
    return story


@pytest.mark.parametrize("config", [EXCLUSIVE, BY_PREFIX])
def test_an_undeclared_object_is_not_deleted_before_the_approval(config: ProviderConfigSpec):
    story = undeclared_story(config)
    assert not every(OwnershipClaimed, story.observe_twice(api_object(), unmanaged=(1, 9)))
    assert (story.outcome, story.reason) == ("Held", "ExclusiveScope")
    assert "reconciler approve system/ProviderConfig/default" in story.outcome_message
    story.new_scopes[CONFIG] = {"Block": 1}
    assert story.wake() == [], "the objects are counted, but nothing is approved"


@pytest.mark.parametrize("counts", [None, {"Block": 0}], ids=["approved", "settled"])
def test_an_object_is_deleted_after_the_approval_and_another_listing(counts: dict[str, int] | None):
    story = undeclared_story()
    existing = api_object()
    story.observe_twice(existing, unmanaged=(1, 9))
    story.new_scopes = {} if counts is None else {CONFIG: counts}
    assert not every(ActionDecided, story.wake())
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    assert only(ActionDecided, story.observe(existing, unmanaged=(1, 9))).action.operation == (
        "Delete"
    )


def test_other_kinds_and_declared_objects_do_not_wait():
    story = undeclared_story(Ball=4)
    story.observe_twice(api_object(), unmanaged=(1, 9))
    assert (story.outcome, story.reason) == ("Held", "ExclusiveScope")
    declared = undeclared_story()
    declared.declare({"color": "Red"})
    declared.succeed()
    assert declared.outcome == "Converged"
    assert every(ActionDecided, declared.withdraw()), "its own object"


def test_a_label_of_this_log_is_evidence_of_its_own():
    story = undeclared_story(replace(EXCLUSIVE, ownership="Label"))
    existing: ExternalObject = replace(api_object(), labels=owned_labels())
    story.observe_twice(existing, unmanaged=(1, 9))
    assert story.reason != "ExclusiveScope"


def test_the_hold_of_an_object_is_approved_with_its_configuration():
    story = undeclared_story()
    story.observe_twice(api_object(), unmanaged=(1, 9))
    assert story.turn(Approved("ExclusiveScope")) == []
    assert "ProviderConfig" in story.reply.message
