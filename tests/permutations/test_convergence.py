"""Scenarios 1 to 4, 24 and 26: resources converge to their declarations, and stay converged."""

from __future__ import annotations

import uuid

from events.intake import Declared
from events.log import (
    ActionDecided,
    DriftDetected,
    GenerationSuperseded,
)
from tests.scenarios.harness import (
    World,
    every,
    manifest,
    only,
    shape,
)
from tests.scenarios.test_convergence import is_color


async def test_4_an_ignored_field_keeps_the_value_that_the_human_set(world: World):
    await world.declare("foo", "Square", "Purple", policy={"ignoreFields": ["type"]})
    await world.until_outcome("foo", "Converged", generation=1)

    await world.human.update("foo", type="Circle", color="Green")

    await world.until(lambda: is_color(world, "Purple"), "the color is Purple again")
    await world.until_observed_again()
    assert (await world.human.get("foo"))["type"] == "Circle"
    drift = only(DriftDetected, await world.facts("foo"))
    assert [each.path for each in drift.differences] == ["color"]

    await world.human.update("foo", type="Hexagon")

    await world.until_observed_again()
    assert (await world.human.get("foo"))["type"] == "Hexagon"
    assert await world.human.effects("foo") == ["POST", "human PUT", "PUT", "human PUT"]


async def test_24_a_generation_superseded_in_flight_is_recorded_and_the_newest_wins(
    world: World,
):
    await world.human.inject_faults(latency_ms=200, methods=["POST"])
    await world.declare("foo", color="Red")
    await world.until(lambda: is_in_flight(world), "the creation is in flight")

    await world.declare("foo", color="Purple")

    await world.until_outcome("foo", "Converged", generation=2)
    assert (await world.human.get("foo"))["color"] == "Purple"
    assert await world.human.effects("foo") == ["POST", "PUT"]
    assert only(GenerationSuperseded, await world.facts("foo")).by == 2


async def test_26_the_same_content_under_another_id_is_not_a_new_generation(world: World):
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged", generation=1)
    position = await world.log_position()

    reply = await world.ask(
        shape("foo"), Declared(manifest("foo", color="Red")), message_id=uuid.uuid4().hex
    )

    assert (reply.accepted, reply.reason, reply.generation) == (True, "Unchanged", 1)
    await world.until_observed_again()
    assert await world.log_position() == position
    assert await world.human.effects("foo") == ["POST"]


async def is_in_flight(world: World) -> bool:
    return bool(every(ActionDecided, await world.facts("foo")))
