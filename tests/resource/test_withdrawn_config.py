"""A withdrawn ProviderConfig stays in effect until no resource uses it (ADR 0086)."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace

from events.hold import Hold
from events.intake import Approved, ForcedRelease, TimerFired, UsersReported
from events.log import (
    ActionDecided,
    BreakerOpened,
    OutcomeRecorded,
    OwnershipClaimed,
    ReleaseForced,
    ResourceEvent,
    SpecWithdrawn,
    TwinDetected,
)
from reconciler.resource.evolve import evolve
from reconciler.resource.withdrawn_config import hold_for_withdrawn_config
from tests.resource.building import (
    CONFIG,
    EXCLUSIVE,
    Story,
    api_object,
    converged_story,
    every,
    names,
    only,
)
from tests.resource.test_api_health import FIELDS, config_story, declare, report_failing
from tests.resource.test_api_silence import report_silent
from tests.resource.test_twin import newer_object, report_twin


def report_users(story: Story, count: int, *users: str) -> list[ResourceEvent]:
    generation = story.state.desired.generation
    return story.turn(
        UsersReported(generation, count, users or ("default/Block/Foo",) * (count > 0))
    )


def withdrawn_story() -> Story:
    story = config_story()
    story.withdraw()
    return story


# --- the ProviderConfig


def test_a_withdrawn_configuration_waits_for_the_report_of_its_users():
    story = config_story()
    events = story.withdraw()
    assert only(SpecWithdrawn, events).until_unused
    outcome = only(OutcomeRecorded, events)
    assert (outcome.outcome, outcome.reason) == ("Waiting", "UsersUnknown")


def test_an_unused_configuration_is_deleted():
    story = withdrawn_story()
    assert names(report_users(story, 0)) == ["UsersCounted", "OutcomeRecorded"]
    assert story.outcome == "Deleted"
    assert report_users(story, 0) == report_users(story, 1) == []


def test_a_configuration_in_use_is_held_and_names_its_users():
    story = withdrawn_story()
    report_users(story, 5, "a/Block/a", "b/Block/b", "c/Block/c")
    assert (story.outcome, story.reason) == ("Held", Hold.REFERENCED)
    assert "5 resources use it: a/Block/a, b/Block/b, c/Block/c and 2 more" in story.outcome_message
    assert report_users(story, 5, "a/Block/a", "b/Block/b", "c/Block/c") == []
    report_users(story, 1)
    assert "1 resource uses it: default/Block/Foo" in story.outcome_message
    assert names(report_users(story, 0)) == ["UsersCounted", "OutcomeRecorded"]
    assert story.outcome == "Deleted"


def test_a_report_about_an_earlier_withdrawal_is_ignored():
    story = withdrawn_story()
    earlier = story.state.desired.generation
    declare(story, FIELDS)
    assert story.turn(UsersReported(earlier, 0)) == []
    story.withdraw()
    assert story.turn(UsersReported(earlier, 0)) == []
    assert story.outcome == "Waiting"


def test_a_declaration_ends_the_hold():
    story = withdrawn_story()
    report_users(story, 1)
    declare(story, FIELDS)
    assert story.outcome == "Converged"
    assert report_users(story, 0) == []


def test_a_withdrawal_by_an_earlier_release_stays_effective():
    """Otherwise, an upgrade would resume calls to an API that an operator has stopped."""
    story = config_story()
    version = story.state.version + 1
    earlier = replace(story.log[-1], data=SpecWithdrawn(2), resourceversion=version)
    story.log.append(earlier)
    story.state = evolve(story.state, earlier)
    story.turn(TimerFired("Sweep"))
    assert story.outcome == "Deleted"
    assert report_users(story, 3) == []


def test_a_forced_release_ends_a_configuration_in_use():
    story = withdrawn_story()
    report_users(story, 3)
    events = story.turn(ForcedRelease("INC-42"))
    assert only(ReleaseForced, events).reason == "INC-42"
    assert story.outcome == "Deleted"
    assert report_users(story, 3) == []
    declare(story, FIELDS)
    story.withdraw()
    assert story.outcome == "Waiting", "the force applied to the earlier withdrawal"


def test_a_declared_configuration_is_not_released():
    story = config_story()
    assert story.turn(ForcedRelease("INC-42")) == []
    assert story.reply.reason == "StillDeclared"


def test_a_configuration_in_use_records_the_health_of_its_api():
    story = withdrawn_story()
    report_users(story, 1)
    assert every(BreakerOpened, report_failing(story))
    assert names(report_silent(story)) == ["ApiFellSilent"]
    ended = names(report_users(story, 0))
    assert ended == ["UsersCounted", "ApiSilenceEnded", "OutcomeRecorded"]
    assert report_failing(story) == []


def test_newer_objects_hold_a_configuration_in_use_until_an_approval():
    """Its users need the approval before they can be deleted."""
    story = withdrawn_story()
    report_users(story, 1)
    assert every(TwinDetected, report_twin(story, newer_object()))
    assert story.reason == Hold.TWIN
    story.turn(Approved(Hold.TWIN, reason="the copy was stopped"))
    assert story.reason == Hold.REFERENCED


# --- the resources


def test_a_new_resource_starts_nothing_under_a_withdrawn_configuration():
    story = Story()
    story.withdrawn_configs = (CONFIG,)
    story.declare()
    assert not every(ActionDecided, story.observe(None))
    assert story.reason == Hold.PROVIDER_CONFIG_MISSING
    story.withdrawn_configs = ()
    assert every(ActionDecided, story.wake())


def test_a_new_resource_adopts_nothing_under_a_withdrawn_configuration():
    story = Story()
    story.withdrawn_configs = (CONFIG,)
    story.declare(policy={"adoption": "Adopt"})
    assert not every(OwnershipClaimed, story.observe_twice(api_object()))
    assert story.reason == Hold.PROVIDER_CONFIG_MISSING


def test_no_undeclared_object_is_deleted_under_a_withdrawn_configuration():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.withdrawn_configs = (CONFIG,)
    assert not every(OwnershipClaimed, story.observe_twice(api_object(), unmanaged=(1, 20)))
    assert story.reason == Hold.PROVIDER_CONFIG_MISSING


def test_an_object_is_updated_recreated_and_deleted_under_a_withdrawn_configuration():
    story = converged_story()
    story.withdrawn_configs = (CONFIG,)
    assert only(ActionDecided, story.declare({"color": "Green"})).action.operation == "Update"
    story.succeed()
    events = story.observe(None)
    assert only(ActionDecided, events).action.operation == "Create"
    story.succeed()
    assert only(ActionDecided, story.withdraw()).action.operation == "Delete"
    story.succeed()
    assert story.outcome == "Deleted"


@pytest.mark.parametrize("claim", ["Found", "Returned"])
def test_an_object_that_a_resource_created_is_claimed_under_a_withdrawn_configuration(
    claim: Literal["Found", "Returned"],
):
    story = Story()
    story.declare()
    story.withdrawn_configs = (CONFIG,)
    step = OwnershipClaimed("Foo", "uid-1", claim, CONFIG)
    assert hold_for_withdrawn_config(step, story.state, story.context) is step


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_the_hold_names_the_withdrawn_configuration(is_withdrawn: bool):
    story = Story()
    story.configs = story.configs if is_withdrawn else {}
    story.withdrawn_configs = (CONFIG,) if is_withdrawn else ()
    story.declare()
    story.observe(None)
    verb = "was withdrawn" if is_withdrawn else "is not declared"
    assert f"ProviderConfig 'default' {verb}" in story.outcome_message
