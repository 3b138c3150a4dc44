"""A kind that is defined while everything is running."""

from __future__ import annotations

from events.intake import Declared, Withdrawn
from events.log import ActionDecided, SpecResolved
from tests.scenarios.harness import World, only
from tests.scenarios.test_definitions import DEFINITION, ONE, TWO, badge, declare_badges, definition


async def test_a_changed_definition_reaches_every_resource_and_is_in_the_log(world: World):
    await declare_badges(world)
    assert (await world.ask(DEFINITION, definition(constants={"type": "Hexagon"}))).accepted

    async def is_changed() -> bool:
        both = [await world.human.get(f"badge-{key.name}") for key in (ONE, TWO)]
        return all(each["type"] == "Hexagon" for each in both)

    await world.until(is_changed, "both objects follow the new definition")
    facts = await world.facts(ONE)
    before, after = (each for each in facts if isinstance(each, SpecResolved))
    assert before.definition != after.definition
    actions = [each.action for each in facts if isinstance(each, ActionDecided)]
    assert [each.definition for each in actions] == [before.definition, after.definition]


async def test_a_definition_survives_a_restart_and_its_resources_outlive_it(
    world: World,
):
    await declare_badges(world)
    await world.restart_reconciler()
    await world.declare_all([badge(TWO, "red")])
    await world.until_outcome(TWO, "Converged", generation=2)
    assert (await world.ask(DEFINITION, Withdrawn())).accepted

    refused = await world.ask(ONE, Declared(badge(ONE, "blue")))
    assert refused.message == "kind 'Badge': its KindDefinition was withdrawn; declare it again"
    await world.restart_reconciler()
    await world.publish(ONE, Withdrawn())
    await world.until_outcome(ONE, "Deleted")
    assert await world.human.find("badge-one") is None
    assert only(SpecResolved, await world.facts(ONE)).fields == {"type": "Circle", "color": "Red"}
