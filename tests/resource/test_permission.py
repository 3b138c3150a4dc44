"""Permissions of namespaces to use a ProviderConfig and parts of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as other_kind

import pytest
from msgspec.structs import replace

from events.allow import Allow
from events.intake import TimerFired
from events.log import ActionAbandoned
from events.manifest import Fields
from reconciler.provider.host_access import HostUse
from tests.resource.building import (
    BLOCK,
    CONFIG,
    SHARED,
    Story,
    api_object,
    converged_story,
    every,
    names,
    repaint,
)


def _uses(fields: Fields) -> Sequence[HostUse]:
    return [HostUse("spec.color", "binds", f"/{fields.get('color', '')}", "paint it Red")]


PAINTED = other_kind(BLOCK, find_host_uses=_uses)
RED_ALLOWED = replace(SHARED, allow=Allow(binds=("/Red",)))
FOR_OTHERS = replace(SHARED, namespaces=("team-*", "billing"))


def test_a_resource_is_held_if_its_namespace_may_not_use_the_configuration():
    story = Story(configs={CONFIG: FOR_OTHERS})
    assert names(story.declare()) == ["SpecDeclared", "OutcomeRecorded"]
    assert (story.outcome, story.reason) == ("Held", "NotPermitted")
    assert story.outcome_message == (
        "namespace 'default' may not use ProviderConfig 'default'; use another one, or ask an "
        "operator to add the namespace to its spec.namespaces"
    )
    assert story.wake(3600) == []
    story.configs[CONFIG] = SHARED
    assert names(story.turn(TimerFired("ConfigChanged"))) == ["ActionDecided"]


@pytest.mark.parametrize(
    ("namespace", "permitted"),
    [("team-a", True), ("billing", True), ("system", True), ("team", False), ("billings", False)],
)
def test_whole_namespaces_are_matched_and_system_is_always_allowed(namespace: str, permitted: bool):
    assert FOR_OTHERS.may_be_used_in(namespace) is permitted


def test_a_configuration_allows_all_namespaces_by_default():
    assert SHARED.may_be_used_in("anything")
    assert not replace(SHARED, namespaces=()).may_be_used_in("anything")


@pytest.mark.parametrize("mode", ["Present", "CreateOnly"])
def test_a_resource_is_held_if_it_uses_a_disallowed_part_of_the_host(mode: str):
    story = Story(kind=PAINTED)
    assert names(story.declare(policy={"mode": mode})) == ["SpecDeclared", "OutcomeRecorded"]
    assert (story.outcome, story.reason) == ("Held", "NotPermitted")
    assert story.outcome_message == (
        "spec.color: '/Red' is not allowed by ProviderConfig 'default'; paint it Red, or ask an "
        "operator to add it to spec.allow.binds"
    )
    story.configs[CONFIG] = RED_ALLOWED
    assert names(story.turn(TimerFired("ConfigChanged"))) == ["ActionDecided"]


def test_an_object_that_is_no_longer_allowed_is_neither_changed_nor_deleted():
    story = converged_story(kind=PAINTED, configs={CONFIG: RED_ALLOWED})
    story.configs[CONFIG] = SHARED
    events = story.observe(repaint(story.existing, color="Green"))
    assert "ActionDecided" not in names(events)
    assert (story.outcome, story.reason) == ("Held", "NotPermitted")
    assert story.state.owned is not None


@pytest.mark.parametrize("config", [SHARED, replace(FOR_OTHERS, allow=Allow(binds=("/Red",)))])
@pytest.mark.parametrize("by", ["withdrawal", "Absent"])
def test_an_object_that_is_no_longer_permitted_can_be_deleted(config: object, by: str):
    story = converged_story(kind=PAINTED, configs={CONFIG: RED_ALLOWED})
    assert isinstance(config, type(SHARED))
    story.configs[CONFIG] = config
    if by == "withdrawal":
        story.withdraw()
    else:
        story.declare(policy={"mode": "Absent"})
    assert story.action.operation == "Delete"
    story.fail("NotDone")
    story.wake(3600)
    assert story.action.operation == "Delete"  # its retry is not held either
    story.succeed()
    assert story.idle
    assert story.state.owned is None
    if by == "withdrawal":
        assert story.outcome == "Deleted"


def test_nothing_is_adopted_without_permission():
    story = Story(configs={CONFIG: FOR_OTHERS})
    story.observe(api_object())
    story.declare(policy={"adoption": "Adopt"})
    assert story.state.owned is None
    assert story.reason == "NotPermitted"
    story.declare(policy={"mode": "ObserveOnly"})
    assert story.reason == "NotPermitted"


def test_a_declaration_that_was_never_permitted_is_deleted_immediately():
    story = Story(configs={CONFIG: FOR_OTHERS})
    story.declare()
    assert "ActionDecided" not in names(story.withdraw())
    assert (story.outcome, story.idle) == ("Deleted", True)


def test_an_action_that_had_no_effect_is_abandoned_when_its_permission_ends():
    story = Story(kind=PAINTED, configs={CONFIG: RED_ALLOWED})
    story.declare()
    story.configs[CONFIG] = SHARED
    events = story.fail("NotDone")
    assert [each.in_doubt for each in every(ActionAbandoned, events)] == [False]
    assert (story.outcome, story.reason, story.idle) == ("Held", "NotPermitted", True)
    assert story.wake(3600) == []


@pytest.mark.parametrize("was_done", [False, True])
def test_an_unpermitted_action_with_an_unknown_result_is_looked_up(was_done: bool):
    story = Story(kind=PAINTED, configs={CONFIG: RED_ALLOWED})
    story.declare()
    action = story.action
    story.configs[CONFIG] = SHARED
    story.fail("Unknown")
    events = story.wake(3600)
    assert names(events) == ["LookupDecided"]
    story.report_lookup(story.object_after(action) if was_done else None)
    assert (story.outcome, story.reason, story.idle) == ("Held", "NotPermitted", True)
    assert (story.state.owned is not None) is was_done  # the created object does not leak
    story.withdraw()
    assert ("Delete" if was_done else None) == (None if story.idle else story.action.operation)
