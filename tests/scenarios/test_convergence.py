"""Scenarios 1 to 4, 24 and 26: resources converge to their declarations, and stay converged."""

from __future__ import annotations

from events.envelope import encode_intake
from events.intake import Declared
from events.log import (
    ActionDecided,
    DeclarationSuperseded,
    DriftDetected,
    FieldDifference,
    GenerationSuperseded,
    OutcomeRecorded,
    OwnershipReleased,
    SpecDeclared,
)
from events.subjects import intake
from tests.scenarios.harness import (
    ACTOR,
    World,
    every,
    manifest,
    now,
    only,
    shape,
    type_names,
)


async def test_1_a_declared_resource_is_created(world: World):
    await world.declare("foo", "Square", "Red")

    outcome = await world.until_outcome("foo", "Converged", generation=1)
    existing_shape = await world.human.get("foo")
    assert (existing_shape["type"], existing_shape["color"]) == ("Square", "Red")
    assert existing_shape["labels"] == world.owner_of("foo")
    assert await world.human.effects("foo") == ["POST"]
    assert {each.type: each.status for each in outcome.conditions} == {
        "Ready": "True",
        "Converged": "True",
    }
    assert type_names(await world.facts("foo")) == [
        "SpecDeclared",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
    ]


async def test_2_a_changed_color_is_one_update(world: World):
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged", generation=1)
    before = await world.human.get("foo")

    await world.declare("foo", color="Purple")

    await world.until_outcome("foo", "Converged", generation=2)
    after = await world.human.get("foo")
    assert (after["color"], after["uid"]) == ("Purple", before["uid"])
    assert await world.human.effects("foo") == ["POST", "PUT"]


async def test_3_a_deleted_object_is_recreated(world: World):
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=1)
    lost_shape = await world.human.get("foo")

    await world.human.delete("foo")

    existing_shape = await world.until(lambda: world.human.find("foo"), "foo is recreated")
    await world.until_outcome("foo", "Converged")
    await world.until_observed_again()
    assert (existing_shape["color"], existing_shape["labels"]) == ("Purple", world.owner_of("foo"))
    assert existing_shape["uid"] != lost_shape["uid"]
    assert await world.human.effects("foo") == ["POST", "human DELETE", "POST"]
    facts = await world.facts("foo")
    drift = only(DriftDetected, facts)
    assert (drift.generation, drift.missing, drift.differences) == (1, True, ())
    assert [(each.path, each.times) for each in drift.recent] == [("", 1)]
    assert only(OwnershipReleased, facts).reason == "Gone"
    assert only(OwnershipReleased, facts).uid == lost_shape["uid"]
    assert [each.outcome for each in every(OutcomeRecorded, facts)] == ["Converged", "Converged"]


async def test_4_a_repainted_object_gets_its_color_back(world: World):
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=1)

    await world.human.update("foo", color="Green")

    await world.until(lambda: is_color(world, "Purple"), "the color is Purple again")
    await world.until_observed_again()
    assert await world.human.effects("foo") == ["POST", "human PUT", "PUT"]
    drift = only(DriftDetected, await world.facts("foo"))
    assert drift.differences == (FieldDifference("color", desired="Purple", observed="Green"),)
    status = await world.status("foo")
    assert status is not None
    assert (status.outcome, status.drifts) == ("Converged", 1)


async def test_24_the_newest_of_five_declarations_in_a_row_wins(world: World):
    await world.stop_reconciler()
    colors = ["Red", "Green", "Blue", "Yellow", "Purple"]
    await world.declare_all([manifest("foo", color=color) for color in colors])

    await world.start_reconciler()

    async def is_purple() -> bool:
        outcomes = [each.outcome for each in await world.outcomes(shape("foo"))]
        return "Converged" in outcomes and (await world.human.get("foo"))["color"] == "Purple"

    await world.until(is_purple, "the newest declaration is applied")
    await world.until_settled()
    facts = await world.facts("foo")
    declared = [each.fields["color"] for each in every(SpecDeclared, facts)]
    # The bus may redeliver a message late: it is refused, and does not create a generation.
    assert len(declared) + len(every(DeclarationSuperseded, facts)) == len(colors)
    assert declared == [color for color in colors if color in declared]
    newest = len(declared)
    superseded = [(each.generation, each.by) for each in every(GenerationSuperseded, facts)]
    assert superseded == [(number, number + 1) for number in range(1, newest)]
    # The first may be delivered before the others: then the object is created and updated.
    decided = [each.action.generation for each in every(ActionDecided, facts)]
    assert decided in ([newest], [1, newest])
    assert await world.human.effects("foo") == ["POST", "PUT"][: len(decided)]


async def test_26_a_declaration_redelivered_late_and_out_of_order_is_one_generation(
    world: World,
):
    first = encode_intake("d-1", ACTOR, Declared(manifest("foo", color="Red")), time=now())
    second = encode_intake("d-2", ACTOR, Declared(manifest("foo", color="Purple")), time=now())
    subject = intake("desired", shape("foo"))

    replies = [await world.ask_raw(subject, each) for each in (first, first, second, first, second)]

    assert [(each.accepted, each.reason, each.generation) for each in replies] == [
        (True, "Accepted", 1),
        (True, "Duplicate", 1),
        (True, "Accepted", 2),
        (True, "Duplicate", 2),
        (True, "Duplicate", 2),
    ]
    await world.until_outcome("foo", "Converged", generation=2)
    await world.until_observed_again()
    assert (await world.human.get("foo"))["color"] == "Purple"
    facts = await world.facts("foo")
    assert len(every(SpecDeclared, facts)) == 2
    assert len(await world.human.effects("foo")) == len(every(ActionDecided, facts)) <= 2


async def is_color(world: World, color: str) -> bool:
    return (await world.human.get("foo"))["color"] == color
