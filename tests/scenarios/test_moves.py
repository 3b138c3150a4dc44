"""A resource is renamed and keeps its object: scenario 48."""

from __future__ import annotations

import itertools

import pytest

from events.intake import Declared, FinalizerReleased, FinalizerRequested, Withdrawn
from events.log import MoveEnded, OwnershipClaimed, OwnershipReleased
from events.manifest import MOVED_FROM_ANNOTATION, Manifest, Metadata
from events.names import ResourceKey
from tests.scenarios.harness import World

FOO = ResourceKey("default", "Shape", "foo")
BAR = ResourceKey("default", "Shape", "bar")
RED = {"type": "Square", "color": "Red"}


def renamed(former: str = "foo", name: str = "bar", **spec: object) -> Manifest:
    metadata = Metadata(name, annotations={MOVED_FROM_ANNOTATION: former})
    return Manifest("shapes/v1", "Shape", metadata, {**RED, **spec})


async def until_moved(world: World) -> None:
    await world.until_outcome(BAR, "Converged")
    await world.until_outcome(FOO, "Deleted", reason="Moved")
    await world.until_observed_again()
    await world.until_settled()
    assert [each["name"] for each in await world.human.list_all()] == ["foo"]
    assert (await world.human.get("foo"))["labels"] == world.owner_of("bar")
    released = [each for each in await world.facts(FOO) if isinstance(each, OwnershipReleased)]
    claimed = [each for each in await world.facts(BAR) if isinstance(each, OwnershipClaimed)]
    assert [each.moved_to for each in released] == [str(BAR)]
    assert [each.moved and each.moved.moved_from for each in claimed] == [str(FOO)]


async def test_48_a_renamed_resource_keeps_its_object(world: World):
    await world.declare("foo")
    await world.until_outcome(FOO, "Converged")
    await world.declare_all([renamed()])
    await world.until_outcome(BAR, "Waiting", reason="MoveExpected")
    await world.until_observed_again()
    assert (await world.human.get("foo"))["labels"] == world.owner_of("foo"), "foo is declared"
    await world.withdraw("foo")
    await until_moved(world)
    assert await world.human.effects() == ["POST", "PUT"], "created once, and relabeled"
    await world.human.update("foo", color="Green")
    await world.until_observed_again()
    await world.until_outcome(BAR, "Converged")
    assert (await world.human.get("foo"))["color"] == "Red", "bar keeps the object as declared"
    await world.withdraw("bar")
    await world.until_outcome(BAR, "Deleted")
    assert await world.human.list_all() == []


async def test_48_a_withdrawn_resource_that_still_has_its_object_hands_it_over(world: World):
    await world.declare("foo")
    await world.until_outcome(FOO, "Converged")
    await world.ask_as("backup", FOO, FinalizerRequested("backup/dump"))
    await world.withdraw("foo")
    await world.until_outcome(FOO, "Held", reason="Finalizers")
    await world.declare_all([renamed()])
    await world.until_outcome(BAR, "Waiting", reason="MoveExpected")
    await world.ask_as("backup", FOO, FinalizerReleased("backup/dump"))
    await until_moved(world)


async def test_48_the_object_is_deleted_if_the_new_resource_no_longer_names_it(world: World):
    await world.declare("foo")
    await world.until_outcome(FOO, "Converged")
    await world.declare_all([renamed()])
    await world.until_outcome(BAR, "Waiting", reason="MoveExpected")
    await world.publish(BAR, Withdrawn())
    await world.until_outcome(BAR, "Deleted")
    await world.withdraw("foo")
    await world.until_outcome(FOO, "Deleted", reason="Gone")
    assert await world.human.list_all() == []
    assert any(isinstance(each, MoveEnded) for each in await world.facts(FOO))


@pytest.mark.parametrize("end", ["withdrawn", "no longer renamed"])
async def test_48_a_former_resource_that_hands_its_object_over_does_not_wait_for_ever(
    world: World, end: str
):
    await world.declare("foo")
    await world.until_outcome(FOO, "Converged")
    await world.declare_all([renamed(policy={"paused": True})])
    await world.until_outcome(BAR, "Paused")
    await world.withdraw("foo")
    await world.until_outcome(FOO, "Waiting", reason="MoveExpected")
    if end == "withdrawn":
        await world.publish(BAR, Withdrawn())
    else:
        await world.declare("bar")
    await world.until_outcome(FOO, "Deleted", reason="Gone")
    await world.until_outcome(BAR, "Deleted" if end == "withdrawn" else "Converged")
    names = [each["name"] for each in await world.human.list_all()]
    assert names == ([] if end == "withdrawn" else ["bar"])


async def test_48_without_an_object_to_take_over_one_is_created(world: World):
    await world.declare_all([renamed("never")])
    await world.until_outcome(BAR, "Converged")
    assert [each["name"] for each in await world.human.list_all()] == ["bar"]


async def test_48_a_second_new_name_creates_its_own_object(world: World):
    await world.declare("foo")
    await world.until_outcome(FOO, "Converged")
    await world.declare_all([renamed()])
    await world.until_outcome(BAR, "Waiting", reason="MoveExpected")
    await world.declare_all([renamed(name="baz")])
    await world.until_outcome(ResourceKey("default", "Shape", "baz"), "Converged")
    await world.withdraw("foo")
    await world.until_outcome(BAR, "Converged")
    names = sorted(each["name"] for each in await world.human.list_all())
    assert names == ["baz", "foo"]


async def test_48_an_invalid_former_name_is_refused(world: World):
    for former, mode in (("bar", "Present"), ("a/b", "Present"), ("foo", "ObserveOnly")):
        reply = await world.ask(BAR, Declared(renamed(former, policy={"mode": mode})))
        assert (reply.accepted, reply.reason) == (False, "Invalid"), (former, mode)


@pytest.mark.parametrize("names", [("foo", "bar"), ("foo", "bar", "baz")])
async def test_48_renames_in_a_circle_without_an_object_create_one_each(
    world: World, names: tuple[str, ...]
):
    """Otherwise, each would wait for the object of the next one, also after a withdrawal."""
    await world.declare(names[0], policy={"paused": True})
    await world.until_outcome(names[0], "Paused")
    for former, name in itertools.pairwise(names):
        await world.declare_all([renamed(former, name)])
        await world.until_outcome(name, "Waiting", reason="MoveExpected")
    await world.declare_all([renamed(names[-1], names[0])])
    keys = [ResourceKey("default", "Shape", each) for each in names]
    for key in keys:
        await world.until_outcome(key, "Converged")
    assert sorted(each["name"] for each in await world.human.list_all()) == sorted(names)
    for key in keys:
        await world.publish(key, Withdrawn())
    for key in keys:
        await world.until_outcome(key, "Deleted")
    assert await world.human.list_all() == []


async def test_48_two_resources_exchange_their_names_through_a_third_one(world: World):
    await world.declare("foo")
    await world.declare("bar", color="Blue")
    await world.until_outcome(FOO, "Converged")
    await world.until_outcome(BAR, "Converged")
    for former, new in (("foo", "bar"), ("bar", "foo")):
        reply = await world.ask(
            ResourceKey("default", "Shape", new), Declared(renamed(former, new))
        )
        assert (reply.accepted, reply.reason) == (False, "Immutable")
        assert f"the resource still owns object {new!r}" in reply.message
        assert "to exchange two names, use a third one" in reply.message
    for former, new, color in (
        ("foo", "aux", "Red"),
        ("bar", "foo", "Blue"),
        ("aux", "bar", "Red"),
    ):
        await world.declare_all([renamed(former, new, color=color)])
        await world.withdraw(former)
        await world.until_outcome(ResourceKey("default", "Shape", new), "Converged")
    await world.until_settled()
    owned = {each["name"]: each["labels"] for each in await world.human.list_all()}
    assert owned == {"foo": world.owner_of("bar"), "bar": world.owner_of("foo")}
    assert "DELETE" not in await world.human.effects()


async def test_48_each_resource_of_a_chain_names_where_to_look_for_what_it_waits_for(world: World):
    await world.declare("foo")
    await world.until_outcome(FOO, "Converged")
    await world.declare_all([renamed()])
    await world.until_outcome(BAR, "Waiting", reason="MoveExpected")
    await world.declare_all([renamed("bar", "baz")])
    baz = ResourceKey("default", "Shape", "baz")
    await world.until_outcome(baz, "Waiting", reason="MoveExpected")
    await world.withdraw("bar")
    waiting = await world.until_outcome(BAR, "Waiting", reason="MoveExpected")
    assert "`reconciler why default/Shape/foo`" in waiting.message
    waiting = await world.until_outcome(baz, "Waiting", reason="MoveExpected")
    assert "`reconciler why default/Shape/bar`" in waiting.message, "bar is already withdrawn"
