"""Composed kinds, in Python and by a definition, on the whole loop."""

from __future__ import annotations

import asyncio
import random
import re
import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from events.composition import COMPOSED_SET_KIND
from events.intake import Declared, Withdrawn
from events.log import SpecDeclared
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import Retry
from reconciler.provider.kind import Kind, KindRegistry
from shapes_api.kinds.shapes import SHAPE
from tests.composites.trio import (
    CONFIG,
    DEFINITION,
    KEY,
    definition,
    shape,
    spec,
    trio,
    with_part,
)
from tests.scenarios.harness import Human, World, api_config

ROOT = Path(__file__).parents[2]
COMPOSING_PATH = ROOT / "docs/how-to/compose-kinds.md"
COMPOSING = COMPOSING_PATH.read_text()
BOARD: Kind = runpy.run_path(str(ROOT / "examples/kinds/board.py"))["BOARD"]
BOARD_KEY = ResourceKey("default", "Board", "b")


@pytest.fixture
async def world(tmp_path: Path, api_url: str) -> AsyncIterator[World]:
    human = Human(api_url)
    async with World(tmp_path / "nats", human).open() as world:
        world.kinds = KindRegistry([SHAPE, BOARD])
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        assert (await world.ask(DEFINITION, definition())).accepted
        for name in ("composition", CONFIG):
            config = api_config(
                world.server.url,
                provider=name,
                retry=Retry(initial_seconds=0.1, max_seconds=0.3),
                consistency_grace_seconds=0.5,
            )
            await world.configure(config, name)
        yield world
    await human.close()


async def colors(world: World) -> dict[str, str]:
    return {each["name"]: each["color"] for each in await world.human.list_all()}


async def objects(world: World) -> dict[str, tuple[str, str]]:
    """Return the uid and version of each existing object by name."""
    shapes = await world.human.list_all()
    return {each["name"]: (each["uid"], str(each["version"])) for each in shapes}


async def wait_for_colors(world: World, **wanted: str) -> None:
    expected = {name.replace("_", "-"): color for name, color in wanted.items()}

    async def has_expected_colors() -> bool:
        return await colors(world) == expected

    try:
        await world.until(has_expected_colors, "the colors are as declared", seconds=20)
    except AssertionError:
        print(await colors(world), await world.client.status(KEY))
        raise


async def wait_until_ready(world: World, key: ResourceKey = KEY, generation: int = 1) -> Any:
    async def is_ready() -> bool:
        row = await world.client.status(key)
        return (
            row is not None
            and (row.outcome, row.observed_generation) == ("Converged", generation)
            and row.not_ready is None
        )

    try:
        await world.until(is_ready, f"{key} is ready", seconds=20)
    except AssertionError:
        print(await world.client.status(key))
        raise
    return await world.client.status(key)


async def generations(world: World) -> dict[str, int]:
    """Return the number of declarations of each shape."""
    names = await colors(world)
    facts = {name: await world.facts(name) for name in names}
    return {
        name: sum(type(each) is SpecDeclared for each in events) for name, events in facts.items()
    }


ALL = {"t_middle": "Red", "t_side": "White", "t_dot_a": "Black", "t_base": "Red"}


async def declare_and_wait(world: World, **fields: Any) -> None:
    await world.declare_all([trio(dots=["a"], **fields)])
    await wait_until_ready(world)


async def test_a_part_can_be_disabled_and_enabled_without_touching_the_others(world: World):
    await declare_and_wait(world)
    await wait_for_colors(world, **ALL)
    before, declared = await objects(world), await generations(world)

    await world.declare_all([trio(dots=["a"], side=False)])
    await wait_until_ready(world, generation=2)
    others = {name: color for name, color in ALL.items() if name != "t_side"}
    await wait_for_colors(world, **others)
    assert await objects(world) == {name: each for name, each in before.items() if name != "t-side"}
    assert await generations(world) == {each: 1 for each in declared if each != "t-side"}

    await world.declare_all([trio(dots=["a"])])
    row = await wait_until_ready(world, generation=3)
    await wait_for_colors(world, **ALL)
    assert row.outputs["components"]["dots"] == {"parts": 1, "ready": 1}
    after = await objects(world)
    assert {name for name in before if after[name] != before[name]} == {"t-side"}

    await world.publish(KEY, Withdrawn())
    await world.until_outcome(KEY, "Deleted")
    assert await colors(world) == {}
    await world.until_outcome(ResourceKey("default", COMPOSED_SET_KIND, "Trio-t"), "Deleted")


async def test_an_idle_composite_writes_no_event(world: World):
    await declare_and_wait(world)
    await world.until_observed_again(3)
    position_before = await world.log.last_position()
    await world.until_observed_again(4)
    assert await world.log.last_position() == position_before


async def test_created_parts_are_left_alone_and_present_parts_are_restored(world: World):
    await declare_and_wait(world)
    await world.human.update("t-base", color="Green")
    await world.human.update("t-middle", color="Green")
    await wait_for_colors(world, **{**ALL, "t_base": "Green"})

    await world.declare_all([trio(dots=["a"], color="Blue")])
    await wait_until_ready(world, generation=2)
    await wait_for_colors(world, **{**ALL, "t_base": "Green", "t_middle": "Blue"})
    assert (await generations(world))["t-base"] == 1

    await world.declare("t-base", color="Purple")
    await world.until_outcome("t-base", "Converged", generation=2)
    await world.declare_all([trio(dots=["a", "b"], color="Blue")])
    await wait_until_ready(world, generation=3)
    await world.until_observed_again(2)
    expected = {**ALL, "t_base": "Purple", "t_middle": "Blue", "t_dot_b": "Black"}
    await wait_for_colors(world, **expected)


async def test_a_changed_definition_updates_existing_objects(world: World):
    await declare_and_wait(world)
    before = await objects(world)
    fourth = with_part(name="fourth", when="children.side.ready", manifest=shape("Green"))
    fourth["composition"]["parts"][1]["manifest"]["spec"]["color"] = "Yellow"
    assert (await world.ask(DEFINITION, definition(fourth))).accepted
    await wait_for_colors(world, **{**ALL, "t_side": "Yellow", "t_fourth": "Green"})
    await wait_until_ready(world)
    after = await objects(world)
    assert {name for name in before if after[name] != before[name]} == {"t-side"}

    less = spec(parts=fourth["composition"]["parts"][:2])
    assert (await world.ask(DEFINITION, definition(less))).accepted
    await wait_for_colors(world, t_middle="Red", t_side="Yellow")


async def test_a_newly_failing_expression_keeps_existing_objects(world: World):
    divided = with_part(name="part", manifest=shape("= 1 / spec.divisor > 0 ? 'Red' : 'Blue'"))
    assert (await world.ask(DEFINITION, definition(divided))).accepted
    await world.declare_all([trio(dots=["a"]), trio("other")])
    await wait_until_ready(world)
    await wait_until_ready(world, ResourceKey("default", "Trio", "other"))
    colors_before = await colors(world)
    before = await objects(world)

    await world.declare_all([trio(dots=["a"], divisor=0, side=False)])
    outcome = await world.until_outcome(KEY, "Failed", generation=2)
    assert outcome.reason == "InvalidInput"
    assert outcome.message.startswith(
        'spec.composition.parts[4] (part): evaluating "1 / spec.divisor > 0'
    )
    await world.declare_all([trio("other", color="Blue")])
    await wait_until_ready(world, ResourceKey("default", "Trio", "other"), 2)
    assert {**await colors(world), "other-middle": "Red"} == colors_before, (
        "all other resources continue"
    )
    after = await objects(world)
    assert {each for each in before if after[each] != before[each]} == {"other-middle"}

    await world.declare_all([trio(dots=["a"], divisor=2, side=False)])
    await wait_until_ready(world, generation=3)
    assert (await colors(world)).keys() == colors_before.keys() - {"t-side"}

    await world.declare_all([trio(dots=["a"], divisor=0)])
    await world.until_outcome(KEY, "Failed", generation=4)
    await world.publish(KEY, Withdrawn())
    await world.until_outcome(KEY, "Deleted")
    assert {each for each in await colors(world) if each.startswith("t-")} == set()


async def test_after_many_quick_declarations_the_last_one_is_applied(world: World):
    rng = random.Random(52)
    await declare_and_wait(world)
    for _ in range(12):
        dots = rng.sample(["a", "b", "c", "a b"], rng.randint(0, 3))
        color = rng.choice(["Red", "Blue"])
        await world.declare_all([trio(dots=dots, side=rng.random() > 0.5, color=color)])
        await asyncio.sleep(rng.uniform(0, 0.1))
        if rng.random() > 0.7:
            await world.restart_reconciler()
    response = await world.ask(KEY, Declared(trio(dots=["a", "c"], side=False, color="Blue")))
    await wait_until_ready(world, generation=response.generation)
    await wait_for_colors(world, t_middle="Blue", t_dot_a="Black", t_dot_c="Black", t_base="Red")
    assert (await generations(world))["t-base"] == 1


async def test_a_part_that_its_kind_refuses_is_named_and_nothing_is_created(world: World):
    await world.declare_all([trio(dots=["A"])])
    outcome = await world.until_outcome(KEY, "Failed")
    assert outcome.message.startswith("default/Shape/t-dot-A: external name 't-dot-A': use 1 to 63")
    assert await colors(world) == {}


async def test_resources_outlive_their_definition_and_can_be_withdrawn(world: World):
    await declare_and_wait(world)
    await world.publish(DEFINITION, Withdrawn())
    await world.until_outcome(DEFINITION, "Deleted")
    await world.restart_reconciler()
    new = trio("new")
    assert not (await world.ask(new.key, Declared(new))).accepted
    await world.human.delete("t-side")
    await wait_for_colors(world, **ALL)
    await world.publish(KEY, Withdrawn())
    await world.until_outcome(KEY, "Deleted")
    assert await colors(world) == {}


@pytest.mark.parametrize(
    "written",
    [
        {"components": {"side": 7}, "given": 7},
        {"components": {"side": ["x"]}, "waiting": 1},
        {"components": 7, "hooked": {"x": {"from": 1}}},
    ],
)
async def test_a_set_written_by_another_client_does_not_hide_other_objects(
    world: World, written: Fields
):
    outcomes = spec(outputs={"title": {"value": "spec.color + children.side.outcome"}})
    assert (await world.ask(DEFINITION, definition(outcomes))).accepted
    await declare_and_wait(world)
    fields = {"parent": "default/Trio/bad", "uid": "u", "key": "k", "fields": written}
    bad = Manifest("reconciler/v1", COMPOSED_SET_KIND, Metadata("Trio-bad"), fields)
    await world.declare_all([bad])
    await world.withdraw("t-side")
    await world.until_outcome("t-side", "Deleted")
    await wait_for_colors(world, **ALL)


# --- documented examples


async def test_the_documented_example_works_unchanged(world: World):
    page = (ROOT / "docs/kinds/kind-definition.md").read_text()
    marker = "<!-- applied by tests/composites/test_parts_on_the_loop.py -->\n```yaml\n"
    documents: list[Fields] = [*yaml.safe_load_all(page.split(marker)[1].split("```")[0])]
    documents[1]["spec"] |= {"endpoint": world.server.url, "resyncSeconds": 0.2}
    for document in documents:
        manifest = msgspec.convert(document, Manifest)
        reply = await world.ask(manifest.key, Declared(manifest))
        assert reply.accepted, reply
    row = await wait_until_ready(world, ResourceKey("default", "Banner", "fair"))
    assert await colors(world) == {
        "fair-top": "Red",
        "fair-bottom": "White",
        "fair-emblem": "Yellow",
    }
    assert row.outputs["emblem"] == "Converged"


def test_quoted_code_is_in_the_named_file() -> None:
    quotes = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", COMPOSING, re.DOTALL)
    assert len(quotes) == COMPOSING.count("```python") > 0
    for path, quote in quotes:
        assert quote in (ROOT / path).read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", COMPOSING):
        assert (COMPOSING_PATH.parent / target).exists()


# --- the example in Python


def board(**fields: Fields) -> Manifest:
    its = {**fields, "providerConfigRef": {"name": "composition"}}
    return Manifest("boards/v1", "Board", Metadata(BOARD_KEY.name), its)


async def test_the_documented_board_is_created_painted_and_deleted(world: World):
    [example] = re.findall(r"```yaml\n(.*?)```", COMPOSING, re.DOTALL)
    declared = msgspec.convert(yaml.safe_load(example), Manifest)
    assert declared == board(badge={"enabled": True}, corners={"count": 2})
    await world.declare_all([declared])
    row = await wait_until_ready(world, BOARD_KEY)
    assert row.outputs["components"] == {
        "frame": {"parts": 1, "ready": 1},
        "corners": {"parts": 2, "ready": 2},
        "badge": {"parts": 1, "ready": 1},
    }
    corners = {"b_corner_0": "Blue", "b_corner_1": "Blue"}
    await wait_for_colors(world, b_frame="Black", b_badge="Red", **corners)
    frame = await world.human.get("b-frame")
    assert (frame["type"], frame["labels"]["first-color"]) == ("Square", "Black")
    before = await objects(world)

    painted = {"form": "Hexagon", "color": "White"}
    await world.declare_all(
        [board(frame=painted, badge={"enabled": True, "color": "Green"}, corners={"count": 2})]
    )
    await wait_until_ready(world, BOARD_KEY, 2)
    await wait_for_colors(world, b_frame="White", b_badge="Red", **corners)
    frame = await world.human.get("b-frame")
    assert (frame["type"], frame["labels"]["first-color"]) == ("Square", "Black")
    after = await objects(world)
    assert {name for name in before if after[name] != before[name]} == {"b-frame"}

    await world.declare_all([board(frame={"enabled": False}, corners={"count": 2})])
    await wait_until_ready(world, BOARD_KEY, 3)
    await wait_for_colors(world, **corners)
    position = await world.log.last_position()
    await world.until_observed_again(3)
    assert await world.log.last_position() == position, "an idle board causes no events"
    await world.publish(BOARD_KEY, Withdrawn())
    await world.until_outcome(BOARD_KEY, "Deleted")
    assert await colors(world) == {}
