"""Which resource owns an external name, even while no object has it (ADR 0084)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from events.manifest import EXTERNAL_NAME_ANNOTATION, Fields
from events.names import ResourceKey
from projections.ownership import claim_name
from projections.read_models import ReadModels, rebuild
from reconciler.ports import ExternalName
from reconciler.provider.kind import Kind
from reconciler.roles.worker.name_checks import search_names
from tests.resource.building import BLOCK, CONFIG, FOO, Story, api_object, converged_story
from tests.resource.test_replacement import BESIDE, CIRCLE, IN_PLACE, SQUARE

OTHER = "team/Block/y"


def find_claims(_name: str, fields: Fields) -> Sequence[str]:
    return [f"tcp/{fields['color']}"]


CLAIMING = replace(BLOCK, find_claims=find_claims)


def models_of(story: Story) -> ReadModels:
    return rebuild(enumerate(story.log, 1))


def owner_of(story: Story, name: str = FOO.name, *, config: str = CONFIG) -> str:
    """Return what a resource learns that is about to use a name."""
    return models_of(story).names.find(config, FOO.kind, name, other_than=OTHER)


def test_a_resource_owns_the_name_of_its_object_but_not_one_that_it_only_declares() -> None:
    story = Story()
    story.declare()
    assert owner_of(story) == ""
    story.succeed()
    assert owner_of(story) == str(FOO)
    assert owner_of(story, "another") == owner_of(story, config="another") == ""


def test_a_resource_is_not_refused_its_own_name() -> None:
    names = models_of(converged_story()).names
    assert names.find(CONFIG, FOO.kind, FOO.name, other_than=str(FOO)) == ""


def test_a_name_stays_owned_until_the_lost_object_exists_again() -> None:
    story = converged_story()
    story.observe(None)
    assert not story.idle
    assert story.state.owned is None
    assert owner_of(story) == str(FOO)
    story.succeed(uid="u2")
    assert owner_of(story) == str(FOO)


def test_a_withdrawal_gives_the_name_up_once_the_object_is_gone() -> None:
    story = converged_story()
    story.withdraw()
    assert owner_of(story) == str(FOO)
    story.report()
    assert owner_of(story) == ""


def test_the_name_of_a_lost_object_is_given_up_by_a_withdrawal() -> None:
    story = converged_story()
    story.observe(None)
    story.fail("NotDone")
    story.withdraw()
    assert owner_of(story) == ""


def test_mode_absent_gives_the_name_up() -> None:
    story = converged_story()
    story.declare(policy={"mode": "Absent"})
    story.report()
    assert owner_of(story) == ""


def test_another_external_name_gives_the_lost_one_up() -> None:
    story = converged_story()
    story.declare(policy={"paused": True})
    story.observe(None)
    assert owner_of(story) == str(FOO)
    story.declare(policy={"paused": True}, annotations={EXTERNAL_NAME_ANNOTATION: "another"})
    assert owner_of(story) == owner_of(story, "another") == ""


def test_only_an_object_of_another_resource_ends_the_claim_to_its_name() -> None:
    """An object of no resource may be an earlier one of the same resource."""
    story, theirs = converged_story(), api_object(uid="theirs")
    story.observe(None)
    story.fail("Conflict", existing=theirs)
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert owner_of(story) == str(FOO)
    story.observe(theirs, belongs_to=OTHER)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    assert owner_of(story) == ""


@pytest.mark.parametrize("kind", [IN_PLACE, BESIDE], ids=["in place", "beside"])
def test_a_replacement_keeps_the_declared_name(kind: Kind) -> None:
    """The replaced object is deleted before or after the new one is created."""
    story = converged_story(CIRCLE, kind=kind)
    story.declare(SQUARE)
    while not story.idle:
        assert owner_of(story) == str(FOO)
        story.report() if story.action.operation == "Delete" else story.succeed()
    assert owner_of(story) == str(FOO)
    assert story.state.owned is not None
    assert owner_of(story, story.state.owned.external_name) == str(FOO)
    story.observe(None)
    assert owner_of(story) == str(FOO)


def test_the_names_of_two_owners_do_not_hide_each_other() -> None:
    models = models_of(converged_story())
    second = Story(key=ResourceKey("another", FOO.kind, FOO.name))
    second.declare()
    second.succeed()
    for position, event in enumerate(second.log, models.position + 1):
        models.apply(position, event)
    find = models.names.find
    assert find(CONFIG, FOO.kind, FOO.name, other_than=str(FOO)) == str(second.key)
    assert find(CONFIG, FOO.kind, FOO.name, other_than=str(second.key)) == str(FOO)


def test_claims_stay_with_the_name_and_end_with_the_object() -> None:
    """A claim that another write takes away ends with that write, and not before."""

    def owner_of_claim(claim: str) -> str:
        names = models_of(story).names
        return names.find(CONFIG, FOO.kind, claim_name(claim), other_than=OTHER, is_path=True)

    story = converged_story(kind=CLAIMING)
    color = story.existing.fields["color"]
    assert owner_of_claim(f"tcp/{color}") == owner_of_claim("tcp") == str(FOO)
    assert owner_of_claim(f"tcp/{color}/127.0.0.1") == str(FOO)
    assert owner_of_claim(f"tcp/{color}0") == owner_of_claim("udp") == ""
    story.observe(None)
    assert owner_of_claim(f"tcp/{color}") == str(FOO)
    story.succeed(uid="u2")
    story.declare({**story.state.desired.fields, "color": "Black"})
    assert not story.idle
    assert (owner_of_claim(f"tcp/{color}"), owner_of_claim("tcp/Black")) == (str(FOO), "")
    story.succeed()
    assert (owner_of_claim(f"tcp/{color}"), owner_of_claim("tcp/Black")) == ("", str(FOO))
    story.withdraw()
    story.report()
    assert owner_of_claim("tcp/Black") == ""


def test_an_adopted_object_has_its_claims() -> None:
    story = Story(kind=CLAIMING)
    existing = api_object(uid="theirs")
    story.declare(existing.fields, policy={"adoption": "Adopt"})
    story.fail("Conflict", existing=existing)
    story.observe_twice(existing)
    assert story.state.owned is not None
    name = claim_name(f"tcp/{existing.fields['color']}")
    assert models_of(story).names.find(CONFIG, FOO.kind, name, other_than=OTHER) == str(FOO)


def test_a_claim_of_the_own_namespace_does_not_hide_that_of_another() -> None:
    models = models_of(converged_story(kind=CLAIMING))
    color = converged_story(kind=CLAIMING).existing.fields["color"]
    second = Story(kind=CLAIMING, key=ResourceKey("another", FOO.kind, "second"))
    second.declare()
    second.succeed()
    for position, event in enumerate(second.log, models.position + 1):
        models.apply(position, event)

    def owner_for(requester: str) -> str:
        name = claim_name(f"tcp/{color}")
        return search_names(
            models, ExternalName(CONFIG, FOO.kind, name, requester, is_path=True, is_use=True)
        )

    assert owner_for("another/Block/third") == str(FOO)
    assert owner_for("third/Block/x") == str(second.key)
    assert owner_for("system/Block/x") == ""
    assert owner_for(str(FOO)) == owner_for(str(second.key)) == "", "each has the claim already"


def test_the_object_of_a_creation_in_flight_is_not_open_to_others() -> None:
    """It may exist before its result is known. Its name is not taken yet."""
    story = Story()
    story.declare()
    find_used = models_of(story).names.find_used
    assert list(find_used(CONFIG, FOO.kind, FOO.name, other_than=OTHER)) == [str(FOO)]
    assert owner_of(story) == ""
    story.succeed()
    find_used = models_of(story).names.find_used
    assert list(find_used(CONFIG, FOO.kind, FOO.name, other_than=OTHER)) == [str(FOO)]
