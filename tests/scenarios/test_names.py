"""Scenario 46: a tenant cannot take the name of an object that another one has lost."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from events.intake import Withdrawn
from events.log import OutcomeRecorded
from events.manifest import EXTERNAL_NAME_ANNOTATION, Fields, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.providers.file import FILE
from reconciler.provider.kind import KindRegistry
from reconciler.wiring import ROLES
from shapes_api.kinds.shapes import SHAPE
from tests.scenarios.harness import World, api_config

RIVALS = [ResourceKey("rival", "Shape", f"rival-{number}") for number in range(20)]


def rival_manifest(key: ResourceKey) -> Manifest:
    metadata = Metadata(key.name, key.namespace, {}, {EXTERNAL_NAME_ANNOTATION: "foo"})
    return Manifest("shapes/v1", "Shape", metadata, {"type": "Circle", "color": "Black"})


async def declare_rivals(world: World, reason: str) -> None:
    await world.declare_all([rival_manifest(each) for each in RIVALS])
    for key in RIVALS:

        async def is_refused(key: ResourceKey = key) -> OutcomeRecorded | None:
            return next((each for each in await world.outcomes(key) if each.reason == reason), None)

        outcome = await world.until(is_refused, f"{key} is refused")
        assert outcome.outcome == "Conflict"
        assert "default" not in outcome.message


@pytest.mark.parametrize("together", [True, False], ids=["one process", "a process of its own"])
async def test_46_a_lost_object_is_created_again_by_its_owner(world: World, together: bool):
    """The rivals are declared before the loss, and while the object is missing."""
    worker = World.on_bus_of(world)
    if not together:
        await world.stop_reconciler()
        await world.start_reconciler([each for each in ROLES if each != "worker"])
        await worker.start_reconciler(["worker"])
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged")
    await declare_rivals(world, "OwnedByAnother")
    assert (await world.human.requests()).get("POST", {}).get("409", 0) == 0

    for _ in range(3):
        await world.human.delete("foo")
        await world.declare_all([rival_manifest(each) for each in RIVALS])

        async def is_back() -> bool:
            found = await world.human.find("foo")
            return found is not None and found["color"] == "Red"

        await world.until(is_back, "the owner creates its object again")
    await world.until_outcome("foo", "Converged")

    await world.withdraw("foo")

    async def is_taken() -> bool:
        found = await world.human.find("foo")
        return found is not None and found["color"] == "Black"

    await world.until(is_taken, "a rival creates an object with the free name")
    await worker.stop_reconciler()


def file_manifest(namespace: str, name: str, path: str) -> Manifest:
    metadata = Metadata(name, namespace, {}, {EXTERNAL_NAME_ANNOTATION: path})
    spec = {"providerConfigRef": {"name": "etc"}, "content": namespace}
    return Manifest("files/v1", "File", metadata, spec)


async def test_46_the_path_of_a_lost_file_becomes_no_directory(bare_world: World, tmp_path: Path):
    """A file below it, and one with the path of its directory, would prevent its creation."""
    world, root = bare_world, tmp_path / "root"
    root.mkdir()
    (root / ".reconciler-root").touch()
    world.kinds = KindRegistry([FILE])
    await world.start_reconciler()
    config = ProviderConfigSpec(provider="file", endpoint=root.as_uri(), resync_seconds=0.5)
    await world.configure(config, name="etc")
    ours = file_manifest("default", "ours", "app/config.ini")
    beside = file_manifest("rival", "beside", "app/other.ini")
    await world.declare_all([ours, beside])
    await world.until_outcome(ours.key, "Converged")
    await world.until_outcome(beside.key, "Converged")
    below = file_manifest("rival", "below", "app/config.ini/x")
    above = file_manifest("rival", "above", "app")
    await world.declare_all([below, above])
    for each in (below, above):
        outcome = await world.until_outcome(each.key, "Conflict")
        assert (outcome.reason, "ours" in outcome.message) == ("OwnedByAnother", False)
    for _ in range(3):
        shutil.rmtree(root / "app")
        await world.declare_all([below, above])

        async def is_back() -> bool:
            path = root / "app/config.ini"
            return path.is_file() and path.read_text() == "default"

        await world.until(is_back, "the owner writes its file again")

    await world.publish(ours.key, Withdrawn())
    await world.until_outcome(below.key, "Converged")
    assert (root / "app/config.ini/x").read_text() == "rival"


async def test_46_what_an_object_has_alone_stays_with_its_resource(bare_world: World):
    """Such as a port of the host, which an API refuses only while the first object exists."""
    world = bare_world

    def find_claims(_name: str, fields: Fields) -> Sequence[str]:
        return [f"color/{fields['color']}"]

    claiming = replace(SHAPE, find_claims=find_claims)
    world.kinds = KindRegistry([claiming])
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged")

    def rival(color: str) -> Manifest:
        return Manifest(
            "shapes/v1", "Shape", Metadata("bar", "rival"), {"type": "Circle", "color": color}
        )

    await world.declare_all([rival("Red")])
    waiting = await world.until_outcome(rival("Red").key, "Degraded", reason="NotDone")
    assert "color/Red belongs to a resource in another namespace; " in waiting.message
    for _ in range(3):
        await world.human.delete("foo")
        await world.declare_all([rival("Red")])

        async def is_back() -> bool:
            return await world.human.find("foo") is not None

        await world.until(is_back, "the owner creates its object again")
        assert await world.human.find("bar") is None

    await world.declare_all([rival("Green")])
    await world.until_outcome(rival("Green").key, "Converged")
    await world.declare_all([rival("Red")])
    await world.until_outcome(rival("Red").key, "Degraded", reason="NotDone")
    found = await world.human.find("bar")
    assert found is not None
    assert found["color"] == "Green"
    await world.declare("foo", "Circle", color="Red")
    await world.until_outcome("foo", "Converged", generation=2)

    await world.declare("foo", color="Blue")
    await world.until_outcome(rival("Red").key, "Converged")
